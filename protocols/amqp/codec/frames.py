"""Frames, and the methods, as pamqp lists and writes them.

frame     type(1) channel(2) length(4) payload(length) 0xCE
"""

from __future__ import annotations

import re
from typing import Any, Final

import pamqp.base
import pamqp.commands as spec
import pamqp.constants
import pamqp.frame
from mypy_extensions import i64

from protocols.amqp.codec.tables import read_name, read_octets, read_table
from protocols.amqp.errors import AmqpError

METHOD: Final[i64] = 1
HEADER: Final[i64] = 2
BODY: Final[i64] = 3
HEARTBEAT: Final[i64] = 8
FRAME_END: Final[i64] = 0xCE
#: What a frame adds to its payload.
OVERHEAD: Final[i64] = 8
#: The largest frame we offer, in octets, all included.
FRAME_MAX: Final[i64] = 131_072
#: The largest frame a client may insist on (section 4.2.3), and the smallest.
FRAME_MIN: Final[i64] = 4_096

HEARTBEAT_FRAME: Final = b"\x08\x00\x00\x00\x00\x00\x00\xce"

#: access.request, which pamqp does not know, and its answer. It gave rights in 0-8 and gives none
#: now.
ACCESS_REQUEST: Final[i64] = 30 << 16 | 10
ACCESS_REQUEST_OK: Final = b"\x00\x1e\x00\x0b\x00\x01"

#: Fields whose octets need not be UTF-8: they become surrogates, as in `Address`. Names must be
#: text.
_ANY_OCTETS: Final = ("routing_key", "reply_text", "reason")

#: Octets of the arguments that are numbers, by type.
_SIZES: Final = {"octet": 1, "short": 2, "long": 4, "longlong": 8, "timestamp": 8}

# pamqp accepts only some ASCII in names, also where we answer with a name; brokers take any UTF-8.
pamqp.constants.DOMAIN_REGEX.update(
    dict.fromkeys(pamqp.constants.DOMAIN_REGEX, re.compile("(?s).*"))
)


def encode(channel: i64, method: pamqp.base.Frame) -> bytes:
    return pamqp.frame.marshal(method, int(channel))


def method_frame(channel: i64, method: bytes) -> bytes:
    """A method frame around a method's octets."""
    return (
        b"\x01"
        + int(channel).to_bytes(2, "big")
        + len(method).to_bytes(4, "big")
        + method
        + b"\xce"
    )


def decode(frame: bytes) -> pamqp.base.Frame:
    """One method.

    Raises AmqpError: 503 for a method that does not exist, 501 for arguments that cannot be read.
    """
    if len(frame) < OVERHEAD + 4:
        raise AmqpError(501, "method frame is cut off")
    index = int.from_bytes(frame[7:11], "big")
    kind: Any = spec.INDEX_MAPPING.get(index)
    if kind is None:
        raise AmqpError(503, f"unknown method {index >> 16}.{index & 0xFFFF}")
    method: Any = kind.__new__(
        kind
    )  # Every field is set below; __init__ would warn of old methods.
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
    """The argument at `at`, and where it ends. Raises ValueError."""
    if kind == "shortstr":
        return read_name(frame, at, end)
    if kind == "longstr":
        return read_octets(frame, at, end)
    if kind == "table":
        return read_table(frame, at, end)
    stop = at + _SIZES[kind]
    if stop > end:
        raise ValueError("cut off")
    return int.from_bytes(frame[at:stop], "big", signed=kind == "longlong"), stop


def _text(method: Any, name: str, octets: Any) -> str:
    text: str
    try:
        text = octets.decode("utf-8", "surrogateescape" if name in _ANY_OCTETS else "strict")
    except UnicodeDecodeError as error:
        raise AmqpError(502, f"{name} of {method.name} is not UTF-8") from error
    return text


def returned(channel: i64, octets: bytes) -> bytes:
    """basic.return 312 for an exchange and a key, which stand in `octets` as short strings."""
    return method_frame(channel, b"\x00\x3c\x00\x32\x01\x38\x08NO_ROUTE" + octets)


def got(channel: i64, number: i64, redelivered: bool, octets: bytes, left: i64) -> bytes:
    """basic.get-ok, with the exchange and the key as short strings and how many messages are left."""
    return method_frame(
        channel,
        b"\x00\x3c\x00\x47"
        + int(number).to_bytes(8, "big")
        + bytes([redelivered])
        + octets
        + int(left).to_bytes(4, "big"),
    )


def close_connection(error: AmqpError, about: i64) -> bytes:
    return encode(
        0, spec.Connection.Close(error.code, error.text, int(about >> 16), int(about & 0xFFFF))
    )


def close_channel(number: i64, error: AmqpError, about: i64) -> bytes:
    return encode(
        number, spec.Channel.Close(error.code, error.text, int(about >> 16), int(about & 0xFFFF))
    )
