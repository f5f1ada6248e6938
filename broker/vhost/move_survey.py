"""The dry run of a move: how many messages would go to which queue, and which would stay.

Nothing changes. The dry run looks at the first messages of the source, and at the destinations as
they are now: it counts the messages that fit into a queue with a length limit. While a real move
runs, consumers and publishers change the number of waiting messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from mypy_extensions import i64

from broker.access.identity import Identity
from broker.messages.message import Message
from broker.queues.peeking import PeekCursor, peek
from broker.queues.queue import Queue
from broker.routing.plan_search import SearchSlot
from broker.vhost.message_move import REASONS_MAX
from broker.vhost.move_destination import MoveDecision, MoveDestination, decide, problem_of
from broker.vhost.vhost import VirtualHost

#: Largest number of messages that a survey examines.
EXAMINED_MAX: Final = 10_000
#: Largest number of different queues that a survey counts.
QUEUES_MAX: Final = 1_000
#: Number of messages that the survey reads from the queue in one step.
_AT_ONCE: Final = 32


class MoveSurvey:
    """The dry run of a move: the iterator `steps` counts the messages that each queue would get."""

    def __init__(
        self,
        vhost: VirtualHost,
        identity: Identity,
        destination: MoveDestination,
        source: Queue,
        count: i64,
    ) -> None:
        self._vhost = vhost
        self._identity = identity
        self._destination = destination
        self._source = source
        #: Number of messages that the move would examine, and number that the survey has examined.
        self.messages = int(min(count, source.depth))
        self.examined = 0
        #: Largest number of messages that the survey examines.
        self._most = min(self.messages, EXAMINED_MAX)
        #: For each queue to which messages would go, the number of these messages.
        self.queues: dict[str, int] = {}
        #: The transient queues among `queues`: their messages do not survive a restart.
        self.transient: set[str] = set()
        #: Number of messages that would stay, by reason.
        self.refused: dict[str, int] = {}
        #: For each queue to which messages would go: their number, and their size in bytes.
        self._added: dict[Queue, tuple[int, int]] = {}

    def steps(self) -> Iterator[None]:
        """Count where the messages would go; each iteration does one bounded step.

        Raises OutOfDescriptors if no file descriptor is free to read the messages.
        """
        cursor = PeekCursor()
        while self.examined < self._most:
            peeked = peek(self._source, cursor, min(_AT_ONCE, self._most - self.examined))
            if not peeked:
                return
            for one in peeked:
                if self.examined >= self._most:
                    return
                if one.message is not None:
                    yield from self._examine(one.message)
                yield

    def _examine(self, message: Message) -> Iterator[None]:
        slot = SearchSlot()
        decision: MoveDecision | str | None = None
        while decision is None:
            decision = decide(
                self._vhost, self._identity, self._destination, self._source, message, slot
            )
            if decision is None:
                yield
        if isinstance(decision, str):
            self._count_refused(decision)
            return
        refusal = decision.refusal or self._without_room(decision)
        if refusal:
            self._count_refused(refusal)
        else:
            self._count_moved(decision)

    def _without_room(self, decision: MoveDecision) -> str:
        """Return which queue has no room after the earlier messages, and why; "" if all fit."""
        for queue in decision.queues:
            more, more_bytes = self._added.get(queue, (0, 0))
            problem = problem_of(queue, decision.message, more, more_bytes) if more else ""
            if problem:
                return f"queue '{queue.name}' {problem}"
        return ""

    def _count_moved(self, decision: MoveDecision) -> None:
        self.examined += 1
        size = int(decision.message.encoding.size(decision.message.content))
        for queue in decision.queues:
            more, more_bytes = self._added.get(queue, (0, 0))
            self._added[queue] = (more + 1, more_bytes + size)
            if queue.name in self.queues or len(self.queues) < QUEUES_MAX:
                self.queues[queue.name] = self.queues.get(queue.name, 0) + 1
            if not queue.durable:
                self.transient.add(queue.name)

    def _count_refused(self, reason: str) -> None:
        """Count a message that would stay.

        A move with the same destination for all messages would stop there, so all later messages
        are counted as staying, too.
        """
        left = self._most - self.examined if self._destination.same_for_all else 1
        self.examined += left
        if reason in self.refused or len(self.refused) < REASONS_MAX:
            self.refused[reason] = self.refused.get(reason, 0) + left
