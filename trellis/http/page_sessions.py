"""Sessions of the web page: the logged-in user of each browser, by the random token in its cookie.

    login    open(identity)  -> token      the password is checked once, and not kept
    request  find(token)     -> identity   with the user's present rights
    logout   close(token)

A session ends at logout, IDLE_SECONDS after its last request, LONGEST_SECONDS after the login, when
its user is deleted or gets another password, and when the broker stops. At most SESSIONS_MAX
sessions are open: a further login ends the session whose last request is the oldest.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from typing import Final

from broker.access.identity import Identity
from broker.eviction import evict_oldest
from trellis.server.node import BrokerNode

#: Seconds without a request, and since the login, after which a session ends.
IDLE_SECONDS: Final = 1_800.0
LONGEST_SECONDS: Final = 43_200.0
#: Largest number of sessions of the page.
SESSIONS_MAX: Final = 256


class PageSession:
    """A session of the web page: its user, and the times of the login and last request."""

    def __init__(self, identity: Identity, password_hash: str, local: bool, now: float) -> None:
        self.identity = identity
        #: The hash of the user's password at the login: another password ends the session.
        self.password_hash = password_hash
        #: True if the login came from this machine. Then all requests of the session must come from
        #: this machine, too.
        self.local = local
        self.opened_at = self.used_at = now


class PageSessions:
    """The open sessions of the web page, in the order of their last request."""

    def __init__(self, node: BrokerNode, clock: Callable[[], float]) -> None:
        self._node = node
        self._clock = clock
        #: Sessions by the digest of their token.
        self._sessions: dict[bytes, PageSession] = {}

    def open(self, identity: Identity, local: bool) -> str:
        """Open a session for a user that has just logged in; return the session's token.

        `local` is True if the login came from this machine.
        """
        token = secrets.token_urlsafe(32)
        if len(self._sessions) >= SESSIONS_MAX:
            evict_oldest(self._sessions)
        self._sessions[_digest(token)] = PageSession(
            identity, self._node.accounts.hash_of(identity.name), local, self._clock()
        )
        return token

    def find(self, token: str, local: bool) -> Identity | None:
        """Return the user of a session with present permissions; None if the session has ended.

        `local` is True if the request comes from this machine. A session that was opened from this
        machine ends at a request from another machine.
        """
        digest, now = _digest(token), self._clock()
        session = self._sessions.pop(digest, None)
        if session is None or session.local and not local:
            return None
        if (
            now - session.used_at > IDLE_SECONDS
            or now - session.opened_at > LONGEST_SECONDS
            or session.password_hash != self._node.accounts.hash_of(session.identity.name)
        ):
            return None
        identity = self._node.broker.authenticator.renew(session.identity)
        if identity is None:
            return None
        session.identity, session.used_at = identity, now
        self._sessions[digest] = session
        return identity

    def close(self, token: str) -> None:
        """End the session with a token, if it is open."""
        self._sessions.pop(_digest(token), None)

    def __len__(self) -> int:
        """Return the number of open sessions."""
        return len(self._sessions)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
