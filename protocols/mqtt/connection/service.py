"""The state that all MQTT connections of a broker share, and the counters that $SYS publishes."""

from __future__ import annotations

from typing import Final

from broker.access.identity import Credentials
from broker.broker import Broker
from broker.messages.fates import DROPPED, OVER_LIMIT
from protocols.connection import Connection
from protocols.front import Front
from protocols.mqtt.codec.topics import MqttTopics
from protocols.mqtt.connection.refused_publications import (
    TOPICS_MAX,
    WINDOW_MS,
    RefusedPublications,
)
from protocols.mqtt.options import MqttOptions
from protocols.mqtt.session.sessions import Sessions
from protocols.mqtt.session.sys_topics import Survey, Surveyor, SysTree
from protocols.peer import Peer

#: Names of the protocol levels in metrics and listings. Level 0 is a connection before its CONNECT;
#: it has the name of the most frequent level.
NAMES: Final = {0: "mqtt311", 3: "mqtt310", 4: "mqtt311", 5: "mqtt50"}


class MqttService(Front):
    """The sessions, options and topic rules of all MQTT connections."""

    def __init__(self, broker: Broker, options: MqttOptions) -> None:
        super().__init__("mqtt", broker)
        self.context_names = tuple(sorted(set(NAMES.values())))
        self.options = options
        self.sessions = Sessions(broker.agenda, options, self.tally, broker.authenticator)
        self.sys = SysTree(
            broker.agenda,
            options.sys_interval_s,
            f"trellis {options.version}".rstrip(),
            BrokerSurveyor(self),
        )
        self.sessions.sys = self.sys
        #: The highest number of connections that were open at the same time.
        self.connections_max = 0
        self.topics = MqttTopics(options.max_levels, options.no_subscribe)
        #: The refused publications of each open connection that has any.
        self._refused_publications: dict[Connection, RefusedPublications] = {}

    def enter(self, connection: Connection) -> None:
        super().enter(connection)
        self.connections_max = max(self.connections_max, len(self.connections))

    def leave(self, connection: Connection) -> None:
        refused = self._refused_publications.pop(connection, None)
        if refused is not None:
            self._log_left_out(connection, refused)
        super().leave(connection)

    def log_refused_publication(
        self, event: str, connection: Connection, topic: str, note: str, fields: dict[str, object]
    ) -> None:
        """Log a refused publication, or count it (refused_publications.py).

        `event`, `note` and `fields` are passed to `log_refusal`.
        """
        now = self.broker.agenda.now
        refused = self._refused_publications.get(connection)
        if refused is None:
            refused = self._refused_publications[connection] = RefusedPublications(now)
        if refused.add(topic):
            note += ". Further refused publications to this topic are counted and not logged"
            self.log_refusal(event, connection, note, fields)
        elif now - refused.counted_at >= WINDOW_MS:
            self._log_left_out(connection, refused)
            refused.counted_at = now

    def _log_left_out(self, connection: Connection, refused: RefusedPublications) -> None:
        """Log the number of refused publications that have no log line (`left_out`); set it to 0.

        Log nothing if the number is 0 already.
        """
        if refused.left_out:
            self.log_refusal(
                "publications_left_out",
                connection,
                "these refused publications have no log lines of their own: only the first refused "
                f"publication to each topic has one, for at most {TOPICS_MAX} topics",
                {"client_id": connection.describe()["client"], "count": int(refused.left_out)},
            )
            refused.left_out = 0

    def credentials(
        self, user: str | None, password: bytes, client_id: str, peer: Peer
    ) -> Credentials:
        """Return the credentials in a CONNECT.

        A user name may begin with the name of a virtual host and a colon. If the client gives no
        user name but has a trusted certificate, its user name is the name in the certificate.
        """
        vhost = "/"
        certified = user is None and peer.certificate != ""
        if certified:
            user = peer.certificate
        elif user is not None:
            head, colon, tail = user.partition(":")
            if colon and head in self.broker.vhosts:
                vhost, user = head, tail
        credentials = Credentials(user, password, vhost, peer.address, peer.local, client_id)
        credentials.proven = certified
        credentials.foreign = peer.cross_site
        return credentials


class BrokerSurveyor(Surveyor):
    """Creates a BrokerSurvey each time that the values of the $SYS topics are computed again."""

    def __init__(self, service: MqttService) -> None:
        self._service = service

    def survey(self) -> Survey:
        return BrokerSurvey(self._service)


class BrokerSurvey(Survey):
    """One count of the broker's sessions, messages and bytes for the topics of $SYS."""

    def __init__(self, service: MqttService) -> None:
        self._service = service
        self._sessions = service.sessions.all()
        self._connections = list(service.connections)
        vhosts = list(service.broker.vhosts.values())
        self._totals = [vhost.totals() for vhost in vhosts]
        self._retained = sum(len(vhost.retained) for vhost in vhosts)
        ingress = [vhost.contexts.collected() for vhost in vhosts]
        self._received = sum(
            one[name].received for one in ingress for name in service.context_names if name in one
        )
        self._connected = 0
        self._subscriptions = 0
        self._bytes_in = service.bytes_in
        self._bytes_out = service.bytes_out

    def step(self, most: int) -> bool:
        while most > 0 and self._sessions:
            most -= 1
            session = self._sessions.pop()
            self._connected += session.connection is not None
            self._subscriptions += len(session.subscriptions)
        while most > 0 and self._connections:
            most -= 1
            connection = self._connections.pop()
            if not connection.finished:
                self._bytes_in += int(connection.bytes_in)
                self._bytes_out += int(connection.bytes_out)
        more = [totals.step(most) for totals in self._totals]
        return bool(self._sessions or self._connections) or any(more)

    def counts(self) -> dict[str, int]:
        service = self._service
        tally, total, connected, retained = (
            service.tally,
            len(service.sessions),
            self._connected,
            self._retained,
        )
        waiting = sum(int(totals.inbox_ready + totals.inbox_unacked) for totals in self._totals)
        dropped = sum(totals.fates[DROPPED] + totals.fates[OVER_LIMIT] for totals in self._totals)
        sent = sum(totals.relayed for totals in self._totals) + int(
            tally.delivered_manual + tally.redelivered
        )
        published, received = self._received, self._received + int(tally.acknowledged)
        return {
            "clients/connected": connected,
            "clients/disconnected": total - connected,
            "clients/total": total,
            "clients/active": connected,
            "clients/inactive": total - connected,
            "clients/maximum": service.connections_max,
            "clients/expired": service.sessions.expired,
            "messages/received": received,
            "messages/sent": sent,
            "messages/stored": retained + waiting,
            "store/messages/count": retained + waiting,
            "retained messages/count": retained,
            "publish/messages/received": published,
            "publish/messages/sent": sent,
            "publish/messages/dropped": dropped,
            "bytes/received": self._bytes_in,
            "bytes/sent": self._bytes_out,
            "subscriptions/count": self._subscriptions,
            "shared_subscriptions/count": len(service.sessions.groups),
            "load/messages/received": received,
            "load/messages/sent": sent,
            "load/publish/received": published,
            "load/publish/sent": sent,
            "load/publish/dropped": dropped,
            "load/bytes/received": self._bytes_in,
            "load/bytes/sent": self._bytes_out,
            "load/connections": sum(service.logins.values()),
            "load/sockets": service.opened,
        }
