"""An entrance: what all who come in by one listener have in common, and who somebody is by its
address.
"""

from __future__ import annotations

import asyncio
import ipaddress
from typing import Final

from protocols.connection import Peer
from protocols.front import Front
from protocols.layer import Layer
from protocols.websocket import OriginPolicy, WebSocketLayer, WebSocketTally
from trellis.auth.rates import PublishRates
from trellis.server.admission import Admission
from trellis.server.certificates import Security
from trellis.server.tls import TlsLayer, TlsTally
from trellis.server.turn import LoopTurn
from trellis.settings import Mqtts, ProtocolListener, Settings, Ws, Wss

#: Octets that may lie unsent in an AMQP client's transport before its queues are stopped.
AMQP_HIGH_MARK: Final = 1 << 20


class ListenerContext:
    """One listener for clients. `security` is what it shows them, None without TLS."""

    def __init__(
        self,
        name: str,
        entry: ProtocolListener,
        settings: Settings,
        front: Front,
        turn: LoopTurn,
        admission: Admission,
        security: Security | None,
        rates: PublishRates,
    ) -> None:
        self.name = name
        self.front = front
        self.turn = turn
        self.admission = admission
        self.security = security
        self.rates = rates
        amqp = name.startswith("amqp")
        #: Octets that may lie unsent in a client's transport before nothing more is given to it.
        self.high_mark = AMQP_HIGH_MARK if amqp else settings.mqtt.qos0_high_mark
        self.handshake_ms = int(settings.limits.handshake * 1000)
        self._networks = entry.networks
        self._policy = (
            OriginPolicy(entry.path, entry.origin_list) if isinstance(entry, Ws | Wss) else None
        )
        # An AMQP client says that its certificate speaks for it; MQTT has no words for that.
        self._user_from = (
            settings.tls.user_from
            if amqp or isinstance(entry, Mqtts) and entry.certificate_user
            else ""
        )
        self.tls = TlsTally()
        self.websocket = WebSocketTally()

    @property
    def layered(self) -> bool:
        """Whether anything stands between sockets and connections."""
        return self.security is not None or self._policy is not None or bool(self._networks)

    @property
    def speaks_websocket(self) -> bool:
        return self._policy is not None

    def layers(self, peer: Peer) -> list[Layer]:
        """What stands between the socket and the connection of this peer, from the socket upwards."""
        made: list[Layer] = []
        if self.security is not None:
            made.append(TlsLayer(self.security.context, peer, self.tls, self._user_from))
        if self._policy is not None:
            made.append(WebSocketLayer(self._policy, peer, self.websocket))
        return made

    def peer(self, transport: asyncio.Transport) -> Peer:
        """Who is at the other end of a transport."""
        name = transport.get_extra_info("peername")
        peer = (
            Peer("unix", 0, True)
            if isinstance(transport.get_extra_info("sockname"), str)
            else peer_of(name)
        )
        peer.entrance = self.name
        return peer

    def peer_at(self, address: tuple[str, int]) -> Peer:
        """Whom a proxy brings."""
        peer = peer_of(address)
        peer.entrance = self.name
        return peer

    def is_proxy(self, peer: Peer) -> bool:
        """Whether a PROXY header is to come first."""
        if not self._networks:
            return False
        try:
            address = ipaddress.ip_address(peer.address)
        except ValueError:
            return False
        return any(address in network for network in self._networks)


def peer_of(name: object) -> Peer:
    """The peer by the address that a transport gives: (host, port, ...)."""
    if not isinstance(name, tuple) or len(name) < 2:
        return Peer("unknown", 0, False)
    host, port = str(name[0]).partition("%")[0], int(name[1])
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return Peer(host, port, False)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return Peer(str(mapped or address), port, (mapped or address).is_loopback)
