"""Streams are declared, filled and read as RabbitMQ's clients expect."""

from __future__ import annotations

import gc
from datetime import UTC, datetime
from typing import Any

import pamqp.commands as spec
import pytest
from pamqp.header import ContentHeader

from tests.clients import Amqp, World, marshal, mqtt_publish
from tests.streams.tables import rows_of, stream
from tests.wire.amqp.speech import frame, method, short, split


def declare(client: Amqp, name: str = "s", **arguments: Any) -> list[Any]:
    given = {
        "x-queue-type": "stream",
        **{key.replace("_", "-"): value for key, value in arguments.items()},
    }
    return client.send(spec.Queue.Declare(queue=name, durable=True, arguments=given))


def consume(
    client: Amqp,
    offset: Any = "first",
    prefetch: int = 100,
    name: str = "s",
    tag: str = "t",
    **more: Any,
) -> list[Any]:
    client.send(spec.Basic.Qos(prefetch_count=prefetch))
    arguments = {} if offset is None else {"x-stream-offset": offset}
    return client.send(
        spec.Basic.Consume(queue=name, consumer_tag=tag, arguments=arguments, **more)
    )


def offsets(frames: list[Any]) -> list[int]:
    headers: list[Any] = [
        frame.properties.headers for frame in frames if isinstance(frame, ContentHeader)
    ]
    return [table["x-stream-offset"] for table in headers]


def reason(frames: list[Any]) -> tuple[int | None, str]:
    close = frames[-1]
    assert isinstance(close, (spec.Channel.Close, spec.Connection.Close))
    return close.reply_code, close.reply_text


def test_every_reader_gets_every_message_from_where_it_begins() -> None:
    world = World()
    client = world.amqp()
    declare(client)
    for number in range(5):
        client.publish("", "s", b"%d" % number)
    one, two, three = world.amqp(), world.amqp(), world.amqp()
    assert one.bodies(consume(one)) == [b"0", b"1", b"2", b"3", b"4"]
    assert two.bodies(consume(two, 3)) == [b"3", b"4"]
    assert three.bodies(consume(three, None)) == []
    client.publish("", "s", b"5")
    assert [reader.bodies() for reader in (one, two, three)] == [[b"5"]] * 3
    world.fates()


def test_delivery_equals_the_publication_with_an_offset_header() -> None:
    world = World()
    client = world.amqp()
    declare(client)
    sent: dict[str, Any] = {
        "content_type": "text/plain",
        "content_encoding": "gzip",
        "headers": {"a": 1, "b": "two"},
        "delivery_mode": 2,
        "priority": 7,
        "correlation_id": "c",
        "reply_to": "r",
        "message_id": "m",
        "timestamp": datetime(2024, 2, 29, tzinfo=UTC),
        "message_type": "t",
        "app_id": "app",
    }
    client.publish("amq.topic", "nowhere", b"-")
    client.publish("", "s", b"body", **sent)
    client.publish("", "s", b"")
    frames = consume(client)
    first, second = (frame for frame in frames if isinstance(frame, ContentHeader))
    assert first.properties.headers == {"a": 1, "b": "two", "x-stream-offset": 0}
    assert {name: getattr(first.properties, name) for name in sent if name != "headers"} == {
        name: value for name, value in sent.items() if name != "headers"
    }
    assert second.properties.headers == {"x-stream-offset": 1}
    deliveries = [frame for frame in frames if isinstance(frame, spec.Basic.Deliver)]
    assert [
        (one.exchange, one.routing_key, one.delivery_tag, one.redelivered) for one in deliveries
    ] == [("", "s", 1, False), ("", "s", 2, False)]


@pytest.mark.parametrize("keys", [[b"k\xff"], [b"k\xff", b"k"], [b"k", b"\xfe", b"\xff"]])
def test_a_routing_key_that_is_not_utf8_is_delivered_as_it_was_published(
    keys: list[bytes],
) -> None:
    """Check that a consumer of a stream gets routing keys that are not UTF-8 unchanged.

    A stream stores such routing keys in a separate column. The test uses rows with and without a
    value in this column.
    """
    world = World()
    client = world.amqp()
    declare(client)
    client.send(spec.Queue.Bind(queue="s", exchange="amq.fanout", routing_key=""))
    for key in keys:
        arguments = b"\0\0" + short("amq.fanout") + short(key) + b"\0"
        header = frame(2, 1, b"\0\x3c\0\0" + bytes(8) + b"\0\0")
        client.connection.receive_data(method(1, 60, 40, arguments) + header)
    client.send(spec.Basic.Qos(prefetch_count=100))
    start = spec.Basic.Consume(queue="s", arguments={"x-stream-offset": "first"})
    client.connection.receive_data(marshal(1, start))
    frames = split(client.read_bytes())
    deliveries = [one.payload for one in frames if one.payload.startswith(b"\0\x3c\0\x3c")]
    assert [payload.partition(b"amq.fanout")[2] for payload in deliveries] == [
        short(key) for key in keys
    ]


def test_acks_are_credit_and_nothing_comes_back() -> None:
    world = World()
    client = world.amqp()
    declare(client)
    for number in range(6):
        client.publish("", "s", b"%d" % number)
    assert client.bodies(consume(client, prefetch=2)) == [b"0", b"1"]
    assert client.bodies(client.send(spec.Basic.Ack(1))) == [b"2"]
    assert client.bodies(client.send(spec.Basic.Nack(2, requeue=True))) == [b"3"]
    assert client.bodies(client.send(spec.Basic.Reject(3, requeue=False))) == [b"4"]
    assert client.bodies(client.send(spec.Basic.Recover(requeue=True))) == [b"5"]
    assert world.queue("s").depth == 6
    world.fates()


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        ({"durable": False}, "invalid property 'non-durable'"),
        ({"exclusive": True}, "invalid property 'exclusive-owner'"),
        ({"auto_delete": True}, "invalid property 'auto-delete'"),
    ],
)
def test_a_stream_lasts(arguments: dict[str, bool], wrong: str) -> None:
    client = World().amqp()
    code, text = reason(
        client.send(
            spec.Queue.Declare(
                queue="s", **{"durable": True, **arguments}, arguments={"x-queue-type": "stream"}
            )
        )
    )
    assert code == 406 and wrong in text


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("x-max-priority", 3),
        ("x-message-ttl", 3),
        ("x-dead-letter-exchange", "x"),
        ("x-max-length", 3),
        ("x-max-age", "7x"),
        ("x-stream-max-segment-size-bytes", 3),
        ("x-journal", "yes"),
        ("x-expires", 1),
    ],
)
def test_argument_that_streams_lack_is_refused(argument: str, value: Any) -> None:
    client = World().amqp()
    code, text = reason(
        client.send(
            spec.Queue.Declare(
                queue="s", durable=True, arguments={"x-queue-type": "stream", argument: value}
            )
        )
    )
    assert code == 406 and f"invalid arg '{argument}' for queue 's' in vhost '/'" in text


def test_argument_of_streams_is_refused_for_other_queues() -> None:
    client = World().amqp()
    code, text = reason(
        client.send(spec.Queue.Declare(queue="q", durable=True, arguments={"x-max-age": "7D"}))
    )
    assert (code, "queue type rabbit_classic_queue" in text) == (406, True)


def test_unsupported_uses_of_a_stream_are_refused() -> None:
    world = World()
    declare(world.amqp())
    refusals: list[tuple[Any, int, str]] = [
        (
            lambda one: one.send(spec.Basic.Consume(queue="s")),
            406,
            "consumer prefetch count is not set for stream queue 's' in vhost '/'",
        ),
        (
            lambda one: consume(one, no_ack=True),
            540,
            "automatic acknowledgement not supported by stream queue 's'",
        ),
        (
            lambda one: one.send(spec.Basic.Get(queue="s")),
            540,
            "basic.get not supported by stream queues queue 's' in vhost '/'",
        ),
        (
            lambda one: one.send(spec.Queue.Purge(queue="s")),
            540,
            "queue.purge not supported by stream queue 's'",
        ),
        (lambda one: consume(one, "soon"), 406, "invalid arg 'x-stream-offset'"),
        (lambda one: consume(one, -1), 406, "invalid arg 'x-stream-offset'"),
    ]
    for ask, code, text in refusals:
        answer = reason(ask(world.amqp()))
        assert answer[0] == code and text in answer[1]


def test_a_server_names_no_stream() -> None:
    """Check that the broker refuses to choose the name of a stream.

    The stream would be durable, and no client would find it again.
    """
    code, text = reason(declare(World().amqp(), ""))
    assert (code, text) == (
        406,
        "PRECONDITION_FAILED - Cannot declare a server-named queue for type rabbit_stream_queue",
    )


def test_a_prefetch_count_of_the_channel_is_one_also_when_it_is_used_up() -> None:
    world = World()
    client = world.amqp()
    declare(client)
    client.publish("", "s", b"0")
    client.publish("", "s", b"1")
    client.send(spec.Basic.Qos(prefetch_count=2, global_=True))
    arguments: dict[str, Any] = {"x-stream-offset": "first"}
    assert client.bodies(
        client.send(spec.Basic.Consume(queue="s", consumer_tag="a", arguments=arguments))
    ) == [b"0", b"1"]
    assert (
        client.bodies(
            client.send(spec.Basic.Consume(queue="s", consumer_tag="b", arguments=arguments))
        )
        == []
    )
    assert client.bodies(client.send(spec.Basic.Ack(2, multiple=True))) == [b"0", b"1"]


def test_a_word_may_be_a_byte_array() -> None:
    """A string in the arguments may be an AMQP byte array: some clients send strings this way."""
    client = World().amqp()
    declare(client)
    client.publish("", "s", b"0")
    assert client.bodies(consume(client, bytearray(b"first"))) == [b"0"]


def test_a_reader_may_begin_at_the_last_batch_a_time_or_so_long_ago() -> None:
    world = World()
    client = world.amqp()
    declare(client)
    for number in range(3):
        client.publish("", "s", b"%d" % number)
        world.sleep(3_600_000)
    start = 1_700_000_000
    assert world.amqp().bodies(consume(world.amqp(), "last")) == [b"2"]
    for offset, bodies in (
        ("1h", [b"2"]),
        ("2h", [b"1", b"2"]),
        ("1s", []),
        ("1D", [b"0", b"1", b"2"]),
        (datetime.fromtimestamp(start + 3_600, UTC), [b"1", b"2"]),
        (datetime.fromtimestamp(start + 3_601, UTC), [b"2"]),
        (datetime.fromtimestamp(start * 2, UTC), []),
    ):
        reader = world.amqp()
        assert reader.bodies(consume(reader, offset)) == bodies, offset


def test_reader_behind_the_end_of_a_stream_waits() -> None:
    world = World()
    client, reader = world.amqp(), world.amqp()
    declare(client)
    assert reader.bodies(consume(reader, 2)) == []
    for number in range(4):
        client.publish("", "s", b"%d" % number)
    assert offsets(reader.read()) == [2, 3]


def test_a_confirm_waits_for_the_disk_and_so_do_readers() -> None:
    world = World()
    client, reader = world.amqp(), world.amqp()
    declare(client)
    consume(reader)
    client.send(spec.Confirm.Select())
    world.slow_disk = True
    assert client.publish("", "s", b"a") == []
    assert reader.read() == []
    world.durable()
    assert [type(frame) for frame in client.read()] == [spec.Basic.Ack]
    world.turn()
    assert reader.bodies() == [b"a"]


def test_retention_by_size_removes_full_segments_and_says_so() -> None:
    world = World()
    client = world.amqp()
    declare(client, x_stream_max_segment_size_bytes=8_192, x_max_length_bytes=20_000)
    for number in range(20):
        client.publish("", "s", b"%d" % number + bytes(3_000))
    queue = stream(world.broker, "s")
    first = int(queue.local.first_offset)
    assert 0 < first < 20 and queue.depth == 20 - first and queue.local.size <= 20_000 + 8_192
    code, text = reason(consume(client, first - 1))
    assert (
        code == 406
        and "next available" not in text
        and f"the first available offset is {first}" in text
    )
    reader = world.amqp()
    assert offsets(consume(reader)) == list(range(first, 20))
    world.fates()


def test_a_slow_reader_that_retention_overtakes_is_told() -> None:
    world = World()
    client, reader = world.amqp(), world.amqp()
    declare(client, x_stream_max_segment_size_bytes=8_192, x_max_length_bytes=20_000)
    client.publish("", "s", b"0")
    client.publish("", "s", b"1")
    assert offsets(consume(reader, prefetch=1)) == [0]
    for _ in range(20):
        client.publish("", "s", bytes(3_000))
    code, text = reason(reader.send(spec.Basic.Ack(1)))
    assert code == 406 and "offset 1 of stream 's' in vhost '/' is gone" in text


def test_retention_by_age_looks_again_by_itself() -> None:
    world = World()
    client = world.amqp()
    declare(client, x_stream_max_segment_size_bytes=4_096, x_max_age="1h")
    for _ in range(4):
        client.publish("", "s", bytes(3_000))
    world.sleep(3_700_000)
    for _ in range(3):
        world.turn()
    queue = stream(world.broker, "s")
    assert queue.local.first_offset == 3 and queue.depth == 1, "the last segment stays"
    assert rows_of(queue)[0]["offset"] == 3
    assert world.copies() == {"expired": 3}


def test_policy_sets_the_retention_of_a_stream() -> None:
    from broker.queues.policies import Policy

    world = World()
    client = world.amqp()
    declare(client, x_stream_max_segment_size_bytes=4_096)
    for _ in range(4):
        client.publish("", "s", bytes(3_000))
    world.vhost.applied_policies.set_policy(
        Policy("/", "small", "^s$", "streams", 0, {"max-length-bytes": 5_000})
    )
    world.turn()
    assert stream(world.broker, "s").depth == 1


def test_an_mqtt_publication_is_a_row_and_a_delivery() -> None:
    world = World()
    client, publisher = world.amqp(), world.mqtt("c")
    declare(client)
    client.send(spec.Queue.Bind(queue="s", exchange="amq.topic", routing_key="#"))
    assert publisher.send(mqtt_publish("a/b", b"one", 1, 7)) == b"\x40\x02\x00\x07"
    publisher.send(mqtt_publish("a/b", b"nil"))
    [one, nil] = rows_of(stream(world.broker, "s"))
    assert (one["topic"], one["exchange"], one["qos"], one["body"], one["delivery_mode"]) == (
        "a.b",
        "amq.topic",
        1,
        b"one",
        2,
    )
    assert (nil["qos"], nil["delivery_mode"]) == (0, 1)
    assert client.bodies(consume(client)) == [b"one", b"nil"]


def test_a_large_body_and_small_frames_come_whole() -> None:
    world = World()
    client, reader = world.amqp(), world.amqp(frame_max=4_096)
    declare(client)
    client.publish("", "s", bytes(range(256)) * 2_000)
    client.publish("", "s", b"after")
    assert (
        b"".join(reader.bodies(consume(reader)) + reader.bodies())
        == bytes(range(256)) * 2_000 + b"after"
    )


def test_a_single_active_consumer_reads_alone_until_it_leaves() -> None:
    world = World()
    client, one, two = world.amqp(), world.amqp(), world.amqp()
    declare(client, x_single_active_consumer=True)
    client.publish("", "s", b"a")
    assert one.bodies(consume(one)) == [b"a"]
    assert two.bodies(consume(two)) == []
    one.send(spec.Basic.Cancel("t"))
    assert two.bodies() == [b"a"]


def test_many_readers_near_each_other_share_one_read() -> None:
    world = World()
    client = world.amqp()
    declare(client)
    for number in range(50):
        client.publish("", "s", b"%d" % number)
    readers = [world.amqp() for _ in range(20)]
    for reader in readers:
        assert len(reader.bodies(consume(reader))) == 50
    assert stream(world.broker, "s").pages.reads == 1


@pytest.mark.parametrize("slow", [True, False])
def test_streams_that_are_deleted_leave_nothing_to_the_collector(slow: bool) -> None:
    world = World()
    client = world.amqp()

    def live() -> None:
        declare(client)
        client.publish("", "s", b"x")
        consume(client)
        client.send(spec.Basic.Ack(0, multiple=True), spec.Basic.Cancel("t"))
        world.slow_disk = slow
        client.publish("", "s", b"y")
        client.send(spec.Queue.Delete(queue="s"))
        world.durable()
        world.durable()
        world.slow_disk = False
        client.read()

    live()
    gc.collect()
    gc.disable()
    try:
        for _ in range(10):
            live()
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_a_deleted_stream_is_gone_and_its_successor_is_empty() -> None:
    world = World()
    client, reader = world.amqp(), world.amqp()
    declare(client)
    client.publish("", "s", b"old")
    consume(reader)
    [deleted] = client.send(spec.Queue.Delete(queue="s"))
    assert deleted.message_count == 1
    assert isinstance(reader.read()[-1], spec.Basic.Cancel)
    [declared] = declare(client)
    assert declared.message_count == 0
    client.publish("", "s", b"new")
    assert [row["body"] for row in rows_of(stream(world.broker, "s"))] == [b"new"]
    world.fates()
