"""The MQTT front end: makes connections, and renews the permissions of connections and sessions."""

from __future__ import annotations

from broker.broker import Broker
from broker.store.contract import Ticket
from broker.vhost.vhost import VirtualHost
from protocols.connection import Connection
from protocols.end_reasons import EXPELLED
from protocols.front import Review
from protocols.mqtt.codec.journal_codec import MqttPacketParser
from protocols.mqtt.connection.connection import MqttConnection
from protocols.mqtt.connection.login import Login
from protocols.mqtt.connection.reauthorization import SESSIONS_PER_SLICE, review_session
from protocols.mqtt.connection.service import MqttService
from protocols.mqtt.options import MqttOptions
from protocols.peer import Peer


class MqttFront(MqttService):
    """The MQTT front end of one broker."""

    def __init__(self, broker: Broker, options: MqttOptions | None = None) -> None:
        super().__init__(broker, options or MqttOptions())
        self._sessions_reauthorization = Review(
            broker.agenda,
            SESSIONS_PER_SLICE,
            self.sessions.all,
            lambda session: review_session(self, session),
        )
        broker.streams.codecs.packet_parser = MqttPacketParser()

    def connect(self, peer: Peer) -> Connection:
        connection = MqttConnection(self, peer)
        connection.handler = Login(connection)
        return connection

    def reauthorize(self, share: int = 1) -> None:
        """Renew the permissions of all connections and all sessions, connected or not.

        The higher `share`, the fewer connections and sessions are renewed in one turn.
        """
        super().reauthorize(share)
        self._sessions_reauthorization.start(share)

    def delete_session(self, vhost: VirtualHost, client_id: str, ticket: Ticket | None) -> bool:
        """End the session of a client identifier; return False if no such session exists.

        A connected client is disconnected, and its will is not published. `ticket` waits for the
        removal of the session from the store.
        """
        session = self.sessions.find(vhost, client_id)
        if session is None:
            return False
        connection = session.connection
        if isinstance(connection, MqttConnection):
            connection.will = None
            connection.close(EXPELLED, "the session was deleted")
        if session.delayed_will is not None:
            session.delayed_will.cancel()
        self.sessions.end(session, ticket)
        return True
