"""The MQTT front end."""

from __future__ import annotations

from broker.broker import Broker
from protocols.connection import Connection, Peer
from protocols.mqtt.codec.journal_codec import MqttPacketParser
from protocols.mqtt.connection.connection import MqttConnection
from protocols.mqtt.connection.login import Login
from protocols.mqtt.connection.reauthorization import AllSessionsReauthorization
from protocols.mqtt.connection.service import MqttService
from protocols.mqtt.options import MqttOptions


class MqttFront(MqttService):
    """Lets MQTT clients in."""

    def __init__(self, broker: Broker, options: MqttOptions | None = None) -> None:
        super().__init__(broker, options or MqttOptions())
        self._reviewing_all: AllSessionsReauthorization | None = None
        broker.streams.codecs.packet_parser = MqttPacketParser()

    def connect(self, peer: Peer) -> Connection:
        connection = MqttConnection(self, peer)
        connection.handler = Login(connection)
        return connection

    def reauthorize(self) -> None:
        """Sessions whose clients are away, too."""
        super().reauthorize()
        if self._reviewing_all is None or not self._reviewing_all.again():
            self._reviewing_all = AllSessionsReauthorization(self, self.broker.agenda)
            self.broker.agenda.add(self._reviewing_all)
