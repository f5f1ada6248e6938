"""All sessions of a broker, by virtual host and client identifier: found, made, restored, expired."""

from __future__ import annotations

from array import array

from mypy_extensions import i64

from broker.agenda import Agenda
from broker.definitions.restore import Definition
from broker.errors import PreconditionFailed
from broker.routing.binding import Binding
from broker.routing.route import Subscriber
from broker.store.contract import Defined, Ticket, Undefined
from broker.store.durable import DurableStore
from broker.vhost.vhost import VirtualHost
from protocols.mqtt.codec.connect import NEVER
from protocols.mqtt.codec.topics import SHARE
from protocols.mqtt.options import MqttOptions
from protocols.mqtt.session.deadlines import Deadlines
from protocols.mqtt.session.interfaces import SessionRegistry
from protocols.mqtt.session.restoring import restore_inbox
from protocols.mqtt.session.session import Session
from protocols.mqtt.session.shared import SubscriptionGroup, SubscriptionGroups
from protocols.mqtt.session.sys_topics import ROOT, SysTree
from protocols.mqtt.session.wills import DelayedWill, StoredWill, restored_will
from protocols.tally import FrontCounters


class Sessions(SessionRegistry):
    """At most `options.sessions`; one that nobody comes back to ends when it has been away for as
    long as its client said, or `options.session_expiry_s`.

    The definition of a persistent session says since when its client is away, in ms of the wall
    clock; 0 if it is here.
    """

    def __init__(self, agenda: Agenda, options: MqttOptions, tally: FrontCounters) -> None:
        self.created = 0
        self.expired = 0
        self._agenda = agenda
        self._options = options
        self._tally = tally
        #: By virtual host (there may be none yet) and client identifier.
        self._sessions: dict[str, dict[str, Session]] = {}
        self._count = 0
        #: Ends of sessions whose clients are away, and wills that wait.
        self.deadlines = Deadlines(agenda)
        self.groups = SubscriptionGroups(options.session_backlog)
        #: Whom restored sessions watch; the front end says.
        self.sys: SysTree | None = None
        #: Restored sessions that were away for so long, in ms.
        self._restored: list[tuple[int, Session]] = []
        #: ... those that watch $SYS,
        self._watching: list[Session] = []
        #: ... and their shared subscriptions.
        self._shared: list[tuple[Session, dict[str, object]]] = []

    def __len__(self) -> int:
        return self._count

    def all(self) -> list[Session]:
        return [session for sessions in self._sessions.values() for session in sessions.values()]

    def find(self, vhost: VirtualHost, client_id: str) -> Session | None:
        sessions = self._sessions.get(vhost.name)
        return None if sessions is None else sessions.get(client_id)

    @property
    def full(self) -> bool:
        return self._count >= self._options.sessions

    def granted(self, expiry: int) -> int:
        """The session expiry that a client gets that wants this one; both in seconds."""
        return min(expiry, self._options.session_expiry_s)

    def make(
        self,
        vhost: VirtualHost,
        client_id: str,
        expiry: int,
        testament: Definition | None,
        ticket: Ticket,
        user: str = "",
        named: bool = False,
    ) -> Session:
        """A new session of a user, under an identifier that has none. It outlives its connection by
        `expiry` seconds, and so does what the store knows of the client's will."""
        session = self._add(vhost, client_id, expiry > 0)
        session.user, session.named = user, named
        session.expiry = expiry
        self.created += 1
        if session.persistent:
            session.stored_will = testament
            session.number = vhost.store.append(
                Defined(vhost.name, "session", client_id, _definition(session, 0)), ticket
            )
            session.inbox.number = session.number
        return session

    def _add(self, vhost: VirtualHost, client_id: str, persistent: bool) -> Session:
        options = self._options
        session = Session(
            vhost,
            client_id,
            persistent,
            options.session_backlog,
            options.receive_maximum,
            self._tally,
        )
        session.registry = self
        sessions = self._sessions.get(vhost.name)
        if sessions is None:
            sessions = self._sessions[vhost.name] = {}
        sessions[client_id] = session
        self._count += 1
        return session

    def reclaim(
        self, session: Session, expiry: int, testament: Definition | None, ticket: Ticket
    ) -> None:
        """Its client is here, and wants it kept for so long from now on.

        The ticket waits for a will.
        """
        changed = (
            session.expiry != expiry or testament is not None or session.stored_will is not None
        )
        session.expiry = expiry
        session.stored_will = testament
        if session.expiry_deadline is not None:
            self.deadlines.cancel(session.expiry_deadline)
            session.expiry_deadline = None
            changed = True
        if changed and session.persistent:
            self.note(session, 0, None if testament is None else ticket)

    def leave(self, session: Session) -> None:
        """Its connection is gone: a persistent session stays, for a while."""
        if not session.persistent or session.expiry == 0:
            self.end(session, None)
            return
        session.detach()
        self._wait_for(session, 0)
        # Nobody waits for it: a crash right now makes the session's time longer, or shorter, by so
        # little.
        self.note(session, int(self._agenda.wall * 1000), None)

    def note(self, session: Session, away_since: int, ticket: Ticket | None) -> None:
        """Let the store know what changed."""
        session.vhost.store.append(
            Defined(session.vhost.name, "session", session.name, _definition(session, away_since)),
            ticket,
        )

    def _wait_for(self, session: Session, away: int) -> None:
        """Its client has been away for so many ms."""
        session.away_since = self._agenda.now - away
        if session.expiry != NEVER:
            session.expiry_deadline = self.deadlines.at(
                session.away_since + session.expiry * 1000, session
            )

    def end(self, session: Session, ticket: Ticket | None) -> None:
        """Forget the session."""
        if self.find(session.vhost, session.name) is session:
            sessions = self._sessions[session.vhost.name]
            del sessions[session.name]
            if not sessions:
                del self._sessions[session.vhost.name]
            self._count -= 1
            session.registry = None
            if session.expiry_deadline is not None:
                self.deadlines.cancel(session.expiry_deadline)
                session.expiry_deadline = None
            session.end()
            if session.persistent:
                session.vhost.store.append(
                    Undefined(session.vhost.name, "session", session.name, session.number), ticket
                )

    def expire(self, session: Subscriber) -> None:
        assert isinstance(session, Session)
        session.expiry_deadline = None
        self.expired += 1
        self.end(session, None)

    def clear_will(self, session: Subscriber) -> None:
        assert isinstance(session, Session)
        if session.stored_will is not None:
            session.stored_will = None
            away = (
                0
                if session.connection is not None
                else int(self._agenda.wall * 1000) - int(self._agenda.now - session.away_since)
            )
            self.note(session, away, None)

    # -- Keeper

    def restore(
        self, vhost: VirtualHost, name: str, number: i64, definition: Definition
    ) -> Subscriber:
        if name.startswith(SHARE):
            return self._restore_group(vhost, name, number)
        away_since = definition.get("away_since")
        if not isinstance(away_since, int):
            raise PreconditionFailed(f"its time away is {away_since!r}")
        if self.find(vhost, name) is not None:
            raise PreconditionFailed(f"there is a session '{name}' in vhost '{vhost.name}' already")
        expiry = definition.get("expiry", self._options.session_expiry_s)
        if not isinstance(expiry, int):
            raise PreconditionFailed(f"its expiry is {expiry!r}")
        session = self._add(vhost, name, True)
        session.expiry = expiry
        session.number = session.inbox.number = number
        session.user, session.named = (
            str(definition.get("user", "")),
            definition.get("named") is True,
        )
        shared = definition.get("shared")
        if isinstance(shared, dict):
            self._shared.append((session, shared))
        will = definition.get("will")
        if isinstance(will, dict):
            restored_will(will)
            session.stored_will = will
        # A clock that was set back since makes nobody's time longer than it is from now on.
        self._restored.append(
            (max(int(self._agenda.wall * 1000) - away_since, 0) if away_since else -1, session)
        )
        return session

    def _restore_group(self, vhost: VirtualHost, name: str, number: i64) -> SubscriptionGroup:
        group = self.groups.open(vhost, name)
        group.number = group.inbox.number = number
        group.inbox.durable = True
        return group

    def restore_subscription(self, listener: Subscriber, binding: Binding) -> None:
        if isinstance(listener, SubscriptionGroup):
            listener.restore_binding(binding)
        else:
            assert isinstance(listener, Session)
            listener.restore_subscription(binding)
            if binding.key.startswith(ROOT):
                self._watching.append(listener)

    def restore_inbox(
        self, listener: Subscriber, store: DurableStore, positions: array[int], stepped: set[int]
    ) -> None:
        if isinstance(listener, SubscriptionGroup):
            listener.inbox.restore(positions, 1)
        else:
            assert isinstance(listener, Session)
            restore_inbox(listener, store, positions, stepped)

    def restore_received(self, listener: Subscriber, identifiers: list[int]) -> None:
        assert isinstance(listener, Session)
        for packet_id in identifiers:
            listener.own_window().hold(packet_id, None)

    def finish_restore(self) -> None:
        """Those whose clients were here when the broker stopped are away from now on.

        Groups have their members again.
        """
        shared, self._shared = self._shared, []
        for session, memberships in shared:
            for name, options in memberships.items():
                if isinstance(options, list) and len(options) == 2:
                    self.groups.join(session, name, options[0], options[1], None)
        self.groups.drop_empty()
        restored, self._restored = self._restored, []
        restored.sort(key=_longest_first)
        for away, session in restored:
            self._wait_for(session, max(away, 0))
            if session.stored_will is not None:
                self._wait_with(session, restored_will(session.stored_will), max(away, 0))
            if away < 0:
                self.note(session, int(self._agenda.wall * 1000), None)
        watching, self._watching = self._watching, []
        for session in watching:
            if self.sys is not None:
                self.sys.watch(session)

    def _wait_with(self, session: Session, will: StoredWill, away: int) -> None:
        """Its client's will waits for what is left of its delay, from when the client was lost.

        It was allowed when it was left.
        """
        when: i64 = self._agenda.now + max(will.delay - away, 0)
        session.delayed_will = DelayedWill(
            session.vhost, session.vhost.internal, will, session, self.deadlines, when
        )


def _definition(session: Session, away_since: int) -> dict[str, object]:
    """What the store knows of it. (Its number is not known yet when it is made.)"""
    definition: dict[str, object] = {"away_since": away_since, "expiry": session.expiry}
    if session.stored_will is not None:
        definition["will"] = session.stored_will
    if session.user:
        definition["user"] = session.user
        definition["named"] = session.named
    if session.subscriptions.memberships:
        definition["shared"] = {
            name: [one.qos, one.identifier]
            for name, one in session.subscriptions.memberships.items()
        }
    if session.number:
        definition["number"] = int(session.number)
    return definition


def _longest_first(restored: tuple[int, Session]) -> int:
    return -restored[0]
