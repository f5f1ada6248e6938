"""Input in random chunks: no exception, and the same effects as in one chunk."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.connection import Connection
from protocols.mqtt.options import MqttOptions
from tests.clients import World, mqtt_publish, packet, text
from tests.wire.mqtt.client import (
    Client,
    Will,
    connect,
    here,
    puback,
    pubcomp,
    pubrec,
    pubrel,
    subscribe,
    unsubscribe,
)

TOPICS = st.sampled_from(["a", "a/b", "a/c", "b", "$SYS/x", "$x", "t" * 600, "/", "a/b.c"])
FILTERS = st.sampled_from(["a", "a/#", "+", "#", "b", "t" * 600, "$share/g/a", "/#"])
QOS = st.integers(0, 2)
IDS = st.integers(1, 4)

PUBLISHES = st.builds(
    lambda topic, body, qos, packet_id, retain, dup: mqtt_publish(
        topic, body, qos, packet_id if qos else 0, (1 if retain else 0) | (8 if qos and dup else 0)
    ),
    TOPICS,
    st.sampled_from([b"", b"x", bytes(130), bytes(17_000)]),
    QOS,
    IDS,
    st.booleans(),
    st.booleans(),
)
RUNS = st.builds(
    lambda topic, count: mqtt_publish(topic, b"run") * count, TOPICS, st.integers(1, 5)
)
OTHERS = st.one_of(
    st.builds(
        lambda packet_id, some: subscribe(packet_id, *some),
        IDS,
        st.lists(st.tuples(FILTERS, QOS), min_size=1, max_size=3),
    ),
    st.builds(
        lambda packet_id, some: unsubscribe(packet_id, *some),
        IDS,
        st.lists(FILTERS.filter(lambda one: one[0] != "$"), min_size=1, max_size=3),
    ),
    st.builds(
        lambda kind, packet_id: kind(packet_id),
        st.sampled_from([puback, pubrec, pubrel, pubcomp]),
        IDS,
    ),
    st.just(b"\xc0\x00"),
)
FAULTS = st.one_of(
    st.sampled_from(
        [
            b"\xe0\x00",
            b"\xf0\x00",
            b"\x30\x00",
            b"\x30\x80\x00",
            b"\x32\x05\x00\x01a\x00\x00",
            b"\x30\x80\x80\x80\x01",
        ]
    ),
    st.builds(packet, st.integers(0, 255), st.binary(max_size=12)),
    st.binary(max_size=8),
)
STREAMS = st.builds(
    lambda first, some: first + b"".join(some),
    st.sampled_from(
        [
            connect("c"),
            connect("c", clean=False),
            connect("c", will=Will("a", b"will", 1, True)),
            connect("c", clean=False, user="guest", password=b"guest"),
        ]
    ),
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
    world = World(mqtt=options)
    watchers = [here(world, "w0"), Client(world, connect("w1", clean=False))]
    for qos, watcher in enumerate(watchers):
        watcher.send(subscribe(1, ("a/#", qos), ("#", 2 * qos)))
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
    heard = [watcher.all() for watcher in watchers]
    connection.on_closed()
    world.settle()
    fates, copies = world.fates(), world.copies()
    return (
        answer,
        heard,
        [watcher.all() for watcher in watchers],
        connection.reason,
        fates,
        copies,
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


@settings(max_examples=50, deadline=None)
@given(STREAMS)
def test_byte_by_byte(data: bytes) -> None:
    data = data[:3_000]
    assert effects(data, [1], True) == effects(data, [], True)


@settings(max_examples=100, deadline=None)
@given(
    st.binary(max_size=60),
    st.sampled_from([b"", connect("c"), connect("c") + mqtt_publish("a", b"x"), text("MQTT")]),
    CUTS,
)
def test_garbage_raises_nothing(garbage: bytes, first: bytes, cuts: list[int]) -> None:
    assert effects(first + garbage, cuts, False) == effects(first + garbage, [], False)
