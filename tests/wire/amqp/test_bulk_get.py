"""Tests of basic.get behind many messages that the broker discards or cannot send.

Each test counts turns of the agenda, or the actions in one turn; no test reads a clock.
"""

from __future__ import annotations

from typing import Any

import pamqp.commands as spec
import pytest
from pamqp.commands import Basic as B

from broker.access.identity import Identity
from broker.queues.policies import Policy
from tests.clients import Amqp, World, marshal
from tests.wire.amqp.bulk import MANY, QOS, TURN_MAX, expire, fill
from tests.wire.amqp.speech import deliveries, names, refusal

TOO_LARGE = (
    "the first 100 messages of queue 'q' in vhost '/' have properties that do not fit into "
    "frame_max 4096: connect with a larger frame_max"
)


def test_basic_get_waits_while_expired_messages_are_discarded() -> None:
    world = World()
    client, other = world.amqp(), world.amqp()
    client.queue("q", x_max_priority=1)
    fill(client, "q", MANY, expiration="10", priority=1)
    client.publish("", "q", b"live", priority=0)
    expire(world, 50)
    client.connection.receive_data(marshal(1, B.Get(queue="q", no_ack=True)) + marshal(1, QOS))
    assert client.connection.stalled and MANY + 1 - world.queue("q").depth <= TURN_MAX
    assert names(other.send(QOS)) == ["Basic.QosOk"]
    world.settle(client.connection)
    answers = client.read()
    assert [one.body for one in deliveries(answers)] == [b"live"]
    assert names(answers)[-1] == "Basic.QosOk"


def waiting_get(world: World, no_ack: bool) -> Amqp:
    """Return a client whose basic.get waits while the queue `q` discards expired messages."""
    client = world.amqp(user="u", consumer_cancel_notify=False)
    client.queue("q")
    client.queue("other")
    client.send(B.Consume(queue="other", consumer_tag="t"))
    fill(client, "q", MANY, expiration="10")
    client.publish("", "q", b"live")
    expire(world, 50)
    client.connection.receive_data(marshal(1, B.Get(queue="q", no_ack=no_ack)))
    assert client.connection.stalled
    return client


@pytest.mark.parametrize("no_ack", [True, False])
@pytest.mark.parametrize("end", ["connection", "channel"])
def test_a_get_that_waits_takes_no_message_once_its_channel_has_closed(
    end: str, no_ack: bool
) -> None:
    world = World()
    world.guests.identities["u"] = Identity("u")
    client, other = waiting_get(world, no_ack), world.amqp()
    if end == "connection":
        client.connection.close("expelled")
    else:
        world.guests.identities["u"] = Identity("u", read="^q$")
        world.review()
        assert names(client.read()) == ["Channel.Close"]
    world.settle(client.connection)
    assert (world.queue("q").depth, world.queue("q").unacked) == (1, 0)
    assert world.copies() == {"expired": MANY}
    [one] = deliveries(other.send(B.Get(queue="q", no_ack=True)))
    assert (one.body, one.redelivered) == (b"live", False)
    if end == "channel":
        # The connection handles input again, and its new channel can fetch messages.
        other.publish("", "q", b"more")
        client.send(spec.Channel.CloseOk(), spec.Channel.Open())
        [one] = deliveries(client.send(B.Get(queue="q", no_ack=no_ack)))
        assert one.body == b"more"
    client.connection.on_closed()
    world.settle()
    world.fates()


def test_a_get_that_waits_takes_its_message_from_the_queue_that_a_policy_puts_there() -> None:
    world = World()
    world.guests.identities["u"] = Identity("u")
    client = waiting_get(world, True)
    world.vhost.applied_policies.set_policy(
        Policy("/", "p", "q", "queues", 0, {"max-length": 50_000})
    )
    world.settle(client.connection)
    [one] = deliveries(client.read())
    assert one.body == b"live"
    assert world.copies() == {"expired": MANY, "auto_acknowledged": 1}


@pytest.mark.parametrize("arguments", [{}, {"x_max_length": 10_000}, {"x_max_priority": 2}])
def test_messages_that_do_not_fit_into_the_frames_of_a_client_stay_for_other_clients(
    arguments: dict[str, Any],
) -> None:
    world = World()
    publisher, reader = world.amqp(), world.amqp(frame_max=4_096)
    publisher.queue("q", **arguments)
    for number in range(90):
        publisher.publish("", "q", b"%d" % number, headers={"h": "x" * 5_000})
    publisher.publish("", "q", b"fits")
    [one] = deliveries(reader.send(B.Get(queue="q", no_ack=True)))
    assert one.body == b"fits"
    assert names(reader.send(B.Get(queue="q", no_ack=True))) == ["Basic.GetEmpty"]
    assert world.queue("q").depth == 90
    taken = publisher.send(*[B.Get(queue="q", no_ack=True)] * 45)
    messages = deliveries(taken)
    assert [(one.body, one.redelivered) for one in messages] == [
        (b"%d" % number, False) for number in range(45)
    ]
    publisher.send(B.Consume(queue="q", consumer_tag="t", no_ack=True))
    messages = deliveries(publisher.read())
    assert not any(one.redelivered for one in messages)
    assert world.copies() == {"auto_acknowledged": 91}
    world.fates()


def test_basic_get_looks_at_a_bounded_number_of_messages_that_do_not_fit() -> None:
    world = World()
    publisher, reader = world.amqp(), world.amqp(frame_max=4_096)
    publisher.queue("q")
    fill(publisher, "q", 3_000, headers={"h": "x" * 5_000})
    assert refusal(reader.send(B.Get(queue="q"))) == (
        "channel",
        406,
        "PRECONDITION_FAILED - " + TOO_LARGE,
        60,
        70,
    )
    assert world.queue("q").depth == 3_000 and world.copies() == {}
    [one] = deliveries(publisher.send(B.Get(queue="q", no_ack=True)))
    assert (one.body, one.redelivered) == (b"0", False)
