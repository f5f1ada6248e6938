"""The registry of a broker's sessions: finds, creates, restores and expires sessions.

Sessions are found by virtual host and client identifier.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from broker.access.identity import Authenticator
from broker.agenda import Agenda
from broker.definitions.session_restorer import Definition
from broker.errors import PreconditionFailed
from broker.queues.slices import MESSAGES_PER_SLICE
from broker.routing.binding import Binding
from broker.routing.subscriber import Subscriber
from broker.store.contract import Ticket
from broker.store.entries import Defined
from broker.vhost.background import BINDINGS_PER_SLICE
from broker.vhost.vhost import VirtualHost
from protocols.mqtt.codec.connect import NEVER
from protocols.mqtt.codec.topics import SHARE
from protocols.mqtt.options import MqttOptions
from protocols.mqtt.session.deadlines import Deadlines
from protocols.mqtt.session.interfaces import SessionRegistry
from protocols.mqtt.session.session import Session
from protocols.mqtt.session.shared import SubscriptionGroup, SubscriptionGroups
from protocols.mqtt.session.shared_deliveries import MEMBERSHIPS_PER_SLICE
from protocols.mqtt.session.sys_topics import ROOT, SysTree
from protocols.mqtt.session.wills import DelayedWill, StoredWill, restored_will
from protocols.tally import FrontCounters

if TYPE_CHECKING:
    from broker.store.durable import DurableStore

#: Cost of ending a session that has no messages and no subscriptions, in units of `_end_cost`: the
#: removal of one binding or message is one unit.
UNITS_PER_DEADLINE: Final[i64] = 5
#: Name of the user that anonymous clients have.
ANONYMOUS: Final = "anonymous"


class Sessions(SessionRegistry):
    """The sessions of a broker. At most `options.sessions` sessions exist.

    A session whose client stays away ends after the session expiry that the client asked for, but
    at the latest after `options.session_expiry_s` seconds. The store has a definition of each
    persistent session. The definition contains the time at which the client disconnected, in ms of
    the wall clock; 0 while the client is connected.
    """

    def __init__(
        self,
        agenda: Agenda,
        options: MqttOptions,
        tally: FrontCounters,
        authenticator: Authenticator,
    ) -> None:
        self.created = 0
        #: Number of subscriptions that were refused, because their session had too many.
        self.refused_subscriptions = 0
        self.expired = 0
        self._agenda = agenda
        self._options = options
        self._tally = tally
        self._authenticator = authenticator
        #: Virtual host name -> client identifier -> session. A virtual host without sessions has no
        #: entry.
        self._sessions: dict[str, dict[str, Session]] = {}
        self._count = 0
        #: The timers of sessions that expire and of delayed wills.
        self.deadlines = Deadlines(agenda)
        self.groups = SubscriptionGroups(options.session_backlog)
        #: The $SYS tree, which restored sessions may watch. The front end sets it.
        self.sys: SysTree | None = None
        #: Restored sessions, with the time that their clients have been away, in ms; -1 if the
        #: client was connected when the broker stopped.
        self._restored: list[tuple[int, Session]] = []
        #: Restored sessions that have subscribed to $SYS.
        self._watching: list[Session] = []
        #: Shared subscriptions of restored sessions.
        self._shared: list[tuple[Session, dict[str, object]]] = []

    def __len__(self) -> int:
        return self._count

    def all(self) -> list[Session]:
        """Return a copy of the list of all sessions."""
        return [session for sessions in self._sessions.values() for session in sessions.values()]

    def find(self, vhost: VirtualHost, client_id: str) -> Session | None:
        """Return the session of a client identifier; None if there is none."""
        sessions = self._sessions.get(vhost.name)
        return None if sessions is None else sessions.get(client_id)

    @property
    def full(self) -> bool:
        """True if the broker accepts no more sessions."""
        return self._count >= self._options.sessions

    @property
    def backlog(self) -> int:
        return self._options.session_backlog

    @property
    def receive_maximum(self) -> int:
        return self._options.receive_maximum

    def granted(self, expiry: int) -> int:
        """Return the session expiry granted to a client that asks for `expiry`; both in seconds."""
        return min(expiry, self._options.session_expiry_s)

    def make(
        self,
        vhost: VirtualHost,
        client_id: str,
        expiry: int,
        stored_will: Definition | None,
        ticket: Ticket | None,
        user: str = "",
        named: bool = False,
        anonymous: bool = False,
    ) -> Session:
        """Create a session for a client identifier that has no session.

        The session outlives its connection by `expiry` seconds; it is not stored if `expiry` is 0.
        `stored_will` is stored with the session; `ticket` waits until both are stored. `named` is
        True if the user's permissions follow from its name alone, and not from a token.
        `anonymous` is True if the client gave no user name.
        """
        session = self._add(vhost, client_id, expiry > 0)
        session.user, session.named, session.anonymous = user, named, anonymous
        session.expiry = expiry
        self.created += 1
        if session.persistent:
            session.stored_will = stored_will
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
            self,
            options.receive_maximum,
            self._tally,
        )
        sessions = self._sessions.get(vhost.name)
        if sessions is None:
            sessions = self._sessions[vhost.name] = {}
        sessions[client_id] = session
        self._count += 1
        return session

    def reclaim(
        self, session: Session, expiry: int, stored_will: Definition | None, ticket: Ticket
    ) -> None:
        """Take a session over for the new connection of its client, with a new expiry and will.

        `expiry` is in seconds. `ticket` waits until the will is stored.
        """
        changed = (
            session.expiry != expiry or stored_will is not None or session.stored_will is not None
        )
        session.expiry = expiry
        session.stored_will = stored_will
        if session.expiry_deadline is not None:
            self.deadlines.cancel(session.expiry_deadline)
            session.expiry_deadline = None
            changed = True
        if changed and session.persistent:
            self.store(session, 0, None if stored_will is None else ticket)

    def leave(self, session: Session) -> None:
        """Detach a session from its connection, which has ended.

        End the session instead if it is not persistent, or if its expiry is 0.
        """
        if not session.persistent or session.expiry == 0:
            self.end(session, None)
            return
        session.detach()
        self._start_expiry(session, 0)
        # No reply waits for this record. If a crash loses it, the restarted broker counts the
        # session as disconnected from the restart on, so that the session expires later.
        self.store(session, int(self._agenda.wall * 1000), None)

    def store(self, session: Session, away_since: int, ticket: Ticket | None) -> None:
        """Store the changed definition of a persistent session.

        `away_since` is the time at which the client disconnected, in ms of the wall clock; 0 if the
        client is connected.
        """
        session.vhost.store.append(
            Defined(session.vhost.name, "session", session.name, _definition(session, away_since)),
            ticket,
        )

    def _start_expiry(self, session: Session, away: int) -> None:
        """Schedule the expiry of a session whose client has been away for `away` ms."""
        session.away_since = self._agenda.now - away
        if session.expiry != NEVER:
            session.expiry_deadline = self.deadlines.at(
                session.away_since + session.expiry * 1000, session
            )

    def end(self, session: Session, ticket: Ticket | None) -> None:
        """End a session, and remove it from the store."""
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
            session.end(ticket)

    def expire(self, session: Subscriber) -> None:
        assert isinstance(session, Session)
        session.expiry_deadline = None
        self.expired += 1
        self.deadlines.charge(_end_cost(session) // UNITS_PER_DEADLINE)
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
            self.store(session, away, None)

    # -- restore after a start

    def restore(
        self, vhost: VirtualHost, name: str, number: i64, definition: Definition
    ) -> Subscriber:
        if name.startswith(SHARE):
            return self._restore_group(vhost, name, number)
        away_since = definition.get("away_since")
        if not isinstance(away_since, int):
            raise PreconditionFailed(
                f"the field 'away_since' must be a number of milliseconds, not {away_since!r}"
            )
        if self.find(vhost, name) is not None:
            raise PreconditionFailed(f"there is a session '{name}' in vhost '{vhost.name}' already")
        expiry = definition.get("expiry", self._options.session_expiry_s)
        if not isinstance(expiry, int):
            raise PreconditionFailed(
                f"the field 'expiry' must be a number of seconds, not {expiry!r}"
            )
        session = self._add(vhost, name, True)
        session.expiry = self.granted(expiry)  # The setting may be lower than before the restart.
        session.number = session.inbox.number = number
        session.user, session.named = (
            str(definition.get("user", "")),
            definition.get("named") is True,
        )
        # Older versions of the broker stored only this user name for the sessions of anonymous
        # clients.
        session.anonymous = definition.get("anonymous") is True or (
            session.user == ANONYMOUS and not session.named
        )
        shared = definition.get("shared")
        if isinstance(shared, dict):
            self._shared.append((session, shared))
        will = definition.get("will")
        if isinstance(will, dict):
            restored_will(will)
            session.stored_will = will
        # If the clock was set back meanwhile, the computed time away is negative and counts as 0.
        self._restored.append(
            (max(int(self._agenda.wall * 1000) - away_since, 0) if away_since else -1, session)
        )
        return session

    def _restore_group(self, vhost: VirtualHost, name: str, number: i64) -> SubscriptionGroup:
        group = self.groups.open(vhost, name)
        group.restore(number)
        return group

    def restore_subscription(self, subscriber: Subscriber, binding: Binding) -> None:
        if isinstance(subscriber, SubscriptionGroup):
            subscriber.restore_binding(binding)
        else:
            assert isinstance(subscriber, Session)
            subscriber.restore_subscription(binding)
            if binding.key.startswith(ROOT):
                self._watching.append(subscriber)

    def restore_inbox(
        self,
        subscriber: Subscriber,
        store: DurableStore,
        positions: array[int],
        acknowledged: set[int],
    ) -> None:
        if isinstance(subscriber, SubscriptionGroup):
            subscriber.inbox.restore(positions, 1)
        else:
            assert isinstance(subscriber, Session)
            # Imported here, because only a broker with a durable store needs the module. It was
            # loaded before a standby becomes active (trellis/server/recovery.py): this process may
            # have no free file descriptor.
            from protocols.mqtt.session.restoring import restore_inbox

            restore_inbox(subscriber, store, positions, acknowledged)

    def restore_received(self, subscriber: Subscriber, identifiers: list[int]) -> None:
        assert isinstance(subscriber, Session)
        for packet_id in identifiers:
            subscriber.own_window().hold(packet_id)

    def finish_restore(self) -> None:
        """Complete the restore of all sessions: their groups, expiries, wills and $SYS topics.

        A client that was connected when the broker stopped counts as disconnected from now on.
        """
        shared, self._shared = self._shared, []
        for session, memberships in shared:
            for name, options in memberships.items():
                if isinstance(options, list) and len(options) == 2:
                    qos, identifier = options
                    self.groups.join(session, name, qos, identifier, None)
        self.groups.drop_empty()
        restored, self._restored = self._restored, []
        restored.sort(key=_longest_first)
        for away, session in restored:
            self._start_expiry(session, max(away, 0))
            if session.stored_will is not None:
                # A client that was connected has lost its connection by the restart.
                passed = away if away >= 0 else -self._options.will_grace_ms
                self._delay_will(session, restored_will(session.stored_will), passed)
            if away < 0:
                self.store(session, int(self._agenda.wall * 1000), None)
        watching, self._watching = self._watching, []
        for session in watching:
            if self.sys is not None:
                self.sys.watch(session)

    def _delay_will(self, session: Session, will: StoredWill, away: int) -> None:
        """Schedule the publication of a restored will at the end of its delay.

        `away` is the time since the client disconnected, in ms; negative if the delay begins only
        in the future.

        The user's permission to publish the will is looked up again at the publication, unless the
        permissions came with the login, for example in a token.
        """
        when: i64 = self._agenda.now + max(will.delay - away, 0)
        session.delayed_will = DelayedWill(
            session.vhost,
            session.vhost.internal,
            self._authenticator,
            will,
            session,
            self.deadlines,
            when,
        )


def _definition(session: Session, away_since: int) -> dict[str, object]:
    """Return the definition of a session for the store.

    `away_since` is as in `Sessions.store`. A new session has no number yet; its definition has no
    entry `number`.
    """
    definition: dict[str, object] = {"away_since": away_since, "expiry": session.expiry}
    if session.stored_will is not None:
        definition["will"] = session.stored_will
    if session.user:
        definition["user"] = session.user
        definition["named"] = session.named
        if session.anonymous:
            definition["anonymous"] = True
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


def _end_cost(session: Session) -> i64:
    """Return the number of bindings and messages that the end of a session removes in this turn of
    the event loop.
    """
    subscriptions = session.subscriptions
    messages: i64 = min(session.inbox.depth, MESSAGES_PER_SLICE) + session.in_flight.count
    return (
        min(len(subscriptions), BINDINGS_PER_SLICE)
        + min(len(subscriptions.memberships), MEMBERSHIPS_PER_SLICE)
        + messages
    )
