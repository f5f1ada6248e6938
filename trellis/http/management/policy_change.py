"""The consequences of setting or deleting a policy: changed arguments, and lost messages of queues.

The module counts the messages that the broker discards as soon as the policy is set or deleted. The
broker discards messages if the limit of a queue becomes lower, or if `overflow` changes, so that a
full queue drops its oldest messages instead of refusing new ones:

    dropped         messages over `max-length` and `max-length-bytes` of queues, and rows of streams
                    without an archive over `max-age` and `max-length-bytes`
    dead_lettered   messages over a limit in queues that after the change have a dead letter
                    exchange

The module does not count messages that the broker discards later: the messages of a queue that is
deleted because it was unused for `expires`, and messages that consumers return more often than
`delivery-limit`. The change does not affect the time to live of messages that already wait.
"""

from __future__ import annotations

from array import array
from collections.abc import Generator, Iterator
from typing import Final

from broker.queues.arguments import NUMBER_MAX, UNLIMITED, QueueArguments
from broker.queues.peeking import PeekCursor, peek
from broker.queues.policies import Policy
from broker.queues.queue import Queue
from broker.routing.exchanges import Exchange
from broker.stream.queue import StreamQueue
from broker.vhost.vhost import VirtualHost
from trellis.http.management.answers import Row

#: Largest number of queues and exchanges that an answer lists.
SHOWN: Final = 20
#: Largest number of messages whose body sizes are added up for one answer. Further queues are
#: examined for `max-length` only, and counted in `uncounted`.
BODIES_MAX: Final = 200_000
#: Largest number of messages whose body sizes are read in one step.
BODIES_STEP: Final = 200
#: Largest number of body sizes that are subtracted in one step.
SIZES_STEP: Final = 2_000
#: Key of a policy about queues -> attribute of QueueArguments, and the value that means "not set".
EFFECTS: Final[dict[str, tuple[str, object]]] = {
    "message-ttl": ("ttl", -1),
    "expires": ("expires", -1),
    "max-length": ("max_length", int(UNLIMITED)),
    "max-length-bytes": ("max_bytes", int(UNLIMITED)),
    "overflow": ("overflow", None),
    "dead-letter-exchange": ("dead_letter_exchange", None),
    "dead-letter-routing-key": ("dead_letter_key", None),
    "delivery-limit": ("delivery_limit", -1),
    "consumer-timeout": ("consumer_timeout", -1),
    "delayed-retry-type": ("retry_type", "disabled"),
    "delayed-retry-min": ("retry_min", 0),
    "delayed-retry-max": ("retry_max", NUMBER_MAX),
    "max-age": ("max_age", -1),
    "stream-max-segment-size-bytes": ("segment_bytes", None),
}
#: The fates that are counted, and the number of queues whose bytes are not counted.
COUNTS: Final = ("dropped", "dead_lettered", "uncounted")


class PolicyChange:
    """Finds, in steps, the consequences of setting or deleting a policy; changes nothing."""

    def __init__(self, vhost: VirtualHost, name: str, policy: Policy | None) -> None:
        """Examine the change of the policy `name` to `policy`; None examines the deletion."""
        self._vhost = vhost
        self._name = name
        policies = vhost.policies
        self._after = policies.without(name) if policy is None else policies.having(policy)
        self._counts = dict.fromkeys(("queues", "exchanges", *COUNTS), 0)
        self._shown: list[Row] = []
        self._bodies_left = BODIES_MAX

    @property
    def row(self) -> Row:
        """The answer: the numbers of changed queues and exchanges, the counts of COUNTS, and the
        changes of at most SHOWN of the queues and exchanges.
        """
        names = {"vhost": self._vhost.name, "policy": self._name}
        return {**names, **self._counts, "changes": _most_lost(self._shown)}

    def steps(self) -> Iterator[None]:
        """Examine all queues and exchanges; each `next` on the iterator does one step."""
        for queue in list(self._vhost.queues.values()):
            yield from self._examine_queue(queue)
            yield None
        for exchange in list(self._vhost.exchanges.values()):
            self._examine_exchange(exchange)
            yield None

    def _add(self, row: Row) -> None:
        """Add the row of a changed queue or exchange to the answer."""
        self._counts[f"{row['type']}s"] += 1
        for name in COUNTS:
            self._counts[name] += row[name]
        self._shown.append(row)
        if len(self._shown) >= 10 * SHOWN:
            self._shown = _most_lost(self._shown)

    def _examine_queue(self, queue: Queue) -> Iterator[None]:
        declared = queue.arguments.arguments
        kind = declared.get("x-queue-type")
        before = self._vhost.policies.for_queue(queue.name, kind)
        applied = self._after.for_queue(queue.name, kind)
        if not self._is_among(before, applied):
            return
        policy = self._after.arguments(queue.name, declared)
        after = QueueArguments(queue.name, self._vhost.name, declared, policy, True)
        changes = {
            key: [value, _effect(after, key)]
            for key in EFFECTS
            if (value := _effect(queue.arguments, key)) != _effect(after, key)
        }
        if not changes:
            return
        row = _row("queue", queue.name, applied, changes) | {"messages": int(queue.depth)}
        if isinstance(queue, StreamQueue):
            row["dropped"] = _rows_over(queue, after)
        elif not after.reject_publish:
            over = max(0, int(queue.depth) - int(after.max_length))
            if after.max_bytes != UNLIMITED:
                sizes = array("q")
                yield from self._read_sizes(queue, sizes)
                over = max(over, (yield from _over_bytes(sizes, int(after.max_bytes))))
                row["uncounted"] = int(
                    self._bodies_left <= 0 and len(sizes) < int(queue.depth) - queue.paged
                )
            row["dropped" if after.dead_letter_exchange is None else "dead_lettered"] = over
        self._add(row)

    def _is_among(self, *policies: Policy | None) -> bool:
        """True if one of the policies has the name of the examined policy."""
        return any(policy is not None and policy.name == self._name for policy in policies)

    def _read_sizes(self, queue: Queue, sizes: array[int]) -> Iterator[None]:
        """Add the body sizes of the messages that wait in memory to `sizes`, the head first.

        Messages on disk do not count for `max-length-bytes`. For the whole answer, at most
        BODIES_MAX sizes are read.
        """
        cursor = PeekCursor()
        in_memory = int(queue.depth) - queue.paged
        while len(sizes) < in_memory and self._bodies_left > 0:
            messages = peek(queue, cursor, min(BODIES_STEP, in_memory - len(sizes)))
            if not messages:  # The queue has delivered messages meanwhile.
                return
            for peeked in messages:
                message = peeked.message
                sizes.append(0 if message is None else message.encoding.size(message.content))
            self._bodies_left -= len(messages)
            yield None

    def _examine_exchange(self, exchange: Exchange) -> None:
        if exchange.options.alternate is not None:
            return  # The exchange's own argument decides.
        policies, name = self._vhost.policies, exchange.name
        before, after = policies.alternate(name), self._after.alternate(name)
        applied = self._after.for_exchange(name)
        if self._is_among(policies.for_exchange(name), applied) and before != after:
            changes = {"alternate-exchange": [before, after]}
            self._add(_row("exchange", name, applied, changes))


def _row(kind: str, name: str, policy: Policy | None, changes: Row) -> Row:
    """Return the row of a changed queue or exchange that loses no messages.

    `policy` is the policy that applies after the change; None if no policy applies.
    """
    by = "" if policy is None else policy.name
    counts = dict.fromkeys(COUNTS, 0)
    return {"type": kind, "name": name, "policy": by, "messages": 0, **counts, "changes": changes}


def _most_lost(rows: list[Row]) -> list[Row]:
    """Return the SHOWN rows with the largest losses, the largest loss first.

    Among rows with equal losses, the queue with more messages comes first.
    """
    return sorted(
        rows,
        key=lambda row: (-row["dropped"] - row["dead_lettered"], -row["messages"], row["name"]),
    )[:SHOWN]


def _effect(arguments: QueueArguments, key: str) -> object:
    """Return the value of a policy's key in a queue's arguments; None if the key is not set."""
    attribute, unset = EFFECTS[key]
    value = getattr(arguments, attribute)
    return None if value == unset else value


def _over_bytes(sizes: array[int], limit: int) -> Generator[None, None, int]:
    """Return how many messages must leave a queue so that the others have at most `limit` bytes.

    `sizes` are the sizes of the messages in bytes, the head first. Each `next` does one step of
    the work.
    """
    total, over = sum(sizes), 0
    while total > limit:
        total -= sizes[over]
        over += 1
        if over % SIZES_STEP == 0:
            yield None
    return over


def _rows_over(stream: StreamQueue, after: QueueArguments) -> int:
    """Return the number of rows that a stream's retention removes under the arguments `after`.

    With an archive the number is 0, because the rows stay in the archive.
    """
    local = stream.local
    if local.archived is not None:
        return 0
    before, size, rows = 0, int(local.size), 0
    if after.max_age >= 0:
        before = (int(stream.agenda.wall * 1000) - int(after.max_age)) * 1000
    for segment in local.segments[:-1]:
        if segment.last_at >= before and size <= after.max_bytes:
            break
        rows += int(segment.end - segment.base)
        size -= int(segment.size)
    return rows
