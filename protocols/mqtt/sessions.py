"""All sessions of a broker, by virtual host and client identifier: found, made, restored, expired."""

from __future__ import annotations

from array import array
from itertools import islice
from typing import Final

from mypy_extensions import i64

from broker.agenda import Agenda, Task
from broker.binding import Binding
from broker.errors import PreconditionFailed
from broker.outlet import Outlet
from broker.restore import Definition, Keeper
from broker.route import Listener
from broker.store.contract import Defined, Ticket, Undefined
from broker.store.durable import DurableStore
from broker.vhost import VirtualHost
from protocols.mqtt.restoring import restore_inbox
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


class Sessions(Keeper):
    """At most `options.sessions`; one that nobody comes back to ends after `options.session_expiry_s`.

    The definition of a persistent session says since when its client is away, in ms of the wall clock; 0 if it is here.
    """

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
        #: Restored sessions that were away for so long, in ms.
        self._restored: list[tuple[int, Session]] = []

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
        session = self._add(vhost, client_id, persistent)
        self.created += 1
        if persistent:
            session.number = vhost.store.append(Defined(vhost.name, "session", client_id, {"away_since": 0}), ticket)
            session.inbox.number = session.number
        return session

    def _add(self, vhost: VirtualHost, client_id: str, persistent: bool) -> Session:
        options = self._options
        session = Session(vhost, client_id, persistent, options.session_backlog, options.receive_maximum, self._tally)
        self._sessions[vhost.name, client_id] = session
        return session

    def enter(self, session: Session, outlet: Outlet) -> None:
        """Its client is here."""
        if session in self._away:
            del self._away[session]
            self._note(session, 0)
        session.attach(outlet)

    def leave(self, session: Session) -> None:
        """Its connection is gone: a persistent session stays, for a while."""
        if not session.persistent:
            self.end(session, None)
            return
        session.detach()
        session.away_since = self._agenda.now
        self._away[session] = None
        self._note(session, int(self._agenda.wall * 1000))
        self._watch()

    def _note(self, session: Session, away_since: int) -> None:
        """Let the store know. Nobody waits for it: a crash right now makes the session's time longer, or shorter, by so little."""
        session.vhost.store.append(Defined(session.vhost.name, "session", session.name, {
            "number": int(session.number), "away_since": away_since}), None)

    def end(self, session: Session, ticket: Ticket | None) -> None:
        """Forget the session."""
        if self._sessions.get((session.vhost.name, session.name)) is session:
            del self._sessions[session.vhost.name, session.name]
            self._away.pop(session, None)
            session.end()
            if session.persistent:
                session.vhost.store.append(Undefined(session.vhost.name, "session", session.name, session.number), ticket)

    def _watch(self) -> None:
        """See to it that `expire` is called when the first of those who are away is due, or before."""
        if self._away and not self._watching:
            self._watching = True
            self._agenda.at(max(self._due(next(iter(self._away))), self._agenda.now), Expiry(self))

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

    # -- Keeper

    def restore(self, vhost: VirtualHost, name: str, number: i64, definition: Definition) -> Listener:
        away_since = definition.get("away_since")
        if not isinstance(away_since, int):
            raise PreconditionFailed(f"its time away is {away_since!r}")
        if self.find(vhost, name) is not None:
            raise PreconditionFailed(f"there is a session '{name}' in vhost '{vhost.name}' already")
        session = self._add(vhost, name, True)
        session.number = session.inbox.number = number
        # A clock that was set back since makes nobody's time longer than it is from now on.
        self._restored.append((max(int(self._agenda.wall * 1000) - away_since, 0) if away_since else -1, session))
        return session

    def restore_subscription(self, listener: Listener, binding: Binding) -> None:
        assert isinstance(listener, Session)
        listener.subscriptions[binding.key] = binding

    def restore_inbox(self, listener: Listener, store: DurableStore, positions: array[int], stepped: set[int]) -> None:
        assert isinstance(listener, Session)
        restore_inbox(listener, store, positions, stepped)

    def restore_received(self, listener: Listener, identifiers: list[int]) -> None:
        assert isinstance(listener, Session)
        for packet_id in identifiers:
            listener.received[packet_id] = None

    def restored(self) -> None:
        """Those whose clients were here when the broker stopped are away from now on."""
        restored, self._restored = self._restored, []
        restored.sort(key=_longest_first)
        for away, session in restored:
            session.away_since = self._agenda.now - max(away, 0)
            self._away[session] = None
            if away < 0:
                self._note(session, int(self._agenda.wall * 1000))
        self._watch()


class Expiry(Task):
    """Some session was left some time ago."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def run(self) -> None:
        self._sessions.expire()


def _longest_first(restored: tuple[int, Session]) -> int:
    return -restored[0]
