"""AMQP 0-9-1 methods that the load generator sends and reads outside the measured loop.

    frame    type(1) channel(2) length(4) payload(length) 0xCE
    method   class(2) method(2) arguments

This code shares nothing with the broker's front end, so that it finds mistakes of the front end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from trellis.bench.errors import BenchError

Method = tuple[int, int]
#: An empty table of headers or arguments.
NONE: Final[Mapping[str, str]] = {}

PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"
START: Final[Method] = (10, 10)
TUNE: Final[Method] = (10, 30)
OPEN_OK: Final[Method] = (10, 41)
CLOSE: Final[Method] = (10, 50)
CHANNEL_OPEN_OK: Final[Method] = (20, 11)
CHANNEL_CLOSE: Final[Method] = (20, 40)
EXCHANGE_DECLARE_OK: Final[Method] = (40, 11)
EXCHANGE_DELETE_OK: Final[Method] = (40, 21)
QUEUE_DECLARE_OK: Final[Method] = (50, 11)
QUEUE_BIND_OK: Final[Method] = (50, 21)
QUEUE_DELETE_OK: Final[Method] = (50, 41)
QOS_OK: Final[Method] = (60, 11)
CONSUME_OK: Final[Method] = (60, 21)
RETURN: Final[Method] = (60, 50)
DELIVER: Final[Method] = (60, 60)
ACK: Final[Method] = (60, 80)
SELECT_OK: Final[Method] = (85, 11)

METHOD_FRAME: Final = 1
HEADER_FRAME: Final = 2
BODY_FRAME: Final = 3
HEARTBEAT_FRAME: Final = 8
#: Bytes that a frame adds to its payload.
OVERHEAD: Final = 8

#: Names of AMQP methods, for errors.
METHOD_NAMES: Final[dict[Method, str]] = {
    START: "connection.start",
    TUNE: "connection.tune",
    OPEN_OK: "connection.open-ok",
    CLOSE: "connection.close",
    CHANNEL_OPEN_OK: "channel.open-ok",
    CHANNEL_CLOSE: "channel.close",
    EXCHANGE_DECLARE_OK: "exchange.declare-ok",
    EXCHANGE_DELETE_OK: "exchange.delete-ok",
    QUEUE_DECLARE_OK: "queue.declare-ok",
    QUEUE_BIND_OK: "queue.bind-ok",
    QUEUE_DELETE_OK: "queue.delete-ok",
    QOS_OK: "basic.qos-ok",
    CONSUME_OK: "basic.consume-ok",
    RETURN: "basic.return",
    DELIVER: "basic.deliver",
    ACK: "basic.ack",
    SELECT_OK: "confirm.select-ok",
}


def method_name(method: Method) -> str:
    """Return the name of a method, such as `connection.tune`."""
    return METHOD_NAMES.get(method, f"method {method[0]}.{method[1]}")


def short_string(text: str) -> bytes:
    """Encode a short string: its length in one byte, then the text."""
    data = text.encode()
    return bytes([len(data)]) + data


def _long(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    """Encode a frame of type `kind`: its head, the payload and the frame end."""
    return bytes([kind]) + channel.to_bytes(2, "big") + _long(payload) + b"\xce"


def _method(channel: int, method: Method, arguments: bytes) -> bytes:
    return frame(
        METHOD_FRAME,
        channel,
        method[0].to_bytes(2, "big") + method[1].to_bytes(2, "big") + arguments,
    )


_NO_TABLE: Final = _long(b"")


def _table(fields: Mapping[str, str]) -> bytes:
    return _long(
        b"".join(
            short_string(name) + b"S" + _long(value.encode()) for name, value in fields.items()
        )
    )


def start_ok(user: str, password: str) -> bytes:
    """Encode connection.start-ok with SASL PLAIN.

    The method announces the capability `authentication_failure_close`, so that the broker answers a
    refused login with connection.close.
    """
    capability = short_string("authentication_failure_close") + b"t\x01"
    properties = (
        short_string("product")
        + b"S"
        + _long(b"trellis bench load")
        + short_string("capabilities")
        + b"F"
        + _long(capability)
    )
    response = b"\0" + user.encode() + b"\0" + password.encode()
    return _method(
        0,
        (10, 11),
        _long(properties) + short_string("PLAIN") + _long(response) + short_string("en_US"),
    )


def tune_ok(channel_max: int, frame_max: int) -> bytes:
    """Encode connection.tune-ok without heartbeats.

    Heartbeats are not needed, because the load generator itself detects a stalled broker.
    """
    return _method(
        0, (10, 31), channel_max.to_bytes(2, "big") + frame_max.to_bytes(4, "big") + b"\0\0"
    )


def connection_open(vhost: str) -> bytes:
    """Encode connection.open for a virtual host."""
    return _method(0, (10, 40), short_string(vhost) + b"\0\0")


def connection_close() -> bytes:
    """Encode connection.close with the reply code 200 (success)."""
    return _method(0, CLOSE, (200).to_bytes(2, "big") + short_string("done") + b"\0\0\0\0")


def channel_open() -> bytes:
    """Encode channel.open for channel 1, which all further methods of this module use too."""
    return _method(1, (20, 10), b"\0")


def exchange_declare(name: str, kind: str) -> bytes:
    """Encode exchange.declare of an exchange of type `kind`."""
    return _method(
        1, (40, 10), b"\0\0" + short_string(name) + short_string(kind) + b"\0" + _NO_TABLE
    )


def exchange_delete(name: str) -> bytes:
    """Encode exchange.delete of an exchange."""
    return _method(1, (40, 20), b"\0\0" + short_string(name) + b"\0")


def queue_declare(
    name: str, passive: bool = False, auto_delete: bool = False, durable: bool = False
) -> bytes:
    """Encode queue.declare of a queue that is not exclusive.

    With `passive`, the broker creates no queue and only answers with the queue's state.
    """
    return _method(
        1,
        (50, 10),
        b"\0\0"
        + short_string(name)
        + bytes([passive | durable << 1 | auto_delete << 3])
        + _NO_TABLE,
    )


def queue_bind(queue: str, exchange: str, key: str, arguments: Mapping[str, str] = NONE) -> bytes:
    """Encode queue.bind of a queue to an exchange."""
    return _method(
        1,
        (50, 20),
        b"\0\0"
        + short_string(queue)
        + short_string(exchange)
        + short_string(key)
        + b"\0"
        + _table(arguments),
    )


def queue_delete(name: str) -> bytes:
    """Encode queue.delete of a queue."""
    return _method(1, (50, 40), b"\0\0" + short_string(name) + b"\0")


def qos(prefetch: int) -> bytes:
    """Encode basic.qos, which limits a consumer's unacknowledged messages to `prefetch`."""
    return _method(1, (60, 10), b"\0\0\0\0" + prefetch.to_bytes(2, "big") + b"\0")


def consume(queue: str, no_ack: bool) -> bytes:
    """Encode basic.consume of a queue; with `no_ack`, the consumer sends no acknowledgements."""
    return _method(
        1,
        (60, 20),
        b"\0\0" + short_string(queue) + short_string("bench") + bytes([no_ack << 1]) + _NO_TABLE,
    )


def ack(tag: int) -> bytes:
    """Encode basic.ack of the delivery with a tag."""
    return _method(1, ACK, tag.to_bytes(8, "big") + b"\0")


def confirm_select() -> bytes:
    """Encode confirm.select, which switches publisher confirms on."""
    return _method(1, (85, 10), b"\0")


def publish(
    exchange: str,
    key: str,
    body: bytes,
    frame_max: int,
    persistent: bool = False,
    headers: Mapping[str, str] = NONE,
) -> bytes:
    """Encode a message: basic.publish, the content header, and the body in frames.

    The content header has a content type, a delivery mode (2 if `persistent`, else 1) and
    `headers`. A body frame has at most `frame_max` bytes.
    """
    flags, table = (b"\xb0\x00", _table(headers)) if headers else (b"\x90\x00", b"")
    properties = (
        flags + short_string("application/octet-stream") + table + bytes([2 if persistent else 1])
    )
    header = frame(HEADER_FRAME, 1, b"\0\x3c\0\0" + len(body).to_bytes(8, "big") + properties)
    part = frame_max - OVERHEAD
    bodies = b"".join(
        frame(BODY_FRAME, 1, body[at : at + part]) for at in range(0, len(body), part)
    )
    return (
        _method(1, (60, 40), b"\0\0" + short_string(exchange) + short_string(key) + b"\0")
        + header
        + bodies
    )


def read_method(payload: bytes) -> tuple[Method, bytes]:
    """Return the method in the payload of a method frame, and the method's encoded arguments.

    Raises BenchError if the payload is shorter than four bytes.
    """
    if len(payload) < 4:
        raise BenchError(
            f"the broker sent a method frame of {len(payload)} bytes, but a method has at least 4 "
            "bytes"
        )
    return (int.from_bytes(payload[:2], "big"), int.from_bytes(payload[2:4], "big")), payload[4:]


def read_server(arguments: bytes) -> str:
    """Return the product and version in the server properties of connection.start, as one text.

    A broker that announces a `trellis_version` is Trellis, also if it announces the product
    `RabbitMQ` (Trellis' setting amqp.product). A missing property is left out.
    """
    if version := _string_field(arguments, "trellis_version"):
        return f"Trellis {version}"
    return " ".join(
        value for name in ("product", "version") if (value := _string_field(arguments, name))
    )


def _string_field(table: bytes, name: str) -> str:
    """Return a long string in an encoded table, found by searching for its name; "" if missing."""
    _, separator, after = table.partition(short_string(name) + b"S")
    size = int.from_bytes(after[:4], "big") if separator else 0
    return after[4 : 4 + size].decode(errors="replace")


def read_queue_depth(arguments: bytes) -> int:
    """Return the number of messages in the queue, from the arguments of queue.declare-ok."""
    at = 1 + arguments[0]
    return int.from_bytes(arguments[at : at + 4], "big")


def read_delivery_tag(arguments: bytes) -> int:
    """Return the delivery tag in the arguments of basic.deliver."""
    at = 1 + arguments[0]
    return int.from_bytes(arguments[at : at + 8], "big")


def broker_closed(where: str, payload: bytes) -> BenchError:
    """Return the error for an unexpected method in the payload of a method frame.

    `where` names the connection. The error's text has the broker's reason if the method closes the
    connection or the channel, or returns a message.
    """
    method, arguments = read_method(payload)
    if method in (CLOSE, CHANNEL_CLOSE, RETURN) and len(arguments) >= 3:
        code = int.from_bytes(arguments[:2], "big")
        text = arguments[3 : 3 + arguments[2]].decode(errors="replace")
        action = {
            CLOSE: "closed the connection",
            CHANNEL_CLOSE: "closed the channel",
            RETURN: "returned a message",
        }[method]
        return BenchError(f"{where}: the broker {action}: {code} {text}")
    return BenchError(f"{where}: the broker sent {method_name(method)} unexpectedly")
