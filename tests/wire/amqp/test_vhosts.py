"""Several virtual hosts, the permission to enter them, and their connection limit."""

from __future__ import annotations

from typing import Any

import pamqp.commands as spec
import pytest

from broker.access.identity import Identity
from broker.limits import BrokerLimits
from tests.clients import World, mqtt_publish
from tests.wire.amqp.speech import names, open_channel, read, refusal

Q, B = spec.Queue, spec.Basic


class Local(Identity):
    """An identity of a user that may enter only one virtual host."""

    def __init__(self, name: str, home: str) -> None:
        super().__init__(name)
        self._home = Identity(name, configure="mine.*")
        self._vhost = home

    def for_vhost(self, vhost: str, client_id: str = "") -> Identity | None:
        return self._home if vhost == self._vhost else None


def bounded(**limits: int) -> World:
    broker_limits = BrokerLimits()
    for name, limit in limits.items():
        setattr(broker_limits, name, limit)
    return World(broker_limits)


def closed(client: Any) -> tuple[str, int, str]:
    error = refusal([one for one in client.greeting if one.name.endswith("Close")])
    return error.scope, error.code, error.text


def test_names_in_one_virtual_host_mean_nothing_in_another() -> None:
    world = World()
    world.broker.create_vhost("other")
    here, there = world.amqp(), world.amqp(vhost="other")
    for client, body in ((here, b"here"), (there, b"there")):
        client.queue("q", "amq.topic", "a")
        client.publish("amq.topic", "a", body)
    assert read(here, "q") == [b"here"] and read(there, "q") == [b"there"]
    assert (
        refusal(there.send(Q.Declare(queue="p", passive=True))).text
        == "NOT_FOUND - no queue 'p' in vhost 'other'"
    )


def test_a_connection_to_an_unknown_virtual_host_is_refused() -> None:
    assert closed(World().amqp(vhost="nope")) == (
        "connection",
        530,
        "NOT_ALLOWED - vhost nope not found",
    )


def test_a_user_without_permissions_in_a_virtual_host_cannot_enter_it() -> None:
    world = World()
    world.broker.create_vhost("home")
    world.guests.identities["u"] = Local("u", "home")
    assert closed(world.amqp(user="u")) == (
        "connection",
        530,
        "NOT_ALLOWED - access to vhost '/' refused for user 'u'",
    )
    client = world.amqp(user="u", vhost="home")
    assert names(client.send(Q.Declare(queue="mine"))) == ["Queue.DeclareOk"]
    assert refusal(client.send(Q.Declare(queue="other")))[:2] == ("channel", 403)
    world.mqtt("sensor", user="u/guest")
    assert not [one for one in world.mqtt_front.connections if not one.finished]


def test_the_connection_limit_of_a_virtual_host_counts_both_protocols() -> None:
    world = bounded(vhost_connections=2)
    world.amqp()
    sensor = world.mqtt("sensor")
    assert closed(world.amqp()) == (
        "connection",
        530,
        (
            "NOT_ALLOWED - access to vhost '/' refused for user 'guest': connection limit (2) is "
            "reached"
        ),
    )
    sensor.connection.on_closed()
    assert names(world.amqp().greeting)[-1] == "Channel.OpenOk"
    assert world.mqtt("other").greeting == b"\x20\x02\x00\x03"


def test_the_connection_limit_of_a_user_counts_all_virtual_hosts() -> None:
    world = bounded(user_connections=2)
    world.broker.create_vhost("other")
    world.guests.identities["u"] = Identity("u")
    first = world.amqp(vhost="other")
    world.amqp()
    assert (
        closed(world.amqp())[2]
        == "NOT_ALLOWED - connection refused for user 'guest': user connection limit (2) is reached"
    )
    assert names(world.amqp(user="u").greeting)[-1] == "Channel.OpenOk"
    first.send(spec.Connection.Close(0, "", 0, 0), channel=0)
    assert names(world.amqp().greeting)[-1] == "Channel.OpenOk"


def test_a_delayed_will_does_not_count_as_a_connection() -> None:
    world = bounded(user_connections=1)
    sensor = world.mqtt("sensor", will=("a", b"gone"), user="guest/guest")
    sensor.connection.on_closed()
    world.turn()
    assert names(world.amqp().greeting)[-1] == "Channel.OpenOk"
    assert sum(vhost.contexts.users for vhost in world.broker.vhosts.values()) == 1


def test_a_user_has_a_limit_of_channels() -> None:
    world = bounded(user_channels=3)
    client, other = world.amqp(), world.amqp()
    open_channel(client, 2)
    error = refusal(other.send(spec.Channel.Open(), channel=2))
    text = (
        "NOT_ALLOWED - number of channels opened for user 'guest' has reached the maximum "
        "allowed limit of (3)"
    )
    assert error == ("connection", 530, text, 20, 10)


def test_a_channel_has_a_limit_of_consumers() -> None:
    world = bounded(channel_consumers=2)
    client = world.amqp()
    client.queue("q")
    for _ in range(2):
        assert names(client.send(B.Consume(queue="q"))) == ["Basic.ConsumeOk"]
    assert refusal(client.send(B.Consume(queue="q"))) == (
        "connection",
        530,
        "NOT_ALLOWED - reached maximum (2) of consumers per channel",
        60,
        20,
    )


@pytest.mark.parametrize("exists", [True, False])
def test_an_mqtt_user_name_selects_the_virtual_host(exists: bool) -> None:
    world = World()
    if exists:
        world.broker.create_vhost("other")
    sensor = world.mqtt("sensor", user="other:guest/guest")
    if exists:
        client = world.amqp(vhost="other")
        client.queue("q", "amq.topic", "a")
        sensor.send(mqtt_publish("a", b"x"))
        assert read(client, "q") == [b"x"]
    else:
        assert sensor.connection.finished


def test_a_user_without_permissions_in_the_vhost_is_logged() -> None:
    world = World()
    world.guests.identities["u"] = Local("u", "elsewhere")
    logged: list[tuple[str, dict[str, object]]] = []
    world.amqp_front.log = lambda event, fields: logged.append((event, fields))
    assert closed(world.amqp(user="u"))[1] == 530
    ((event, fields),) = logged
    assert (event, fields["user"]) == ("login_refused", "u")
    assert "has no permissions in the vhost '/'" in str(fields["note"])
    assert fields["cause"] == "access"
