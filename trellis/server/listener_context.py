"""Listener contexts: the settings and counters that all links of one listener share."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from typing import Final

from protocols.front import Front
from protocols.layer import Layer
from protocols.peer import Peer
from protocols.proxy import UNKNOWN
from protocols.websocket import OriginPolicy, WebSocketLayer, WebSocketTally
from trellis.auth.rates import PublishRates
from trellis.server.admission import Admission
from trellis.server.certificates import TlsContext
from trellis.server.tls import TlsLayer, TlsTally
from trellis.server.turn import LoopTurn
from trellis.settings import Mqtts, ProtocolListener, Settings, Ws, Wss

#: Number of unsent bytes in an AMQP client's transport above which the client's consumers get no
#: more deliveries.
AMQP_BACKPRESSURE_BYTES: Final = 1 << 20
#: A client that reads nothing is disconnected when its unread output exceeds the backpressure limit
#: by more than this many messages of the largest size.
UNREAD_MESSAGES: Final = 4


class ListenerContext:
    """Settings and counters of one listener for clients. `tls_context` is None without TLS."""

    def __init__(
        self,
        name: str,
        entry: ProtocolListener,
        settings: Settings,
        front: Front,
        turn: LoopTurn,
        admission: Admission,
        tls_context: TlsContext | None,
        rates: PublishRates,
    ) -> None:
        self.name = name
        self.front = front
        self.turn = turn
        self.admission = admission
        self.tls_context = tls_context
        self.rates = rates
        amqp = name.startswith("amqp")
        #: Number of unsent bytes in a client's transport above which backpressure begins.
        self.backpressure_bytes = AMQP_BACKPRESSURE_BYTES if amqp else settings.mqtt.qos0_high_mark
        self.handshake_ms = int(settings.limits.handshake * 1000)
        self._networks = entry.networks
        self._policy = (
            OriginPolicy(entry.path, entry.origin_list) if isinstance(entry, Ws | Wss) else None
        )
        # An AMQP client asks for a login by certificate (EXTERNAL). MQTT has no such request, so a
        # setting of the listener decides.
        self._user_from = (
            settings.tls.user_from
            if amqp or isinstance(entry, Mqtts) and entry.certificate_user
            else ""
        )
        self.tls = TlsTally()
        self.websocket = WebSocketTally()

    @property
    def unread_max(self) -> int:
        """Number of unsent bytes above which a client that reads nothing is disconnected."""
        message = int(self.front.broker.limits.message)
        return self.backpressure_bytes + UNREAD_MESSAGES * message

    @property
    def has_layers(self) -> bool:
        """True if links need a PROXY header, TLS or WebSocket."""
        return self.tls_context is not None or self._policy is not None or bool(self._networks)

    @property
    def is_websocket(self) -> bool:
        """True if clients speak WebSocket."""
        return self._policy is not None

    def layers(self, peer: Peer) -> list[Layer]:
        """Return new layers for a connection of this peer: first TLS, then WebSocket, if used."""
        layers: list[Layer] = []
        if self.tls_context is not None:
            layers.append(TlsLayer(self.tls_context.context, peer, self.tls, self._user_from))
        if self._policy is not None:
            layers.append(WebSocketLayer(self._policy, peer, self.websocket))
        return layers

    def peer(self, transport: asyncio.Transport) -> Peer:
        """Return the peer at the other end of a transport."""
        name = transport.get_extra_info("peername")
        if isinstance(name, tuple) or not isinstance(transport.get_extra_info("sockname"), str):
            peer = peer_of(name)
        else:
            peer = Peer("unix", 0, True)
        peer.listener = self.name
        return peer

    def proxied_peer(self, address: tuple[str, int], proxy: Peer) -> Peer:
        """Return the peer at the address that a PROXY header gives.

        If `address` is UNKNOWN, the peer has the address of `proxy`. The peer counts as local only
        if the proxy is on this machine: a loopback address in the header of another machine's
        proxy belongs to that machine.
        """
        peer = peer_of((proxy.address, proxy.port) if address == UNKNOWN else address)
        peer.local = peer.local and proxy.local and address != UNKNOWN
        peer.listener = self.name
        return peer

    def is_proxy(self, peer: Peer) -> bool:
        """True if the peer is a trusted proxy, which must send a PROXY header first."""
        if not self._networks:
            return False
        try:
            address = ipaddress.ip_address(peer.address)
        except ValueError:
            return False
        return any(address in network for network in self._networks)


def peer_of(name: object) -> Peer:
    """Return the peer for the address that asyncio reports for a transport: (host, port, ...).

    IPv4 addresses are recognised without `ipaddress`, which takes 20 times as long: thousands of
    clients may connect together.
    """
    if not isinstance(name, tuple) or len(name) < 2:
        return Peer("unknown", 0, False)
    host, port = str(name[0]).partition("%")[0], int(name[1])
    if len(name) == 2:
        try:
            socket.inet_pton(socket.AF_INET, host)
            return Peer(host, port, host.startswith("127."))
        except (OSError, ValueError):
            pass  # No IPv4 address as `ipaddress` writes it, or text with a NUL.
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return Peer(host, port, False)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return Peer(str(mapped or address), port, (mapped or address).is_loopback)
