"""AMQP 0-9-1 octets that are not in the hot path: the methods a load generator says, and the
answers it understands.

    frame    type(1) channel(2) length(4) payload(length) 0xCE
    method   class(2) method(2) arguments

Written for this tool and apart from the broker's own front end: what checks the broker may not
share its mistakes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from trellis.bench.errors import BenchError

Method = tuple[int, int]
#: No headers, no arguments.
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
SELECT_OK: Final[Method] = (85, 11)

METHOD_FRAME: Final = 1
HEADER_FRAME: Final = 2
BODY_FRAME: Final = 3
HEARTBEAT_FRAME: Final = 8
#: What a frame adds to its payload.
OVERHEAD: Final = 8

#: Which answer each request wants, in words for errors.
WORDS: Final[dict[Method, str]] = {
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
    SELECT_OK: "confirm.select-ok",
}


def words(method: Method) -> str:
    return WORDS.get(method, f"method {method[0]}.{method[1]}")


def short(text: str) -> bytes:
    octets = text.encode()
    return bytes([len(octets)]) + octets


def _long(octets: bytes) -> bytes:
    return len(octets).to_bytes(4, "big") + octets


def frame(kind: int, channel: int, payload: bytes) -> bytes:
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
        b"".join(short(name) + b"S" + _long(value.encode()) for name, value in fields.items())
    )


def start_ok(user: str, password: str) -> bytes:
    """SASL PLAIN. The capability makes a refused login an answer instead of a closed connection."""
    capability = short("authentication_failure_close") + b"t\x01"
    properties = (
        short("product")
        + b"S"
        + _long(b"trellis bench load")
        + short("capabilities")
        + b"F"
        + _long(capability)
    )
    response = b"\0" + user.encode() + b"\0" + password.encode()
    return _method(
        0, (10, 11), _long(properties) + short("PLAIN") + _long(response) + short("en_US")
    )


def tune_ok(channel_max: int, frame_max: int) -> bytes:
    """Without heartbeats: a stalled broker is found by the generator itself."""
    return _method(
        0, (10, 31), channel_max.to_bytes(2, "big") + frame_max.to_bytes(4, "big") + b"\0\0"
    )


def connection_open(vhost: str) -> bytes:
    return _method(0, (10, 40), short(vhost) + b"\0\0")


def connection_close() -> bytes:
    return _method(0, CLOSE, (200).to_bytes(2, "big") + short("done") + b"\0\0\0\0")


def channel_open() -> bytes:
    return _method(1, (20, 10), b"\0")


def exchange_declare(name: str, kind: str) -> bytes:
    return _method(1, (40, 10), b"\0\0" + short(name) + short(kind) + b"\0" + _NO_TABLE)


def exchange_delete(name: str) -> bytes:
    return _method(1, (40, 20), b"\0\0" + short(name) + b"\0")


def queue_declare(
    name: str, passive: bool = False, auto_delete: bool = False, durable: bool = False
) -> bytes:
    """For any connection."""
    return _method(
        1,
        (50, 10),
        b"\0\0" + short(name) + bytes([passive | durable << 1 | auto_delete << 3]) + _NO_TABLE,
    )


def queue_bind(queue: str, exchange: str, key: str, arguments: Mapping[str, str] = NONE) -> bytes:
    return _method(
        1,
        (50, 20),
        b"\0\0" + short(queue) + short(exchange) + short(key) + b"\0" + _table(arguments),
    )


def queue_delete(name: str) -> bytes:
    return _method(1, (50, 40), b"\0\0" + short(name) + b"\0")


def qos(prefetch: int) -> bytes:
    return _method(1, (60, 10), b"\0\0\0\0" + prefetch.to_bytes(2, "big") + b"\0")


def consume(queue: str, no_ack: bool) -> bytes:
    return _method(
        1, (60, 20), b"\0\0" + short(queue) + short("bench") + bytes([no_ack << 1]) + _NO_TABLE
    )


def confirm_select() -> bytes:
    return _method(1, (85, 10), b"\0")


def publish(
    exchange: str,
    key: str,
    body: bytes,
    frame_max: int,
    persistent: bool = False,
    headers: Mapping[str, str] = NONE,
) -> bytes:
    """basic.publish, a header that says content type, delivery mode and these headers, and the body
    in as many frames as it takes.
    """
    flags, table = (b"\xb0\x00", _table(headers)) if headers else (b"\x90\x00", b"")
    properties = flags + short("application/octet-stream") + table + bytes([2 if persistent else 1])
    header = frame(HEADER_FRAME, 1, b"\0\x3c\0\0" + len(body).to_bytes(8, "big") + properties)
    part = frame_max - OVERHEAD
    bodies = b"".join(
        frame(BODY_FRAME, 1, body[at : at + part]) for at in range(0, len(body), part)
    )
    return _method(1, (60, 40), b"\0\0" + short(exchange) + short(key) + b"\0") + header + bodies


def read_method(payload: bytes) -> tuple[Method, bytes]:
    """A method frame's payload as the method and its arguments. Raises BenchError."""
    if len(payload) < 4:
        raise BenchError("the broker sent a method frame that is cut off")
    return (int.from_bytes(payload[:2], "big"), int.from_bytes(payload[2:4], "big")), payload[4:]


def read_server(arguments: bytes) -> str:
    """Product and version out of connection.start's server properties, as far as they are there."""
    return " ".join(
        value for name in ("product", "version") if (value := _string_field(arguments, name))
    )


def _string_field(table: bytes, name: str) -> str:
    """The value of a long string in a table, found by its octets: nothing else of the table is of
    interest.
    """
    _, found, after = table.partition(short(name) + b"S")
    size = int.from_bytes(after[:4], "big") if found else 0
    return after[4 : 4 + size].decode(errors="replace")


def read_queue_depth(arguments: bytes) -> int:
    """How many messages wait, out of queue.declare-ok."""
    at = 1 + arguments[0]
    return int.from_bytes(arguments[at : at + 4], "big")


def broker_closed(where: str, payload: bytes) -> BenchError:
    """The error for a method that nobody asked for: most often the broker's reason to close."""
    method, arguments = read_method(payload)
    if method in (CLOSE, CHANNEL_CLOSE, RETURN) and len(arguments) >= 3:
        code = int.from_bytes(arguments[:2], "big")
        text = arguments[3 : 3 + arguments[2]].decode(errors="replace")
        did = {
            CLOSE: "closed the connection",
            CHANNEL_CLOSE: "closed the channel",
            RETURN: "returned a message",
        }[method]
        return BenchError(f"{where}: the broker {did}: {code} {text}")
    return BenchError(f"{where}: the broker sent {words(method)}, which nobody waits for")
