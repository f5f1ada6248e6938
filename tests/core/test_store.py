"""Tests of what each store must do, in memory or on disk.

Positions grow, tickets count the changes that a confirm waits for, and a message may be settled
twice.
"""

from __future__ import annotations

from broker.messages.message import PLAIN, Address, Message
from broker.store.contract import Ticket, Waiter
from broker.store.entries import Defined, MessageSettled, MessageStored, RetainedSet, Undefined
from broker.store.memory import MemoryStore


class CountingWaiter(Waiter):
    def __init__(self) -> None:
        self.calls = 0

    def settled(self) -> None:
        self.calls += 1


def message() -> Message:
    return Message(Address("", "q"), b"body", PLAIN, 1)


def test_positions_grow_and_entries_are_applied_at_once() -> None:
    store = MemoryStore()
    first = store.append(MessageStored("/", message(), [1, 2]), None)
    second = store.append(MessageSettled(1, first), None)
    assert 0 < first < second
    assert store.state.messages[first].queues == [2]


def test_settling_is_idempotent() -> None:
    store = MemoryStore()
    position = store.append(MessageStored("/", message(), [1, 2]), None)
    for _ in range(2):
        store.append(MessageSettled(1, position), None)
        store.append(MessageSettled(1, 77), None)
    assert store.state.messages[position].queues == [2]
    store.append(MessageSettled(2, position), None)
    assert not store.state.messages


def test_a_ticket_is_settled_when_all_its_appends_are_durable() -> None:
    store, waiter = MemoryStore(), CountingWaiter()
    ticket = Ticket(waiter)
    store.append(MessageStored("/", message(), [1]), ticket)
    first = store.take()
    store.append(RetainedSet("/", "k", message()), ticket)
    first.write()
    store.written(first)
    assert (ticket.outstanding, waiter.calls) == (1, 0)
    store.sync()
    assert (ticket.outstanding, waiter.calls) == (0, 1)


def test_a_waiter_with_many_tickets_in_one_batch_is_called_once_when_all_are_settled() -> None:
    store = MemoryStore()

    class RecordingWaiter(Waiter):
        def __init__(self) -> None:
            self.seen: list[list[int]] = []

        def settled(self) -> None:
            self.seen.append([int(ticket.outstanding) for ticket in tickets])

    waiter = RecordingWaiter()
    tickets = [Ticket(waiter) for _ in range(3)]
    for ticket in tickets:
        store.append(MessageStored("/", message(), [1]), ticket)
    store.sync()
    assert waiter.seen == [[0, 0, 0]]


def test_a_batch_is_requested_once_and_again_when_it_becomes_urgent() -> None:
    class IdleWaiter(Waiter):
        def settled(self) -> None:
            pass

    store, requests = MemoryStore(), list[bool]()
    store.request_batch = lambda: requests.append(store.urgent)
    for _ in range(3):
        store.append(Undefined("/", "queue", "q"), None)
    assert requests == [False]
    store.sync()
    for ticket in (None, Ticket(IdleWaiter()), Ticket(IdleWaiter()), None):
        store.append(Undefined("/", "queue", "q"), ticket)
    assert requests == [False, False, True]
    store.sync()
    store.append(Undefined("/", "queue", "q"), Ticket(IdleWaiter()))
    assert requests == [False, False, True, True]


def test_definitions_are_stored_by_virtual_host_kind_and_name() -> None:
    store = MemoryStore()
    store.append(Defined("/", "queue", "q", {"auto_delete": False}), None)
    store.append(Defined("/", "exchange", "q", {}), None)
    store.append(Undefined("/", "queue", "q"), None)
    assert list(store.state.definitions) == [("/", "exchange", "q")]
