"""Tests of unexpected exceptions in work that the broker does after an input is handled.

Changes that have begun must be completed, and later work must still run.
"""

from __future__ import annotations

from typing import Any

import pytest

from broker.store.entries import StoreEntry
from broker.store.memory import MemoryStore
from tests.clients import World
from tests.wire.amqp.bulk import expire, fill
from tests.wire.amqp.speech import read


class FailingStore(MemoryStore):
    """A store whose `append` raises an error while `fails` is True."""

    def __init__(self) -> None:
        super().__init__()
        self.fails = False

    def append(self, entry: StoreEntry, ticket: Any) -> Any:
        if self.fails:
            raise RuntimeError("the store fails")
        return super().append(entry, ticket)


def test_an_exception_while_a_will_is_published_leaves_nothing_behind() -> None:
    store = FailingStore()
    world = World(store=store)
    client = world.amqp()
    client.queue("q", "amq.topic", "w", durable=True)
    users = world.vhost.contexts.users
    device = world.mqtt("d", will=("w", b"gone"), will_flags=0x28)
    assert world.vhost.contexts.users == users + 1
    store.fails = True
    device.connection.on_closed()
    with pytest.raises(RuntimeError):
        world.broker.agenda.turn()
    store.fails = False
    world.settle()
    assert world.vhost.publishing_session is None
    assert world.vhost.contexts.users == users


def test_exception_at_one_dead_letter_does_not_stop_later_ones() -> None:
    store = FailingStore()
    world = World(store=store)
    client = world.amqp()
    client.queue("dead_letters", durable=True)
    client.queue("q", x_dead_letter_exchange="", x_dead_letter_routing_key="dead_letters")
    fill(client, "q", 5, expiration="10", delivery_mode=2)
    expire(world, 50)
    store.fails = True
    with pytest.raises(RuntimeError):
        world.settle()
    store.fails = False
    world.settle()
    assert read(client, "dead_letters") == [b"1", b"2", b"3", b"4"]
    assert not world.vhost.moves
