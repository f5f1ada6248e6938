"""What all MQTT connections of a broker share."""

from __future__ import annotations

from typing import Final

from broker.access import Credentials
from broker.core import Broker
from protocols.connection import Peer
from protocols.front import Front
from protocols.mqtt.sessions import MqttOptions, Sessions
from protocols.mqtt.topics import TopicRules

#: What a protocol level is called in metrics and listings; before its CONNECT, what clients speak most.
NAMES: Final = {0: "mqtt311", 3: "mqtt310", 4: "mqtt311", 5: "mqtt50"}


class MqttService(Front):
    """Sessions, topic rules, and whose credentials a client gives."""

    def __init__(self, broker: Broker, options: MqttOptions) -> None:
        super().__init__(NAMES[0], broker)
        self.options = options
        self.sessions = Sessions(broker.agenda, options, self.tally)
        self.topics = TopicRules(options.max_levels, options.no_subscribe)

    def credentials(self, user: str | None, password: bytes, client_id: str, peer: Peer) -> Credentials:
        """A user name may begin with a virtual host and a colon."""
        vhost = "/"
        if user is not None:
            head, colon, tail = user.partition(":")
            if colon and head in self.broker.vhosts:
                vhost, user = head, tail
        return Credentials(user, password, vhost, peer.address, peer.local, client_id)
