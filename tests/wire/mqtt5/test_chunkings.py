"""Input of level 5 in random chunks: no exception, and the same effects as in one chunk. The fast
path and the slow path send the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable

import mqtt5
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.routing.publish_context import PublishContext
from protocols.connection import Connection
from protocols.mqtt.options import MqttOptions
from tests.clients import World, mqtt_publish, packet
from tests.wire.mqtt.client import Client, connect, here, subscribe
from tests.wire.mqtt5.client import Client5, publish, raw_connect, subscription
from tests.wire.mqtt5.test_publish import WRONG

TOPICS = st.sampled_from(["a", "a/b", "a/c", "b", "$SYS/x", "$x", "/"])
FILTERS = st.sampled_from(["a", "a/#", "+", "#", "b", "$share/g/a", "/#"])
IDS = st.integers(1, 4)


def _publish(
    topic: str, body: bytes, qos: int, packet_id: int, retain: bool, alias: int, properties: bool
) -> bytes:
    options: dict[str, object] = {"retain": retain}
    if alias:
        options["topic_alias"] = alias
    if properties:
        options |= {
            "user_properties": [("k", "v")],
            "message_expiry_interval": 30,
            "payload_format_indicator": 1,
        }
    return publish(topic, body, qos, packet_id, **options)


PUBLISHES = st.builds(
    _publish,
    st.one_of(TOPICS, TOPICS, st.just("")),
    st.sampled_from([b"", b"x", bytes(130), bytes(17_000)]),
    st.integers(0, 2),
    IDS,
    st.booleans(),
    st.integers(0, 2),
    st.booleans(),
)
RUNS = st.builds(lambda topic, count: publish(topic, b"run") * count, TOPICS, st.integers(1, 5))
OTHERS = st.one_of(
    st.builds(
        lambda name, qos, no_local, identifier: mqtt5.SubscribePacket(
            1, [subscription(name, qos, no_local and name[0] != "$")], subscription_id=identifier
        ).write(),
        FILTERS,
        st.integers(0, 2),
        st.booleans(),
        st.none() | st.integers(1, 5),
    ),
    st.builds(lambda name: mqtt5.UnsubscribePacket(2, [name]).write(), FILTERS),
    st.builds(
        lambda first, packet_id, code: packet(first, packet_id.to_bytes(2, "big") + code),
        st.sampled_from([0x40, 0x50, 0x62, 0x70]),
        IDS,
        st.sampled_from([b"", b"\x00", b"\x00\x00"]),
    ),
    st.just(b"\xc0\x00"),
)
FAULTS = st.one_of(
    st.sampled_from([*WRONG, b"\xe0\x00", b"\xe0\x02\x04\x00"]),
    st.builds(packet, st.integers(0, 255), st.binary(max_size=12)),
)
CONNECTS = st.sampled_from(
    [
        raw_connect(),
        raw_connect(properties=b"\x11\x00\x00\x00\x10"),
        raw_connect(properties=b"\x22\x00\x02\x21\x00\x03"),
        raw_connect(properties=b"\x27\x00\x00\x00\x40"),
        raw_connect(flags=0, properties=b"\x11\xff\xff\xff\xff"),
    ]
)
STREAMS = st.builds(
    lambda first, some: first + b"".join(some),
    CONNECTS,
    st.lists(
        st.one_of(
            PUBLISHES,
            RUNS,
            RUNS,
            OTHERS,
            OTHERS,
            st.one_of(PUBLISHES, PUBLISHES, PUBLISHES, FAULTS),
        ),
        max_size=25,
    ),
)
CUTS = st.lists(
    st.one_of(st.integers(1, 6), st.integers(1, 300), st.integers(1, 5_000)),
    min_size=1,
    max_size=30,
)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """Draw the input of a client, in which some bytes are changed, removed, doubled or added."""
    data: bytes = draw(STREAMS)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        size = draw(st.integers(0, 4))
        data = (
            data[:at]
            + draw(st.sampled_from([b"", data[at : at + size] * 2, draw(st.binary(max_size=4))]))
            + data[at + size :]
        )
    return data


def effects(data: bytes, cuts: list[int], late_verdict: bool) -> tuple[object, ...]:
    """Return the output to all clients, and the broker's state, after one client has sent the data.

    With `late_verdict`, the verdict on the client's credentials comes after all input.
    """
    options = MqttOptions()
    options.max_packet = 20_000
    options.sys_interval_s = 0
    world = World(mqtt=options)
    old, new = here(world, "w0"), Client5(world, "w1", session_expiry_interval=100)
    old.send(subscribe(1, ("a/#", 1), ("#", 0)))
    new.subscribe(subscription("a/#", 2), subscription("#", 0, as_published=True))
    world.guests.hold = late_verdict
    connection: Connection = world.raw_mqtt()
    at = 0
    while at < len(data):
        for cut in cuts or [len(data)]:
            connection.receive_data(data[at : at + cut])
            at += cut
    world.guests.decide()
    world.settle(connection)
    answer = connection.data_to_send()
    while more := connection.data_to_send():
        answer += more
        world.settle(connection)
    heard = [old.all(), new.read_bytes()]
    connection.on_closed()
    world.settle()
    return (
        answer,
        heard,
        old.all(),
        new.read_bytes(),
        connection.reason,
        world.fates(),
        world.copies(),
        len(world.vhost.retained),
        len(world.store.state.messages),
        sorted(world.vhost.inboxes),
    )


@settings(max_examples=150, deadline=None)
@given(STREAMS, CUTS, st.booleans())
def test_streams_mean_the_same_however_they_are_cut(
    data: bytes, cuts: list[int], late_verdict: bool
) -> None:
    assert effects(data, cuts, late_verdict) == effects(data, [], late_verdict)


@settings(max_examples=150, deadline=None)
@given(mutated(), CUTS)
def test_mutated_streams_raise_nothing_and_mean_the_same_however_they_are_cut(
    data: bytes, cuts: list[int]
) -> None:
    assert effects(data, cuts, False) == effects(data, [], False)


@settings(max_examples=40, deadline=None)
@given(STREAMS)
def test_byte_by_byte(data: bytes) -> None:
    data = data[:3_000]
    assert effects(data, [1], True) == effects(data, [], True)


# -- the fast path and the slow path


def context_of(world: World) -> PublishContext:
    [context] = [context for context in world.vhost.contexts if context.front == "mqtt50"]
    return context


def _nothing(world: World) -> None:
    pass


def _older_reader(world: World) -> None:
    Client(world, connect("old")).send(subscribe(1, ("a", 0)))


def _aliases(world: World) -> None:
    Client5(world, "aliases", topic_alias_max=5).subscribe(subscription("a", 0))


def _identifier(world: World) -> None:
    Client5(world, "identifier").subscribe(subscription("a", 0), identifier=1)


def _limit(world: World) -> None:
    Client5(world, "limit", max_packet_size=1_000_000).subscribe(subscription("a", 0))


def _no_local(world: World) -> None:
    Client5(world, "no-local").subscribe(subscription("a", 0, no_local=True))


def _shared(world: World) -> None:
    Client5(world, "shared").subscribe(subscription("$share/g/a", 0))


def _queue(world: World) -> None:
    world.amqp().queue("q", "amq.topic", "a")


def _as_published(world: World) -> None:
    Client5(world, "as-published").subscribe(subscription("a", 0, as_published=True))


#: Subscription that prevents the relay of whole packets -> how many of four publications are
#: relayed as whole packets nevertheless.
DETOURS: dict[Callable[[World], None], int] = {
    _nothing: 4,
    _as_published: 2,
    _older_reader: 0,
    _aliases: 0,
    _identifier: 0,
    _limit: 0,
    _no_local: 0,
    _shared: 0,
    _queue: 0,
}


@pytest.mark.parametrize("detour", DETOURS)
@pytest.mark.parametrize("size", [0, 100, 20_000])
def test_qos_0_reaches_readers_as_the_same_bytes_on_every_path(
    detour: Callable[[World], None], size: int
) -> None:
    world = World()
    readers = [Client5(world, f"r{qos}") for qos in range(3)]
    for qos, one in enumerate(readers):
        one.subscribe(subscription("a", qos))
    writer = Client5(world, "w")
    plain = publish("a", bytes(size))
    writer.send(plain)
    detour(world)
    for _ in range(3):
        writer.send(plain)
    # The first publication after a change finds a stale plan.
    assert context_of(world).routes[b"a"].count == DETOURS[detour]
    for one in readers:
        assert one.read_bytes() == plain * 4
    world.fates()


@pytest.mark.parametrize("detour", DETOURS)
@pytest.mark.parametrize("qos", [1, 2])
def test_qos_1_and_2_reach_readers_as_the_same_bytes_on_every_path(
    detour: Callable[[World], None], qos: int
) -> None:
    world = World()
    readers = [Client5(world, f"r{granted}") for granted in range(3)]
    for granted, one in enumerate(readers):
        one.subscribe(subscription("a", granted))
    writer = Client5(world, "w")
    writer.send(publish("a", b"x", qos, 1))
    detour(world)
    for number in range(2, 5):
        writer.send(publish("a", b"x", qos, number))
    for granted, one in enumerate(readers):
        lower = min(granted, qos)
        assert one.read_bytes() == b"".join(
            publish("a", b"x", lower, number) for number in range(1, 5)
        )
    world.fates()


def test_runs_of_both_levels_reach_readers_of_both_in_order() -> None:
    world = World()
    old, new = Client(world, connect("old")), Client5(world, "new")
    old.send(subscribe(1, ("#", 0)))
    new.subscribe(subscription("#", 0))
    writers = Client(world, connect("w4")), Client5(world, "w5")
    expected = []
    for number in range(50):
        body = b"%d" % number
        if number % 2:
            writers[0].send(mqtt_publish("a", body) * 3)
        else:
            writers[1].send(publish("a", body) * 3)
        expected += [body] * 3
    assert new.bodies() == expected
    assert old.read() == b"".join(mqtt_publish("a", body) for body in expected)
