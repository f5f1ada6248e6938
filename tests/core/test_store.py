"""The store's contract: positions grow, tickets count, waiters hear once, settling is idempotent."""

from __future__ import annotations

from broker.messages.message import PLAIN, Address, Message
from broker.store.contract import (
    Defined,
    MessageSettled,
    MessageStored,
    RetainedSet,
    Ticket,
    Undefined,
    Waiter,
)
from broker.store.memory import MemoryStore


class Ear(Waiter):
    def __init__(self) -> None:
        self.heard = 0

    def settled(self) -> None:
        self.heard += 1


def message() -> Message:
    return Message(Address("", "q"), b"body", PLAIN, 1)


def test_positions_grow_and_entries_are_applied_at_once() -> None:
    store = MemoryStore()
    first = store.append(MessageStored("/", message(), [1, 2]), None)
    second = store.append(MessageSettled(1, first), None)
    assert 0 < first < second
    assert store.state.messages[first].queues == [2]


def test_settling_twice_or_what_is_not_there_changes_nothing() -> None:
    store = MemoryStore()
    position = store.append(MessageStored("/", message(), [1, 2]), None)
    for _ in range(2):
        store.append(MessageSettled(1, position), None)
        store.append(MessageSettled(1, 77), None)
    assert store.state.messages[position].queues == [2]
    store.append(MessageSettled(2, position), None)
    assert not store.state.messages


def test_a_ticket_is_settled_when_all_its_appends_are_durable() -> None:
    store, ear = MemoryStore(), Ear()
    ticket = Ticket(ear)
    store.append(MessageStored("/", message(), [1]), ticket)
    first = store.take()
    store.append(RetainedSet("/", "k", message()), ticket)
    first.write()
    store.written(first)
    assert (ticket.outstanding, ear.heard) == (1, 0)
    store.sync()
    assert (ticket.outstanding, ear.heard) == (0, 1)


def test_a_waiter_with_many_tickets_in_one_batch_hears_once_when_all_are_settled() -> None:
    store = MemoryStore()

    class Looking(Waiter):
        def __init__(self) -> None:
            self.seen: list[list[int]] = []

        def settled(self) -> None:
            self.seen.append([int(ticket.outstanding) for ticket in tickets])

    waiter = Looking()
    tickets = [Ticket(waiter) for _ in range(3)]
    for ticket in tickets:
        store.append(MessageStored("/", message(), [1]), ticket)
    store.sync()
    assert waiter.seen == [[0, 0, 0]]


def test_somebody_is_asked_to_take_the_batch_once_and_again_when_it_becomes_urgent() -> None:
    class Nobody(Waiter):
        def settled(self) -> None:
            pass

    store, asked = MemoryStore(), list[bool]()
    store.wanted = lambda: asked.append(store.urgent)
    for _ in range(3):
        store.append(Undefined("/", "queue", "q"), None)
    assert asked == [False]
    store.sync()
    for ticket in (None, Ticket(Nobody()), Ticket(Nobody()), None):
        store.append(Undefined("/", "queue", "q"), ticket)
    assert asked == [False, False, True]
    store.sync()
    store.append(Undefined("/", "queue", "q"), Ticket(Nobody()))
    assert asked == [False, False, True, True]


def test_definitions_are_kept_by_vhost_kind_and_name() -> None:
    store = MemoryStore()
    store.append(Defined("/", "queue", "q", {"auto_delete": False}), None)
    store.append(Defined("/", "exchange", "q", {}), None)
    store.append(Undefined("/", "queue", "q"), None)
    assert list(store.state.definitions) == [("/", "exchange", "q")]
