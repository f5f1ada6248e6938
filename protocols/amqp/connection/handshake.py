"""The handshake: greeting, credentials, tuning, opening (section 4.2 and 2.2.4).

state        what may come            what we say                     the state after it
greeting     protocol header          connection.start                start
start        start-ok                 (credentials are looked at)     verdict
verdict      nothing is read          connection.tune                 tune
tune         tune-ok                                                  open
open         connection.open          connection.open-ok              running
running      everything else          connection.close                closing
closing      connection.close-ok      (the rest is ignored)           closed
"""

from __future__ import annotations

from typing import Any, Final

import pamqp.commands as spec
from mypy_extensions import i64

from broker.access.identity import Credentials
from protocols.amqp.codec.frames import FRAME_MIN
from protocols.amqp.codec.tables import read_table
from protocols.amqp.errors import AmqpError
from protocols.amqp.options import AmqpOptions
from protocols.connection import Peer

GREETING: Final = b"AMQP\x00\x00\x09\x01"
#: AMQP 0-8, whose clients are asked whether 0-9 will do.
GREETING_8: Final = b"AMQP\x01\x01\x08\x00"
MECHANISMS: Final = "PLAIN AMQPLAIN"
#: Milliseconds that a client without words for a refusal is kept waiting before its socket closes.
REFUSAL_MS: Final = 3_000
#: Milliseconds that we wait for connection.close-ok.
CLOSING_MS: Final = 5_000

CAPABILITIES: Final = dict.fromkeys(
    (
        "publisher_confirms",
        "exchange_exchange_bindings",
        "basic.nack",
        "consumer_cancel_notify",
        "connection.blocked",
        "consumer_priorities",
        "authentication_failure_close",
        "per_consumer_qos",
        "direct_reply_to",
    ),
    True,
)

#: What may come in which state, and the state after it.
STEPS: Final = {
    ("start", "Connection.StartOk"): "verdict",
    ("tune", "Connection.TuneOk"): "open",
    ("open", "Connection.Open"): "running",
}


def mechanisms(peer: Peer) -> str:
    """EXTERNAL is for those whom their certificate names."""
    return f"{MECHANISMS} EXTERNAL" if peer.certificate else MECHANISMS


def start(options: AmqpOptions, cluster: str, peer: Peer) -> spec.Connection.Start:
    properties: Any = {
        "product": "Trellis",
        "version": options.version,
        "platform": "Python",
        "copyright": "Trellis contributors",
        "information": "Licensed under the Apache License 2.0",
        "cluster_name": cluster,
        "capabilities": CAPABILITIES,
    }
    return spec.Connection.Start(0, 9, properties, mechanisms(peer), "en_US")


def tune(options: AmqpOptions) -> spec.Connection.Tune:
    return spec.Connection.Tune(options.channel_max, options.frame_max, options.heartbeat)


def credentials(mechanism: str, response: bytes, peer: Peer) -> Credentials:
    """Who it is, from start-ok. Raises AmqpError."""
    if mechanism == "EXTERNAL" and peer.certificate:
        # The response may name somebody to act for; nobody may, so that it is not looked at, as
        # elsewhere.
        login = Credentials(peer.certificate, b"", "/", peer.address, peer.local)
        login.proven = True
        return login
    if mechanism == "PLAIN":
        parts = response.split(b"\0", 2)
        if len(parts) != 3:
            raise AmqpError(501, "PLAIN response is not 'authorisation NUL user NUL password'")
        user, password = parts[1], parts[2]
    elif mechanism == "AMQPLAIN":
        try:
            table = read_table(len(response).to_bytes(4, "big") + response, 0, len(response) + 4)[0]
            user, password = _octets(table["LOGIN"]), _octets(table["PASSWORD"])
        except (KeyError, ValueError) as error:
            raise AmqpError(501, "AMQPLAIN response is no table with LOGIN and PASSWORD") from error
    else:
        raise AmqpError(
            503, f"unknown authentication mechanism '{mechanism}'; known are {mechanisms(peer)}"
        )
    return Credentials(user.decode(errors="replace"), password, "/", peer.address, peer.local)


def _octets(value: object) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def negotiate(wanted: int, offered: int, name: str, least: int) -> i64:
    """The lower of both, where 0 asks for the other's. Raises AmqpError."""
    if wanted == 0:
        return offered
    if offered and wanted > offered:
        raise AmqpError(
            530,
            f"negotiated {name} = {wanted} is higher than the maximum allowed value ({offered})",
        )
    if wanted < least:
        raise AmqpError(
            530, f"negotiated {name} = {wanted} is lower than the minimum allowed value ({least})"
        )
    return wanted


FRAME_LEAST: Final = int(FRAME_MIN)
