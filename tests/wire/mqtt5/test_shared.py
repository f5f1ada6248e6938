"""Shared subscriptions: one session of a group receives each message."""

from __future__ import annotations

from typing import Any

import mqtt5
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from broker.queues.slices import DELIVERIES_PER_DRAIN
from protocols.mqtt.session.shared_deliveries import RETRY_MS
from tests.clients import World, mqtt_publish
from tests.wire.mqtt.client import Client, connect, publications, subscribe
from tests.wire.mqtt5.client import Client5, publish, subscription

SHARED = "$share/g/a/#"


def acknowledge(client: Client5, one: Any) -> list[Any]:
    """Send the acknowledgements that a publication needs; return the publications that follow."""
    if one.qos == 0:
        return []
    if one.qos == 1:
        return client.send(mqtt5.PubAckPacket(one.packet_id))
    pubrel, *rest = client.send(mqtt5.PubRecPacket(one.packet_id))
    assert isinstance(pubrel, mqtt5.PubRelPacket)
    return rest + client.send(mqtt5.PubCompPacket(one.packet_id))


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_publications_are_dealt_out_in_turns(qos: int) -> None:
    world = World()
    members = [Client5(world, f"m{number}") for number in range(3)]
    for member in members:
        assert member.subscribe(subscription(SHARED, 2)) == [[2]]
    other, alone, writer = Client5(world, "other"), Client5(world, "alone"), Client5(world, "w")
    other.subscribe(subscription("$share/h/a/#", 2))
    alone.subscribe(subscription("a/b", 2))
    for number in range(30):
        writer.send(
            publish("a/b", b"%d" % number, qos, number + 1),
            mqtt5.PubRelPacket(number + 1) if qos == 2 else b"",
        )
    heard = [member.publications() for member in members]
    assert [len(some) for some in heard] == [10, 10, 10]
    assert sorted(int(one.payload) for some in heard for one in some) == list(range(30))
    assert {int(one.qos) for some in heard for one in some} == {qos}
    assert (
        [int(one.payload) for one in other.publications()]
        == [int(one.payload) for one in alone.publications()]
        == list(range(30))
    )
    world.fates()


@pytest.mark.parametrize("granted", [0, 1, 2])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_each_member_has_the_qos_that_it_was_granted(
    qos: int, granted: int
) -> None:  # [MQTT-4.8.2-3]
    world = World()
    low, high, writer = Client5(world, "low"), Client5(world, "high"), Client5(world, "w")
    low.subscribe(subscription(SHARED, granted))
    high.subscribe(subscription(SHARED, 2))
    for number in range(10):
        writer.send(publish("a", b"x", qos, number + 1))
    assert {int(one.qos) for one in low.publications()} == {min(qos, granted)}
    assert {int(one.qos) for one in high.publications()} == {qos}
    world.fates()


def test_identifiers_and_retain_of_a_shared_subscription() -> None:
    world = World()
    writer = Client5(world, "w")
    writer.send(publish("a/b", b"kept", 1, retain=True))
    member = Client5(world, "m")
    assert member.subscribe(subscription(SHARED, 1), identifier=5) == [
        [1]
    ]  # A shared subscription gets no retained messages (section 4.8.2).
    member.subscribe(subscription("a/#", 1, handling=2), identifier=6)
    writer.send(publish("a/b", b"x", 1))
    got = member.publications()
    assert sorted((one.payload, tuple(one.subscription_ids)) for one in got) == [
        (b"x", (5,)),
        (b"x", (6,)),
    ]
    writer.send(publish("a/b", b"y"))
    assert sorted(tuple(one.subscription_ids) for one in member.publications()) == [(5,), (6,)]
    member.subscribe(subscription(SHARED, 1), identifier=7)
    member.send(mqtt5.UnsubscribePacket(3, ["a/#"]))
    writer.send(publish("a/b", b"z", 1))
    assert [tuple(one.subscription_ids) for one in member.publications()] == [(7,)]


@pytest.mark.parametrize("granted", [0, 1, 2])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_shared_subscription_without_an_identifier_beside_one_with(
    qos: int, granted: int
) -> None:
    """Check that a message of the subscription without an identifier has no identifier, not even 0.

    By section 3.3.2.3.8, a Subscription Identifier of 0 is a protocol error.
    """
    world = World()
    member, writer = Client5(world, "m"), Client5(world, "w")
    member.subscribe(subscription("other", 1), identifier=5)
    member.subscribe(subscription(SHARED, granted))
    writer.send(publish("a", b"x", qos))
    assert [(one.payload, one.subscription_ids) for one in member.publications()] == [(b"x", [])]


def test_older_versions_share_too() -> None:
    world = World()
    old, new, writer = Client(world, connect("old")), Client5(world, "new"), Client5(world, "w")
    old.send(subscribe(1, (SHARED, 1)))
    new.subscribe(subscription(SHARED, 1))
    writer.send(
        *[publish("a", b"%d" % number, 1, number + 1, content_type="x") for number in range(4)]
    )
    Client(world, connect("w4")).send(mqtt_publish("a", b"4"), mqtt_publish("a", b"5"))
    bodies = [one.body for one in publications(old.read())] + new.bodies()
    assert sorted(bodies) == [b"%d" % number for number in range(6)]


@pytest.mark.parametrize("expiry", [0, 100])
def test_an_unacknowledged_message_goes_to_another_member(expiry: int) -> None:  # [MQTT-4.8.2-4]
    world = World()
    one = Client5(world, "1", session_expiry_interval=expiry)
    one.subscribe(subscription(SHARED, 1))
    two = Client5(world, "2", session_expiry_interval=expiry)
    two.subscribe(subscription(SHARED, 1))
    writer = Client5(world, "w")
    writer.send(*[publish("a", b"%d" % number, 1, number + 1) for number in range(6)])
    first = one.publications()
    assert len(first) == 3
    assert acknowledge(one, first[0]) == []
    one.vanish()
    got = two.publications()
    assert sorted([first[0].payload, *[item.payload for item in got]]) == [
        b"%d" % number for number in range(6)
    ]
    assert not any(item.duplicate for item in got)
    if expiry:
        again = Client5(world, "1", clean=False, session_expiry_interval=expiry)
        assert again.greeting[1:] == []
    world.fates()


def test_a_qos_2_message_stays_with_the_session_that_got_it() -> None:  # [MQTT-4.8.2-5]
    world = World()
    one, two = Client5(world, "1", session_expiry_interval=100), Client5(world, "2")
    one.subscribe(subscription(SHARED, 2))
    two.subscribe(subscription(SHARED, 2))
    writer = Client5(world, "w")
    writer.send(*[publish("a", b"%d" % number, 2, number + 1) for number in range(4)])
    given = one.publications()
    assert given
    one.vanish()
    assert len(two.publications()) == 4 - len(given)
    again = Client5(world, "1", clean=False, session_expiry_interval=100)
    assert [(item.payload, item.packet_id, item.duplicate) for item in again.greeting[1:]] == [
        (item.payload, item.packet_id, True) for item in given
    ]
    again.vanish()
    world.sleep(100_000)
    assert two.publications() == []
    world.fates()


@pytest.mark.parametrize("last", [True, False])
def test_messages_in_flight_survive_the_end_of_their_group(last: bool) -> None:
    """A client that unsubscribes from a shared subscription keeps its unacknowledged messages.

    The broker completes the deliveries that it has begun [MQTT-3.10.4-3], also after the last
    member has unsubscribed.
    """
    world = World()
    member = Client5(world, "m", session_expiry_interval=100)
    member.subscribe(subscription(SHARED, 1))
    writer = Client5(world, "w")
    writer.send(*[publish("a", b"%d" % number, 1, number + 1) for number in range(3)])
    given = member.publications()
    assert [one.payload for one in given] == [b"0", b"1", b"2"]
    assert acknowledge(member, given[0]) == []
    if not last:
        # The member leaves, and another member ends the group later.
        other = Client5(world, "other")
        other.subscribe(subscription(SHARED, 1))
    member.send(mqtt5.UnsubscribePacket(5, [SHARED]))
    if not last:
        other.send(mqtt5.UnsubscribePacket(5, [SHARED]))
    # The end of the group has counted its messages.
    world.fates()
    assert acknowledge(member, given[1]) == []
    member.vanish()
    again = Client5(world, "m", clean=False, session_expiry_interval=100)
    assert [(one.payload, one.packet_id, one.duplicate) for one in again.greeting[1:]] == [
        (b"2", given[2].packet_id, True)
    ]
    assert acknowledge(again, given[2]) == []
    again.vanish()
    assert Client5(world, "m", clean=False, session_expiry_interval=100).greeting[1:] == []
    world.fates()


def test_messages_of_a_member_that_left_return_to_its_group() -> None:  # [MQTT-4.8.2-4]
    world = World()
    leaver = Client5(world, "l", session_expiry_interval=100)
    leaver.subscribe(subscription(SHARED, 1))
    Client5(world, "w").send(publish("a", b"x", 1))
    [given] = leaver.publications()
    stays = Client5(world, "s")
    stays.subscribe(subscription(SHARED, 1))
    for _ in range(3):
        leaver.send(mqtt5.UnsubscribePacket(5, [SHARED]))
        leaver.subscribe(subscription(SHARED, 1))
    leaver.send(mqtt5.UnsubscribePacket(5, [SHARED]))
    leaver.vanish()
    [one] = stays.publications()
    assert one.payload == given.payload
    assert acknowledge(stays, one) == []
    world.fates()


def test_a_message_that_a_member_refuses_is_dropped() -> None:  # [MQTT-4.8.2-6]
    world = World()
    one, two = Client5(world, "1"), Client5(world, "2")
    for client in (one, two):
        client.subscribe(subscription(SHARED, 1))
    Client5(world, "w").send(publish("a", b"x", 1))
    [got] = one.publications() or two.publications()
    for client in (one, two):
        client.send(b"\x40\x03" + got.packet_id.to_bytes(2, "big") + b"\x80")
    assert one.publications() == two.publications() == []


def test_a_busy_member_is_passed_over() -> None:
    world = World()
    slow, quick = Client5(world, "slow", receive_max=1), Client5(world, "quick", receive_max=100)
    for client in (slow, quick):
        client.subscribe(subscription(SHARED, 1))
    writer = Client5(world, "w")
    writer.send(*[publish("a", b"%d" % number, 1, number + 1) for number in range(20)])
    [kept] = slow.publications()
    assert len(quick.publications()) == 19
    writer.send(*[publish("a", b"", 1, number + 1) for number in range(200)])
    for one in quick.publications():
        quick.send(mqtt5.PubAckPacket(one.packet_id))
    assert len(slow.send(mqtt5.PubAckPacket(kept.packet_id))) == 1


def test_shared_group_waits_for_members_with_a_persistent_session() -> None:
    world = World()
    member, writer = Client5(world, "m", session_expiry_interval=100), Client5(world, "w")
    member.subscribe(subscription(SHARED, 2))
    member.vanish()
    for qos in range(3):
        [*answer] = writer.send(publish("a", b"%d" % qos, qos, qos + 1))
        assert [int(one.reason_code) for one in answer] == [0] * bool(qos)
    again = Client5(world, "m", clean=False, session_expiry_interval=100)
    assert [one.payload for one in again.greeting[1:]] == [b"1", b"2"]
    assert world.copies()["offline"] == 1
    again.vanish()
    world.sleep(100_000)
    assert len(world.mqtt_front.sessions.groups) == 0
    assert not world.vhost.inboxes
    [answer] = writer.send(publish("a", b"x", 1))
    assert int(answer.reason_code) == 0x10
    assert not world.store.state.definitions
    assert not world.store.state.messages


@pytest.mark.parametrize("topic", ["$share", "$share/g", "$share/g/a"])
def test_no_client_publishes_to_a_shared_subscription(topic: str) -> None:
    world = World()
    member = Client5(world, "m")
    member.subscribe(subscription(SHARED, 1))
    [answer] = Client5(world, "w").send(publish(topic, b"x", 1))
    assert int(answer.reason_code) == 0x87
    assert member.publications() == []


class Sharing(RuleBasedStateMachine):
    """Three clients, members of two shared subscriptions, that act at random.

    In the end, each message must be acknowledged in each group: by at least one member if its QoS
    is 1, and by exactly one member if its QoS is 2.
    """

    @initialize(persistent=st.booleans())
    def begin(self, persistent: bool) -> None:
        self.world = World()
        self.expiry = 1_000 if persistent else 0
        self.writer = Client5(self.world, "w")
        # A remaining member keeps the groups in existence.
        self.clients: dict[str, Client5 | None] = {name: self.connect(name) for name in "abc"}
        self.outstanding: dict[str, dict[Any, Any]] = {name: {} for name in "abc"}
        self.sent = 0
        self.acknowledged: dict[str, list[int]] = {"g": [], "h": []}
        self.anchor = Client5(self.world, "anchor", session_expiry_interval=10_000)
        for identifier, group in enumerate("gh", start=1):
            self.anchor.subscribe(subscription(f"$share/{group}/a", 2), identifier=identifier)
        self.anchor.vanish()

    def connect(self, name: str) -> Client5:
        return Client5(self.world, name, clean=False, session_expiry_interval=self.expiry)

    def hear(self, name: str, some: list[Any]) -> None:
        for one in some:
            if isinstance(one, mqtt5.PublishPacket):
                self.outstanding[name][one.packet_id] = one

    def listen(self) -> None:
        for name, client in self.clients.items():
            if client is not None:
                self.hear(name, client.read())

    @rule(name=st.sampled_from("abc"), group=st.sampled_from("gh"), qos=st.integers(1, 2))
    def subscribe(self, name: str, group: str, qos: int) -> None:
        client = self.clients[name]
        if client is not None:
            number = {"g": 1, "h": 2}[group]
            self.hear(
                name,
                client.subscribe(subscription(f"$share/{group}/a", qos), identifier=number)[1:],
            )
            self.listen()

    @rule(qos=st.integers(1, 2), count=st.integers(1, 4))
    def publish(self, qos: int, count: int) -> None:
        for _ in range(count):
            self.sent += 1
            self.writer.send(
                publish("a", b"%d" % self.sent, qos, 1), mqtt5.PubRelPacket(1) if qos == 2 else b""
            )
        self.listen()

    @rule(name=st.sampled_from("abc"), count=st.integers(1, 5))
    def acknowledge(self, name: str, count: int) -> None:
        client = self.clients[name]
        one: Any
        for packet_id, one in list(self.outstanding[name].items())[:count]:
            if client is not None:
                del self.outstanding[name][packet_id]
                self.acknowledged["gh"[one.subscription_ids[0] - 1]].append(int(one.payload))
                self.hear(name, acknowledge(client, one))
                self.listen()

    @rule(name=st.sampled_from("abc"))
    def come_or_go(self, name: str) -> None:
        client = self.clients[name]
        if client is None:
            client = self.clients[name] = self.connect(name)
            self.hear(name, client.greeting[1:])
        else:
            client.vanish()
            self.clients[name] = None
            self.outstanding[name].clear()
        self.listen()

    def teardown(self) -> None:
        for name in "abc":
            if self.clients[name] is None:
                self.come_or_go(name)
        while any(self.outstanding.values()):
            for name in "abc":
                self.acknowledge(name, 1_000)
        for name in "abc":
            self.come_or_go(name)
        last = Client5(self.world, "anchor", clean=False, session_expiry_interval=10_000)
        waiting = last.greeting[1:]
        while waiting:
            one: Any = waiting.pop(0)
            self.acknowledged["gh"[one.subscription_ids[0] - 1]].append(int(one.payload))
            waiting += acknowledge(last, one)
        self.world.fates()
        for group in "gh":
            heard = self.acknowledged[group]
            assert len(heard) == len(set(heard))
            # Without a session expiry, QoS 2 messages that were delivered to a session end with it.
            assert not self.expiry or sorted(heard) == list(range(1, self.sent + 1))


TestSharing = Sharing.TestCase
TestSharing.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)


@pytest.mark.parametrize("qos", [1, 2])
def test_the_inbox_uses_the_room_of_an_acknowledged_shared_message(qos: int) -> None:
    """Check that acknowledging a shared message lets the session send messages of its inbox."""
    world = World()
    member, writer = Client5(world, "m", receive_max=1), Client5(world, "w")
    member.subscribe(subscription("own", 2), subscription("$share/g/a", 1))
    writer.send(publish("a", b"1", 1, 1))
    [shared] = member.publications()
    writer.send(publish("own", b"2", qos, 2), publish("a", b"3", 1, 3), publish("own", b"4", 1, 4))
    assert member.publications() == []
    bodies = []
    [waiting] = acknowledge(member, shared)
    while waiting is not None:
        bodies.append(waiting.payload)
        waiting = next(iter(acknowledge(member, waiting)), None)
    assert bodies == [b"2", b"4", b"3"]
    world.fates()


def test_a_shared_message_does_not_wait_behind_messages_that_are_never_sent() -> None:
    """A client gets the message of a shared subscription once the inbox of its session is empty.

    The messages in the inbox are too large for the client, so the broker drops them and gets no
    acknowledgements. They leave the inbox in several turns; in the first turn, they precede the
    shared message.
    """
    world = World()
    member = Client5(world, "m", session_expiry_interval=100)
    member.subscribe(subscription("own", 1), subscription("$share/g/a", 1))
    member.vanish()
    writer = Client5(world, "w")
    for _ in range(DELIVERIES_PER_DRAIN + 1):
        writer.send(publish("own", bytes(100), 1))
    writer.send(publish("a", b"shared", 1))
    member = Client5(world, "m", clean=False, session_expiry_interval=100, max_packet_size=60)
    bodies = [one.payload for one in member.greeting[1:]] + member.bodies()
    assert bodies == []
    assert world.inbox("m").depth == 0
    world.sleep(RETRY_MS)
    assert member.bodies() == [b"shared"]
    world.fates()


def test_a_shared_message_waits_on_while_the_inbox_cannot_be_sent() -> None:
    """A message of a shared subscription stays in its inbox if the client disconnects too early.

    The broker's later attempt to send the message must do nothing.
    """
    world = World()
    member = Client5(world, "m", session_expiry_interval=100)
    member.subscribe(subscription("own", 1), subscription("$share/g/a", 1))
    member.vanish()
    writer = Client5(world, "w")
    for _ in range(DELIVERIES_PER_DRAIN + 1):
        writer.send(publish("own", bytes(100), 1))
    writer.send(publish("a", b"shared", 1))
    Client5(world, "m", clean=False, session_expiry_interval=100, max_packet_size=60).vanish()
    world.sleep(RETRY_MS)
    assert world.vhost.inboxes["mqtt-shared-g/a"].depth == 1
    again = Client5(world, "m", clean=False, session_expiry_interval=100)
    assert [one.payload for one in again.greeting[1:]] == [b"shared"]
