"""PUBACKs and PUBRECs that wait for the store, in the order of their publications [MQTT-4.6.0-2], [MQTT-4.6.0-3]."""

from __future__ import annotations

from mypy_extensions import i64

from broker.outlet import Outlet
from broker.store.contract import Ticket, Waiter
from protocols.mqtt.packets import write_answer


class Answer:
    """The first octet of a packet, its identifier, and what it waits for."""

    __slots__ = ("first", "packet_id", "ticket")

    def __init__(self, first: i64, packet_id: i64, ticket: Ticket | None) -> None:
        self.first: i64 = first
        self.packet_id: i64 = packet_id
        self.ticket = ticket


class Answers(Waiter):
    """Of one connection."""

    def __init__(self, outlet: Outlet) -> None:
        self._outlet: Outlet | None = outlet
        self._waiting: list[Answer] = []

    def give(self, first: i64, packet_id: i64, ticket: Ticket | None) -> None:
        """Write the answer now, or when its turn and its ticket have come. Hot path."""
        if ticket is not None and ticket.outstanding > 0:
            self._waiting.append(Answer(first, packet_id, ticket))
        elif self._waiting:
            self._waiting.append(Answer(first, packet_id, None))
        elif self._outlet is not None:
            write_answer(self._outlet.out, first, packet_id)

    def settled(self) -> None:
        waiting, outlet = self._waiting, self._outlet
        if outlet is None:
            return
        done = 0
        for answer in waiting:
            if answer.ticket is not None and answer.ticket.outstanding > 0:
                break
            done += 1
            write_answer(outlet.out, answer.first, answer.packet_id)
        if done:
            del waiting[:done]
            outlet.touch()

    def close(self) -> None:
        """Nobody is there to hear them."""
        self._waiting.clear()
        self._outlet = None
