"""The MQTT front end."""

from __future__ import annotations

from broker.access import Credentials
from broker.core import Broker
from protocols.connection import Connection, Peer
from protocols.front import Front
from protocols.mqtt.connection import MqttConnection
from protocols.mqtt.sessions import MqttOptions, Sessions
from protocols.mqtt.topics import TopicRules


class MqttFront(Front):
    """Lets MQTT 3.1.1 clients in."""

    def __init__(self, broker: Broker, options: MqttOptions | None = None) -> None:
        super().__init__("mqtt311", broker)
        self.options = options or MqttOptions()
        self.sessions = Sessions(broker.agenda, self.options, self.tally)
        self.topics = TopicRules(self.options.max_levels)

    def connect(self, peer: Peer) -> Connection:
        return MqttConnection(self, peer)

    def credentials(self, user: str | None, password: bytes, client_id: str, peer: Peer) -> Credentials:
        """A user name may begin with a virtual host and a colon."""
        vhost = "/"
        if user is not None:
            head, colon, tail = user.partition(":")
            if colon and head in self.broker.vhosts:
                vhost, user = head, tail
        return Credentials(user, password, vhost, peer.address, peer.local, client_id)
