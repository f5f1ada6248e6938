"""Tests that faults which a review found in another AMQP broker do not exist in Trellis.

docs/amqp.md lists these faults.
"""

from __future__ import annotations

from typing import Any

import pamqp.commands as spec
import pytest

from broker.limits import BrokerLimits
from broker.queues.policies import Policy
from protocols.amqp.connection.handshake import GREETING
from tests.clients import World, marshal, unmarshal
from tests.wire.amqp.speech import Raw, deliveries, names, read, refusal

Q, B, X = spec.Queue, spec.Basic, spec.Exchange
#: Delays in milliseconds: just above 2^32, and 8 years.
LONG = [(1 << 32) + 5, 8 * 365 * 86_400_000]

COUNTERS = [
    "received_confirm",
    "confirmed",
    "delivered_auto",
    "delivered_manual",
    "get_auto",
    "get_manual",
    "get_empty",
    "redelivered",
    "acknowledged",
    "returned",
    "channels_opened",
    "channels_closed",
]


def test_a_declaration_that_is_refused_leaves_no_queue() -> None:
    limits = BrokerLimits()
    limits.queues = 1
    world = World(limits)
    client = world.amqp()
    client.queue("only")
    assert refusal(client.send(Q.Declare(queue="more")))[:2] == ("connection", 530)
    other = world.amqp()
    other.send(Q.Delete(queue="only"))
    assert refusal(other.send(Q.Declare(queue="bad", arguments={"x-max-length": -1}))).code == 406
    assert set(world.vhost.queues) == set()


@pytest.mark.parametrize("fewer", [1, 2, 3])
def test_a_lower_global_prefetch_holds_deliveries_until_enough_are_settled(
    fewer: int,
) -> None:
    client = World().amqp()
    client.queue("q")
    for number in range(10):
        client.publish("", "q", b"%d" % number)
    frames = client.send(
        B.Qos(prefetch_count=4, global_=True), B.Consume(queue="q", consumer_tag="t")
    )
    assert len(deliveries(frames)) == 4
    client.send(B.Qos(prefetch_count=fewer, global_=True))
    assert client.world.broker.agenda.idle
    heard = [len(deliveries(client.send(B.Ack(tag)))) for tag in (1, 2, 3, 4)]
    assert sum(heard) == fewer and heard[: 4 - fewer] == [0] * (4 - fewer)
    assert client.world.broker.agenda.idle


def test_two_consumers_of_one_channel_hold_each_message_once() -> None:
    client = World().amqp()
    client.queue("q")
    client.send(B.Consume(queue="q", consumer_tag="a"), B.Consume(queue="q", consumer_tag="b"))
    for _ in range(4):
        client.publish("", "q", b"x")
    assert (client.world.queue("q").unacked, client.world.queue("q").depth) == (4, 0)
    client.send(B.Ack(0, multiple=True))
    assert client.world.queue("q").unacked == 0
    client.world.fates()


def test_acknowledgement_in_one_chunk_with_connection_close_counts() -> None:
    client = World().amqp()
    client.queue("q")
    client.send(B.Consume(queue="q"))
    for _ in range(3):
        client.publish("", "q", b"x")
    client.connection.receive_data(
        marshal(1, B.Ack(2, multiple=True)) + marshal(0, spec.Connection.Close(200, "bye", 0, 0))
    )
    assert names(client.read()) == ["Connection.CloseOk"]
    assert client.world.queue("q").depth == 1 and client.world.copies() == {"acknowledged": 2}


@pytest.mark.parametrize("delay", LONG)
def test_a_delay_beyond_32_bits_is_kept_to_the_millisecond(delay: int) -> None:
    client = World().amqp()
    client.send(
        X.Declare(
            exchange="later",
            exchange_type="x-delayed-message",
            arguments={"x-delayed-type": "fanout"},
        )
    )
    client.queue("q", "later")
    client.publish("later", "", b"x", headers={"x-delay": delay})
    client.world.sleep(delay - 1)
    assert read(client, "q") == []
    client.world.sleep(1)
    assert read(client, "q") == [b"x"]


@pytest.mark.parametrize("time", LONG)
def test_an_expiration_beyond_32_bits_is_kept_to_the_millisecond(time: int) -> None:
    client = World().amqp()
    client.queue("q")
    client.publish("", "q", b"x", expiration=str(time))
    client.world.sleep(time - 1)
    assert client.world.queue("q").depth == 1
    client.world.sleep(1)
    assert client.world.queue("q").depth == 0


def test_a_policy_said_again_and_again_leaves_nothing_behind() -> None:
    world = World()
    client = world.amqp()
    client.queue("q")
    for number in range(200):
        client.publish("", "q", b"x")
        world.vhost.applied_policies.set_policy(
            Policy(
                "/", "short", "q", "all", 0, {"message-ttl": 60_000 + number, "expires": 600_000}
            )
        )
        world.settle(client.connection)
    assert len(world.broker.agenda._timers) < 10
    assert world.queue("q").depth == 200


@pytest.mark.parametrize("how", ["expiration", "expires", "ttl"])
def test_distant_times_leave_no_timers_behind(how: str) -> None:
    """Timers that are no longer needed are removed from the agenda.

    Messages are consumed and queues are deleted long before they would expire.
    """
    world = World()
    client = world.amqp()
    arguments: dict[str, Any] = {
        "expiration": {},
        "expires": {"x_expires": 10**9},
        "ttl": {"x_message_ttl": 10**9},
    }[how]
    client.queue("kept", x_expires=1_000)
    for number in range(300):
        client.queue("q", **arguments)
        expiration = str(10**9 - number) if how == "expiration" else str(10**10)
        client.publish("", "q", b"x", expiration=expiration)
        if how == "expiration":
            assert names(client.send(B.Get(queue="q", no_ack=True)))[0] == "Basic.GetOk"
        else:
            client.send(Q.Delete(queue="q"))
        world.settle(client.connection)
    assert len(world.broker.agenda._timers) < 100
    world.sleep(1_000)
    assert "kept" not in world.vhost.queues


@pytest.mark.parametrize(
    "wrong", [B.Ack(99), Q.Declare(queue="nope", passive=True), Q.Bind(queue="q", exchange="nope")]
)
def test_channel_is_closed_once_despite_methods_behind_the_error(wrong: Any) -> None:
    client = World().amqp()
    client.queue("q")
    client.connection.receive_data(
        b"".join(marshal(1, one) for one in (wrong, wrong, B.Get(queue="q"), wrong))
    )
    assert names(client.read()) == ["Channel.Close"]
    assert names(client.send(spec.Channel.CloseOk(), spec.Channel.Open())) == ["Channel.OpenOk"]


def test_every_counter_counts() -> None:
    world = World()
    client = world.amqp()
    client.queue("q")
    client.send(spec.Confirm.Select())
    for _ in range(4):
        client.publish("", "q", b"x")
    client.publish("", "nowhere", b"x", mandatory=True)
    client.send(
        B.Get(queue="q", no_ack=True),
        B.Get(queue="q"),
        B.Recover(requeue=True),
        B.Consume(queue="q", consumer_tag="m"),
    )
    client.send(B.Ack(0, multiple=True), B.Cancel("m"), B.Get(queue="q"))
    client.send(B.Consume(queue="q", no_ack=True))
    client.publish("", "q", b"x")
    client.send(B.Get(queue="q"))
    client.send(spec.Channel.Close(0, "", 0, 0))
    tally = world.amqp_front.tally
    counted = {name: int(getattr(tally, name)) for name in COUNTERS}
    assert all(counted.values()), counted


def test_a_purge_forgets_how_often_a_message_was_delivered() -> None:
    client = World().amqp()
    client.queue("q", x_delivery_limit=2)
    client.publish("", "q", b"old")
    client.send(B.Get(queue="q"), B.Nack(1, requeue=True))
    client.send(Q.Purge(queue="q"))
    client.publish("", "q", b"new")
    frames = client.send(B.Get(queue="q"))
    assert [(one.redelivered, one.body) for one in deliveries(frames)] == [(False, b"new")]


def test_a_held_high_priority_does_not_block_a_low_one() -> None:
    client = World().amqp()
    client.queue("q", x_max_priority=9)
    client.publish("", "q", b"high", priority=9)
    client.publish("", "q", b"low", priority=1)
    frames = client.send(B.Get(queue="q"), B.Get(queue="q"))
    assert [one.body for one in deliveries(frames)] == [b"high", b"low"]


def test_the_capabilities_that_are_told_are_kept() -> None:
    """Check that the broker does what the capabilities in its connection.start announce.

    It sends basic.cancel (consumer_cancel_notify). It closes the connection after a refused login
    (authentication_failure_close). test_alarms.py tests connection.blocked.
    """
    world = World()
    start = unmarshal(_greeting(world))[0]
    capabilities = start.server_properties["capabilities"]
    assert (
        all(capabilities.values())
        and {"connection.blocked", "consumer_cancel_notify", "authentication_failure_close"}
        <= capabilities.keys()
    )
    client, other = world.amqp(), world.amqp()
    client.queue("q")
    client.send(B.Consume(queue="q", consumer_tag="t"))
    other.send(Q.Delete(queue="q"))
    assert names(client.read()) == ["Basic.Cancel"]


def _greeting(world: World) -> bytes:
    return Raw(world).say(GREETING)
