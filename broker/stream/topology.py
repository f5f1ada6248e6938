"""The stream `$topology`: what leads where, and who was there, each change as a row, so that it can be asked as of then.

    key of the row      body, as JSON
    bind, unbind        source, destination, destination_type, routing_key, arguments, grammar, assurance
    subscribe, unsubscribe    the same, of a session
    connect, disconnect       user, protocol
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from mypy_extensions import i64

from broker.binding import Binding
from broker.message import AT_LEAST_ONCE, Address, Message, Plain
from broker.store.values import dump
from broker.stream.queue import StreamQueue

#: The name of the queue.
TOPOLOGY: Final = "$topology"
#: What its rows take at most on disk.
OCTETS: Final = 256 << 20

_JSON: Final = Plain({"content_type": "application/json"})


class Topology:
    """Writes the rows. `count` is told of each that it is one copy, and no message that came in."""

    def __init__(self, queue: StreamQueue, count: Callable[[i64, i64], None]) -> None:
        self.queue = queue
        self._count = count

    def bound(self, source: str, binding: Binding, session: bool) -> None:
        self._record("subscribe" if session else "bind", _facts(source, binding, session))

    def unbound(self, source: str, binding: Binding, session: bool) -> None:
        self._record("unsubscribe" if session else "unbind", _facts(source, binding, session))

    def connected(self, user: str, protocol: str) -> None:
        self._record("connect", {"user": user, "protocol": protocol})

    def disconnected(self, user: str, protocol: str) -> None:
        self._record("disconnect", {"user": user, "protocol": protocol})

    def _record(self, event: str, facts: Mapping[str, object]) -> None:
        self._count(1, 0)
        self.queue.put(Message(Address("", event), dump(facts).encode(), _JSON, AT_LEAST_ONCE))


def _facts(source: str, binding: Binding, session: bool) -> dict[str, object]:
    target = binding.destination
    kind = "session" if session else "stream" if isinstance(target, StreamQueue) else "queue" if hasattr(target, "depth") else "exchange"
    return {"source": source, "destination": target.name, "destination_type": kind, "routing_key": binding.key,
            "arguments": dict(binding.arguments), "grammar": binding.grammar.name, "assurance": int(binding.assurance)}
