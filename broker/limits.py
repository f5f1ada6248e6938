"""How much of everything a broker takes: every buffer, cache and table has its bound here."""

from __future__ import annotations


class BrokerLimits:
    """Given from above (settings); the defaults are those of the settings."""

    def __init__(self) -> None:
        #: Octets of a message's body.
        self.message = 16 << 20
        #: Octets of all bodies of one transaction.
        self.transaction = 256 << 20
        #: Routes that a gate keeps, and plans that all of them share.
        self.routes = 65_536
        #: Gates that are kept though nobody uses them.
        self.contexts = 1_000
        #: Retained messages of a virtual host, and octets of their bodies and names.
        self.retained = 100_000
        self.retained_bytes = 256 << 20
        #: Queues and exchanges of a virtual host.
        self.queues = 100_000
        self.exchanges = 100_000
        #: Connections of one user and of one virtual host, channels of one user, consumers of one
        #: channel; 0 is no limit.
        self.user_connections = 0
        self.vhost_connections = 0
        self.user_channels = 0
        self.channel_consumers = 0
        #: The algorithm of topic exchanges, and those they may ask for.
        self.matcher = "auto"
        self.matchers = ["auto", "trie", "shapes", "bitmap"]
