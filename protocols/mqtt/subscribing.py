"""SUBSCRIBE and UNSUBSCRIBE at work: many topic filters take many turns.

A connection hears nothing else until it has its answer, so that packets keep their order.
"""

from __future__ import annotations

from typing import Final

from broker.agenda import Task
from broker.store.contract import Ticket
from protocols.connection import Connection
from protocols.mqtt.session import Session

#: Topic filters of one packet that are looked at in one turn.
SLICE: Final = 500


class Change(Task):
    """What one packet changes of a session's subscriptions: topic filters with the QoS granted to each."""

    def __init__(self, connection: Connection, session: Session, wanted: list[tuple[str, int]], answer: bytes) -> None:
        self.session = session
        self.ticket: Ticket = connection.ticket()
        self._connection = connection
        self._wanted = wanted
        self._answer = answer
        self._at = 0

    def run(self) -> None:
        connection = self._connection
        if connection.finished:
            return
        some = self._wanted[self._at:self._at + SLICE]
        self._at += SLICE
        for topic_filter, quality in some:
            self.change(topic_filter, quality)
        if self._at < len(self._wanted):
            connection.stall()
            connection.agenda.later(self)
            self.changed(some, True)
            return
        waited, connection.stalled = connection.stalled, False
        connection.answer_when_settled(self.ticket, self._answer)
        self.changed(some, connection.stalled)
        if waited and not connection.stalled:
            connection.go_on()

    def change(self, topic_filter: str, quality: int) -> None:
        raise NotImplementedError

    def changed(self, some: list[tuple[str, int]], unheard: bool) -> None:
        """These are done; `unheard` is whether the answer is still to come."""


class Subscribing(Change):
    """After the SUBACK come the retained messages."""

    def change(self, topic_filter: str, quality: int) -> None:
        self.session.subscribe(topic_filter, quality, self.ticket)

    def changed(self, some: list[tuple[str, int]], unheard: bool) -> None:
        self.session.unheard = unheard
        for topic_filter, _ in some:
            self.session.send_retained(topic_filter)


class Unsubscribing(Change):
    """The QoS does not matter."""

    def change(self, topic_filter: str, quality: int) -> None:
        self.session.unsubscribe(topic_filter, self.ticket)
