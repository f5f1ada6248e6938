"""Identities of users and their permissions, and the interface of the authenticator.

A front end passes the Credentials of a client to the Authenticator, and stops reading from the
client. The verdict arrives at once or later, on the same thread. Nothing in this module hashes,
looks up a user or waits.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from mypy_extensions import mypyc_attr

from broker.errors import AccessRefused
from broker.patterns import is_found, without_posix

#: Results of `read_scope`: how much of a filter's topics a user may read.
READ_NONE: Final = 0
READ_SOME: Final = 1
READ_ALL: Final = 2
#: The regular expressions that are recognized as matching every name.
UNIVERSAL: Final = (".*", "^.*", ".*$", "^.*$", ".+", "^.+$")


class RightsDecision:
    """The verdict of one rule on a publication, as `trellis route` shows it.

    `right` is the kind of the rule and `rule` its text. `allows` is True if the rule permits the
    publication.
    """

    def __init__(self, right: str, rule: str, allows: bool) -> None:
        self.right = right
        self.rule = rule
        self.allows = allows


@mypyc_attr(allow_interpreted_subclasses=True)
class Identity:
    """A user, and the names that the user may configure, write to and read from.

    The permissions are regular expressions, as in RabbitMQ. The user has a permission on a name if
    the permission's expression matches anywhere in the name: `^orders$` permits the name `orders`
    alone, and an empty expression permits no name. A `.` also matches a line feed, because a name
    may contain any character except NUL.

    Plans keep the results of permission checks. Therefore an Identity never changes; if permissions
    change, another Identity replaces it.
    """

    def __init__(
        self, name: str, configure: str = ".*", write: str = ".*", read: str = ".*"
    ) -> None:
        self.name = name
        #: True if the user may define objects of the whole broker: virtual hosts, users, policies.
        self.administrator = False
        #: The user's tags, with RabbitMQ's meaning: administrator, monitoring, policymaker,
        #: management, impersonator.
        self.tags: list[str] = []
        #: True if this is the identity of all clients that give no user name.
        self.anonymous = False
        #: Time at which the identity expires, in seconds since the epoch; 0 for never.
        self.expires = 0.0
        #: Cost of a permission check, relative to the check of an identity without topic rules.
        self.weight = 1
        self._configure = pattern_of(configure)
        self._write = pattern_of(write)
        self._read = pattern_of(read)

    def for_vhost(self, vhost: str, client_id: str = "") -> Identity | None:
        """Return the user's identity in a virtual host; None if the user may not enter it.

        Calls for the same client return the same object, so that the client's cached routes stay
        valid.
        """
        return self

    def may(self, operation: str, kind: str, name: str, vhost: str) -> None:
        """Raise AccessRefused unless the user may do `operation` (configure, write, read).

        `kind` and `name` name the exchange or queue.
        """
        rule = (
            self._configure
            if operation == "configure"
            else self._write
            if operation == "write"
            else self._read
        )
        if not is_found(rule, name):
            raise AccessRefused(
                f"{operation} access to {kind} '{name}' in vhost '{vhost}' "
                f"refused for user '{self.name}'"
            )

    def allows(self, operation: str, kind: str, name: str, vhost: str) -> bool:
        """True if the user may do `operation` (configure, write, read) with an exchange or queue.

        `kind` and `name` name the exchange or queue. `may` raises AccessRefused in all other cases.
        """
        try:
            self.may(operation, kind, name, vhost)
        except AccessRefused:
            return False
        return True

    def may_publish(self, topic: bytes) -> bool:
        """True if the user's topic rules permit a message with this topic."""
        return True

    def may_publish_everything(self, exchange: str) -> bool:
        """True if the user's topic rules permit every routing key of a topic exchange.

        Called when the user declares an object, such as a binding, through which messages reach the
        exchange without a check of their routing keys.
        """
        return True

    def may_read_everything(self) -> bool:
        """True if the user may read all queues and exchanges, and all topics."""
        return self._read.pattern in UNIVERSAL

    def may_subscribe(self, topic_filter: str) -> bool:
        """True if the user's topic rules permit a subscription to all topics of this filter.

        The filter is an MQTT filter: words separated by `/`, with the wildcards `+` and a last `#`.
        """
        return True

    def may_route(self, exchange: str, key: str, topic: bytes) -> bool:
        """True if the user may publish to a topic exchange with this routing key.

        `topic` is the MQTT form of the key. Called once for each route, not for each message.
        """
        return self.may_publish(topic)

    def publish_decisions(
        self, exchange: str, key: str, topic: bytes | None
    ) -> list[RightsDecision]:
        """Return the verdicts of the user's rules on a publication, for `trellis route`.

        `exchange` is the name with which the user's write permission is compared. `topic` is the
        MQTT form of the routing key, or None if the exchange is not a topic exchange.
        """
        decisions = [self._write_decision(exchange)]
        if topic is not None and not self.may_route(exchange, key, topic):
            decisions.append(RightsDecision("topic permissions", "", False))
        return decisions

    def _write_decision(self, exchange: str) -> RightsDecision:
        allows = self.allows("write", "exchange", exchange, "")
        pattern = self._write.pattern
        # Call the method instead of the pattern, because a subclass may decide by other rules.
        own = allows == is_found(self._write, exchange)
        return RightsDecision("write permission", pattern if own else "", allows)

    def read_scope(self, exchange: str, key: str, topic_filter: str, hides_dollar: bool) -> int:
        """Return how much of a binding's messages the user may read: READ_ALL, READ_SOME or
        READ_NONE.

        `topic_filter` is the MQTT form of the binding key. `hides_dollar` is True if a leading
        wildcard of the filter does not match topics that begin with `$`, as in MQTT.
        """
        return READ_ALL if self.may_subscribe(topic_filter) else READ_NONE

    @property
    def read_pattern(self) -> str:
        """The regular expression of the names of queues and exchanges that the user may read."""
        return self._read.pattern

    def rules_about(self, exchange: str, topic_filter: str) -> list[str]:
        """Return the topic rules and topic permissions that decide which topics of a filter the
        user may read, in the order in which they are compared; empty if every topic is permitted.
        """
        return []

    def subscribe_rules(self) -> list[list[object]] | None:
        """Return the topic rules that decide which topics the user may read, for `$topology`.

        Each rule is a list of two elements: True if the rule allows, and its filter. The first rule
        that matches a topic decides. None means that no rule restricts topics.
        """
        return None

    def may_read(self, topic: bytes) -> bool:
        """True if the user may read messages with this topic.

        Called only if `read_scope` returned READ_SOME for a subscription. Called once for each
        route, not for each message.
        """
        return True


def pattern_of(text: str) -> re.Pattern[str]:
    """Return the regular expression of a permission; an empty text matches only the empty name.

    Raises re.error if the text is not a regular expression.
    """
    return re.compile(without_posix(text or "^$"), re.DOTALL)


#: The identity of the broker itself, which may do everything. A message that the broker publishes,
#: such as a dead letter, was caused by a client, whose permission was checked when that client
#: published.
INTERNAL: Final = Identity("")


class Credentials:
    """The login data of a client. `user` is None if the client gave no user name.

    `local` is True if the client connects from a loopback address. `client_id` is the client
    identifier, for protocols that have one.
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
        #: True if a trusted TLS certificate proves that the client is `user`: no password is
        #: needed.
        self.proven = False
        #: True if a web page of another origin opened the connection, in a browser whose user may
        #: not know of it.
        self.foreign = False


@mypyc_attr(allow_interpreted_subclasses=True)
class LoginRecord:
    """An authenticator's record of a verified password; counts the connections opened with it."""

    def on_connection_opened(self) -> None:
        """Count a connection that was just opened with the password."""

    def on_connection_closed(self) -> None:
        """Subtract a connection that has ended from the count."""


class Verdict:
    """The result of a login: an identity, or the reason of the refusal.

    `reason` may be sent to the client, `details` are for the log only. `busy` is True if a later
    attempt may succeed. `record` is the authenticator's record of the password, or None. If there
    is a record, each connection opened with this verdict tells the record when the connection opens
    and ends.
    """

    def __init__(
        self,
        identity: Identity | None,
        reason: str = "",
        busy: bool = False,
        details: str = "",
        record: LoginRecord | None = None,
    ) -> None:
        self.identity = identity
        self.record = record
        self.reason = reason
        self.busy = busy
        self.details = details or reason


class AuthStep:
    """A step of an enhanced authentication: data for the client, and in the last step the verdict.

    `verdict` is None in all steps before the last step.
    """

    def __init__(self, verdict: Verdict | None, data: bytes) -> None:
        self.verdict = verdict
        self.data = data


@mypyc_attr(allow_interpreted_subclasses=True)
class AuthConversation:
    """An enhanced authentication of one client, such as SCRAM, in several steps."""

    def respond(self, data: bytes, answer: Callable[[AuthStep], None]) -> None:
        """Process data that the client sent, and pass the next step to `answer`.

        The method calls `answer` exactly once, now or in a later turn, on the broker's thread.
        """
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class Authenticator:
    """The interface of authentication, which the server implements."""

    def authenticate(self, credentials: Credentials, answer: Callable[[Verdict], None]) -> None:
        """Check the credentials of a client, and pass the verdict to `answer`.

        The method calls `answer` exactly once, now or in a later turn, on the broker's thread.
        """
        raise NotImplementedError

    def start_conversation(self, method: str, credentials: Credentials) -> AuthConversation | None:
        """Begin an enhanced authentication by a method such as SCRAM-SHA-1.

        `credentials` has the login data that the client has sent so far. Return None if the method
        is unknown.
        """
        return None

    def renew(self, identity: Identity) -> Identity | None:
        """Return the present identity of a user that logged in earlier as `identity`.

        Return the same object if nothing has changed, and None if the user no longer exists.
        """
        return identity

    def identity_of(self, user: str) -> Identity | None:
        """Return the identity of the user with this name; None if there is no such user.

        Called to check the session of a client that is not connected. An authenticator that does
        not know users by name returns None.
        """
        return None

    def reserved_for(self, vhost: str, client_id: str) -> list[str]:
        """Return the users for which rules reserve a client identifier; empty if there are none."""
        return []

    def close(self) -> None:
        """Release resources, because the broker stops."""
