"""AMQP frames, and the methods in them.

    frame     type(1) channel(2) length(4) payload(length) 0xCE

The library pamqp has the list of all methods, and encodes all methods except the most frequent
ones. Its decoder is not used, because it reads tables slowly (tables.py); `decode` replaces it.
"""

from __future__ import annotations

import re
from typing import Any, Final

import pamqp.base
import pamqp.commands as spec
import pamqp.constants
import pamqp.frame
from mypy_extensions import i64

from protocols.amqp.codec.tables import read_bytes, read_name, read_table
from protocols.amqp.errors import AmqpError

METHOD: Final[i64] = 1
HEADER: Final[i64] = 2
BODY: Final[i64] = 3
HEARTBEAT: Final[i64] = 8
FRAME_END: Final[i64] = 0xCE
#: Size of a frame without its payload, in bytes.
OVERHEAD: Final[i64] = 8
#: Size of the part of a frame before its payload, in bytes.
FRAME_START: Final[i64] = 7
#: Size of the largest frame that the broker offers, in bytes. The broker sends no larger frame,
#: overhead included. Like RabbitMQ, it accepts payloads of this size, because some clients do not
#: subtract the overhead.
FRAME_MAX: Final[i64] = 131_072
#: Smallest limit for frames that a client may choose, in bytes (section 4.2.3).
FRAME_MIN: Final[i64] = 4_096

HEARTBEAT_FRAME: Final = b"\x08\x00\x00\x00\x00\x00\x00\xce"

#: The ids of access.request and its reply, which pamqp does not know. The method granted
#: permissions in AMQP 0-8 and has no effect now.
ACCESS_REQUEST: Final[i64] = 30 << 16 | 10
ACCESS_REQUEST_OK: Final = b"\x00\x1e\x00\x0b\x00\x01"

#: Fields that need not be UTF-8. Bytes that are not UTF-8 become surrogates in them, as in
#: `Address`. All other short strings must be UTF-8.
_ANY_BYTES: Final = ("routing_key", "reply_text", "reason")

#: Size of numeric arguments in bytes, by the types of AMQP 0-9-1 (an octet is one byte).
_SIZES: Final = {"octet": 1, "short": 2, "long": 4, "longlong": 8, "timestamp": 8}

# pamqp accepts only some ASCII characters in names, even in replies. Here names may be any UTF-8,
# so pamqp's check is switched off.
pamqp.constants.DOMAIN_REGEX.update(
    dict.fromkeys(pamqp.constants.DOMAIN_REGEX, re.compile("(?s).*"))
)


def encode(channel: i64, method: pamqp.base.Frame) -> bytes:
    """Return the frame of a method."""
    return pamqp.frame.marshal(method, int(channel))


def method_frame(channel: i64, method: bytes) -> bytes:
    """Return the frame of a method; `method` has the encoded method, from its class id on."""
    return (
        b"\x01"
        + int(channel).to_bytes(2, "big")
        + len(method).to_bytes(4, "big")
        + method
        + b"\xce"
    )


def decode(frame: bytes) -> pamqp.base.Frame:
    """Return the method in a frame.

    Raises AmqpError: 503 for a method that does not exist, 501 for arguments that cannot be read.
    """
    if len(frame) < OVERHEAD + 4:
        raise AmqpError(501, "method frame is cut off")
    index = int.from_bytes(frame[7:11], "big")
    kind: Any = spec.INDEX_MAPPING.get(index)
    if kind is None:
        raise AmqpError(503, f"unknown method {index >> 16}.{index & 0xFFFF}")
    # Every field is set below. __init__ would warn about deprecated methods.
    method: Any = kind.__new__(kind)
    at, end, bit = 11, len(frame) - 1, 0
    for name in kind.attributes():
        of = kind.amqp_type(name)
        if of == "bit":
            if bit == 0:
                at += 1
            if at > end:
                raise AmqpError(501, f"{method.name} is cut off before {name}")
            setattr(method, name, frame[at - 1] >> bit & 1 == 1)
            bit += 1
            continue
        bit = 0
        try:
            value, at = _argument(of, frame, at, end)
        except ValueError as error:
            raise AmqpError(501, f"{name} of {method.name}: {error}") from error
        setattr(method, name, _text(method, name, value) if of == "shortstr" else value)
    return method  # type: ignore[no-any-return]  # pamqp's own union has no better name


def _argument(kind: str, frame: bytes, at: int, end: int) -> tuple[object, int]:
    """Return the argument at position `at` of a method's frame, and the position after it.

    `kind` is the type of the argument; `end` is the end of all arguments. Raises ValueError for an
    invalid argument.
    """
    if kind == "shortstr":
        return read_name(frame, at, end)
    if kind == "longstr":
        return read_bytes(frame, at, end)
    if kind == "table":
        return read_table(frame, at, end)
    stop = at + _SIZES[kind]
    if stop > end:
        raise ValueError("the number is cut off")
    return int.from_bytes(frame[at:stop], "big", signed=kind == "longlong"), stop


def _text(method: Any, name: str, data: Any) -> str:
    text: str
    try:
        text = data.decode("utf-8", "surrogateescape" if name in _ANY_BYTES else "strict")
    except UnicodeDecodeError as error:
        raise AmqpError(502, f"{name} of {method.name} is not UTF-8") from error
    return text


def returned(channel: i64, address: bytes) -> bytes:
    """Return the frame of a basic.return with code 312 (no route).

    `address` is the exchange and routing key, as short strings.
    """
    return method_frame(channel, b"\x00\x3c\x00\x32\x01\x38\x08NO_ROUTE" + address)


def got(channel: i64, number: i64, redelivered: bool, address: bytes, left: i64) -> bytes:
    """Return the frame of a basic.get-ok for a message with the delivery tag `number`.

    `address` is the exchange and routing key, as short strings. `left` is the number of messages
    that remain in the queue.
    """
    return method_frame(
        channel,
        b"\x00\x3c\x00\x47"
        + int(number).to_bytes(8, "big")
        + bytes([redelivered])
        + address
        + int(left).to_bytes(4, "big"),
    )


def close_connection(error: AmqpError, method: i64) -> bytes:
    """Return the frame of a connection.close for an error.

    `method` is the method that failed (class id << 16 | method id), or 0 if none did.
    """
    return encode(
        0, spec.Connection.Close(error.code, error.text, int(method >> 16), int(method & 0xFFFF))
    )


def close_channel(number: i64, error: AmqpError, method: i64) -> bytes:
    """Return the frame of a channel.close for an error.

    `method` is the method that failed (class id << 16 | method id), or 0 if none did.
    """
    return encode(
        number, spec.Channel.Close(error.code, error.text, int(method >> 16), int(method & 0xFFFF))
    )
