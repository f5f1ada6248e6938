"""What all MQTT connections of a broker share."""

from __future__ import annotations

from typing import Final

from broker.access import Credentials
from broker.core import Broker
from broker.queue import DROPPED, OVER_LIMIT
from protocols.connection import Connection, Peer
from protocols.front import Front
from protocols.mqtt.sessions import MqttOptions, Sessions
from protocols.mqtt.sys import SysTree
from protocols.mqtt.topics import TopicRules

#: What a protocol level is called in metrics and listings; before its CONNECT, what clients speak most.
NAMES: Final = {0: "mqtt311", 3: "mqtt310", 4: "mqtt311", 5: "mqtt50"}


class MqttService(Front):
    """Sessions, topic rules, and whose credentials a client gives."""

    def __init__(self, broker: Broker, options: MqttOptions) -> None:
        super().__init__("mqtt", broker)
        self.ways_in = tuple(sorted(set(NAMES.values())))
        self.options = options
        self.sessions = Sessions(broker.agenda, options, self.tally)
        self.sys = SysTree(broker.agenda, options.sys_interval_s, f"trellis {options.version}".rstrip(), self.counts)
        #: Octets of connections that are gone, in and out, and the most clients that there were at once.
        self._octets_in = 0
        self._octets_out = 0
        self._most = 0
        self.topics = TopicRules(options.max_levels, options.no_subscribe)

    def enter(self, connection: Connection) -> None:
        super().enter(connection)
        self._most = max(self._most, len(self.connections))

    def leave(self, connection: Connection) -> None:
        super().leave(connection)
        self._octets_in += int(connection.octets_in)
        self._octets_out += int(connection.octets_out)

    def counts(self) -> dict[str, int]:
        """What $SYS tells, by Mosquitto's names. Walks over all connections."""
        tally, sessions = self.tally, self.sessions
        received = 0
        dropped = 0
        relayed = 0
        retained = 0
        waiting = 0
        for vhost in self.broker.vhosts.values():
            ingress = vhost.gates.ingress()
            received += sum(ingress[name].received for name in self.ways_in if name in ingress)
            retained += len(vhost.retained)
            census = vhost.census().whole()
            dropped += census.fates[DROPPED] + census.fates[OVER_LIMIT]
            relayed += census.relayed
            waiting += int(census.inbox_ready + census.inbox_unacked)
        octets_in = self._octets_in + sum(int(connection.octets_in) for connection in self.connections)
        octets_out = self._octets_out + sum(int(connection.octets_out) for connection in self.connections)
        sent = relayed + int(tally.delivered_manual + tally.redelivered)
        connected = sum(1 for session in sessions.all() if session.outlet is not None)
        total = len(sessions)
        acknowledged = int(tally.acknowledged)
        return {
            "clients/connected": connected, "clients/disconnected": total - connected, "clients/total": total,
            "clients/active": connected, "clients/inactive": total - connected, "clients/maximum": self._most,
            "clients/expired": sessions.expired,
            "messages/received": received + acknowledged, "messages/sent": sent, "messages/stored": retained + waiting,
            "store/messages/count": retained + waiting, "retained messages/count": retained,
            "publish/messages/received": received, "publish/messages/sent": sent, "publish/messages/dropped": dropped,
            "bytes/received": octets_in, "bytes/sent": octets_out,
            "subscriptions/count": sum(len(session.subscriptions) for session in sessions.all()),
            "shared_subscriptions/count": len(sessions.groups),
            "load/messages/received": received + acknowledged, "load/messages/sent": sent, "load/publish/received": received,
            "load/publish/sent": sent, "load/publish/dropped": dropped, "load/bytes/received": octets_in, "load/bytes/sent": octets_out,
            "load/connections": sum(self.logins.values()), "load/sockets": self.opened}

    def credentials(self, user: str | None, password: bytes, client_id: str, peer: Peer) -> Credentials:
        """A user name may begin with a virtual host and a colon."""
        vhost = "/"
        if user is not None:
            head, colon, tail = user.partition(":")
            if colon and head in self.broker.vhosts:
                vhost, user = head, tail
        return Credentials(user, password, vhost, peer.address, peer.local, client_id)
