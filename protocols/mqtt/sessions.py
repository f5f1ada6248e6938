"""All sessions of a broker, by virtual host and client identifier: found, made, expired."""

from __future__ import annotations

from itertools import islice
from typing import Final

from mypy_extensions import i64

from broker.agenda import Agenda, Task
from broker.outlet import Outlet
from broker.store.contract import Defined, Ticket, Undefined
from broker.vhost import VirtualHost
from protocols.mqtt.session import Session
from protocols.tally import Tally


class MqttOptions:
    """What the front end grants; octets, counts, and milliseconds or seconds as the names say."""

    def __init__(self) -> None:
        self.handshake_ms = 10_000
        self.max_packet = 16 << 20
        self.max_levels = 200
        self.receive_maximum = 1_024
        self.session_expiry_s = 14 * 86_400
        self.sessions = 1_000_000
        self.session_backlog = 100_000


#: Sessions that end in one turn because nobody came back to them.
SLICE: Final = 200


class Sessions:
    """At most `options.sessions`; one that nobody comes back to ends after `options.session_expiry_s`."""

    def __init__(self, agenda: Agenda, options: MqttOptions, tally: Tally) -> None:
        self.created = 0
        self.expired = 0
        self._agenda = agenda
        self._options = options
        self._tally = tally
        self._sessions: dict[tuple[str, str], Session] = {}
        #: Those whose client is away; who left first stands first. One timer asks for all of them.
        self._away: dict[Session, None] = {}
        self._watching = False

    def __len__(self) -> int:
        return len(self._sessions)

    def all(self) -> list[Session]:
        return list(self._sessions.values())

    def find(self, vhost: VirtualHost, client_id: str) -> Session | None:
        return self._sessions.get((vhost.name, client_id))

    @property
    def full(self) -> bool:
        return len(self._sessions) >= self._options.sessions

    def make(self, vhost: VirtualHost, client_id: str, persistent: bool, ticket: Ticket) -> Session:
        """A new session under an identifier that has none."""
        options = self._options
        session = Session(vhost, client_id, persistent, options.session_backlog, options.receive_maximum, self._tally)
        self._sessions[vhost.name, client_id] = session
        self.created += 1
        if persistent:
            vhost.store.append(Defined(vhost.name, "session", client_id, {}), ticket)
        return session

    def enter(self, session: Session, outlet: Outlet) -> None:
        """Its client is here."""
        self._away.pop(session, None)
        session.attach(outlet)

    def leave(self, session: Session) -> None:
        """Its connection is gone: a persistent session stays, for a while."""
        if not session.persistent:
            self.end(session, None)
            return
        session.detach()
        session.away_since = self._agenda.now
        self._away[session] = None
        self._watch()

    def end(self, session: Session, ticket: Ticket | None) -> None:
        """Forget the session."""
        if self._sessions.get((session.vhost.name, session.name)) is session:
            del self._sessions[session.vhost.name, session.name]
            self._away.pop(session, None)
            session.end()
            if session.persistent:
                session.vhost.store.append(Undefined(session.vhost.name, "session", session.name), ticket)

    def _watch(self) -> None:
        """See to it that `expire` is called when the first of those who are away is due, or before."""
        if self._away and not self._watching:
            self._watching = True
            self._agenda.at(self._due(next(iter(self._away))), Expiry(self))

    def _due(self, session: Session) -> i64:
        return session.away_since + self._options.session_expiry_s * 1000

    def expire(self) -> None:
        """The time may be over for some sessions."""
        self._watching = False
        for session in list(islice(self._away, SLICE)):
            if self._due(session) > self._agenda.now:
                break
            self.expired += 1
            self.end(session, None)
        self._watch()


class Expiry(Task):
    """Some session was left some time ago."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def run(self) -> None:
        self._sessions.expire()
