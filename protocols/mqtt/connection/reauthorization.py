"""Rights of a session: what its subscriptions may take, and what becomes of them when rights
change.

A subscription that may take nothing any more is removed, and a client that is here is disconnected
(0x87), so that it hears of it: it comes back, subscribes, and learns what it may have. One that may
take less than before is told less.
"""

from __future__ import annotations

from typing import Final

from broker.access.identity import READ_ALL, READ_NONE, READ_SOME, Identity
from broker.agenda import Agenda, Task
from broker.errors import AccessRefused
from broker.routing.binding import PARTLY
from matching.grammar import swap
from protocols.connection import EXPELLED
from protocols.mqtt.codec.reasons import NOT_AUTHORISED
from protocols.mqtt.codec.topics import EXCHANGE, SHARE
from protocols.mqtt.connection.service import MqttService
from protocols.mqtt.session.session import Session
from protocols.mqtt.session.sys_topics import ROOT

#: Sessions looked at in one turn, and how much work comparing subscriptions with rules may be, in
#: levels.
SLICE: Final = 500
LEVELS: Final = 10_000


def judge(identity: Identity, topic_filter: str, vhost: str) -> int:
    """How much of a subscription is allowed: ALL, SOME or NONE. Where it is not told topic by topic
    (shared, $SYS), it is all or nothing."""
    whole = topic_filter.startswith((SHARE, ROOT))
    if topic_filter.startswith(SHARE):
        topic_filter = topic_filter[len(SHARE) :].partition("/")[2]
    try:
        identity.may("read", "exchange", EXCHANGE, vhost)
    except AccessRefused:
        return READ_NONE
    key = ".".join(["*" if word == "+" else swap(word) for word in topic_filter.split("/")])
    verdict = identity.read_scope(EXCHANGE, key, topic_filter, True)
    return READ_NONE if whole and verdict == READ_SOME else verdict


def review_session(service: MqttService, session: Session) -> None:
    """Whoever it belongs to may have other rights than before, or be nobody any more."""
    if session.connection is not None:
        session.connection.reauthorize()
    elif session.vhost.closing:
        _give_up(service, session)
    elif session.named:
        user = service.broker.authenticator.identity_of(session.user)
        identity = None if user is None else user.for_vhost(session.vhost.name, session.name)
        if identity is None:
            _give_up(service, session)
        else:
            assume(session, identity)


def _give_up(service: MqttService, session: Session) -> None:
    if session.delayed_will is not None:
        session.delayed_will.cancel()
    service.sessions.end(session, None)


def assume(session: Session, identity: Identity) -> None:
    """These are the rights of the session from now on."""
    if session.identity is identity:
        return
    session.identity = identity
    if session.delayed_will is not None:
        session.delayed_will.review(identity)
    if len(session.subscriptions) or session.subscriptions.memberships:
        SessionReauthorization(session, identity).run()


class SessionReauthorization(Task):
    """A walk through the subscriptions of a session."""

    def __init__(self, session: Session, identity: Identity) -> None:
        self._session = session
        self._identity = identity
        self._names = [*session.subscriptions, *session.subscriptions.memberships]
        self._names.reverse()
        self._lost = 0

    def run(self) -> None:
        session = self._session
        if session.dead or session.identity is not self._identity:
            return
        left = LEVELS
        partly = False
        while self._names and left > 0:
            name = self._names.pop()
            left -= (1 + name.count("/")) * self._identity.weight
            partly |= self._review(name)
        if partly:
            session.vhost.changed()
        if self._names:
            session.vhost.agenda.later(self)
        elif self._lost and session.connection is not None:
            session.connection.close_with(
                NOT_AUTHORISED, EXPELLED, f"{self._lost} subscriptions are not allowed any more"
            )

    def _review(self, name: str) -> bool:
        """Whether topics are, or were, told one by one."""
        session = self._session
        verdict = judge(self._identity, name, session.vhost.name)
        if name in session.subscriptions.memberships:
            if verdict != READ_ALL:
                self._lost += 1
                session.leave_group(name, None)
            return False
        binding = session.subscriptions.get(name)
        if binding is None:
            return False
        before = PARTLY in binding.arguments
        if verdict == READ_NONE:
            self._lost += 1
            session.unsubscribe(name, None)
        elif before != (verdict == READ_SOME):
            wishes = {key: value for key, value in binding.arguments.items() if key != PARTLY}
            if verdict == READ_SOME:
                wishes[PARTLY] = True
            session.subscribe(name, binding.qos, None, wishes)
        return before or verdict == READ_SOME


class AllSessionsReauthorization(Task):
    """A walk through all sessions."""

    def __init__(self, service: MqttService, agenda: Agenda) -> None:
        self._service = service
        self._agenda = agenda
        self._left = service.sessions.all()
        self._done = False

    def again(self) -> bool:
        """From the beginning, if it is still under way."""
        self._left = [] if self._done else self._service.sessions.all()
        return not self._done

    def run(self) -> None:
        some, self._left = self._left[-SLICE:], self._left[:-SLICE]
        for session in some:
            if not session.dead:
                review_session(self._service, session)
        self._done = not self._left
        if self._left:
            self._agenda.later(self)
