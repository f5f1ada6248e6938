"""The stream `$topology`: what leads where, and who was there, each change as a row, so that it can
be asked as of then.

    key of the row            body, as JSON
    declare, delete           kind (exchange, queue, stream), name; of an exchange declared type, alternate
    bind, unbind              source, destination, destination_type, routing_key, arguments, grammar, assurance
    subscribe, unsubscribe    the same, of a session, or of a group of sessions that share a subscription
    connect, disconnect       user, protocol
    snapshot                  restarted: whether all rows before it are void
    complete                  the snapshot is whole: all is known from here on

Between `snapshot` and `complete` stand `declare`, `bind` and `subscribe` of all that is there, and
of what changes meanwhile. There is one after each start, and one in each segment, so that who reads
from the middle of the stream can begin with one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from mypy_extensions import i64

from broker.messages.message import AT_LEAST_ONCE, Address, Message, PlainEncoding
from broker.routing.binding import Binding
from broker.store.values import dump
from broker.stream.queue import StreamQueue

#: The name of the queue.
TOPOLOGY: Final = "$topology"
#: What its rows take at most on disk.
OCTETS: Final = 256 << 20

_JSON: Final = PlainEncoding({"content_type": "application/json"})


class TopologyStream:
    """Writes the rows.

    `count` is told of each that it is one copy, and no message that came in; `again` begins a
    snapshot.
    """

    def __init__(
        self, queue: StreamQueue, count: Callable[[i64, i64], None], again: Callable[[], None]
    ) -> None:
        self.queue = queue
        self._count = count
        self._again = again
        #: Where the last snapshot began; and how many rows it has, -1 while it is not whole: no
        #: other one begins then.
        self._begun: i64 = queue.end
        self._rows: i64 = -1

    def declared(self, kind: str, name: str) -> None:
        """A queue or stream."""
        self._record("declare", {"kind": kind, "name": name})

    def declared_exchange(self, name: str, type_name: str, alternate: str | None) -> None:
        self._record(
            "declare", {"kind": "exchange", "name": name, "type": type_name, "alternate": alternate}
        )

    def deleted(self, kind: str, name: str) -> None:
        self._record("delete", {"kind": kind, "name": name})

    def bound(self, source: str, binding: Binding, session: bool) -> None:
        self._record("subscribe" if session else "bind", _facts(source, binding, session))

    def unbound(self, source: str, binding: Binding, session: bool) -> None:
        self._record("unsubscribe" if session else "unbind", _facts(source, binding, session))

    def connected(self, user: str, protocol: str) -> None:
        self._record("connect", {"user": user, "protocol": protocol})

    def disconnected(self, user: str, protocol: str) -> None:
        self._record("disconnect", {"user": user, "protocol": protocol})

    def snapshot(self, restarted: bool) -> None:
        """What is there follows, then `complete`."""
        self._begun = self.queue.end
        self._rows = -1
        self._record("snapshot", {"restarted": restarted})

    def complete(self) -> None:
        self._rows = self.queue.end - self._begun
        self._record("complete", {})

    def _record(self, event: str, facts: Mapping[str, object]) -> None:
        self._count(1, 0)
        self.queue.put(Message(Address("", event), dump(facts).encode(), _JSON, AT_LEAST_ONCE))
        # A large snapshot does not come again before there are as many rows of other things, twice.
        segments = self.queue.archive.segments
        if (
            self._rows >= 0
            and segments
            and segments[-1].base > self._begun
            and self.queue.end - self._begun > 3 * self._rows
        ):
            self._again()


def _facts(source: str, binding: Binding, session: bool) -> dict[str, object]:
    target = binding.destination
    kind = (
        "session"
        if session
        else "stream"
        if isinstance(target, StreamQueue)
        else "queue"
        if hasattr(target, "depth")
        else "exchange"
    )
    return {
        "source": source,
        "destination": target.name,
        "destination_type": kind,
        "routing_key": binding.key,
        "arguments": dict(binding.arguments),
        "grammar": binding.grammar.name,
        "assurance": int(binding.qos),
    }
