"""Rules about topics, one language for every protocol: in order, each allows or denies, publishing
or subscribing or both.

    allow publish sensors/{username}/#
    deny all internal/#
    allow all #

The first rule that matches a topic decides; what none matches is denied. Filters are written as
MQTT writes them (`/`, `+`, a last `#`), and in a rule a wildcard stands for every word, one that
begins with `$` too. `{username}`, `{vhost}` and `{client_id}` stand for those of whoever asks.

What a subscription takes is compared with the rules once, when it comes:

    rules that have a topic in common with it, up to the first one that is about all of it
        all allow -----> ALL     allowed
        all deny ------> NONE    refused
        some, some ----> SOME    allowed where that can be told topic by topic, when a route is resolved: never per message

RabbitMQ's topic permissions stand beside them: regular expressions about the routing keys of one
exchange, for publishing (write) and binding (read). Both must allow.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from mypy_extensions import i64

from broker.access.identity import READ_ALL, READ_NONE, READ_SOME, Identity, pattern_of
from broker.errors import PreconditionFailed
from broker.eviction import evict_oldest
from matching.grammar import MQTT, InvalidPattern

_ACTIONS: Final = {"publish": (True, False), "subscribe": (False, True), "all": (True, True)}
#: What would change the meaning of a filter, if it stood in a name.
_NOT_IN_WORDS: Final = ("/", "+", "#", "\0")
#: Rules of one user in one virtual host, and levels of one of their filters.
RULES_MAX: Final = 200
LEVELS_MAX: Final = 200
#: Clients of one user whose rights are remembered, where these name the client; and which part of
#: them makes room.
CLIENT_IDENTITIES_MAX: Final = 1_000
EVICTED_PART: Final = 16

#: Of an exchange: what its keys must match to be published to, and to be bound by.
TopicPermissions = Mapping[str, tuple[str, str]]


class Rule:
    """One of them, for one user, virtual host and client. Raises ValueError."""

    def __init__(self, text: str, user: str, vhost: str, client_id: str = "") -> None:
        words = text.split(maxsplit=2)
        if len(words) != 3 or words[0] not in ("allow", "deny") or words[1] not in _ACTIONS:
            raise ValueError(f"'{text}' is not such as: allow publish sensors/{{username}}/#")
        self.allow = words[0] == "allow"
        self.publish, self.subscribe = _ACTIONS[words[1]]
        topic_filter = words[2]
        for variable, value in (
            ("{username}", user),
            ("{vhost}", vhost),
            ("{client_id}", client_id),
        ):
            if variable in topic_filter and (
                not value or any(mark in value for mark in _NOT_IN_WORDS)
            ):
                # A name that cannot be a word: nobody's topic is allowed by it, and everybody's
                # denied.
                topic_filter = "" if self.allow else topic_filter.replace(variable, "+")
            topic_filter = topic_filter.replace(variable, value)
        if topic_filter:
            MQTT.check(topic_filter, LEVELS_MAX)
        #: What it is about; nothing, if there is no word.
        self.words: list[str] = topic_filter.split("/") if topic_filter else []

    def overlaps(self, words: list[str], hides_dollar: bool) -> bool:
        """Whether it has a topic in common with a filter, whose leading wildcard `hides` topics
        that begin with `$`.
        """
        mine = self.words
        if not mine or hides_dollar and mine[0].startswith("$") and words[0] in ("+", "#"):
            return False
        size: i64 = len(mine)
        other: i64 = len(words)
        at: i64 = 0
        while at < size and at < other:
            if mine[at] == "#" or words[at] == "#":
                return True
            if mine[at] != words[at] and mine[at] != "+" and words[at] != "+":
                return False
            at += 1
        return size == other or at < size and mine[at] == "#" or at < other and words[at] == "#"

    def covers(self, words: list[str]) -> bool:
        """Whether it is about all topics that the filter takes."""
        mine = self.words
        size: i64 = len(mine)
        other: i64 = len(words)
        at: i64 = 0
        while at < size and at < other:
            if mine[at] == "#":
                return True
            if words[at] == "#" or mine[at] != words[at] and mine[at] != "+":
                return False
            at += 1
        return size == other or at < size and mine[at] == "#"

    def matches(self, words: list[str]) -> bool:
        """Whether it is about one topic, whose words are never wildcards."""
        mine = self.words
        size: i64 = len(mine)
        other: i64 = len(words)
        at: i64 = 0
        while at < size:
            if mine[at] == "#":
                return True
            if at >= other or mine[at] != words[at] and mine[at] != "+":
                return False
            at += 1
        return size == other and size > 0


class RestrictedIdentity(Identity):
    """Somebody to whom rules about topics apply."""

    def __init__(
        self,
        name: str,
        configure: str,
        write: str,
        read: str,
        rules: list[Rule] | None,
        topics: dict[str, tuple[re.Pattern[str], re.Pattern[str]]],
    ) -> None:
        super().__init__(name, configure, write, read)
        #: None: there are no rules, and all is allowed.
        self._rules = rules
        self._topics = topics
        self.weight = 1 + len(rules or ())

    def may_route(self, exchange: str, key: str, topic: bytes) -> bool:
        about = self._topics.get(exchange)
        if about is not None and not about[0].search(key):
            return False
        return self._may(topic, True)

    def read_scope(self, exchange: str, key: str, topic_filter: str, hides_dollar: bool) -> int:
        about = self._topics.get(exchange)
        if about is not None and not about[1].search(key):
            return READ_NONE
        if self._rules is None:
            return READ_ALL
        words = topic_filter.split("/")
        allows = denies = False
        for rule in self._rules:
            if rule.subscribe and rule.overlaps(words, hides_dollar):
                if rule.allow:
                    allows = True
                else:
                    denies = True
                if allows and denies:
                    return READ_SOME
                if rule.covers(words):
                    return READ_ALL if allows else READ_NONE
        return READ_SOME if allows else READ_NONE

    def may_read(self, topic: bytes) -> bool:
        return self._may(topic, False)

    def may_publish(self, topic: bytes) -> bool:
        return self._may(topic, True)

    def may_subscribe(self, topic_filter: str) -> bool:
        return self.read_scope("", "", topic_filter, True) == READ_ALL

    def _may(self, topic: bytes, publish: bool) -> bool:
        if self._rules is None:
            return True
        try:
            words = topic.decode().split("/")
        except UnicodeDecodeError:
            return False
        for rule in self._rules:
            if (rule.publish if publish else rule.subscribe) and rule.matches(words):
                return rule.allow
        return False


class UserPermissions:
    """What one user may do in one virtual host, as it is written.

    Raises PreconditionFailed for what is written wrong.
    """

    def __init__(
        self,
        user: str,
        vhost: str,
        permission: tuple[str, str, str],
        rules: Sequence[str] = (),
        topics: TopicPermissions | None = None,
    ) -> None:
        about = f"of user '{user}' in vhost '{vhost}'"
        for pattern in (*permission, *(one for pair in (topics or {}).values() for one in pair)):
            try:
                pattern_of(_substitute(pattern, user, vhost, ""))
            except (re.error, RecursionError, OverflowError) as error:
                raise PreconditionFailed(
                    f"permission {about}: '{pattern}' is no regular expression ({error})"
                ) from None
        if len(rules) > RULES_MAX:
            raise PreconditionFailed(
                f"rules {about}: {len(rules)} of them; the most is {RULES_MAX}"
            )
        for text in rules:
            try:
                Rule(text, user, vhost, "client")
            except InvalidPattern as error:
                raise PreconditionFailed(f"rule {about}: '{text}': {error}") from None
            except ValueError as error:
                raise PreconditionFailed(f"rule {about}: {error}") from None
        self.user = user
        self.vhost = vhost
        self.permission = permission
        self.rules = tuple(rules)
        self.topics: TopicPermissions = dict(topics or {})
        named = [*rules, *(one for pair in self.topics.values() for one in pair)]
        self._per_client = any("{client_id}" in text for text in named)
        self._shared_identity = None if self._per_client else self._identity("")
        self._client_identities: dict[str, Identity] = {}

    def identity(self, client_id: str) -> Identity:
        """Who the user is there: the same object each time, for routes are kept by it."""
        if self._shared_identity is not None:
            return self._shared_identity
        known = self._client_identities.get(client_id)
        if known is None:
            if len(self._client_identities) >= CLIENT_IDENTITIES_MAX:
                evict_oldest(self._client_identities, 1 + CLIENT_IDENTITIES_MAX // EVICTED_PART)
            known = self._client_identities[client_id] = self._identity(client_id)
        return known

    def _identity(self, client_id: str) -> Identity:
        configure, write, read = self.permission
        if not self.rules and not self.topics:
            return Identity(self.user, configure, write, read)
        try:
            rules = [Rule(text, self.user, self.vhost, client_id) for text in self.rules]
        except ValueError:
            rules = []  # With a name this long it would be no rule any more: nothing is allowed.
        topics = {
            exchange: (
                pattern_of(_substitute(write_to, self.user, self.vhost, client_id)),
                pattern_of(_substitute(read_from, self.user, self.vhost, client_id)),
            )
            for exchange, (write_to, read_from) in self.topics.items()
        }
        return RestrictedIdentity(
            self.user, configure, write, read, rules if self.rules else None, topics
        )

    def equals(
        self, permission: tuple[str, str, str], rules: Sequence[str], topics: TopicPermissions
    ) -> bool:
        """Whether that is what is written here."""
        return (
            self.permission == permission
            and self.rules == tuple(rules)
            and self.topics == dict(topics)
        )


def _substitute(pattern: str, user: str, vhost: str, client_id: str) -> str:
    """A regular expression with names in the places of variables; in them no character has a
    meaning of its own.
    """
    for variable, value in (("{username}", user), ("{vhost}", vhost), ("{client_id}", client_id)):
        if variable in pattern:
            # A name that is not there is nobody's: such a pattern matches nothing.
            pattern = pattern.replace(variable, re.escape(value) if value else "(?!)")
    return pattern
