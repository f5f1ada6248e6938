"""Limits of the broker: upper bounds of buffers, caches and tables."""

from __future__ import annotations


class BrokerLimits:
    """The limits that the core reads; the server sets them from its settings."""

    def __init__(self) -> None:
        #: Largest size of a message's body in bytes.
        self.message = 16 << 20
        #: Largest total size of the bodies of one AMQP transaction in bytes.
        self.transaction = 256 << 20
        #: Largest number of parts of one AMQP transaction: copies of its messages, and settlements.
        #: A commit carries out all of them in one turn.
        self.transaction_parts = 20_000
        #: Largest number of routes that one PublishContext caches, and of plans that a virtual host
        #: caches.
        self.routes = 65_536
        #: Number of PublishContexts of a virtual host above which unused contexts are removed.
        self.contexts = 1_000
        #: Largest number of retained messages of a virtual host, and largest total size of their
        #: bodies and topics in bytes.
        self.retained = 100_000
        self.retained_bytes = 256 << 20
        #: Largest number of queues, and of exchanges, of each virtual host; 0 is no limit.
        self.queues = 100_000
        self.exchanges = 100_000
        #: Largest numbers of connections of one user, connections of one virtual host, channels of
        #: one user, and consumers of one channel; 0 is no limit.
        self.user_connections = 0
        self.vhost_connections = 0
        self.user_channels = 0
        self.channel_consumers = 0
        #: Time in ms after which a delivery that a client has not acknowledged closes its channel;
        #: 0 for none. The queue argument `x-consumer-timeout` has precedence.
        self.consumer_timeout = 0
        #: Largest number of index nodes that the lookup of one routing key in a topic exchange may
        #: visit because of the bindings to one queue or session; 0 is no limit.
        self.pattern_nodes = 4_096
        #: The matching algorithm of topic exchanges, and the algorithms that a client may choose
        #: with the argument `x-matcher`.
        self.matcher = "auto"
        self.matchers = ["auto", "trie", "shapes", "bitmap"]
