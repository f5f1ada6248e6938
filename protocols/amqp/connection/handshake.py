"""The handshake: protocol header, login, tuning (AMQP 0-9-1, 2.2.4 and 4.2). states.py has its steps.

A Handshake reads the client's methods and keeps their outcome: the client's properties, its user
and identity, and the limits that both sides have agreed on. It does no input or output:
AmqpConnection sends the methods, asks the authenticator, and changes the state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pamqp.commands as spec
from mypy_extensions import i64

from broker.access.identity import Credentials, Identity
from protocols.amqp.codec.frames import FRAME_MIN
from protocols.amqp.codec.tables import read_table
from protocols.amqp.errors import AmqpError
from protocols.amqp.options import AmqpOptions
from protocols.connection import Peer

GREETING: Final = b"AMQP\x00\x00\x09\x01"
#: Protocol header of AMQP 0-8, whose clients are offered 0-9-1.
GREETING_8: Final = b"AMQP\x01\x01\x08\x00"
MECHANISMS: Final = "PLAIN AMQPLAIN"

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


class ClientProperties:
    """The description of a client by itself, from connection.start-ok."""

    def __init__(self, properties: Mapping[str, object]) -> None:
        self.product = str(properties.get("product", ""))
        self.version = str(properties.get("version", ""))
        #: Name that the client gave to this connection.
        self.connection_name = str(properties.get("connection_name", ""))
        capabilities = properties.get("capabilities")
        self.capabilities: dict[str, object] = (
            capabilities if isinstance(capabilities, dict) else {}
        )

    def can(self, capability: str) -> bool:
        """True if the client has this capability."""
        return self.capabilities.get(capability) is True


class Handshake:
    """The handshake of one connection, and its outcome."""

    def __init__(self, options: AmqpOptions, peer: Peer) -> None:
        self.options = options
        self.client = ClientProperties({})
        #: Mechanism of the login, as the client named it.
        self.mechanism = ""
        #: User name: as the client gave it until the login is accepted, then as the identity has it.
        self.user = ""
        #: None until the login is accepted.
        self.identity: Identity | None = None
        self.frame_max: i64 = 0
        self.channel_max: i64 = 0
        #: Interval of the heartbeats, in seconds; 0 for none.
        self.heartbeat: i64 = 0
        self._peer = peer

    def start(self, cluster: str) -> spec.Connection.Start:
        """Return connection.start, which names the broker and the mechanisms."""
        properties: Any = {
            "product": "Trellis",
            "version": self.options.version,
            "platform": "Python",
            "copyright": "Trellis contributors",
            "information": "Licensed under the Apache License 2.0",
            "cluster_name": cluster,
            "capabilities": CAPABILITIES,
        }
        return spec.Connection.Start(0, 9, properties, mechanisms(self._peer), "en_US")

    def on_start_ok(self, method: Any) -> Credentials:
        """Read the client's properties, and return its credentials. Raises AmqpError.

        `method` is a Connection.StartOk. It is declared as Any because its `response` is bytes, and
        pamqp declares str: compiled code checks declared types.
        """
        self.client = ClientProperties(method.client_properties or {})
        self.mechanism = str(method.mechanism)
        login = credentials(method.mechanism, method.response, self._peer)
        self.user = login.user or ""
        return login

    def accept(self, identity: Identity) -> spec.Connection.Tune:
        """Finish the login with the identity of the user, and return connection.tune."""
        self.identity = identity
        self.user = identity.name  # A token may name another user than the client did.
        options = self.options
        return spec.Connection.Tune(options.channel_max, options.frame_max, options.heartbeat)

    def refusal(self) -> AmqpError:
        """Return the error for a refused login."""
        return AmqpError(
            403,
            f"Login was refused using authentication mechanism {self.mechanism}. For details see the broker logfile.",
        )

    def on_tune_ok(self, method: spec.Connection.TuneOk) -> None:
        """Take over the limits that the client chose. Raises AmqpError."""
        options = self.options
        self.frame_max = negotiate(method.frame_max, options.frame_max, "frame_max", FRAME_LEAST)
        self.channel_max = negotiate(method.channel_max, options.channel_max, "channel_max", 1)
        self.heartbeat = method.heartbeat

    def on_update_secret(self, method: Any) -> Credentials:
        """Return the credentials of a client that sends a new password or token.

        `method` is a Connection.UpdateSecret, declared as Any because `new_secret` is bytes.
        """
        peer = self._peer
        return Credentials(self.user, method.new_secret, "/", peer.address, peer.local)

    def renew(self, identity: Identity | None) -> bool:
        """Replace the identity by one of the same user; return False if it is of another user."""
        known = self.identity
        if identity is None or known is None or identity.name != known.name:
            return False
        self.identity = identity
        return True


def mechanisms(peer: Peer) -> str:
    """Return the mechanisms offered to a peer: EXTERNAL only to one with a trusted certificate."""
    return f"{MECHANISMS} EXTERNAL" if peer.certificate else MECHANISMS


def credentials(mechanism: str, response: bytes, peer: Peer) -> Credentials:
    """Return the credentials in a connection.start-ok. Raises AmqpError."""
    if mechanism == "EXTERNAL" and peer.certificate:
        # The response may name a user to act for. No user may act for another, so it is not read.
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
            user, password = _as_bytes(table["LOGIN"]), _as_bytes(table["PASSWORD"])
        except (KeyError, ValueError) as error:
            raise AmqpError(501, "AMQPLAIN response is no table with LOGIN and PASSWORD") from error
    else:
        raise AmqpError(
            503, f"unknown authentication mechanism '{mechanism}'; known are {mechanisms(peer)}"
        )
    return Credentials(user.decode(errors="replace"), password, "/", peer.address, peer.local)


def _as_bytes(value: object) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def negotiate(wanted: int, offered: int, name: str, least: int) -> i64:
    """Return the limit that the client wants, or the offered one if it wants 0. Raises AmqpError."""
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
