"""What all MQTT connections of a broker share."""

from __future__ import annotations

from broker.access import Credentials
from broker.core import Broker
from protocols.connection import Peer
from protocols.front import Front
from protocols.mqtt.sessions import MqttOptions, Sessions
from protocols.mqtt.topics import TopicRules


class MqttService(Front):
    """Sessions, topic rules, and whose credentials a client gives."""

    def __init__(self, broker: Broker, options: MqttOptions) -> None:
        super().__init__("mqtt311", broker)
        self.options = options
        self.sessions = Sessions(broker.agenda, options, self.tally)
        self.topics = TopicRules(options.max_levels)

    def credentials(self, user: str | None, password: bytes, client_id: str, peer: Peer) -> Credentials:
        """A user name may begin with a virtual host and a colon. Who gives none may have one in its certificate."""
        vhost = "/"
        proven = user is None and peer.certificate != ""
        if proven:
            user = peer.certificate
        elif user is not None:
            head, colon, tail = user.partition(":")
            if colon and head in self.broker.vhosts:
                vhost, user = head, tail
        login = Credentials(user, password, vhost, peer.address, peer.local, client_id)
        login.proven = proven
        login.foreign = peer.foreign
        return login
