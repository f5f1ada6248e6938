"""Topic rules: an access control list of topics, in one language for AMQP and MQTT.

    allow publish sensors/{username}/#
    deny all internal/#
    allow all #

Each rule allows or denies publishing, subscribing or both (`all`). The first rule that matches a
topic decides; a topic that no rule matches is denied. Filters have MQTT's form (`/`, `+`, a last
`#`). In a rule a wildcard matches every word, including words that begin with `$`. `{username}`,
`{vhost}` and `{client_id}` stand for the user name, the virtual host and the identifier of the
client.

A subscription is compared with the rules once, when the client subscribes:

    the rules that overlap its filter, up to the first rule that covers the filter
        all of them allow -----> READ_ALL     permitted
        all of them deny ------> READ_NONE    refused
        some allow, some deny -> READ_SOME    permitted if the protocol can check each topic, once
                                              for each route, not for each message

RabbitMQ's topic permissions apply as well: regular expressions on the routing keys of one exchange,
for publishing (write) and binding (read). A message or a binding must be permitted by the rules and
by the topic permissions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from mypy_extensions import i64

from broker.access.identity import (
    READ_ALL,
    READ_NONE,
    READ_SOME,
    UNIVERSAL,
    Identity,
    RightsDecision,
    pattern_of,
)
from broker.access.reservations import Reservation, is_reservation
from broker.access.variables import CLIENT_ID_VARIABLES, TOPIC_VARIABLES, check_variables
from broker.errors import PreconditionFailed
from broker.eviction import evict_oldest
from broker.patterns import bounded_pattern, is_found
from matching.grammar import MQTT, InvalidPattern

_ACTIONS: Final = {"publish": (True, False), "subscribe": (False, True), "all": (True, True)}
#: For each of the first two words of a rule: the name of its position in errors, and the allowed
#: words. `reserve` begins another kind of rule, which reservations.py reads.
_FIRST_WORDS: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    ("first", ("allow", "deny", "reserve")),
    ("second", tuple(_ACTIONS)),
)
#: Characters that a name must not contain if it replaces a variable in a filter.
_NOT_IN_WORDS: Final = ("/", "+", "#", "\0")
#: Matches one variable. The group keeps the variables among the parts when a text is split.
_VARIABLE: Final = re.compile(r"(\{username\}|\{vhost\}|\{client_id\})")
#: As the first word of a rule's filter, `$+` matches every word that begins with `$`.
_DOLLAR: Final = "$+"
#: Largest number of rules of one user in one virtual host, and of levels in a rule's filter.
RULES_MAX: Final = 200
LEVELS_MAX: Final = 200
#: The rule of a user that may use no topic.
DENY_ALL: Final = "deny all #"
#: Largest number of cached identities of one user, if the rules contain `{client_id}`. A full cache
#: evicts this number divided by EVICTED_PART.
CLIENT_IDENTITIES_MAX: Final = 1_000
EVICTED_PART: Final = 16

#: Exchange name -> pattern that a routing key must match for publishing, and pattern that a binding
#: key must match for binding.
TopicPermissions = Mapping[str, tuple[str, str]]


class Rule:
    """One topic rule, with its variables replaced for one user, virtual host and client.

    Raises ValueError if the text is not a rule.
    """

    def __init__(self, text: str, user: str, vhost: str, client_id: str = "") -> None:
        self.text = text
        words = text.split(maxsplit=2)
        fault = _fault_of(words)
        if fault:
            raise ValueError(
                f"'{text}' is not a rule such as 'allow publish sensors/{{username}}/#': {fault}"
            )
        self.allow = words[0] == "allow"
        self.publish, self.subscribe = _ACTIONS[words[1]]
        values = _variables(user, vhost, client_id)
        topic_filter = ""
        impossible = False
        for part in _VARIABLE.split(words[2]):
            value = values.get(part)
            if value is None:
                topic_filter += part
            elif value and not any(mark in value for mark in _NOT_IN_WORDS):
                topic_filter += value
            else:
                # The variable's value is empty, or has characters that a word of a topic cannot
                # contain. So an `allow` rule matches no topic, and a `deny` rule matches the topics
                # of all values.
                topic_filter += "+"
                impossible = True
        if impossible and self.allow:
            topic_filter = ""
        if topic_filter:
            dollar = topic_filter.startswith(_DOLLAR)
            MQTT.check(topic_filter[1:] if dollar else topic_filter, LEVELS_MAX)
        #: The words of the filter; empty if the rule matches no topic.
        self.words: list[str] = topic_filter.split("/") if topic_filter else []

    def overlaps(self, words: list[str], hides_dollar: bool) -> bool:
        """True if some topic matches both the rule and the filter, which is given as its words.

        `hides_dollar` is True if a leading wildcard of the filter does not match topics that begin
        with `$`.
        """
        own = self.words
        if not own or hides_dollar and own[0].startswith("$") and words[0] in ("+", "#"):
            return False
        size: i64 = len(own)
        other: i64 = len(words)
        at: i64 = 0
        while at < size and at < other:
            if own[at] == "#" or words[at] == "#":
                return True
            if own[at] != words[at] and own[at] != "+" and words[at] != "+":
                if at > 0 or own[0] != _DOLLAR or not words[0].startswith("$"):
                    return False
            at += 1
        return size == other or at < size and own[at] == "#" or at < other and words[at] == "#"

    def covers(self, words: list[str]) -> bool:
        """True if the rule matches all topics that the filter, given as its words, matches."""
        own = self.words
        size: i64 = len(own)
        other: i64 = len(words)
        at: i64 = 0
        while at < size and at < other:
            if own[at] == "#":
                return True
            if words[at] == "#":
                return False
            if own[at] != words[at] and own[at] != "+":
                if at > 0 or own[0] != _DOLLAR or not words[0].startswith("$"):
                    return False
            at += 1
        return size == other or at < size and own[at] == "#"

    def matches(self, words: list[str]) -> bool:
        """True if the rule matches a topic, whose words (the parts between `/`) are given."""
        own = self.words
        size: i64 = len(own)
        other: i64 = len(words)
        at: i64 = 0
        while at < size:
            if own[at] == "#":
                return True
            if at >= other:
                return False
            if own[at] != words[at] and own[at] != "+":
                if at > 0 or own[0] != _DOLLAR or not words[0].startswith("$"):
                    return False
            at += 1
        return size == other and size > 0


def _fault_of(words: list[str]) -> str:
    """Return the reason why these words are no rule; an empty string if they can be a rule."""
    for at, (place, allowed) in enumerate(_FIRST_WORDS):
        if at < len(words) and words[at] not in allowed:
            return f"the {place} word is '{words[at]}', not one of {', '.join(allowed)}"
    return "" if len(words) == 3 else f"a rule has 3 words, and this rule has {len(words)}"


class RestrictedIdentity(Identity):
    """An identity whose topics are restricted by rules or topic permissions."""

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
        #: The topic rules; None if there are none: then only the topic permissions restrict topics.
        self._rules = rules
        self._topics = topics
        self.weight = 1 + len(rules or ())

    def may_route(self, exchange: str, key: str, topic: bytes) -> bool:
        about = self._topics.get(exchange)
        if about is not None and not is_found(about[0], key):
            return False
        return self._may(topic, True)

    def publish_decisions(
        self, exchange: str, key: str, topic: bytes | None
    ) -> list[RightsDecision]:
        decisions = [self._write_decision(exchange)]
        if topic is None:
            return decisions
        about = self._topics.get(exchange)
        if about is not None:
            allows = is_found(about[0], key)
            decisions.append(RightsDecision("topic permission", about[0].pattern, allows))
        if self._rules is not None:
            rule = self._deciding_rule(topic, True)
            decisions.append(
                RightsDecision("topic rule", "", False)
                if rule is None
                else RightsDecision("topic rule", rule.text, rule.allow)
            )
        return decisions

    def read_scope(self, exchange: str, key: str, topic_filter: str, hides_dollar: bool) -> int:
        about = self._topics.get(exchange)
        if about is not None and not is_found(about[1], key):
            return READ_NONE
        if self._rules is None:
            return READ_ALL
        return self._scope(topic_filter.split("/"), hides_dollar, False)

    def _scope(self, words: list[str], hides_dollar: bool, publish: bool) -> int:
        """Return how much of a filter the rules permit: READ_ALL, READ_SOME or READ_NONE.

        `words` are the filter's words. `hides_dollar` is True if a leading wildcard of the filter
        does not match topics that begin with `$`. If `publish` is True, the rules about publishing
        decide, else the rules about subscribing.
        """
        allows = denies = False
        for rule in self._rules or ():
            if (rule.publish if publish else rule.subscribe) and rule.overlaps(words, hides_dollar):
                if rule.allow:
                    allows = True
                else:
                    denies = True
                if allows and denies:
                    return READ_SOME
                if rule.covers(words):
                    return READ_ALL if allows else READ_NONE
        return READ_SOME if allows else READ_NONE

    def rules_about(self, exchange: str, topic_filter: str) -> list[str]:
        about = self._topics.get(exchange)
        texts = [] if about is None else [f"topic permission {about[1].pattern}"]
        words = topic_filter.split("/")
        for rule in self._rules or ():
            if rule.subscribe and rule.overlaps(words, True):
                texts.append(rule.text)
                if rule.covers(words):
                    break
        return texts

    def may_publish_everything(self, exchange: str) -> bool:
        about = self._topics.get(exchange)
        if about is not None and about[0].pattern not in UNIVERSAL:
            return False
        return self._rules is None or self._scope(["#"], False, True) == READ_ALL

    def may_read_everything(self) -> bool:
        if any(read.pattern not in UNIVERSAL for _, read in self._topics.values()):
            return False
        return super().may_read_everything() and (
            self._rules is None or self._scope(["#"], False, False) == READ_ALL
        )

    def subscribe_rules(self) -> list[list[object]] | None:
        if self._rules is None:
            return None
        return [[rule.allow, "/".join(rule.words)] for rule in self._rules if rule.subscribe]

    def may_read(self, topic: bytes) -> bool:
        return self._may(topic, False)

    def may_publish(self, topic: bytes) -> bool:
        return self._may(topic, True)

    def may_subscribe(self, topic_filter: str) -> bool:
        return self.read_scope("", "", topic_filter, True) == READ_ALL

    def _may(self, topic: bytes, publish: bool) -> bool:
        if self._rules is None:
            return True
        rule = self._deciding_rule(topic, publish)
        return rule is not None and rule.allow

    def _deciding_rule(self, topic: bytes, publish: bool) -> Rule | None:
        """Return the first rule that matches a topic; None if no rule matches.

        If `publish` is True, only rules about publishing are compared, else only rules about
        subscribing.
        """
        try:
            words = topic.decode().split("/")
        except UnicodeDecodeError:
            return None
        for rule in self._rules or ():
            if (rule.publish if publish else rule.subscribe) and rule.matches(words):
                return rule
        return None


def check_rule(text: str, user: str, vhost: str) -> None:
    """Raise ValueError unless the text is a rule about topics or about client identifiers."""
    if is_reservation(text):
        Reservation(text, user, vhost)
    else:
        Rule(text, user, vhost, "client")


def check_rule_variables(text: str) -> None:
    """Raise ValueError if a new rule has a word in braces that is no variable, such as `{user}`."""
    check_variables(text, CLIENT_ID_VARIABLES if is_reservation(text) else TOPIC_VARIABLES)


class UserPermissions:
    """Permissions and topic rules of one user in one virtual host.

    Raises PreconditionFailed if a pattern or a rule is invalid.
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
                bounded_pattern(_substitute(pattern, user, vhost, ""), re.DOTALL)
            except PreconditionFailed as refusal:
                raise PreconditionFailed(f"permission {about}: {refusal}") from None
        if len(rules) > RULES_MAX:
            raise PreconditionFailed(
                f"rules {about}: there are {len(rules)} rules, and the limit is {RULES_MAX}; "
                "use wildcards, so that fewer rules suffice"
            )
        for text in rules:
            try:
                check_rule(text, user, vhost)
            except InvalidPattern as invalid:
                raise PreconditionFailed(f"invalid rule '{text}' {about}: {invalid}") from None
            except ValueError as error:
                # The exceptions have three different variable names, because mypyc gives a variable
                # the type of the first `except` that binds it.
                raise PreconditionFailed(f"invalid rule {about}: {error}") from None
        self.user = user
        self.vhost = vhost
        self.permission = permission
        self.rules = tuple(rules)
        self._topic_rules = [text for text in rules if not is_reservation(text)]
        self.topics: TopicPermissions = dict(topics or {})
        named = [*rules, *(one for pair in self.topics.values() for one in pair)]
        self._per_client = any("{client_id}" in text for text in named)
        self._shared_identity = None if self._per_client else self._identity("")
        self._client_identities: dict[str, Identity] = {}

    def identity(self, client_id: str) -> Identity:
        """Return the user's identity for a client.

        Calls for the same client return the same object while the object is cached, so that the
        client's cached routes stay valid.
        """
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
        if not self._topic_rules and not self.topics:
            return Identity(self.user, configure, write, read)
        try:
            rules = [Rule(text, self.user, self.vhost, client_id) for text in self._topic_rules]
        except ValueError:
            # The client identifier makes a filter too long: no topic is permitted.
            rules = []
        topics = {
            exchange: (
                pattern_of(_substitute(write_to, self.user, self.vhost, client_id)),
                pattern_of(_substitute(read_from, self.user, self.vhost, client_id)),
            )
            for exchange, (write_to, read_from) in self.topics.items()
        }
        return RestrictedIdentity(
            self.user, configure, write, read, rules if self._topic_rules else None, topics
        )

    def equals(
        self, permission: tuple[str, str, str], rules: Sequence[str], topics: TopicPermissions
    ) -> bool:
        """True if this object was made from equal permissions, rules and topic permissions."""
        return (
            self.permission == permission
            and self.rules == tuple(rules)
            and self.topics == dict(topics)
        )


def _variables(user: str, vhost: str, client_id: str) -> dict[str, str]:
    """Return the value of each variable of a rule by its name, such as `{username}`."""
    return {"{username}": user, "{vhost}": vhost, "{client_id}": client_id}


def _substitute(pattern: str, user: str, vhost: str, client_id: str) -> str:
    """Replace the variables in a regular expression by the names, which then match literally.

    All variables are replaced at once: a name that looks like a variable is not replaced. A
    variable without a value matches nothing.
    """
    values = _variables(user, vhost, client_id)
    parts = _VARIABLE.split(pattern)
    for at, part in enumerate(parts):
        value = values.get(part)
        if value is not None:
            parts[at] = re.escape(value) if value else "(?!)"
    return "".join(parts)
