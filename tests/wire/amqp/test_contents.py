"""Contents: bodies in frames of any size, properties relayed unchanged, names of any length."""

from __future__ import annotations

from typing import Any

import pamqp.commands as spec
import pytest

from broker.limits import BrokerLimits
from broker.queues.limited import LimitedQueue
from tests.clients import Amqp, World, marshal, mqtt_publish, publication, unmarshal
from tests.wire.amqp.speech import (
    BODY,
    HEADER,
    METHOD,
    Frame,
    body,
    content,
    deliveries,
    frame,
    header,
    long,
    method,
    names,
    open_channel,
    publish,
    read,
    refusal,
    short,
    split,
)

Q, B, X = spec.Queue, spec.Basic, spec.Exchange
DOES_NOT_FIT = (
    "PRECONDITION_FAILED - a message of queue 'q' in vhost '/' has properties that do not fit into "
    "frame_max 4096: connect with a larger frame_max"
)
SIZES = [0, 1, 2, 4_087, 4_088, 4_089, 8_176, 8_177, 16_384, 131_064, 131_065, 300_000]


def reader(world: World, frame_max: int = 131_072, channel: int = 1) -> Amqp:
    """Return a client that consumes the queue `q` on this channel."""
    client = world.amqp(frame_max)
    client.queue("q")
    if channel != 1:
        open_channel(client, channel)
    client.send(B.Consume(queue="q", consumer_tag="t", no_ack=True), channel=channel)
    return client


def say(client: Amqp, data: bytes, piece: int = 0) -> None:
    """Send data in one chunk, or in chunks of `piece` bytes."""
    for at in range(0, len(data), piece or len(data)):
        client.connection.receive_data(data[at : at + (piece or len(data))])


def heard(client: Amqp) -> list[Frame]:
    return split(client.read_bytes())


def cut(data: bytes, size: int, channel: int = 1) -> bytes:
    return b"".join(body(data[at : at + size], channel) for at in range(0, len(data), size))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("theirs", [4_096, 8_192, 131_072])
@pytest.mark.parametrize("ours", [4_096, 5_000, 131_072])
def test_bodies_arrive_whole_in_frames_that_both_sides_allow(
    size: int, theirs: int, ours: int
) -> None:
    world = World()
    writer, target = world.amqp(ours), reader(world, theirs)
    payload = bytes(range(256)) * (size // 256) + bytes(range(size % 256))
    say(writer, publish("", "q") + header(size, b"\x80\0" + short("type")) + cut(payload, ours - 8))
    deliver, head, *bodies = heard(target)
    assert deliver.payload.endswith(short("") + short("q")) and head == (
        HEADER,
        1,
        header(size, b"\x80\0" + short("type"))[7:-1],
    )
    assert b"".join(one.payload for one in bodies) == payload
    assert all(one.kind == BODY and 0 < len(one.payload) <= theirs - 8 for one in bodies)
    if theirs < ours:
        assert [len(one.payload) for one in bodies[:-1]] == [theirs - 8] * (len(bodies) - 1)


@pytest.mark.parametrize("piece", [0, 1, 7, 100, 4_096])
@pytest.mark.parametrize(
    "frames",
    [
        [b"a"] * 50,
        [b"a", b"", b"b", b"", b"", b"c"],
        [b"", b"abc"],
        [b"x" * 4_088, b"y"],
        [b"x" * 20_000, b"", b"y" * 20_000],
    ],
)
def test_body_frames_are_relayed_as_they_came_but_for_empty_ones(
    frames: list[bytes], piece: int
) -> None:
    world = World()
    writer, target = world.amqp(), reader(world)
    say(
        writer,
        publish("", "q") + header(len(b"".join(frames))) + b"".join(body(one) for one in frames),
        piece,
    )
    assert [one.payload for one in heard(target)[2:]] == [one for one in frames if one]
    assert world.fates() == {"routed": 1}


@pytest.mark.parametrize("piece", [0, 1, 9])
def test_an_empty_body_is_complete_with_its_header(piece: int) -> None:
    world = World()
    writer, target = world.amqp(), reader(world)
    say(writer, (publish("", "q") + header(0)) * 3, piece)
    assert [one.kind for one in heard(target)] == [METHOD, HEADER] * 3
    say(writer, publish("", "q") + header(0) + body(b""), piece)
    assert (
        writer.read()[0].reply_text
        == "UNEXPECTED_FRAME - a content frame needs a basic.publish before it"
    )


@pytest.mark.parametrize("piece", [0, 1, 50])
def test_contents_on_several_channels_and_heartbeats_may_be_mixed(piece: int) -> None:
    world = World()
    writer, target = world.amqp(), reader(world)
    for number in (2, 3):
        open_channel(writer, number)
    frames = [
        [
            publish("", "q", channel=number),
            header(6, channel=number),
            body(b"%d-one" % number, number),
            body(b"!", number),
        ]
        for number in (1, 2, 3)
    ]
    mixed = b"".join(one + frame(8, 0, b"") for step in zip(*frames, strict=True) for one in step)
    say(writer, mixed + marshal(1, Q.Declare(queue="q")), piece)
    assert [one.body for one in deliveries(target.read())] == [b"1-one!", b"2-one!", b"3-one!"]
    assert names(writer.read()) == ["Queue.DeclareOk"]


@pytest.mark.parametrize(("theirs", "ours"), [(1, 9), (9, 1), (2_047, 2_047), (255, 256)])
@pytest.mark.parametrize("piece", [0, 11])
def test_channel_numbers_are_the_readers_own(theirs: int, ours: int, piece: int) -> None:
    world = World()
    writer, target = world.amqp(), reader(world, channel=theirs)
    if ours != 1:
        open_channel(writer, ours)
    contents = header(5, b"\x20\0" + long(short("n") + b"I" + ours.to_bytes(4, "big")), ours) + cut(
        ours.to_bytes(2, "big") * 2 + b"!", 2, ours
    )
    say(writer, publish("", "q", channel=ours) + contents, piece)
    data = heard(target)
    assert {one.channel for one in data} == {theirs}
    assert [(one.kind, one.payload) for one in data[1:]] == [
        (one.kind, one.payload) for one in split(contents)
    ]


def test_readers_of_every_kind_get_the_same_message_from_one_fanout() -> None:
    world = World()
    kinds = [(131_072, 1), (131_072, 2), (4_096, 1), (4_096, 2), (8_192, 1), (131_072, 1)]
    targets = []
    for number, (frame_max, channel) in enumerate(kinds):
        client = world.amqp(frame_max)
        client.queue(f"q{number}", "amq.fanout")
        if channel != 1:
            open_channel(client, channel)
        client.send(B.Consume(queue=f"q{number}", consumer_tag="t", no_ack=True), channel=channel)
        targets.append((client, frame_max, channel))
    writer = world.amqp(8_192)
    payload = b"0123456789" * 2_000
    for _ in range(3):
        say(
            writer,
            publish("amq.fanout", "") + header(len(payload), b"\x10\0\1") + cut(payload, 8_184),
        )
        for client, frame_max, channel in targets:
            deliver, head, *bodies = heard(client)
            assert {deliver.channel, head.channel, *(one.channel for one in bodies)} == {channel}
            assert (
                head.payload == header(len(payload), b"\x10\0\1")[7:-1]
                and b"".join(one.payload for one in bodies) == payload
            )
            assert max(len(one.payload) for one in bodies) <= frame_max - 8


ODD = [
    b"\0\0",
    b"\0\1",
    b"\0\3",
    b"\xff\xff",
    b"\0\1\0\0",
    b"\0\1\0\1\0\0",
    b"\x80\0",
    b"\x80\0\xff",
    b"\x80\0\0",
    b"\x20\0\xff\xff\xff\xff",
    b"\x20\0\0\0\0",
    b"\x20\0" + long(b"garbage"),
    b"\x10\0",
    b"\x10\0\x07",
    b"\x08\0\xff",
    b"\0\x40",
    b"\0\0and more",
    b"\x60\x02" + short("e") + long(b"") + b"?",
]


@pytest.mark.parametrize("properties", [one for one in ODD if one[:2] != b"\xff\xff"])
@pytest.mark.parametrize("piece", [0, 1])
@pytest.mark.parametrize("durable", [False, True])
def test_property_flags_and_properties_are_relayed_unread(
    properties: bytes, piece: int, durable: bool
) -> None:
    world = World()
    writer, target = world.amqp(), world.amqp(4_096)
    target.queue("q", durable=durable)
    target.send(B.Consume(queue="q", consumer_tag="t", no_ack=True))
    say(writer, publish("", "q") + header(3, properties) + body(b"abc"), piece)
    _, head, last = heard(target)
    assert (head.payload[12:], last.payload) == (properties, b"abc") and writer.read() == []


@pytest.mark.parametrize("weight", [1, 0xFFFF])
@pytest.mark.parametrize("piece", [0, 1])
def test_a_weight_means_nothing(weight: int, piece: int) -> None:
    world = World()
    writer, target = world.amqp(), reader(world)
    say(writer, publish("", "q") + header(1, weight=weight) + body(b"x"), piece)
    assert heard(target)[2].payload == b"x"


@pytest.mark.parametrize("piece", [0, 100])
@pytest.mark.parametrize(
    "name", ["x" * 255, "é" * 127 + "x", "\U0001f600" * 63 + "abc", "\t" * 255]
)
def test_names_of_255_bytes_work_everywhere(name: str, piece: int) -> None:
    world = World()
    writer, target = world.amqp(4_096), world.amqp(4_096)
    nothing = long(b"")
    for class_id, method_id, arguments in (
        (50, 10, short(name) + b"\0" + nothing),
        (40, 10, short(name) + short("topic") + b"\0" + nothing),
        (50, 20, short(name) * 3 + b"\0" + nothing),
        (60, 20, short(name) * 2 + b"\0" + nothing),
    ):
        # These bytes are written by hand, because pamqp refuses to write such names.
        say(target, method(1, class_id, method_id, b"\0\0" + arguments))
    assert names(target.read()) == [
        "Queue.DeclareOk",
        "Exchange.DeclareOk",
        "Queue.BindOk",
        "Basic.ConsumeOk",
    ]
    for _ in range(2):
        say(writer, publish(name, name) + content(b"x"), piece)
        deliver, *_ = heard(target)
        assert deliver.payload[4:].startswith(short(name)) and deliver.payload.endswith(
            short(name) * 2
        )
    target.send(B.Nack(0, multiple=True, requeue=True), B.Cancel(name))
    [ok, *_] = target.send(B.Get(queue=name))
    assert (ok.exchange, ok.routing_key) == (name, name)
    [ok] = target.send(Q.Delete(queue=name))
    assert ok.message_count == 1
    for _ in range(2):
        say(writer, publish(name, name, 1) + content(b"x"), piece)
        assert heard(writer)[0].payload.endswith(short(name) * 2)


@pytest.mark.parametrize("flags", [4, 8, 16, 32, 64, 128, 0xFC])
@pytest.mark.parametrize("piece", [0, 5])
def test_unknown_publish_flags_mean_nothing(flags: int, piece: int) -> None:
    world = World()
    writer, target = world.amqp(), reader(world)
    say(writer, publish("", "q", flags) + content(b"x"), piece)
    say(writer, publish("", "nowhere", flags | 1) + content(b"x"), piece)
    assert len(heard(target)) == 3 and names(writer.read()) == [
        "Basic.Return",
        "ContentHeader",
        "ContentBody",
    ]


def test_the_ticket_of_a_publication_means_nothing() -> None:
    world = World()
    writer, target = world.amqp(), reader(world)
    for ticket in (b"\0\1", b"\xff\xff"):
        say(writer, publish("", "q").replace(b"\0\x28\0\0", b"\0\x28" + ticket) + content(b"x"))
        assert len(heard(target)) == 3


@pytest.mark.parametrize("frame_max", [4_096, 10_000, 131_072])
@pytest.mark.parametrize("excess", [-8, -7, 0])
def test_payloads_up_to_the_negotiated_size_are_taken_and_no_larger_ones(
    frame_max: int, excess: int
) -> None:
    """The broker accepts a payload of frame_max bytes, and refuses a larger one.

    AMQPStorm and rabbitpy send such payloads, although frame_max limits the whole frame. The broker
    keeps to the limit: its own frames have payloads of frame_max - 8 bytes at most.
    """
    world = World()
    writer, target = world.amqp(frame_max), reader(world, frame_max)
    whole = b"x" * (frame_max + excess)
    stream = publish("", "q") + header(2 * len(whole)) + body(whole) + body(whole)
    for piece in (0, 1 + len(stream) // 2):
        say(writer, stream, piece)
        got = heard(target)
        bodies = [one.payload for one in got[2:]]
        assert b"".join(bodies) == whole + whole and writer.read() == []
        assert max(map(len, bodies)) <= frame_max - 8
    say(writer, publish("", "q") + header(frame_max + 1) + body(b"x" * (frame_max + 1)))
    text = f"a frame has a payload of {frame_max + 1} bytes; the limit is {frame_max} bytes"
    assert heard(target) == [] and writer.read()[0].reply_text == f"FRAME_ERROR - {text}"


@pytest.mark.parametrize("frame_max", [4_096, 131_072])
def test_large_bodies_and_small_ones_keep_their_order(frame_max: int) -> None:
    world = World()
    writer, target = world.amqp(), reader(world, frame_max)
    sizes: list[int] = [1, 20_000, 0, 100_000, 5, 16_384, 16_383, 3]
    for number, size in enumerate(sizes):
        say(
            writer,
            publish("", "q")
            + header(size, b"\0\x80" + short(str(number)))
            + cut(b"x" * size, 131_064),
        )
    assert [len(one.body) for one in deliveries(target.read())] == sizes


def test_a_content_may_grow_for_as_long_as_it_likes_and_is_forgotten_with_its_channel() -> None:
    client = World().amqp()
    client.queue("q")
    say(client, publish("", "q") + header(1_000_000))
    for _ in range(20):
        say(client, body(b"x" * 40_000))
    assert client.read() == [] and client.world.queue("q").depth == 0
    client.connection.on_closed()
    assert client.world.fates() == {}


def test_get_brings_contents_in_the_readers_frames() -> None:
    world = World()
    writer, target = world.amqp(), world.amqp(4_096)
    target.queue("q")
    open_channel(target, 7)
    for size in (0, 10, 50_000):
        say(writer, publish("", "q") + header(size) + cut(b"x" * size, 131_064))
        target.connection.receive_data(marshal(7, B.Get(queue="q")))
        ok, head, *bodies = heard(target)
        assert {ok.channel, head.channel, *(one.channel for one in bodies)} == {7}
        assert sum(len(one.payload) for one in bodies) == size and all(
            len(one.payload) <= 4_088 for one in bodies
        )


def test_messages_from_mqtt_have_a_delivery_mode_and_headers_for_the_rest() -> None:
    world = World()
    target = world.amqp(4_096)
    target.queue("q", "amq.topic", "#")
    target.send(B.Consume(queue="q", consumer_tag="t", no_ack=True))
    writer: Any = world.mqtt("m")
    for qos, mode in ((0, 1), (1, 2), (2, 2)):
        writer.send(mqtt_publish("a/b.c", b"x" * 5_000, qos, 1))
        if qos == 2:
            writer.send(b"\x62\x02\0\1")
        deliver, head, *bodies = heard(target)
        assert deliver.payload.endswith(short("amq.topic") + short("a.b/c"))
        exactly_once = b"\0\0\0\x14\x0ax-mqtt-qosl\0\0\0\0\0\0\0\x02" if qos == 2 else b""
        assert head.payload[12:] == (b"\x30\0" + exactly_once if qos == 2 else b"\x10\0") + bytes(
            [mode]
        )
        assert [len(one.payload) for one in bodies] == [4_088, 912]


def unfinished(channel: int) -> bytes:
    """Return a publication with a body of 500,000 bytes, without its last frame."""
    return publication("", "q", b"x" * 500_000, channel=channel, frame_max=100_008)[:-100_008]


def test_unfinished_contents_of_all_channels_together_have_a_bound() -> None:
    limits = BrokerLimits()
    limits.message = 500_000
    client = World(limits).amqp()
    for number in range(2, 10):
        assert [reply.name for reply in client.send(spec.Channel.Open(), channel=number)] == [
            "Channel.OpenOk"
        ]
        client.connection.receive_data(unfinished(number))
    [close] = client.read()
    assert (close.name, close.reply_code) == ("Connection.Close", 506)
    assert close.reply_text.startswith("RESOURCE_ERROR - incomplete messages take 3")


def test_channels_that_end_take_their_unfinished_contents_with_them() -> None:
    limits = BrokerLimits()
    limits.message = 500_000
    client = World(limits).amqp()
    for _ in range(20):
        client.send(spec.Channel.Open(), channel=2)
        client.connection.receive_data(unfinished(2))
        [close] = client.send(spec.Queue.Declare(queue="q"), channel=2)
        assert close.reply_code == 505
        client = client.world.amqp()
    for number in range(2, 5):
        client.send(spec.Channel.Open(), channel=number)
    for _ in range(20):
        for number in range(2, 5):
            client.connection.receive_data(unfinished(number))
        for number in range(2, 5):
            client.connection.receive_data(
                publication("", "q", b"x" * 500_000, channel=number, frame_max=100_008)[-100_008:]
            )
        assert client.read() == []
    assert client.world.fates() == {"unroutable": 60}


# -- a header is one frame


def test_a_consumer_gets_properties_up_to_the_size_of_its_frames() -> None:
    world = World()
    publisher, reader = world.amqp(), world.amqp(frame_max=4096)
    publisher.queue("q")
    reader.send(spec.Basic.Consume(queue="q", consumer_tag="t", no_ack=True))
    # The largest header value: the frame without frame header and end (8), fixed fields (14),
    # length of the table (4), the name "h" (2), type and length of the value (5).
    most = 4_096 - 8 - 14 - 4 - 2 - 5
    for letter, size in ((b"a", 10), (b"b", 4_000), (b"c", most), (b"d", most + 1)):
        publisher.publish("", "q", letter, headers={"h": "x" * size})
    data = reader.read_bytes()
    assert all(len(one.data) <= 4096 for one in split(data))
    frames = unmarshal(data)
    assert [one.body for one in deliveries(frames)] == [b"a", b"b", b"c"]
    assert refusal(frames[-1:])[:2] == ("channel", 406)
    assert read(publisher, "q") == [b"d"]
    world.fates()


@pytest.mark.parametrize("no_ack", [False, True])
@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"x_max_length_bytes": 10_000},
        {"x_max_priority": 2},
        {"x_dead_letter_exchange": "", "x_dead_letter_routing_key": "dead"},
        {"x_queue_type": "quorum", "x_delivery_limit": 0, "durable": True},
    ],
)
def test_a_message_that_does_not_fit_closes_the_channel_and_stays_for_other_consumers(
    arguments: dict[str, Any], waits: bool, no_ack: bool
) -> None:
    world = World()
    publisher, reader = world.amqp(), world.amqp(frame_max=4096)
    publisher.queue("dead")
    publisher.queue("q", **arguments)
    consume = spec.Basic.Consume(queue="q", consumer_tag="t", no_ack=no_ack)

    def publish() -> None:
        for letter, size in ((b"a", 10), (b"b", 5_000), (b"c", 10)):
            publisher.publish("", "q", letter, headers={"h": "x" * size}, delivery_mode=2)

    if waits:
        publish()
        frames = reader.send(consume)
    else:
        reader.send(consume)
        publish()
        frames = reader.read()
    assert [one.body for one in deliveries(frames)] == [b"a"]
    assert refusal(frames[-1:]) == (
        "channel",
        406,
        DOES_NOT_FIT,
        60,
        20,
    )
    queue = world.queue("q")
    # Each unacknowledged delivery is redelivered, unless it is over the delivery limit of 0.
    left = 2 if no_ack or "x_delivery_limit" in arguments else 3
    assert (queue.depth, queue.unacked, queue.consumer_count) == (left, 0, 0)
    # The client may continue with another channel. The message that was too large is delivered to
    # it again, once for each consumer.
    reader.send(spec.Channel.CloseOk(), spec.Channel.Open())
    assert world.broker.agenda.idle
    larger = deliveries(publisher.send(spec.Basic.Consume(queue="q", consumer_tag="u")))
    assert [(one.body, one.redelivered) for one in larger][-2:] == [(b"b", False), (b"c", False)]
    assert len(larger) == left and world.queue("dead").depth == 0
    publisher.send(spec.Basic.Ack(0, multiple=True))
    if "x_max_length_bytes" in arguments:
        assert isinstance(queue, LimitedQueue) and queue.waiting_bytes == 0
    world.fates()


def test_another_consumer_of_the_queue_gets_the_message_that_does_not_fit() -> None:
    world = World()
    publisher, small, large = world.amqp(), world.amqp(frame_max=4096), world.amqp()
    publisher.queue("q")
    for client in (small, large):
        client.send(spec.Basic.Consume(queue="q", consumer_tag="t"))
    publisher.publish("", "q", b"b", headers={"h": "x" * 5_000})
    publisher.publish("", "q", b"c")
    world.settle(small.connection, large.connection)
    assert refusal(small.read())[:2] == ("channel", 406)
    assert [(one.body, one.redelivered) for one in deliveries(large.read())] == [
        (b"b", False),
        (b"c", False),
    ]
    world.fates()


def test_basic_get_passes_over_properties_that_do_not_fit() -> None:
    world = World()
    publisher, reader = world.amqp(), world.amqp(frame_max=4096)
    publisher.queue("q")
    for letter, size in ((b"a", 9_000), (b"b", 10)):
        publisher.publish("", "q", letter, headers={"h": "x" * size})
    assert [
        one.body for one in deliveries(reader.send(spec.Basic.Get(queue="q", no_ack=True)))
    ] == [b"b"]
    assert deliveries(reader.send(spec.Basic.Get(queue="q"))) == []
    assert world.copies() == {"auto_acknowledged": 1}
    [other] = deliveries(publisher.send(spec.Basic.Get(queue="q")))
    assert (other.body, other.redelivered) == (b"a", False)
    world.fates()
