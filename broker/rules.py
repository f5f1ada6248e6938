"""Rules about topics, one language for every protocol: in order, each allows or denies, publishing or subscribing or both.

    allow publish sensors/{username}/#
    deny all internal/#
    allow all #

The first rule that matches decides; what none matches is denied. Filters are written as MQTT writes them (`/`, `+`, a
last `#`); `{username}` and `{vhost}` stand for those of whoever asks. A subscription, or the binding of a queue, needs
all that it takes: a filter of which a rule denies any part is refused.
"""

from __future__ import annotations

from typing import Final

from broker.access import Identity
from matching.covers import covers
from matching.grammar import MQTT

_ACTIONS: Final = {"publish": (True, False), "subscribe": (False, True), "all": (True, True)}
#: What would change the meaning of a filter, if it stood in a name.
_WILD: Final = ("/", "+", "#", "\0")


class Rule:
    """One of them, for one user and virtual host. Raises ValueError."""

    def __init__(self, text: str, user: str, vhost: str) -> None:
        words = text.split(maxsplit=2)
        if len(words) != 3 or words[0] not in ("allow", "deny") or words[1] not in _ACTIONS:
            raise ValueError(f"'{text}' is not such as: allow publish sensors/{{username}}/#")
        self.allow = words[0] == "allow"
        self.publish, self.subscribe = _ACTIONS[words[1]]
        topic_filter = words[2]
        for variable, value in (("{username}", user), ("{vhost}", vhost)):
            if variable in topic_filter and (not value or any(mark in value for mark in _WILD)):
                # A name that cannot be a word: nobody's topic is allowed by it, and everybody's denied.
                topic_filter = "" if self.allow else topic_filter.replace(variable, "+")
            topic_filter = topic_filter.replace(variable, value)
        if topic_filter:
            MQTT.check(topic_filter)
        self.filter = topic_filter

    def concerns(self, topic_filter: str) -> bool:
        """Whether they have a topic in common."""
        return bool(self.filter) and _meet(self.filter.split("/"), topic_filter.split("/"))

    def covers(self, topic_filter: str) -> bool:
        """Whether the rule is about all that the filter takes."""
        return bool(self.filter) and covers(self.filter, topic_filter, MQTT)


class Ruled(Identity):
    """Somebody to whom rules apply."""

    def __init__(self, name: str, configure: str, write: str, read: str, rules: list[Rule]) -> None:
        super().__init__(name, configure, write, read)
        self._rules = rules

    def may_publish(self, topic: bytes) -> bool:
        try:
            words = topic.decode()
        except UnicodeDecodeError:
            return False
        for rule in self._rules:
            if rule.publish and rule.concerns(words):
                return rule.allow
        return False

    def may_subscribe(self, topic_filter: str) -> bool:
        for rule in self._rules:
            if rule.subscribe and rule.concerns(topic_filter):
                if rule.covers(topic_filter):
                    return rule.allow
                if not rule.allow:
                    return False
        return False


def _meet(one: list[str], other: list[str]) -> bool:
    """Whether two filters have a topic in common."""
    for at in range(max(len(one), len(other)) + 1):
        if at < len(one) and one[at] == "#" or at < len(other) and other[at] == "#":
            return True
        if at >= len(one) or at >= len(other):
            return at >= len(one) and at >= len(other)
        if one[at] != other[at] and one[at] != "+" and other[at] != "+":
            return False
    raise AssertionError("the longer one ends")
