"""The frames that AMQP clients send to log in, for the tests of the handshake."""

from __future__ import annotations

import pamqp.commands as spec

from protocols.amqp.connection.handshake import GREETING
from tests.clients import marshal
from tests.wire.amqp.speech import long, method, short


def start_ok(mechanism: str, response: bytes, properties: bytes = b"") -> bytes:
    return method(0, 10, 11, long(properties) + short(mechanism) + long(response) + short("en_US"))


OPENING = [
    GREETING,
    start_ok("PLAIN", b"\0guest\0guest"),
    marshal(0, spec.Connection.TuneOk(0, 0, 0)),
    marshal(0, spec.Connection.Open()),
]
