"""$SYS/broker/...: the counters that the broker publishes."""

from __future__ import annotations

import pytest

from tests.clients import World
from tests.wire.mqtt.client import Client, connect, publications, subscribe
from tests.wire.mqtt5.client import Client5, publish, subscription
from tests.wire.mqtt5.test_connect import options

#: Topics that monitoring tools for Mosquitto read (mosquitto's manual, "Broker Status").
NAMES = {
    "version",
    "uptime",
    "clients/connected",
    "clients/disconnected",
    "clients/total",
    "clients/maximum",
    "clients/expired",
    "messages/received",
    "messages/sent",
    "messages/stored",
    "publish/messages/received",
    "publish/messages/sent",
    "publish/messages/dropped",
    "bytes/received",
    "bytes/sent",
    "subscriptions/count",
    "retained messages/count",
    "store/messages/count",
    "shared_subscriptions/count",
    "load/messages/received/1min",
    "load/messages/sent/5min",
    "load/publish/received/15min",
    "load/publish/dropped/1min",
    "load/bytes/received/1min",
    "load/bytes/sent/15min",
    "load/connections/1min",
    "load/sockets/5min",
}


def values(world: World, topic_filter: str) -> dict[str, str]:
    """Return topic -> value of the messages that follow the SUBACK of a new subscription.

    The topics lack the prefix $SYS/broker/.
    """
    _, *rest = Client5(world, "monitor").subscribe(subscription(topic_filter, 1))
    assert all(one.retain for one in rest)
    assert {int(one.qos) for one in rest} <= {0}
    return {one.topic.removeprefix("$SYS/broker/"): one.payload.decode() for one in rest}


def test_sys_topics_have_the_names_of_mosquitto() -> None:
    assert values(World(), "$SYS/#").keys() >= NAMES
    assert values(World(), "$SYS/broker/+").keys() == {"version", "uptime"}
    assert values(World(), "$SYS/broker/clients/connected") == {"clients/connected": "1"}


@pytest.mark.parametrize("topic_filter", ["#", "+/broker/uptime", "+/#"])
def test_wildcards_that_do_not_begin_with_sys_do_not_match_sys_topics(
    topic_filter: str,
) -> None:  # [MQTT-4.7.2-1]
    world = World()
    Client5(world, "m").subscribe(subscription("$SYS/#"))
    assert values(world, topic_filter) == {}
    world.sleep(100_000)


def test_sys_topics_are_renewed_and_changes_are_published() -> None:
    world = World()
    monitor, old = Client5(world, "monitor"), Client(world, connect("old"))
    monitor.subscribe(
        subscription("$SYS/broker/publish/messages/received", 0),
        subscription("$SYS/broker/uptime", 0, handling=2),
    )
    old.send(subscribe(1, ("$SYS/broker/clients/connected", 1)))
    writer = Client5(world, "w")
    for _ in range(3):
        writer.send(publish("a", b"x"))
    world.sleep(10_000)
    assert [(one.topic, one.payload, one.retain) for one in monitor.publications()] == [
        ("$SYS/broker/uptime", b"10 seconds", False),
        ("$SYS/broker/publish/messages/received", b"3", False),
    ]
    assert [(one.body, one.qos) for one in publications(old.read())] == [(b"3", 0)]
    world.sleep(10_000)
    assert [one.payload for one in monitor.publications()] == [b"20 seconds"]
    world.fates()


def test_loads_are_moving_averages() -> None:
    world = World()
    monitor, writer = Client5(world, "m"), Client5(world, "w")
    monitor.subscribe(subscription("$SYS/broker/load/publish/received/+", 0))
    heard: dict[str, float] = {}
    for _ in range(200):
        writer.send(*[publish("a", b"x")] * 100)
        world.sleep(10_000)
        heard |= {one.topic[-5:]: float(one.payload) for one in monitor.publications()}
    assert heard["/1min"] == pytest.approx(600, 0.01)
    assert 500 < heard["15min"] < 600


def test_sys_topics_are_not_computed_without_a_subscription() -> None:
    world = World()
    client = Client5(world)
    client.subscribe(subscription("$SYS/#"))
    assert world.broker.agenda.deadline > 0
    client.vanish()
    world.sleep(10_000)
    assert world.broker.agenda.deadline == 0


def test_sys_topics_can_be_turned_off() -> None:
    world = World(mqtt=options(sys_interval_s=0))
    assert values(world, "$SYS/#") == {}
    assert world.broker.agenda.deadline == 0


def test_amqp_hears_nothing_of_it() -> None:
    world = World()
    world.amqp().queue("q", "amq.topic", "#")
    Client5(world).subscribe(subscription("$SYS/#"))
    world.sleep(10_000)
    assert world.queue("q").depth == 0


def test_a_large_broker_is_counted_in_steps() -> None:
    world = World()
    many = [Client5(world, f"c{number}", session_expiry_interval=1_000) for number in range(2_500)]
    for client in many[:2_000]:
        client.vanish()
    monitor = Client5(world, "monitor")
    _, *heard = monitor.subscribe(subscription("$SYS/broker/clients/+", 0))
    values = {one.topic.rpartition("/")[2]: one.payload for one in heard}
    assert (values["connected"], values["disconnected"], values["total"]) == (
        b"501",
        b"2000",
        b"2501",
    )
