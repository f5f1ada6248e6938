"""Tests of unexpected exceptions in work that the broker postpones for one client.

The client gets an internal error.
"""

from __future__ import annotations

import pamqp.commands as spec
import pytest

from broker.access.identity import Identity
from broker.queues.slices import MESSAGES_PER_SLICE
from protocols.amqp.channel.fetching import Fetch
from protocols.amqp.channel.publisher import ChannelPublisher
from protocols.amqp.channel.reauthorization import CHECKED_PER_SLICE
from protocols.amqp.channel.receiver import ChannelReceiver
from protocols.amqp.connection import states
from protocols.end_reasons import INTERNAL_ERROR
from tests.clients import World, marshal, publication
from tests.core.failing import Failing, finish
from tests.wire.amqp.bulk import fill


@pytest.mark.parametrize("method", ["prepare", "publish_committed"])
@pytest.mark.parametrize("at", [1, 3_000])
def test_a_commit_that_fails_closes_its_connection_with_an_internal_error(
    method: str, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    client = world.amqp()
    client.queue("q")
    client.send(spec.Tx.Select())
    many = 5_000
    client.connection.receive_data(publication("", "q", b"x") * many)
    world.settle(client.connection)
    client.read_bytes()
    failing = Failing(monkeypatch, ChannelPublisher, method, at)
    data = marshal(1, spec.Tx.Commit())
    assert finish(world, lambda: client.connection.receive_data(data)) == failing.failures == 1
    if client.connection.state == states.RUNNING:
        # The first slice runs while input is handled: the exception reaches the caller. In a
        # server, the caller is the link, which then closes the connection.
        assert (method, at) == ("prepare", 1)
        client.connection.close(INTERNAL_ERROR)
    frames = client.read()
    assert [(frame.name, frame.reply_code) for frame in frames] == [("Connection.Close", 541)]
    assert not client.connection.stalled
    client.connection.receive_data(marshal(0, spec.Connection.CloseOk()))
    world.settle(client.connection)
    assert client.connection.finished and not world.amqp_front.connections
    assert world.queue("q").depth == (0 if method == "prepare" else at - 1)


@pytest.mark.parametrize("many", [3, 3 * int(CHECKED_PER_SLICE)])
@pytest.mark.parametrize("method", ["cancel_unreadable", "_send_cancel"])
def test_a_check_of_consumers_that_fails_closes_their_connection(
    many: int, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    world.guests.identities["u"] = Identity("u")
    client, other = world.amqp(user="u"), world.amqp(user="u")
    client.queue("q")
    for number in range(many):
        client.send(spec.Basic.Consume(queue="q", consumer_tag=f"c{number}", nowait=True))
    other.send(spec.Queue.Declare(queue="r"), spec.Basic.Consume(queue="r", nowait=True))
    client.read_bytes()
    world.guests.identities["u"] = Identity("u", ".*", ".*", "^none$")
    # The failing call is an early one: for `other`, or for the last consumer of the first slice.
    failing = Failing(monkeypatch, ChannelReceiver, method, 2 if many == 3 else 3)
    assert finish(world, world.amqp_front.reauthorize) == failing.failures == 1
    closed = [
        one.reply_code
        for one in [*client.read(), *other.read()]
        if isinstance(one, spec.Connection.Close)
    ]
    assert closed == [541]
    # No consumer exists any more. The broker has found that the consumer's user may not read the
    # queue, or it has closed the consumer's connection.
    assert all(world.queue(name).consumer_count == 0 for name in ("q", "r"))


def test_a_basic_get_that_waits_and_fails_closes_its_connection_with_an_internal_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    client, reader = world.amqp(), world.amqp()
    client.queue("q")
    many = 3 * int(MESSAGES_PER_SLICE)
    fill(client, "q", many, expiration="10")
    assert world.queue("q").depth == many
    agenda = world.broker.agenda
    agenda.advance(int(agenda.now) + 50, agenda.wall + 0.05)
    reader.connection.receive_data(marshal(1, spec.Basic.Get(queue="q")))
    assert reader.connection.stalled
    failing = Failing(monkeypatch, Fetch, "_answer", 1)
    assert finish(world) == failing.failures == 1
    frames = reader.read()
    assert [(frame.name, frame.reply_code) for frame in frames] == [("Connection.Close", 541)]
    assert not reader.connection.stalled and world.queue("q").depth == 0
