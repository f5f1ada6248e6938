"""Permissions that change while clients are connected, and partly permitted subscriptions."""

from __future__ import annotations

from itertools import islice, product
from typing import Any

import mqtt5
import pamqp.commands as spec
import pytest

from broker.access.identity import Identity
from broker.access.rules import UserPermissions
from tests.clients import Guests, World, mqtt_publish, packet
from tests.wire.amqp.speech import names
from tests.wire.mqtt.client import RETAIN, connect, publications, suback, subscribe
from tests.wire.mqtt5.client import Client5, subscription

NOT_AUTHORISED = 0x87
QUOTA_EXCEEDED = 0x97


def rights(*rules: str, read: str = ".*", write: str = ".*", client_id: str = "") -> Identity:
    return UserPermissions("u", "/", (".*", write, read), rules).identity(client_id)


def world_of(*rules: str) -> World:
    world = World()
    world.guests.identities["u"] = rights(*rules)
    return world


def client_of(world: World, client_id: str = "c", **options: Any) -> Client5:
    return Client5(world, client_id, username="u", password=b"guest", **options)


def bodies(packets: list[Any]) -> list[bytes]:
    return [one.payload for one in packets if isinstance(one, mqtt5.PublishPacket)]


def subscribed(client: Client5, *filters: str, packet_id: int = 1) -> list[Any]:
    """Return the output after a SUBSCRIBE; it begins with the SUBACK."""
    return client.send(mqtt5.SubscribePacket(packet_id, [subscription(one) for one in filters]))


def codes(packets: list[Any]) -> list[int]:
    answer = packets[0]
    assert isinstance(answer, mqtt5.SubAckPacket)
    return [int(code) for code in answer.reason_codes]


# -- filters that the user may read in part


def test_partly_permitted_filter_gets_the_permitted_topics() -> None:
    world = world_of("deny subscribe secret/#", "allow all #")
    client, writer = client_of(world), world.mqtt("w")
    assert codes(subscribed(client, "#", "secret/x", "open/+")) == [2, NOT_AUTHORISED, 2]
    for topic in ("secret/a", "open/a", "secret", "other"):
        writer.send(mqtt_publish(topic, topic.encode()))
    assert bodies(client.read()) == [b"open/a", b"other"]


def test_retained_messages_of_such_a_filter_too() -> None:
    world = world_of("deny subscribe secret/#", "allow all #")
    writer = world.mqtt("w")
    for topic in ("secret/a", "open/a"):
        writer.send(mqtt_publish(topic, topic.encode(), flags=RETAIN))
    client = client_of(world)
    assert bodies(subscribed(client, "#")) == [b"open/a"]


@pytest.mark.parametrize("topic_filter", ["$share/g/#", "$SYS/#"])
def test_partly_permitted_shared_or_sys_filter_is_refused(topic_filter: str) -> None:
    client = client_of(
        world_of("deny subscribe secret/#", "deny subscribe $SYS/broker/uptime", "allow all #")
    )
    assert codes(subscribed(client, topic_filter)) == [NOT_AUTHORISED]


def test_a_binding_is_all_or_nothing_for_a_queue_may_have_other_readers() -> None:
    client = world_of("deny subscribe secret/#", "allow all #").amqp(user="u")
    client.send(spec.Queue.Declare(queue="q"))
    assert names(
        client.send(spec.Queue.Bind(queue="q", exchange="amq.topic", routing_key="open.*"))
    ) == ["Queue.BindOk"]
    assert names(
        client.send(spec.Queue.Bind(queue="q", exchange="amq.topic", routing_key="*.a"))
    ) == ["Channel.Close"]


def test_a_binding_key_that_begins_with_a_wildcard_needs_permission_for_hidden_topics() -> None:
    client = world_of("deny subscribe $hidden/#", "allow all #").amqp(user="u")
    client.send(spec.Queue.Declare(queue="q"))
    assert names(
        client.send(spec.Queue.Bind(queue="q", exchange="amq.topic", routing_key="#"))
    ) == ["Channel.Close"]


def test_older_clients_get_the_same_answers() -> None:
    world = world_of("allow subscribe mine/#", "allow publish #")
    client = world.mqtt("c", user="u/guest")
    assert client.send(subscribe(1, ("mine/a", 1), ("#", 0), ("theirs", 0))) == suback(
        1, 1, 0, 0x80
    )
    writer = world.mqtt("w")
    writer.send(mqtt_publish("theirs", b"1"))
    writer.send(mqtt_publish("mine/b", b"2"))
    assert [one.body for one in publications(client.read())] == [b"2"]


def test_many_filters_with_many_rules_take_many_turns() -> None:
    rules = [f"deny all {'+/' * 50}{number}" for number in range(199)]
    world = world_of(*rules, "allow all #")
    client = client_of(world)
    client.connection.receive_data(
        mqtt5.SubscribePacket(
            1, [subscription(f"{'a/' * 50}{number}") for number in range(50)]
        ).write()
    )
    turns = 0
    while client.connection.stalled:
        world.turn()
        turns += 1
    assert turns > 20
    assert client.connection.data_to_send()


# -- permissions that change


def test_a_consumer_that_may_not_read_any_more_is_cancelled_and_hears_of_it() -> None:
    world = world_of()
    client = world.amqp(user="u")
    for queue in ("mine", "theirs"):
        client.queue(queue)
        client.send(spec.Basic.Consume(queue=queue, consumer_tag=queue, no_ack=True))
    world.guests.identities["u"] = rights(read="^mine$")
    world.review()
    (cancel,) = client.read()
    assert (cancel.name, cancel.consumer_tag) == ("Basic.Cancel", "theirs")
    for queue in ("mine", "theirs"):
        world.amqp().publish("", queue, queue.encode())
    assert client.bodies() == [b"mine"]
    assert world.queue("theirs").depth == 1


def test_a_client_that_knows_no_cancel_loses_the_channel() -> None:
    world = world_of()
    client = world.amqp(user="u", consumer_cancel_notify=False)
    client.queue("q")
    client.send(spec.Basic.Consume(queue="q", consumer_tag="t"))
    world.guests.identities["u"] = rights(read="^$")
    world.review()
    (close,) = client.read()
    assert (close.name, close.reply_code) == ("Channel.Close", 403)


def test_a_publisher_has_the_rights_of_now_over_both_protocols() -> None:
    world = world_of()
    amqp, mqtt = world.amqp(user="u"), client_of(world)
    reader = world.mqtt("r")
    reader.subscribe("#", 0)
    amqp.publish("amq.topic", "a", b"1")
    mqtt.send(mqtt5.PublishPacket("a", b"2"))
    world.guests.identities["u"] = rights("allow all b")
    world.review()
    assert names(amqp.publish("amq.topic", "a", b"3")) == ["Channel.Close"]
    mqtt.send(mqtt5.PublishPacket("a", b"4"))
    mqtt.send(mqtt5.PublishPacket("b", b"5"))
    assert [one.body for one in publications(reader.read())] == [b"1", b"2", b"5"]


def test_a_subscription_that_is_not_allowed_any_more_is_removed_and_its_client_disconnected() -> (
    None
):
    world = world_of()
    client = client_of(world, session_expiry_interval=100)
    subscribed(client, "a/#", "b")
    world.guests.identities["u"] = rights("allow all b")
    world.review()
    (farewell,) = client.read()
    assert isinstance(farewell, mqtt5.DisconnectPacket)
    assert farewell.reason_code == NOT_AUTHORISED
    assert client.connection.finished
    again = client_of(world, clean=False, session_expiry_interval=100)
    assert again.connack.session_present
    for topic in ("a/x", "b"):
        world.mqtt("w").send(mqtt_publish(topic, topic.encode()))
    assert bodies(again.read()) == [b"b"]


def test_a_long_subscribe_has_the_rights_of_the_turn_that_subscribes() -> None:
    """Change the permissions of a client while the broker handles its SUBSCRIBE, in several turns.

    The new permissions must decide on each filter of the SUBSCRIBE.
    """
    denials = [f"deny all {'+/' * 50}{number}" for number in range(100)]
    world = world_of(*denials, "allow all #")
    client = client_of(world)
    secret = [f"{'secret/' * 50}{number}" for number in range(150, 200)]
    packet = mqtt5.SubscribePacket(1, [subscription(one) for one in ("open", *secret)])
    client.connection.receive_data(packet.write())
    assert client.connection.stalled
    world.guests.identities["u"] = rights("deny subscribe secret/#", "allow all #")
    world.review()
    while client.connection.stalled:
        world.turn()
    (session,) = world.mqtt_front.sessions.all()
    assert list(session.subscriptions) == ["open"]


def test_a_subscription_becomes_partial_and_whole_again_without_a_word() -> None:
    world = world_of("allow all #")
    client, writer = client_of(world), world.mqtt("w")
    subscribed(client, "#")
    heard = []
    for rules in (["deny all a", "allow all #"], ["allow all #"]):
        world.guests.identities["u"] = rights(*rules)
        world.review()
        for topic in ("a", "b"):
            writer.send(mqtt_publish(topic, topic.encode()))
        heard.append(bodies(client.read()))
    assert heard == [[b"b"], [b"a", b"b"]]


def test_a_shared_subscription_is_left() -> None:
    world = world_of("allow all #")
    client, other = client_of(world), world.mqtt("other")
    subscribed(client, "$share/g/a")
    other.subscribe("$share/g/a", 0)
    world.guests.identities["u"] = rights("allow all b")
    world.review()
    assert client.connection.finished
    for _ in range(4):
        world.mqtt("w").send(mqtt_publish("a", b"x"))
    assert len(publications(other.read())) == 4


def test_a_deleted_user_is_disconnected_and_leaves_no_session_and_no_will() -> None:
    world = world_of()
    amqp = world.amqp(user="u")
    here = client_of(
        world, "here", session_expiry_interval=100, will=mqtt5.Will(topic="w", payload=b"will")
    )
    away = client_of(world, "away", session_expiry_interval=100)
    subscribed(away, "a")
    away.connection.on_closed()
    watcher = world.mqtt("watcher")
    watcher.subscribe("#", 0)
    del world.guests.identities["u"]
    world.review()
    (close,) = amqp.read()
    assert (close.name, close.reply_code) == ("Connection.Close", 320)
    assert here.read()[0].reason_code == NOT_AUTHORISED
    assert not publications(watcher.read())
    assert len(world.mqtt_front.sessions) == 1


def test_a_client_that_is_away_loses_subscriptions_too_and_gains_none_by_it() -> None:
    world = world_of()
    client = client_of(world, session_expiry_interval=100)
    subscribed(client, "a", "b")
    client.connection.on_closed()
    world.guests.identities["u"] = rights("allow all b")
    world.review()
    for topic in ("a", "b"):
        world.mqtt("w").send(mqtt_publish(topic, topic.encode(), 1, 1))
    again = client_of(world, clean=False, session_expiry_interval=100)
    assert bodies(again.greeting) == [b"b"]


def test_a_session_belongs_to_its_user_even_if_another_uses_its_identifier() -> None:
    world = world_of()
    client = client_of(world, session_expiry_interval=100)
    subscribed(client, "a")
    client.connection.on_closed()
    world.mqtt("w").send(mqtt_publish("a", b"secret", 1, 1))
    other = Client5(world, "c", clean=False, username="guest", password=b"guest")
    assert not other.connack.session_present
    assert len(other.greeting) == 1


def test_rights_that_did_not_change_change_nothing() -> None:
    world = world_of()
    client = client_of(world)
    subscribed(client, "a")
    context = client.connection.context
    world.review()
    assert client.connection.context is context
    assert not client.read()


def test_a_very_old_client_keeps_its_bytes() -> None:
    world = world_of()
    raw = world.raw_mqtt()
    raw.receive_data(connect("c", user="u", password=b"guest"))
    world.turn()
    raw.data_to_send()
    del world.guests.identities["u"]
    world.review()
    assert raw.finished
    assert raw.data_to_send() == b""


@pytest.mark.parametrize("here", [True, False])
def test_permissions_apply_to_a_session_whose_patterns_are_above_the_limit(here: bool) -> None:
    world = world_of()
    world.broker.limits.pattern_nodes = 50
    client, writer = client_of(world, session_expiry_interval=100), world.mqtt("w")
    # The review does not check the first 32 patterns: they visit more nodes than `pattern_nodes`.
    long = ["/".join([*words, "#"]) for words in islice(product("+a", repeat=6), 31)]
    assert set(codes(subscribed(client, "secret/#", *long))) == {2}
    if not here:
        client.connection.on_closed()
    world.guests.identities["u"] = rights("deny subscribe secret/x", "allow all #")
    world.review()
    # A new pattern that visits more nodes than the limit is refused after the review, too.
    again = client if here else client_of(world, clean=False, session_expiry_interval=100)
    assert codes(subscribed(again, "+/b/+/b/+/b/+")) == [QUOTA_EXCEEDED]
    for topic in ("secret/x", "secret/y"):
        writer.send(mqtt_publish(topic, topic.encode()))
    assert bodies(again.read()) == [b"secret/y"]


class Fragile(Guests):
    """An authenticator that raises an error once after `fails` was set, as a plugin may do."""

    fails = False

    def renew(self, identity: Identity) -> Identity | None:
        self._fail_once()
        return super().renew(identity)

    def identity_of(self, user: str) -> Identity | None:
        self._fail_once()
        return super().identity_of(user)

    def _fail_once(self) -> None:
        if self.fails:
            self.fails = False
            raise RuntimeError("the authenticator failed")


def fragile_world() -> tuple[World, Fragile]:
    world = world_of()
    world.broker.authenticator = fragile = Fragile()
    fragile.identities["u"] = rights()
    return world, fragile


def failing_review(world: World, fragile: Fragile) -> None:
    """Make the broker renew the permissions of all clients, with an error for the first client."""
    fragile.fails = True
    with pytest.raises(RuntimeError, match="the authenticator failed"):
        world.review()
    world.turn()


def test_a_failure_for_one_connection_closes_it_and_does_not_end_the_review_of_the_others() -> None:
    world, fragile = fragile_world()
    clients = [world.amqp(user="u") for _ in range(3)]
    for client in clients:
        client.queue("q")
        client.send(spec.Basic.Consume(queue="q"))
    fragile.identities["u"] = rights(read="^$")
    failing_review(world, fragile)
    assert world.queue("q").consumer_count == 0
    # A client whose permissions could not be renewed does not keep the old permissions.
    closed = [
        one.reply_code
        for client in clients
        for one in client.read()
        if isinstance(one, spec.Connection.Close)
    ]
    assert closed == [541]


def test_a_failure_for_one_session_does_not_end_the_review_of_the_others() -> None:
    world, fragile = fragile_world()
    for at in range(3):
        client = client_of(world, f"c{at}", session_expiry_interval=100)
        subscribed(client, "a", "b")
        client.connection.on_closed()
    fragile.identities["u"] = rights("allow all b")
    failing_review(world, fragile)
    sessions = world.mqtt_front.sessions.all()
    assert sorted(len(session.subscriptions) for session in sessions) == [1, 1, 2]
    # The next change of permissions reviews all sessions.
    world.review()
    assert [len(session.subscriptions) for session in sessions] == [1, 1, 1]


@pytest.mark.parametrize("rules", [["allow all b/#"], ["deny all #"]])
@pytest.mark.parametrize("qos", [1, 2])
def test_messages_that_wait_are_delivered_only_if_the_user_may_still_read_them(
    rules: list[str], qos: int
) -> None:
    world = world_of()
    client = client_of(world, session_expiry_interval=100)
    subscribed(client, "#")
    client.connection.on_closed()
    writer = world.mqtt("w")
    for number, topic in enumerate(("a/1", "b/1", "a/2", "b/2"), 1):
        writer.send(mqtt_publish(topic, topic.encode(), qos, number))
        if qos == 2:
            writer.send(packet(0x62, number.to_bytes(2, "big")))
    world.guests.identities["u"] = rights(*rules)
    world.review()
    again = client_of(world, clean=False, session_expiry_interval=100)
    assert again.connack.session_present
    readable = [b"b/1", b"b/2"] if rules == ["allow all b/#"] else []
    assert bodies(again.greeting) == readable
    assert world.copies() == {"purged": 4 - len(readable)}
    subscribed(again, "b/#")
    writer.send(mqtt_publish("b/3", b"b/3", 0))
    assert bodies(again.read())[-1:] == ([b"b/3"] if readable else [])


def test_waiting_messages_are_delivered_if_the_user_has_regained_the_permission() -> None:
    world = world_of()
    client = client_of(world, session_expiry_interval=100)
    subscribed(client, "#")
    client.connection.on_closed()
    for number in (1, 2):
        world.mqtt("w").send(mqtt_publish("a", b"%d" % number, 1, number))
    for identity in (rights(read="^$"), rights()):
        world.guests.identities["u"] = identity
        world.review()
    again = client_of(world, clean=False, session_expiry_interval=100)
    assert bodies(again.greeting) == [b"1", b"2"]
    assert world.copies() == {}


def test_a_login_with_fewer_permissions_gets_fewer_of_the_waiting_messages() -> None:
    """Waiting messages are checked with the permissions of the login that receives them.

    A token has its own permissions, so the broker cannot check them before the login.
    """
    world = world_of()
    client = client_of(world, session_expiry_interval=100)
    subscribed(client, "#")
    client.connection.on_closed()
    for topic in ("a", "b"):
        world.mqtt("w").send(mqtt_publish(topic, topic.encode(), 1, 1))
    world.guests.identities["u"] = rights("allow all b")
    again = client_of(world, clean=False, session_expiry_interval=100)
    assert bodies(again.greeting) == [b"b"]
    assert world.copies() == {"purged": 1}
