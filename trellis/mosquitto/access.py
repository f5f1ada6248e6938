"""Access entries of Mosquitto as topic rules of Trellis.

Both products decide by the first entry that matches a topic. Two things differ:

- In Mosquitto, a filter that begins with a wildcard matches no topic that begins with `$`. The
  rules therefore begin with the entries for such topics, then comes `deny all $+/#`, and then the
  other entries.
- Mosquitto's dynamic security decides twice about a message for a subscriber: about the
  subscription, and about the delivery. Trellis has one decision, so both lists become one
  (`both`).

A right is never widened: an `allow` that rules cannot express is left out, and a `deny` that rules
cannot express denies more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from broker.access.rules import RULES_MAX, check_rule
from broker.access.variables import has_variable

_CLIENT: Final = "{client_id}"
#: Placeholder for the client identifier while the other words of a filter are checked. NUL is in no
#: topic.
_MARK: Final = "\0"
#: Topics that Mosquitto's plugins use for commands. The imported default rules never permit them.
_CONTROL: Final = "$CONTROL"
#: Topics to which no client of Mosquitto may publish, and the exception: the state of a bridge.
_SYS: Final = "$SYS"
_BRIDGE_STATE: Final = "$SYS/broker/connection/+/state"


class Entry(NamedTuple):
    """An access entry: allows or denies publishing, subscribing or both, for a topic filter.

    The filter has the form of a rule: `{client_id}` means the client identifier.
    """

    allow: bool
    publish: bool
    subscribe: bool
    topic_filter: str

    @property
    def rule(self) -> str:
        """The entry as a topic rule."""
        action = (
            "all"
            if self.publish and self.subscribe
            else ("publish" if self.publish else "subscribe")
        )
        return f"{'allow' if self.allow else 'deny'} {action} {self.topic_filter}"


def filter_of(topic: str, user: str, variables: bool) -> tuple[str, bool] | None:
    """Convert Mosquitto's filter `topic` to the filter of a topic rule; return the filter and a
    boolean.

    The boolean is True if both filters match the same topics, and False if the filter of the rule
    matches more. With `variables`, `%u` in `topic` means the user name and `%c` the client
    identifier. Return None if no rule can express the filter.
    """
    text = topic.replace("%c", _MARK).replace("%u", user) if variables else topic
    exact = True
    words: list[str] = []
    for word in text.split("/"):
        plain = not has_variable(word) and (words or word == word.lstrip())
        # A name that contains a wildcard must not widen the filter.
        if not plain or (word not in ("+", "#") and ("+" in word or "#" in word)):
            exact, word = False, "+"
        words.append(word.replace(_MARK, _CLIENT))
    result = "/".join(words)
    try:
        check_rule(f"deny all {result}", "user", "/")
    except ValueError:
        return None
    return result, exact


def entry_of(
    allow: bool, publish: bool, subscribe: bool, topic: str, user: str | None, variables: bool
) -> tuple[Entry | None, bool]:
    """Convert an entry of Mosquitto with the filter `topic`; return the new entry and a boolean.

    The boolean is True if the new entry decides about exactly the same topics. If no rule can
    express the filter, a `deny` denies more topics, and for an `allow`, the returned entry is None.
    The returned entry is also None if the filter has `%u` and the clients have no user name (`user`
    is None). With `variables`, `%u` and `%c` have a meaning, as in `filter_of`. `publish` and
    `subscribe` are True if the entry is about publishing and about subscribing.
    """
    if user is None and variables and "%u" in topic:
        return None, True
    converted = filter_of(topic, user or "", variables)
    if converted is None:
        if allow:
            return None, False
        return Entry(False, publish, subscribe, "$+/#" if topic.startswith("$") else "#"), False
    topic_filter, exact = converted
    if allow and not exact:
        return None, False
    return Entry(allow, publish, subscribe, topic_filter), exact


def rules_of(
    entries: Sequence[Entry], publish_default: bool = False, subscribe_default: bool = False
) -> list[str]:
    """Return the topic rules for a list of entries; the first entry that matches a topic decides.

    The defaults say whether a topic that no entry matches is allowed. At least one rule is
    returned, because a user without rules may use every topic.
    """
    dollar = [entry for entry in entries if entry.topic_filter.startswith("$")]
    plain = [entry for entry in entries if not entry.topic_filter.startswith("$")]
    if publish_default or subscribe_default:
        dollar += [
            Entry(False, True, True, f"{_CONTROL}/#"),
            Entry(publish_default, True, False, _BRIDGE_STATE),
            Entry(False, True, False, f"{_SYS}/#"),
            Entry(True, publish_default, subscribe_default, "$+/#"),
        ]
        plain.append(Entry(True, publish_default, subscribe_default, "#"))
    if not plain:
        return [*_texts(dollar), "deny all #"]
    return [*_texts(dollar), "deny all $+/#", *_texts(plain)]


def without_sys(entry: Entry) -> list[Entry]:
    """Return the entries that replace an entry, without a permission to publish to $SYS topics.

    Mosquitto lets no client publish to $SYS, except the state of a bridge:
    $SYS/broker/connection/+/state.
    """
    if not (entry.allow and entry.publish and entry.topic_filter.startswith(_SYS)):
        return [entry]
    state = intersection(entry.topic_filter, _BRIDGE_STATE)
    parts = [] if state is None or not state[1] else [Entry(True, True, False, state[0])]
    return [*parts, Entry(True, False, True, entry.topic_filter)] if entry.subscribe else parts


def limited(rules: list[str]) -> tuple[list[str], int]:
    """Return at most RULES_MAX of the rules, and the number of rules that were left out.

    The last `allow` rules are left out first. If too many rules remain, all topics are denied.
    """
    left_out = 0
    kept = list(rules)
    at = len(kept)
    while len(kept) > RULES_MAX and at > 0:
        at -= 1
        if kept[at].startswith("allow"):
            del kept[at]
            left_out += 1
    return (kept, left_out) if len(kept) <= RULES_MAX else (["deny all #"], len(rules))


def both(first: Sequence[Entry], second: Sequence[Entry]) -> list[Entry]:
    """Return entries about subscribing that allow a topic if both lists of entries allow the topic.

    The last entry of each list must match all topics.
    """
    result: list[Entry] = []
    for one in first:
        if not one.allow:
            result.append(Entry(False, False, True, one.topic_filter))
            continue
        for other in second:
            common = intersection(one.topic_filter, other.topic_filter)
            if common is None:
                continue
            topic_filter, exact = common
            if other.allow and not exact:
                continue
            result.append(Entry(other.allow, False, True, topic_filter))
    return result


def intersection(one: str, other: str) -> tuple[str, bool] | None:
    """Return the filter of the topics that match two filters, and a boolean.

    The boolean is True if the returned filter matches these topics only, and False if a variable,
    such as `{client_id}`, makes it match more topics. Return None if no topic matches both filters.
    """
    left, right = one.split("/"), other.split("/")
    words: list[str] = []
    exact = True
    for at in range(max(len(left), len(right)) + 1):
        a = left[at] if at < len(left) else ""
        b = right[at] if at < len(right) else ""
        if a == "#" and at < len(left):
            return "/".join([*words, *right[at:]]) if at < len(right) else "/".join(words), exact
        if b == "#" and at < len(right):
            return "/".join([*words, *left[at:]]) if at < len(left) else "/".join(words), exact
        if at >= len(left) or at >= len(right):
            return ("/".join(words), exact) if len(left) == len(right) else None
        if a == b or b == "+" or (b == "$+" and a.startswith("$")):
            words.append(a)
        elif a == "+" or (a == "$+" and b.startswith("$")):
            words.append(b)
        elif _CLIENT in a or _CLIENT in b:
            words.append(b if _CLIENT in a else a)
            exact = False
        else:
            return None
    return None


def _texts(entries: Iterable[Entry]) -> list[str]:
    """Return the entries as texts of topic rules, without repetitions."""
    return list(dict.fromkeys(entry.rule for entry in entries))
