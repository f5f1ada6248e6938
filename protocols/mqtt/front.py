"""The MQTT front end."""

from __future__ import annotations

from broker.core import Broker
from protocols.connection import Connection, Peer
from protocols.mqtt.connection import MqttConnection
from protocols.mqtt.journaled import PacketOpener
from protocols.mqtt.service import MqttService
from protocols.mqtt.sessions import MqttOptions


class MqttFront(MqttService):
    """Lets MQTT clients in."""

    def __init__(self, broker: Broker, options: MqttOptions | None = None) -> None:
        super().__init__(broker, options or MqttOptions())
        broker.streams.scribes.opener = PacketOpener()

    def connect(self, peer: Peer) -> Connection:
        return MqttConnection(self, peer)
