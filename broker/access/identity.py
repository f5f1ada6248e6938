"""Who somebody is, what they may touch, and the role that finds it out.

A front end hands Credentials to the Authenticator given from above and stops reading; the verdict
comes at once or later, on the same thread. Nothing here hashes, looks up or waits.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from mypy_extensions import mypyc_attr

from broker.errors import AccessRefused

#: What of a filter's topics an identity may hear.
READ_NONE: Final = 0
READ_SOME: Final = 1
READ_ALL: Final = 2


@mypyc_attr(allow_interpreted_subclasses=True)
class Identity:
    """A user, and which names it may configure, write to and read from: regular expressions that
    are found somewhere in a name, as in RabbitMQ (`^orders$` is that name alone, an empty one none;
    `.` is any character, for names may hold any).

    Verdicts live in plans: an Identity is never changed, it is replaced.
    """

    def __init__(
        self, name: str, configure: str = ".*", write: str = ".*", read: str = ".*"
    ) -> None:
        self.name = name
        #: May define what belongs to no one user: vhosts, users, policies.
        self.administrator = False
        #: What RabbitMQ's tools ask for: administrator, monitoring, policymaker, management.
        self.tags: list[str] = []
        #: Whether it is whoever gives no name.
        self.anonymous = False
        #: When it is nobody any more, in seconds of the wall clock; 0 for never.
        self.expires = 0.0
        #: How much more work its verdicts are than those of others.
        self.weight = 1
        self._configure = pattern_of(configure)
        self._write = pattern_of(write)
        self._read = pattern_of(read)

    def for_vhost(self, vhost: str, client_id: str = "") -> Identity | None:
        """Who this is in a virtual host: the same object each time, for routes are kept by it.

        None: nobody who may enter.
        """
        return self

    def may(self, operation: str, kind: str, name: str, vhost: str) -> None:
        """Raises AccessRefused unless the operation (configure, write, read) on the exchange or
        queue is allowed.
        """
        rule = (
            self._configure
            if operation == "configure"
            else self._write
            if operation == "write"
            else self._read
        )
        if not rule.search(name):
            raise AccessRefused(
                f"{operation} access to {kind} '{name}' in vhost '{vhost}' refused for user '{self.name}'"
            )

    def may_publish(self, topic: bytes) -> bool:
        """Whether a publication under this topic is allowed, beyond what `may` says of its
        exchange.
        """
        return True

    def may_subscribe(self, topic_filter: str) -> bool:
        """Whether a subscription by this filter (words separated by `/`, wildcards `+` and a last
        `#`) is allowed, beyond what `may` says of its exchange."""
        return True

    def may_route(self, exchange: str, key: str, topic: bytes) -> bool:
        """The same of a publication to a topic exchange by this key, which is spelled `topic` in
        MQTT. Cold: asked when a route is found."""
        return self.may_publish(topic)

    def read_scope(self, exchange: str, key: str, topic_filter: str, hides_dollar: bool) -> int:
        """How much of what a binding of a topic exchange takes it may hear: ALL, SOME or NONE. The
        key is spelled `topic_filter` in MQTT; `hides` says whether a leading wildcard takes no
        topics that begin with `$`.
        """
        return READ_ALL if self.may_subscribe(topic_filter) else READ_NONE

    def may_read(self, topic: bytes) -> bool:
        """One topic of a filter of which it may hear SOME. Cold: asked when a route is found."""
        return True


def pattern_of(text: str) -> re.Pattern[str]:
    """A permission's regular expression; an empty one matches the empty name alone.

    Raises re.error.
    """
    return re.compile(text or "^$", re.DOTALL)


#: The broker itself, which may do everything: what it publishes, somebody was allowed to ask for.
INTERNAL: Final = Identity("")


class Credentials:
    """What a client says of itself before it is let in. `user` is None when it says nothing.

    `local` is whether it comes from a loopback address, `client_id` the name it chose for itself,
    if its protocol has such names.
    """

    def __init__(
        self,
        user: str | None,
        password: bytes,
        vhost: str,
        address: str,
        local: bool,
        client_id: str = "",
    ) -> None:
        self.user = user
        self.password = password
        self.vhost = vhost
        self.address = address
        self.local = local
        self.client_id = client_id
        #: Whether the transport has proven who `user` is, by a certificate that we trust: no
        #: password is needed.
        self.proven = False
        #: Whether a page of somebody else speaks, in a browser whose user knows nothing of it.
        self.foreign = False


class Verdict:
    """The answer: an identity, or why not. `busy` says that a later try may succeed."""

    def __init__(self, identity: Identity | None, reason: str = "", busy: bool = False) -> None:
        self.identity = identity
        self.reason = reason
        self.busy = busy


class AuthStep:
    """What an enhanced authentication says next: more `data` for the client, or the verdict, with
    last data for it.
    """

    def __init__(self, verdict: Verdict | None, data: bytes) -> None:
        self.verdict = verdict
        self.data = data


@mypyc_attr(allow_interpreted_subclasses=True)
class AuthConversation:
    """An enhanced authentication of one client, from its first data to the verdict."""

    def respond(self, data: bytes, answer: Callable[[AuthStep], None]) -> None:
        """What the client said; calls `answer` exactly once, now or in a later turn, on the
        broker's thread.
        """
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class Authenticator:
    """The role.

    Implementations call `answer` exactly once, now or in a later turn, on the broker's thread.
    """

    def authenticate(self, credentials: Credentials, answer: Callable[[Verdict], None]) -> None:
        raise NotImplementedError

    def start_conversation(self, method: str, credentials: Credentials) -> AuthConversation | None:
        """Begin an enhanced authentication by this method, such as SCRAM-SHA-1; None where it is
        not known.
        """
        return None

    def renew(self, identity: Identity) -> Identity | None:
        """Who is that now whom a verdict named: the same object, if nothing has changed.

        None: nobody any more.
        """
        return identity

    def identity_of(self, user: str) -> Identity | None:
        """Who has this name: for what a client left here, who is away.

        None where names alone say nothing.
        """
        return None

    def close(self) -> None:
        """The broker stops: nobody asks any more."""
