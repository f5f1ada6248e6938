"""Tells which matching messages an MQTT session does not receive: its own messages (No Local), and
topics that its user may not read.

For a subscription that is limited in this way, the broker records the user in `$topology`. If the
user may read only some topics, the broker also records the user's topic rules (docs/security.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

#: Arguments of a subscription, as the broker names them.
NO_LOCAL: Final = "no-local"
PARTLY: Final = "partly-allowed"
#: The fields of a subscription in `$topology`: the user, and the rules in the order in which the
#: broker compares them.
USER: Final = "user"
RULES: Final = "rules"
#: The first word of a rule's filter that stands for each word that begins with `$`.
_DOLLAR: Final = "$+"


@dataclass(frozen=True)
class ReadScope:
    """A limit of a subscription: which of the matching messages the session receives.

    `not_of` is the user whose messages the session does not receive; None if the session receives
    the messages of all users. `rules` has a pair for each rule: True if the rule allows topics, and
    the rule's topic filter. If `rules` is None, all topics are allowed.
    """

    not_of: str | None
    rules: tuple[tuple[bool, str], ...] | None

    def allows(self, topic: str) -> bool:
        """True if the user may read the topic, which is in MQTT's notation.

        The first rule that matches decides. If no rule matches, the topic is not allowed.
        """
        if self.rules is None:
            return True
        words = topic.split("/")
        return next(
            (allow for allow, rule in self.rules if _matches(rule.split("/"), words)), False
        )


def scope_of(facts: dict[str, Any]) -> ReadScope | None:
    """Return the scope of a subscription in `$topology`; None if the session receives all matching
    messages.

    Also return None if the broker that wrote the row was of an earlier version, which recorded no
    users and rules.
    """
    arguments = facts["arguments"]
    user, rules = facts.get(USER), facts.get(RULES)
    not_of = user if NO_LOCAL in arguments else None
    if PARTLY not in arguments or rules is None:
        rules = None
    if not_of is None and rules is None:
        return None
    return ReadScope(
        not_of, None if rules is None else tuple((bool(allow), text) for allow, text in rules)
    )


def _matches(rule: list[str], words: list[str]) -> bool:
    """True if a rule matches a topic. A rule's wildcards match words that begin with `$`, too."""
    if rule == [""]:
        # The rule has %u or %c, and the user name or client identifier cannot be a topic's word.
        return False
    for at, word in enumerate(rule):
        if word == "#":
            return True
        if at >= len(words):
            return False
        if word not in ("+", words[at]) and not (
            at == 0 and word == _DOLLAR and words[0].startswith("$")
        ):
            return False
    return len(rule) == len(words)
