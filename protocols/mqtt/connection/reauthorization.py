"""Applies changed permissions of a user to the user's sessions.

If the user may read no topic of a subscription any more, the subscription is removed, and its
client, if connected, is disconnected with reason code 0x87 (Not authorized). The client can connect
and subscribe again, and the SUBACK then has a reason code for each topic filter. If the user may
read fewer topics than before, the subscription stays and receives only these. But a shared
subscription, or a subscription to $SYS, is removed unless the user may read all its topics. A
session ends if its user is deleted, or may not use the virtual host any more.
"""

from __future__ import annotations

from typing import Final

from broker.access.identity import READ_ALL, READ_NONE, READ_SOME, Identity
from broker.agenda import Task
from broker.routing.binding import NO_LOCAL, PARTLY
from matching.grammar import swap
from protocols.end_reasons import EXPELLED
from protocols.mqtt.codec.reasons import NOT_AUTHORISED
from protocols.mqtt.codec.topics import EXCHANGE, SHARE
from protocols.mqtt.connection.service import MqttService
from protocols.mqtt.session.session import Session
from protocols.mqtt.session.shared import leave_group
from protocols.mqtt.session.sys_topics import ROOT

#: SESSIONS_PER_SLICE is the number of sessions that are checked in one turn of the event loop.
#: LEVELS limits the cost of one session in a turn. The cost is the number of levels of the
#: session's topic filters, times the weight of its user's access rules.
SESSIONS_PER_SLICE: Final = 500
LEVELS: Final = 10_000


def read_scope(identity: Identity, topic_filter: str, vhost: str) -> int:
    """Return READ_ALL, READ_SOME or READ_NONE: how many topics of a topic filter the user may read.

    The messages of shared subscriptions and of $SYS are not checked topic by topic, so the result
    is READ_NONE for such a filter unless the user may read all its topics.
    """
    whole = topic_filter.startswith((SHARE, ROOT))
    if topic_filter.startswith(SHARE):
        topic_filter = topic_filter[len(SHARE) :].partition("/")[2]
    if not identity.allows("read", "exchange", EXCHANGE, vhost):
        return READ_NONE
    key = ".".join(["*" if word == "+" else swap(word) for word in topic_filter.split("/")])
    verdict = identity.read_scope(EXCHANGE, key, topic_filter, True)
    return READ_NONE if whole and verdict == READ_SOME else verdict


def review_session(service: MqttService, session: Session) -> None:
    """Renew the permissions of a session. End the session if its user may not use it any more."""
    if session.dead:
        return
    if session.connection is not None:
        session.connection.reauthorize()
    elif session.vhost.closing:
        _end(service, session)
    elif session.named:
        user = service.broker.authenticator.identity_of(session.user)
        identity = None if user is None else user.for_vhost(session.vhost.name, session.name)
        if identity is None:
            _end(service, session)
        else:
            apply_identity(session, identity)


def _end(service: MqttService, session: Session) -> None:
    """End a session without publishing its will."""
    if session.delayed_will is not None:
        session.delayed_will.cancel()
    service.sessions.end(session, None)


def apply_identity(session: Session, identity: Identity) -> None:
    """Use changed permissions for a session and all its subscriptions."""
    if session.identity is identity:
        return
    session.change_identity(identity)
    if len(session.subscriptions) or session.subscriptions.memberships:
        SessionReauthorization(session, identity).run()


class SessionReauthorization(Task):
    """A task that checks all subscriptions of a session against its permissions, in slices."""

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
        try:
            while self._names and left > 0:
                name = self._names.pop()
                left -= (1 + name.count("/")) * self._identity.weight
                try:
                    partly |= self._review(name)
                except Exception:
                    # Without a check, the session could continue with permissions that the user has
                    # lost.
                    self._lost += 1
                    partly = True
                    if not leave_group(session, name, None):
                        session.unsubscribe(name, None)
                    raise
        finally:
            # If the check fails for one subscription, the task continues with the next one.
            if partly:
                session.vhost.retire_plans_to(session)
            if self._names:
                session.vhost.agenda.later(self)
        if self._lost and not self._names and session.connection is not None:
            session.connection.close_with(
                NOT_AUTHORISED,
                EXPELLED,
                f"the broker has removed subscriptions (number: {self._lost}), because the user "
                "may no longer read their topics",
            )

    def _review(self, name: str) -> bool:
        """Check the subscription to `name`, a topic filter, against the new permissions.

        Remove the subscription if the user may read none of its topics (or, if the subscription is
        shared, not all its topics). Return True if the plans that deliver to the session must be
        made again, because the user may read only some of the topics before or after the change.
        """
        session = self._session
        scope = read_scope(self._identity, name, session.vhost.name)
        if name in session.subscriptions.memberships:
            if scope != READ_ALL:
                self._lost += 1
                leave_group(session, name, None)
            return False
        binding = session.subscriptions.get(name)
        if binding is None:
            return False
        before = PARTLY in binding.arguments
        if scope == READ_NONE:
            self._lost += 1
            session.unsubscribe(name, None)
        elif before != (scope == READ_SOME):
            arguments = {key: value for key, value in binding.arguments.items() if key != PARTLY}
            if scope == READ_SOME:
                arguments[PARTLY] = True
            session.subscribe(name, binding.qos, None, arguments)
        elif before or NO_LOCAL in binding.arguments:
            session.vhost.bindings.record_reader(EXCHANGE, binding)
        return before or scope == READ_SOME
