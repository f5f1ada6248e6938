"""The handshake: protocol header, login, tuning (AMQP 0-9-1, sections 2.2.4 and 4.2).

states.py has the table of the steps. A Handshake handles the client's methods during the handshake,
and keeps the results: the client's properties, its user and identity, and the limits that both
sides have agreed on. Each method gets the connection as a parameter, so that the two objects form
no reference cycle.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pamqp.commands as spec
from mypy_extensions import i64

from broker.access.identity import Authenticator, Credentials, Identity, Verdict
from broker.vhost.vhost import VirtualHost
from protocols.amqp.channel.connection_interface import ConnectionInterface
from protocols.amqp.codec.frames import FRAME_MIN
from protocols.amqp.codec.tables import read_table
from protocols.amqp.connection import states
from protocols.amqp.errors import AmqpError
from protocols.amqp.options import AmqpOptions
from protocols.credential_expiry import expiry_of
from protocols.end_reasons import STANDBY
from protocols.peer import Peer
from protocols.refusal_fields import ACCESS, CAUSE, other_protocol

GREETING: Final = b"AMQP\x00\x00\x09\x01"
#: Protocol headers of AMQP 0-8 and 0-9. Their clients are offered 0-9-1, as by RabbitMQ: aioamqp
#: sends the header of 0-9, and speaks 0-9-1.
GREETING_8: Final = b"AMQP\x01\x01\x08\x00"
GREETING_9: Final = b"AMQP\x01\x01\x00\x09"
GREETINGS: Final = (GREETING, GREETING_8, GREETING_9)
MECHANISMS: Final = "PLAIN AMQPLAIN"
#: Product name with which the broker announces RABBITMQ_VERSION instead of its own version.
RABBITMQ: Final = "RabbitMQ"
#: kombu 5.7 uses `basic.qos` with `global` only if the broker announces a version from 3.3 to 3.x.
#: Trellis supports `global` for all queues, so it announces the last minor version of RabbitMQ 3.
RABBITMQ_VERSION: Final = "3.13.0"

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
    """The properties by which a client describes itself in connection.start-ok."""

    def __init__(self, properties: Mapping[str, object]) -> None:
        self.product = str(properties.get("product", ""))
        self.version = str(properties.get("version", ""))
        #: Name that the client gave to this connection.
        self.connection_name = str(properties.get("connection_name", ""))
        capabilities = properties.get("capabilities")
        self._capabilities: dict[str, object] = (
            capabilities if isinstance(capabilities, dict) else {}
        )
        #: All properties, as the client sent them.
        self.properties = properties

    def can(self, capability: str) -> bool:
        """True if the client has this capability."""
        return self._capabilities.get(capability) is True


class Handshake:
    """The handshake of one connection, and its results: client, user, identity, limits."""

    def __init__(self, options: AmqpOptions, peer: Peer) -> None:
        self.options = options
        self.client = ClientProperties({})
        #: Mechanism of the login, as the client named it.
        self.mechanism = ""
        #: User name: at first the name that the client gave; once the login is accepted, the name
        #: of the identity.
        self.user = ""
        #: Identity of the client's user; None until the login is accepted.
        self.identity: Identity | None = None
        self.channel_max: i64 = 0
        #: Interval of the heartbeats on which client and broker have agreed, in seconds; 0 for
        #: none.
        self.heartbeat: i64 = 0
        self._peer = peer

    # -- protocol header, login

    def on_header(self, connection: ConnectionInterface, data: bytes) -> i64:
        """Handle the protocol header; return its size, or 0 if it is incomplete or rejected."""
        size: i64 = len(GREETING)
        if len(data) < size and any(greeting.startswith(data) for greeting in GREETINGS):
            return 0
        if data[:size] not in GREETINGS:
            connection.front.log_refusal("connection_closed", connection, _header_refusal(data))
            connection.reject("protocol_error")
            return 0
        connection.state = states.START
        connection.send(0, self._start(connection.front.broker.cluster_name))
        return size

    def _start(self, cluster: str) -> spec.Connection.Start:
        """Return connection.start, with the broker's properties and the login mechanisms.

        `cluster` is the name of the cluster, one of the properties.
        """
        properties: Any = {
            "product": self.options.product,
            "version": RABBITMQ_VERSION
            if self.options.product == RABBITMQ
            else self.options.version,
            "trellis_version": self.options.version,
            "platform": "Python",
            "copyright": "Trellis contributors",
            "information": "Licensed under the Apache License 2.0",
            "cluster_name": cluster,
            "capabilities": CAPABILITIES,
        }
        return spec.Connection.Start(0, 9, properties, mechanisms(self._peer), "en_US")

    def on_method(self, connection: ConnectionInterface, name: str, method: Any) -> None:
        """Handle a method of the handshake, or connection.update-secret. Raises AmqpError.

        `method` is declared as Any because pamqp declares str for some fields that are bytes, and
        compiled code checks declared types.
        """
        if connection.state == states.RUNNING and name == "Connection.UpdateSecret":
            self._on_update_secret(connection, method)
            return
        connection.state = states.after(connection.state, name)
        if name == "Connection.StartOk":
            self._on_start_ok(connection, method)
        elif name == "Connection.TuneOk":
            self._on_tune_ok(connection, method)
        else:
            self._on_open(connection, method)

    def _on_start_ok(self, connection: ConnectionInterface, method: Any) -> None:
        """Read the client's properties; start the check of its credentials, except on a standby.

        Raises AmqpError for an unknown mechanism or an invalid response.
        """
        self.client = ClientProperties(method.client_properties or {})
        self.mechanism = str(method.mechanism)
        if connection.front.redirect is not None:
            self._tune(connection)
            return
        login = credentials(method.mechanism, method.response, self._peer)
        self.user = login.user or ""
        connection.stall()
        connection.front.broker.authenticator.authenticate(
            login, lambda verdict: self._on_verdict(connection, verdict)
        )

    def _on_verdict(self, connection: ConnectionInterface, verdict: Verdict) -> None:
        """Continue or reject a login whose credentials have been checked."""
        if connection.finished or connection.state != states.VERDICT:
            return  # The broker is shutting down, or the client has disconnected.
        identity, front = verdict.identity, connection.front
        if identity is None:
            front.count_login("busy" if verdict.busy else "refused")
            front.log_refusal("login_refused", connection, verdict.details, {"user": self.user})
            connection.reject("login_refused")
        else:
            front.count_login("accepted")
            connection.admit(verdict.record)
            connection.set_expiry(expiry_of(identity, connection.agenda))
            self.identity = identity
            self.user = identity.name  # A token may name another user than the client did.
            self._tune(connection)
        connection.resume_input()

    def _tune(self, connection: ConnectionInterface) -> None:
        """Offer the client the broker's limits for channels, frame size and heartbeat: send
        connection.tune.
        """
        connection.state = states.TUNE
        options = self.options
        connection.frame_max = options.frame_max
        connection.send(
            0, spec.Connection.Tune(options.channel_max, options.frame_max, options.heartbeat)
        )

    def refusal(self) -> AmqpError:
        """Return the error for a client whose login was refused."""
        return AmqpError(
            403,
            f"Login was refused using authentication mechanism {self.mechanism}. "
            "For details see the broker logfile.",
        )

    # -- tuning, virtual host

    def _on_tune_ok(self, connection: ConnectionInterface, method: spec.Connection.TuneOk) -> None:
        """Set the limits that the client chose in its connection.tune-ok.

        Raises AmqpError if a limit is not within the limits of the broker.
        """
        options = self.options
        connection.frame_max = negotiate(
            method.frame_max, options.frame_max, "frame_max", FRAME_LEAST
        )
        self.channel_max = negotiate(method.channel_max, options.channel_max, "channel_max", 1)
        self.heartbeat = method.heartbeat

    def _on_open(self, connection: ConnectionInterface, method: spec.Connection.Open) -> None:
        """Open the virtual host that the client names.

        Raises AmqpError if the virtual host does not exist, or if the client may not use it.
        """
        name = method.virtual_host
        broker, redirect = connection.front.broker, connection.front.redirect
        if redirect is not None:
            connection.close(STANDBY, redirect.text(connection.peer.listener))
            return
        vhost = broker.vhosts.get(name)
        identity = None if self.identity is None else self.identity.for_vhost(name)
        connection.state = states.OPEN
        if vhost is None or vhost.closing:
            raise AmqpError(530, f"vhost {name} not found")
        if identity is None:
            connection.front.log_refusal(
                "login_refused",
                connection,
                f"user '{self.user}' has no permissions in the vhost '{name}': grant them with "
                "`trellis permissions set`",
                {"user": self.user, CAUSE: ACCESS},
            )
            error = AmqpError(530, f"access to vhost '{name}' refused for user '{self.user}'")
            error.logged = True
            raise error
        refusal = broker.connection_refusal(identity.name, vhost)
        if refusal:
            raise AmqpError(530, refusal)
        connection.state = states.RUNNING
        connection.vhost = vhost
        connection.use_context(vhost.contexts.enter(identity, connection.front.name))
        interval: i64 = self.heartbeat * 500
        connection.set_deadline(connection.agenda.now + interval if interval else 0)
        connection.send(0, spec.Connection.OpenOk())

    # -- changed permissions of a running connection

    def _on_update_secret(self, connection: ConnectionInterface, method: Any) -> None:
        """Start the check of a new token, which the client sends before its old token expires.

        If the client's credentials have no expiry time, its permissions do not depend on the
        secret. The secret is then not checked, as in RabbitMQ.
        """
        if self.identity is None or not self.identity.expires:
            connection.send(0, spec.Connection.UpdateSecretOk())
            return
        peer = self._peer
        login = Credentials(self.user, method.new_secret, "/", peer.address, peer.local)
        connection.stall()
        connection.front.broker.authenticator.authenticate(
            login, lambda verdict: self._on_secret_verdict(connection, verdict)
        )

    def _on_secret_verdict(self, connection: ConnectionInterface, verdict: Verdict) -> None:
        """Use the permissions of the new token, or close the connection if it is refused."""
        if connection.finished or connection.state != states.RUNNING:
            return
        known, identity = self.identity, verdict.identity
        if identity is None or known is None or identity.name != known.name:
            connection.fail_connection(
                AmqpError(530, "New secret was refused by one of the backends")
            )
        else:
            self.identity = identity
            connection.set_expiry(expiry_of(identity, connection.agenda))
            connection.send(0, spec.Connection.UpdateSecretOk())
            connection.reauthorize()
        connection.resume_input()

    def renew(self, authenticator: Authenticator, vhost: VirtualHost | None) -> str:
        """Renew the identity after a change of users or permissions.

        Return the reason why the client may not stay connected, or "" if it may.
        """
        known = self.identity
        if known is None:
            return ""
        renewed = self.identity = authenticator.renew(known)
        if renewed is None and known.expires:
            return "the token has expired"
        if renewed is None:
            return f"user '{self.user}' is deleted, or may not log in any more"
        if vhost is None:
            return ""
        if vhost.closing:
            return f"vhost '{vhost.name}' is deleted"
        if renewed.for_vhost(vhost.name) is None:
            return f"access to vhost '{vhost.name}' refused for user '{self.user}'"
        return ""


def mechanisms(peer: Peer) -> str:
    """Return the names of the login mechanisms that are offered to a peer.

    EXTERNAL is offered only to a peer with a trusted certificate.
    """
    return f"{MECHANISMS} EXTERNAL" if peer.certificate else MECHANISMS


def credentials(mechanism: str, response: bytes, peer: Peer) -> Credentials:
    """Return the credentials that a client sent in its connection.start-ok.

    `mechanism` is the login mechanism; `response` has the user and the password in the encoding of
    this mechanism. Raises AmqpError for an unknown mechanism or an invalid response.
    """
    if mechanism == "EXTERNAL" and peer.certificate:
        # The response may name another user on whose behalf the client acts. Trellis does not
        # support that, and ignores the name.
        login = Credentials(peer.certificate, b"", "/", peer.address, peer.local)
        login.proven = True
        return login
    if mechanism == "PLAIN":
        parts = response.split(b"\0", 2)
        if len(parts) != 3:
            raise AmqpError(501, "PLAIN response must be 'authorisation NUL user NUL password'")
        user, password = parts[1], parts[2]
    elif mechanism == "AMQPLAIN":
        try:
            table = read_table(len(response).to_bytes(4, "big") + response, 0, len(response) + 4)[0]
            user, password = _as_bytes(table["LOGIN"]), _as_bytes(table["PASSWORD"])
        except (KeyError, ValueError) as error:
            raise AmqpError(
                501, "AMQPLAIN response must be a table with LOGIN and PASSWORD"
            ) from error
    else:
        raise AmqpError(
            503, f"unknown authentication mechanism '{mechanism}'; use one of {mechanisms(peer)}"
        )
    return Credentials(user.decode(errors="replace"), password, "/", peer.address, peer.local)


def _as_bytes(value: object) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def negotiate(wanted: int, offered: int, name: str, least: int) -> i64:
    """Return the limit that a client wants, or the offered limit if the client wants 0 (any).

    `name` is the name of the limit, `least` its lowest value. Raises AmqpError if the client wants
    a value below `least` or above `offered`.
    """
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


def _header_refusal(data: bytes) -> str:
    """Return the reason to close a connection whose first bytes are not a known protocol header.

    `data` begins with these bytes.
    """
    if data.startswith((b"AMQP\x00\x01\x00\x00", b"AMQP\x03\x01\x00\x00")):
        return "the client speaks AMQP 1.0; this port speaks AMQP 0-9-1: use a client for 0-9-1"
    return other_protocol(data, "AMQP 0-9-1")
