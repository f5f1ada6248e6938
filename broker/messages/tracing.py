"""Marks of traced messages: each step of a marked message is reported to its trace.

The mark is in the message's address (TracedAddress), because all copies of a message, in every
queue and session, share the address. The cost is one test of `Address.traced` at each delivery, and
one at each settlement.
"""

from __future__ import annotations

from mypy_extensions import i64

from broker.messages.fates import COPY_FATES
from broker.messages.message import Address, Message
from broker.messages.outlet import Outlet


class MessageTrace:
    """The trace of one message, to which the queues report what happens to the message."""

    def report(self, step: str, place: str, detail: str) -> None:
        """Record that the message has taken a step, such as "routed".

        `place` is the name of the queue, session or exchange. `detail` is a text for operators.
        """
        raise NotImplementedError

    def report_delivery(self, place: str, client: tuple[str, ...], detail: str) -> None:
        """Record that the queue or session `place` delivers the message to a client.

        `client` has the names of the client. `detail` is a text for operators.
        """
        text = " ".join((*(("to client", *client) if client else ()), detail))
        self.report("delivered", place, text)


class TwoTraces(MessageTrace):
    """The trace of a message that is traced twice: by an operator's trace, and as a sample.

    Each step of the message is reported to both traces.
    """

    def __init__(self, first: MessageTrace, second: MessageTrace) -> None:
        self._first = first
        self._second = second

    def report(self, step: str, place: str, detail: str) -> None:
        self._first.report(step, place, detail)
        self._second.report(step, place, detail)

    def report_delivery(self, place: str, client: tuple[str, ...], detail: str) -> None:
        self._first.report_delivery(place, client, detail)
        self._second.report_delivery(place, client, detail)


class TracedAddress(Address):
    """A copy of the address of a message, with the message's trace."""

    def __init__(self, original: Address, trace: MessageTrace) -> None:
        super().__init__(original.exchange, original.key)
        self.origin = original.origin
        self.routed = original.routed
        self.traced = True
        self.trace = trace


def readdressed(old: Address, new: Address) -> Address:
    """Return the address `new`, which continues the trace of the address `old` if it has one."""
    return TracedAddress(new, old.trace) if isinstance(old, TracedAddress) else new


def trace_of(message: Message) -> MessageTrace | None:
    """Return the trace of a message; None if the message is not traced."""
    address = message.address
    return address.trace if isinstance(address, TracedAddress) else None


def report(message: Message, step: str, place: str, detail: str = "") -> None:
    """Report a step of a message to its trace, if the message is traced."""
    trace = trace_of(message)
    if trace is not None:
        trace.report(step, place, detail)


def report_fate(message: Message, fate: i64, place: str) -> None:
    """Report that a copy of a traced message ended in a queue with this copy fate."""
    report(message, COPY_FATES[fate], place)


def report_requeue(message: Message, attempts: i64, place: str) -> None:
    """Report that a consumer returned a traced message, for the `attempts`-th time."""
    report(message, "requeued", place, f"number of returns: {int(attempts)}")


def report_paged(message: Message) -> None:
    """Report that a copy of a traced message is paged to disk: the trace does not follow it
    further.
    """
    report(
        message,
        "paged",
        "",
        "a copy of the message moved to disk; the trace does not follow this copy",
    )


def report_delivery(message: Message, place: str, outlet: Outlet, detail: str) -> None:
    """Report that a traced message is delivered to the client of an outlet."""
    trace = trace_of(message)
    if trace is not None:
        trace.report_delivery(place, outlet.client_names(), detail)


def continue_trace(message: Message, successor: Message, place: str) -> None:
    """Trace the message that the broker publishes in place of a traced message.

    The successor is a dead letter, or a delayed or moved message; `place` is the queue that
    `message` leaves.
    """
    trace = trace_of(message)
    if trace is not None:
        address = successor.address
        trace.report(
            "published_again",
            place,
            f"to exchange '{address.exchange or 'amq.default'}' with key '{address.key}'",
        )
        successor.address = readdressed(message.address, successor.address)
