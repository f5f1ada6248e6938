"""Comparison of streams in Trellis and RabbitMQ 3.10: refusals, and deliveries from any offset.

docs/streams.md ("Compared with RabbitMQ's streams") lists the differences and their reasons. The
texts of refusals are compared by their common beginning.
"""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pika
import pytest

from tests.broker import BrokerProcess
from tests.interop.client import PATIENCE
from tests.interop.recording_client import RecordingClient
from tests.rabbitmq import RabbitMq

STREAM = {"x-queue-type": "stream"}
TOPOLOGIES = 10
_INVALID = "PRECONDITION_FAILED - invalid arg '{}' for queue '{}' in vhost '/'"
_INEQUIVALENT = "PRECONDITION_FAILED - inequivalent arg '{}' for queue '{}' in vhost '/': received "


def declared(**given: Any) -> tuple[str, dict[str, Any]]:
    """Return a call of pika's queue_declare for a stream, as (method name, keywords).

    A keyword such as `x_max_age` gives the queue argument x-max-age.
    """
    arguments = {
        name.replace("_", "-"): given.pop(name) for name in list(given) if name.startswith("x_")
    }
    return "queue_declare", {
        "queue": "{}",
        "durable": True,
        "arguments": {**STREAM, **arguments},
        **given,
    }


def consumed(offset: Any = "first", **given: Any) -> tuple[str, dict[str, Any]]:
    """Return a call of basic_consume for a stream from an offset on, as (method name, keywords)."""
    return "basic_consume", {
        "queue": "{}",
        "on_message_callback": print,
        "arguments": {"x-stream-offset": offset},
        **given,
    }


#: Calls on an existing stream that both brokers refuse: the call, the reply code, the beginning of
#: the reply text, and the argument that the text names. In the text, the first `{}` is the
#: argument, the second the stream; `{1}` is the stream.
REFUSALS: list[tuple[tuple[str, dict[str, Any]], int, str, str]] = [
    (
        declared(x_max_age="7D"),
        406,
        _INEQUIVALENT + "the value '7D' of type 'longstr' but current is none",
        "x-max-age",
    ),
    (
        declared(x_max_length_bytes=5),
        406,
        _INEQUIVALENT + "the value '5' of type 'signedint' but current is none",
        "x-max-length-bytes",
    ),
    (declared(x_queue_type="classic"), 406, _INEQUIVALENT, "x-queue-type"),
    (
        declared(auto_delete=True),
        406,
        _INEQUIVALENT + "'true' but current is 'false'",
        "auto_delete",
    ),
    (declared(durable=False), 406, _INEQUIVALENT + "'false' but current is 'true'", "durable"),
    (
        declared(exclusive=True),
        405,
        "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '{1}' in vhost '/'",
        "",
    ),
    (
        declared(queue=""),
        406,
        "PRECONDITION_FAILED - Cannot declare a server-named queue for type rabbit_stream_queue",
        "",
    ),
    (
        declared(queue="{}-2", durable=False),
        406,
        "PRECONDITION_FAILED - invalid property 'non-durable' for queue '{1}-2'",
        "",
    ),
    (
        declared(queue="{}-2", exclusive=True),
        406,
        "PRECONDITION_FAILED - invalid property 'exclusive-owner' for queue '{1}-2'",
        "",
    ),
    (
        declared(queue="{}-2", auto_delete=True),
        406,
        "PRECONDITION_FAILED - invalid property 'auto-delete' for queue '{1}-2'",
        "",
    ),
    *(
        (
            declared(queue="{}-2", **{argument.replace("-", "_"): value}),
            406,
            _INVALID.replace("{}' in", "{}-2' in") + ending,
            argument,
        )
        for argument, value, ending in (
            ("x-max-age", "7x", ": "),
            ("x-max-age", 7, ": "),
            ("x-max-age", "1 D", ": "),
            ("x-max-age", "1.5D", ": "),
            ("x-max-length-bytes", -1, ": "),
            ("x-max-length-bytes", "10", ": "),
            ("x-stream-max-segment-size-bytes", -1, ": "),
            ("x-stream-max-segment-size-bytes", "a", ": "),
            *(
                (other, value, " of queue type rabbit_stream_queue")
                for other, value in (
                    ("x-max-length", 5),
                    ("x-message-ttl", 5),
                    ("x-expires", 5_000),
                    ("x-max-priority", 5),
                    ("x-dead-letter-exchange", "a"),
                    ("x-overflow", "drop-head"),
                    ("x-delivery-limit", 3),
                )
            ),
        )
    ),
    (
        ("basic_get", {"queue": "{}"}),
        540,
        "NOT_IMPLEMENTED - basic.get not supported by stream queues queue '{1}' in vhost '/'",
        "",
    ),
    (
        ("queue_purge", {"queue": "{}"}),
        540,
        "NOT_IMPLEMENTED - queue.purge not supported by stream queue",
        "",
    ),
    (consumed(), 406, "PRECONDITION_FAILED - consumer prefetch count is not set for ", ""),
]


def named(word: Any, name: str) -> Any:
    """Return `word` with `name` in place of `{}` if `word` is a str; return other values as is."""
    return word.replace("{}", name) if isinstance(word, str) else word


@pytest.fixture
def clients(broker: BrokerProcess, rabbitmq: RabbitMq) -> tuple[RecordingClient, RecordingClient]:
    return RecordingClient(broker.amqp.port), RecordingClient(rabbitmq.port)


@pytest.mark.long
@pytest.mark.parametrize("number", range(len(REFUSALS)))
def test_both_refuse_the_same(
    clients: tuple[RecordingClient, RecordingClient], number: int
) -> None:
    (method, given), code, text, argument = REFUSALS[number]
    name = f"refusing-{number}"
    for client in clients:
        client.channel.queue_declare(name, durable=True, arguments=STREAM)
        client.do(method, **{key: named(value, name) for key, value in given.items()})
        refusal = client.recorded[-1]
        client.channel.queue_delete(name)
        client.connection.close()
        expected = text.replace("{1}", name).replace("{}", argument, 1).replace("{}", name)
        assert refusal[:2] == (method, code) and refusal[2].startswith(expected), (
            client is clients[0],
            refusal,
            expected,
        )


@pytest.mark.long
@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"auto_ack": True}, 540),
        ({"arguments": {"x-stream-offset": "3"}}, 406),
        ({"arguments": {"x-stream-offset": "1W"}}, 406),
    ],
)
def test_both_refuse_the_same_consumers(
    clients: tuple[RecordingClient, RecordingClient], given: dict[str, Any], code: int
) -> None:
    for client in clients:
        client.channel.queue_declare("refusing", durable=True, arguments=STREAM)
        client.channel.basic_qos(prefetch_count=5)
        client.do("basic_consume", "refusing", print, **given)
        assert client.recorded[-1][1] == code, client.recorded
        client.channel.queue_delete("refusing")
        client.connection.close()


@pytest.mark.long
def test_both_cancel_the_consumers_of_a_deleted_stream(
    clients: tuple[RecordingClient, RecordingClient],
) -> None:
    for client in clients:
        client.channel.queue_declare("deleted", durable=True, arguments=STREAM)
        client.channel.basic_qos(prefetch_count=5)
        tags: list[str] = []
        client.channel.add_on_cancel_callback(
            lambda frame, tags=tags: tags.append(frame.method.consumer_tag)
        )
        client.channel.basic_consume("deleted", print, consumer_tag="reader")
        client.connection.channel().queue_delete("deleted")
        while not tags:
            client.connection.process_data_events(1)
        assert tags == ["reader"]
        client.do("queue_declare", "deleted", passive=True)
        assert client.recorded[-1] == (
            "queue_declare",
            404,
            "NOT_FOUND - no queue 'deleted' in vhost '/'",
        )
        client.connection.close()


def publications(draw: random.Random, exchange: str, streams: list[str]) -> list[tuple[Any, ...]]:
    """Draw the arguments of 30 basic.publish calls."""
    calls: list[tuple[Any, ...]] = []
    for number in range(30):
        fields = {
            "n": draw.choice([number, -1, 1 << 40]),
            "word": draw.choice(["a", "ä", ""]),
            "true": True,
        }
        headers: dict[str, Any] = fields if draw.random() < 0.6 else {}
        if draw.random() < 0.15:
            headers["CC"] = [draw.choice(streams)]
        if draw.random() < 0.1:
            headers["BCC"] = [draw.choice(streams)]
        properties = pika.BasicProperties(
            headers=headers or None,
            delivery_mode=draw.choice([None, 1, 2]),
            priority=draw.choice([None, 0, 9]),
            content_type=draw.choice([None, "text/plain"]),
            content_encoding=draw.choice([None, "utf-8"]),
            expiration=draw.choice([None, "0", "60000"]),
            timestamp=draw.choice([None, 1_700_000_000]),
            message_id=f"{number}",
            correlation_id=draw.choice([None, "c"]),
            reply_to=draw.choice([None, "r"]),
            type=draw.choice([None, "t"]),
            app_id="app",
        )
        key = draw.choice(["a", "a.b", "b.c", "", *streams])
        body = b"%d" % number + b"x" * draw.choice([0, 5, 5_000, 200_000])
        calls.append(
            (draw.choice([exchange, "", "amq.direct"]), key, body, properties, draw.random() < 0.3)
        )
    return calls


@pytest.mark.long
@pytest.mark.parametrize("seed", range(TOPOLOGIES))
def test_both_deliver_the_same(clients: tuple[RecordingClient, RecordingClient], seed: int) -> None:
    draw = random.Random(seed)
    streams, exchange = [f"stream{seed}-a", f"stream{seed}-b"], f"stream{seed}"
    kind = draw.choice(["topic", "fanout", "direct"])
    bindings = [
        (draw.choice(streams), exchange, draw.choice(["a", "#", "*.b", "b.#"])) for _ in range(3)
    ]
    sent = publications(draw, exchange, streams)
    offsets: list[Any] = [
        "first",
        0,
        "last",
        "1h",
        datetime.now(UTC) - timedelta(days=1),
        draw.randint(0, 5),
    ]
    reads = [(draw.choice(offsets), draw.randint(1, 7), draw.random() < 0.3) for _ in range(4)]
    for client in clients:
        client.do("exchange_declare", exchange, kind)
        for name in streams:
            client.do("queue_declare", name, durable=True, arguments=STREAM)
        for binding in bindings:
            client.do("queue_bind", *binding)
        for publication in sent:
            client.do("basic_publish", *publication)
        for name in streams:
            count = length(client, name)
            for offset, prefetch, multiple in reads:
                left = (
                    count - offset
                    if isinstance(offset, int)
                    else min(count, 1)
                    if offset == "last"
                    else count
                )
                client.read(name, offset, max(left, 0), prefetch, multiple)
            client.read(name, None, 0, 5, False)
            client.read(name, count + 3, 0, 5, False)
        for name in streams:
            client.do("queue_delete", name)
        client.do("exchange_delete", exchange)
        client.connection.close()
    assert clients[0].recorded == clients[1].recorded


def length(client: RecordingClient, stream: str) -> int:
    """Publish one more message to a stream; return the number of all messages in the stream."""
    client.channel.basic_publish("", stream, b"end")
    channel = client.connection.channel()
    channel.basic_qos(prefetch_count=10)
    for method, properties, body in channel.consume(
        stream, arguments={"x-stream-offset": "last"}, inactivity_timeout=PATIENCE
    ):
        assert method is not None
        if body == b"end":
            channel.close()
            return int(properties.headers["x-stream-offset"]) + 1
    raise AssertionError(f"stream {stream}: the message was confirmed but is not in the stream")
