"""Lists the peers: one class for each broker that can be compared with Trellis."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final

from peers.brokers.aedes import AedesPeer
from peers.brokers.amqtt import AmqttPeer
from peers.brokers.jvm import ArtemisPeer, HiveMqPeer
from peers.brokers.mochi import MochiPeer
from peers.brokers.mosquitto import MosquittoPeer
from peers.brokers.nats import DebianNatsPeer, NatsPeer
from peers.brokers.rabbitmq import RabbitMQPeer
from peers.brokers.relay import RelayPeer, WriterPeer
from peers.brokers.trellis import TrellisPeer
from peers.peer import PeerBroker, Tools

#: The peers in the order of the tables and charts.
PEERS: Final[tuple[type[PeerBroker], ...]] = (
    TrellisPeer,
    MosquittoPeer,
    RabbitMQPeer,
    NatsPeer,
    DebianNatsPeer,
    MochiPeer,
    AedesPeer,
    AmqttPeer,
    HiveMqPeer,
    ArtemisPeer,
    RelayPeer,
    WriterPeer,
)
NAMES: Final = tuple(peer.name for peer in PEERS)


def chosen(names: Iterable[str], tools: Tools) -> list[PeerBroker]:
    """Return the named peers, in the order of the tables; all peers if none are named.

    Raises ValueError for an unknown name.
    """
    wanted = list(names) or list(NAMES)
    for name in wanted:
        if name not in NAMES:
            near = difflib.get_close_matches(name, NAMES, 1, 0)
            raise ValueError(f"unknown peer {name}; the nearest is {near[0]}")
    return [peer(tools) for peer in PEERS if peer.name in wanted]
