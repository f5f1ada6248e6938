"""Frames, and the methods that pamqp reads and writes.

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

#: access.request, which pamqp does not know, and its answer. It gave rights in 0-8 and gives none now.
ACCESS_REQUEST: Final[i64] = 30 << 16 | 10
ACCESS_REQUEST_OK: Final = b"\x00\x1e\x00\x0b\x00\x01"

#: Fields that are octets, though pamqp declares them to be str.
_OCTETS: Final = ("response", "new_secret")
#: Fields that are written on the wire as they were read, whatever they are.
_ROUTING_KEY: Final = "routing_key"

# pamqp accepts only some ASCII in names, also where we answer with a name; brokers take any UTF-8.
pamqp.constants.DOMAIN_REGEX.update(dict.fromkeys(pamqp.constants.DOMAIN_REGEX, re.compile("(?s).*")))


def encode(channel: i64, method: pamqp.base.Frame) -> bytes:
    return pamqp.frame.marshal(method, int(channel))


def method_frame(channel: i64, method: bytes) -> bytes:
    """A method frame around a method's octets."""
    return b"\x01" + int(channel).to_bytes(2, "big") + len(method).to_bytes(4, "big") + method + b"\xce"


def decode(frame: bytes) -> pamqp.base.Frame:
    """One method. Raises AmqpError: pamqp raises many things on garbage, and all of them mean 502.

    Where octets are not UTF-8, pamqp leaves bytes in fields that it declares to be str. A routing key may
    be any octets; they become surrogates, as in `Address`. Names must be text.
    """
    try:
        method: Any = pamqp.frame.unmarshal(frame)[2]
        octets = [name for name, value in method if isinstance(value, bytes) and name not in _OCTETS]
    except Exception as error:
        raise AmqpError(502, f"undecodable frame: {error}") from error
    for name in octets:
        if name != _ROUTING_KEY:
            raise AmqpError(502, f"{name} is not UTF-8")
        method.routing_key = method.routing_key.decode("utf-8", "surrogateescape")
    return method  # type: ignore[no-any-return]  # pamqp's own union has no better name


def returned(channel: i64, octets: bytes) -> bytes:
    """basic.return 312 for an exchange and a key, which stand in `octets` as short strings."""
    return method_frame(channel, b"\x00\x3c\x00\x32\x01\x38\x08NO_ROUTE" + octets)


def got(channel: i64, number: i64, redelivered: bool, octets: bytes, left: i64) -> bytes:
    """basic.get-ok, with the exchange and the key as short strings and how many messages are left."""
    return method_frame(channel, b"\x00\x3c\x00\x47" + int(number).to_bytes(8, "big") + bytes([redelivered]) + octets
                        + int(left).to_bytes(4, "big"))


def close_connection(error: AmqpError, about: i64) -> bytes:
    return encode(0, spec.Connection.Close(error.code, error.text, int(about >> 16), int(about & 0xFFFF)))


def close_channel(number: i64, error: AmqpError, about: i64) -> bytes:
    return encode(number, spec.Channel.Close(error.code, error.text, int(about >> 16), int(about & 0xFFFF)))
