"""Which peers are there?"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final

from peers.brokers.aedes import Aedes
from peers.brokers.amqtt import Amqtt
from peers.brokers.mochi import Mochi
from peers.brokers.mosquitto import Mosquitto
from peers.brokers.nats import DebianNats, Nats
from peers.brokers.rabbitmq import RabbitMQ
from peers.brokers.relay import Relay, Writer
from peers.brokers.trellis import Trellis
from peers.peer import Peer, Tools

#: In the order of tables and charts.
PEERS: Final[tuple[type[Peer], ...]] = (
    Trellis,
    Mosquitto,
    RabbitMQ,
    Nats,
    DebianNats,
    Mochi,
    Aedes,
    Amqtt,
    Relay,
    Writer,
)
NAMES: Final = tuple(peer.name for peer in PEERS)


def chosen(names: Iterable[str], tools: Tools) -> list[Peer]:
    """The peers with these names, in our order; all when there are none.

    Raises ValueError for a name nobody has.
    """
    wanted = list(names) or list(NAMES)
    for name in wanted:
        if name not in NAMES:
            near = difflib.get_close_matches(name, NAMES, 1, 0)
            raise ValueError(f"no peer is called {name}; the nearest is {near[0]}")
    return [peer(tools) for peer in PEERS if peer.name in wanted]
