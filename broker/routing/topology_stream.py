"""The stream `$topology`: each change of exchanges, queues, bindings and connections, as a row.

With these rows, a reader of a journal can compute which queues and users each message could reach
when it was published.

    key of the row            body, as JSON
    declare, delete           kind (exchange, queue, stream), name; for a declared exchange also
                              type and alternate
    bind, unbind              source, destination, destination_type, routing_key, arguments,
                              grammar, assurance (the QoS)
    subscribe, unsubscribe    the same keys, for a session or a group with a shared subscription;
                              if a session does not receive its own messages, or may read only some
                              topics (arguments), `subscribe` also has user, and rules: pairs of a
                              boolean (true: allow) and a filter; the first matching rule decides.
                              The row is repeated if user or rules change
    connect, disconnect       user, protocol
    snapshot                  restarted: true if the rows before the snapshot are no longer valid
    complete                  the end of the snapshot: all objects are known now

A snapshot consists of rows `declare`, `bind` and `subscribe` for all objects that exist. The rows
of changes during the snapshot stand between them. There is a snapshot after each start. Later
snapshots let a reader begin in the middle of the stream. A later snapshot is made when two
conditions hold: a new segment has begun since the last snapshot, and the changes since then take
more than twice as many rows as the last snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from mypy_extensions import i64

from broker.messages.message import AT_LEAST_ONCE, Address, Message, PlainEncoding
from broker.routing.binding import NO_LOCAL, PARTLY, Binding
from broker.routing.subscriber import Subscriber
from broker.store.values import dump
from broker.stream.queue import StreamQueue

#: The name of the stream.
TOPOLOGY: Final = "$topology"
#: Size limit of the stream on disk, in bytes.
TOPOLOGY_BYTES_MAX: Final = 256 << 20

_JSON: Final = PlainEncoding({"content_type": "application/json"})


class TopologyStream:
    """The writer of the stream `$topology` of one virtual host.

    Each row counts as a copy, although no message was published for it: `count_copies` is called
    with 1 (copies) and 0 (unrepresentable copies). `begin_snapshot` is called when the stream has
    grown enough for a new snapshot.
    """

    def __init__(
        self,
        queue: StreamQueue,
        count_copies: Callable[[i64, i64], None],
        begin_snapshot: Callable[[], None],
    ) -> None:
        self.queue = queue
        self._count_copies = count_copies
        self._begin_snapshot = begin_snapshot
        #: Offset of the first row of the last snapshot.
        self._begun: i64 = queue.end
        #: Number of rows of the last snapshot; -1 while it is not complete.
        self._rows: i64 = -1

    def declared(self, kind: str, name: str) -> None:
        """Record that a queue or a stream was declared."""
        self._record("declare", {"kind": kind, "name": name})

    def declared_exchange(self, name: str, type_name: str, alternate: str | None) -> None:
        """Record that an exchange was declared, or got another alternate exchange."""
        self._record(
            "declare", {"kind": "exchange", "name": name, "type": type_name, "alternate": alternate}
        )

    def deleted(self, kind: str, name: str) -> None:
        """Record that an exchange, a queue or a stream was deleted."""
        self._record("delete", {"kind": kind, "name": name})

    def bound(self, source: str, binding: Binding, session: bool) -> None:
        """Record a new binding; `session` is True if its destination is a subscriber."""
        facts = binding_facts(source, binding, session)
        target = binding.destination
        if isinstance(target, Subscriber) and (
            NO_LOCAL in binding.arguments or PARTLY in binding.arguments
        ):
            facts.update(target.reader_facts())
        self._record("subscribe" if session else "bind", facts)

    def unbound(self, source: str, binding: Binding, session: bool) -> None:
        """Record a removed binding; `session` is True if its destination is a subscriber."""
        self._record(
            "unsubscribe" if session else "unbind", binding_facts(source, binding, session)
        )

    def connected(self, user: str, protocol: str) -> None:
        """Record that a client opened a connection as this user, by this protocol."""
        self._record("connect", {"user": user, "protocol": protocol})

    def disconnected(self, user: str, protocol: str) -> None:
        """Record that a connection of this user, by this protocol, has ended."""
        self._record("disconnect", {"user": user, "protocol": protocol})

    def snapshot(self, restarted: bool) -> None:
        """Begin a snapshot. The caller then records all objects, and calls `complete`.

        `restarted` is True if the rows before the snapshot are no longer valid.
        """
        self._begun = self.queue.end
        self._rows = -1
        self._record("snapshot", {"restarted": restarted})

    def complete(self) -> None:
        """Record the end of the snapshot."""
        self._rows = self.queue.end - self._begun
        self._record("complete", {})

    def _record(self, event: str, facts: Mapping[str, object]) -> None:
        self._count_copies(1, 0)
        self.queue.put(Message(Address("", event), dump(facts).encode(), _JSON, AT_LEAST_ONCE))
        # Make the next snapshot in a new segment, but not before the changes since the last
        # snapshot take twice as many rows as that snapshot: large snapshots must not fill the
        # stream.
        segments = self.queue.local.segments
        if (
            self._rows >= 0
            and segments
            and segments[-1].base > self._begun
            and self.queue.end - self._begun > 3 * self._rows
        ):
            self._begin_snapshot()


def binding_facts(source: str, binding: Binding, session: bool) -> dict[str, object]:
    """Return a binding of the exchange `source` as the fields of a row of the stream `$topology`.

    `session` is True if the binding is a subscription of an MQTT session.
    """
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
