"""The rights that a change takes away from a user or a role in a virtual host.

    the permissions and rules before the change --+
    the permissions and rules after it -----------+--> `lost_rights` --> a row for each lost right

A row has the fields `right`, `before` and `after`. `right` is "configure", "write" or "read" for a
pattern, "rules" for the topic rules, and "vhost" if the virtual host may not be used any more. In a
row "vhost", `before` is the whole grant, and `after` is None.

A right to the names that a pattern selects stays if the new pattern selects the same names and
possibly more. Two patterns are compared only by their alternatives, the parts between `|`: `^a|^b`
selects all names of `^a`. If this comparison proves nothing, the right counts as lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from broker.access.identity import UNIVERSAL
from broker.access.reservations import is_reservation
from broker.access.roles import RoleGrant
from trellis.http.management.answers import Row

#: The three patterns of a permission, in the order of RoleGrant.permission.
PATTERNS: Final = ("configure", "write", "read")
#: A first topic rule that permits all topics.
_ALLOW_ALL: Final = "allow all #"
#: The first and the last characters of a pattern that selects whole names: `^(a|b)$`.
_WHOLE: Final = ("^(", ")$")


def lost_rights(before: RoleGrant | None, after: RoleGrant | None) -> list[Row]:
    """Return a row for each right that `before` gives and `after` does not give.

    None means that the virtual host may not be used.
    """
    if before is None:
        return []
    if after is None:
        return [{"right": "vhost", "before": before.row, "after": None}]
    rows: list[Row] = [
        {"right": right, "before": old, "after": new}
        for right, old, new in zip(PATTERNS, before.permission, after.permission, strict=True)
        if not selects_all(new, old)
    ]
    if not permits_all(after.rules, before.rules):
        rows.append({"right": "rules", "before": list(before.rules), "after": list(after.rules)})
    return rows


def selects_all(new: str, old: str) -> bool:
    """True if the pattern `new` is known to select every name that the pattern `old` selects.

    An empty pattern selects no name.
    """
    if not old or new == old or new in UNIVERSAL:
        return True
    more, fewer = _alternatives(new), _alternatives(old)
    if all(text.startswith(_WHOLE[0]) and text.endswith(_WHOLE[1]) for text in (new, old)):
        within = [text[len(_WHOLE[0]) : -len(_WHOLE[1])] for text in (new, old)]
        inner_new, inner_old = map(_alternatives, within)
        if inner_new is not None and inner_old is not None and set(inner_old) <= set(inner_new):
            return True
    return more is not None and fewer is not None and set(fewer) <= set(more)


def _alternatives(pattern: str) -> list[str] | None:
    """Return the parts of a pattern between its outermost `|`.

    Return None if the parts have no meaning of their own: the pattern has a flag, a name, a
    condition or a back reference, or its parentheses are not balanced.
    """
    if "[:" in pattern:  # A POSIX class, whose end is not the end of the class around it.
        return None
    parts, begin, depth, in_class, at = [], 0, 0, False, 0
    while at < len(pattern):
        mark = pattern[at]
        if mark == "\\":
            if pattern[at + 1 : at + 2].isdigit():
                return None
            at += 1
        elif in_class:
            # A `]` directly after `[` or `[^` is a character of the class.
            in_class = mark != "]" or pattern[:at].endswith(("[", "[^"))
        elif mark == "[":
            in_class = True
        elif mark == "(":
            if pattern.startswith("(?", at) and not pattern.startswith("(?:", at):
                return None
            depth += 1
        elif mark == ")":
            depth -= 1
            if depth < 0:
                return None
        elif mark == "|" and depth == 0:
            parts.append(pattern[begin:at])
            begin = at + 1
        at += 1
    return None if depth or in_class else [*parts, pattern[begin:]]


def permits_all(new: Sequence[str], old: Sequence[str]) -> bool:
    """True if it is certain that a change of topic rules from `old` to `new` takes no right away.

    Rights are the permitted topics and the reserved client identifiers. The first rule that matches
    a topic decides. So no topic is lost if the new rules are the old rules in the same order, with
    further `allow` rules or without some of the `deny` rules.
    """
    reserved = [{_normal(rule) for rule in rules if is_reservation(rule)} for rules in (new, old)]
    if not reserved[1] <= reserved[0]:
        return False
    after = [_normal(rule) for rule in new if not is_reservation(rule)]
    before = [_normal(rule) for rule in old if not is_reservation(rule)]
    if not after or after[0] == _ALLOW_ALL:
        return True
    if not before:  # Without rules, all topics are permitted.
        return False
    kept = [rule for rule in before if rule.startswith("allow") or rule in after]
    return kept == [rule for rule in after if not rule.startswith("allow") or rule in before]


def _normal(rule: str) -> str:
    """Return a rule with one space between its words."""
    return " ".join(rule.split(maxsplit=2))
