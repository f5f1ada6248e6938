"""Compilation of operators' regular expressions; patterns that could stall the broker are refused.

Python's `re` backtracks: a short pattern such as `(a+)+$` takes exponential time for some names. So
a pattern is parsed first, and refused if a name of NAME_MAX characters could make it try more than
PATHS_MAX ways to match. An upper bound of the number of ways is computed from the parse tree.
`is_found` searches for a pattern in texts of any length.
"""

from __future__ import annotations

import re
from math import comb
from typing import Any, Final

from broker.errors import PreconditionFailed

#: Number of characters at the beginning of a name that are compared with a pattern.
NAME_MAX: Final = 255
#: Largest number of ways to match that one comparison may try. Such a comparison takes less than a
#: millisecond.
PATHS_MAX: Final = 50_000
#: Largest number of ways that a search in a longer text may try. Such a search takes a few
#: milliseconds.
LONG_PATHS_MAX: Final = 262_144
#: Length of the longest pattern, in characters.
PATTERN_MAX: Final = 1_000

_parser: Final[Any] = re._parser  # type: ignore[attr-defined]
#: POSIX classes, which RabbitMQ's regular expressions have, as characters of a class of `re`.
_POSIX: Final = {
    "alnum": "a-zA-Z0-9",
    "alpha": "a-zA-Z",
    "ascii": r"\x00-\x7f",
    "blank": r" \t",
    "cntrl": r"\x00-\x1f\x7f",
    "digit": "0-9",
    "graph": "!-~",
    "lower": "a-z",
    "print": " -~",
    "punct": r"!-/:-@\[-`{-~",
    "space": r" \t-\r",
    "upper": "A-Z",
    "word": "a-zA-Z0-9_",
    "xdigit": "0-9A-Fa-f",
}
_POSIX_NAME: Final = re.compile(r"\[:(\^?[a-z]*):\]")
_CLASS_START: Final = re.compile(r"\[\^?\]?")
_ANCHORS: Final = ("AT_BEGINNING", "AT_BEGINNING_STRING")


class _Cost:
    """The number of ways in which a part of a pattern can match a name.

    `free` is the number of simple repetitions, such as `a*`: each can match any length. `factor` is
    the number of ways in which the rest of the part can match. `fixed` is True if all matches of
    the part have the same length.
    """

    def __init__(self, free: int, factor: int, fixed: bool) -> None:
        self.free = free
        self.factor = min(factor, LONG_PATHS_MAX + 1)
        self.fixed = fixed

    def ways(self, length: int) -> int:
        """Return an upper bound of the number of ways in which a text of `length` characters can
        match.
        """
        free = min(self.free, 8)
        return min(self.factor * comb(length + free, free), LONG_PATHS_MAX + 1)


def bounded_pattern(text: str, flags: int = 0) -> re.Pattern[str]:
    """Compile a regular expression that cannot stall the broker. `flags` are flags of `re`.

    Raises PreconditionFailed if the expression is too long or invalid, or may be slow.
    """
    if len(text) > PATTERN_MAX:
        raise PreconditionFailed(
            f"the regular expression has {len(text)} characters, and the limit is {PATTERN_MAX} "
            "characters: shorten the expression"
        )
    try:
        known = without_posix(text)
        tree = _parser.parse(known, flags)
        compiled = re.compile(known, flags)
    except (re.error, RecursionError, OverflowError) as error:
        raise PreconditionFailed(
            f"the pattern '{text}' is not a regular expression: {error}"
        ) from None
    if _search_ways(tree, compiled.flags, NAME_MAX) > PATHS_MAX:
        raise PreconditionFailed(
            f"the pattern '{text}' can take too long to match: use fewer repetitions (* + "
            "{m,n}), use no repetition within a repetition, and begin the pattern with ^"
        )
    return compiled


def without_posix(text: str) -> str:
    """Return a regular expression with its POSIX classes written out.

    `re` would read `[[:alpha:]]` as a class of the characters `[:alph`, followed by a literal `]`.
    Raises re.error for a POSIX class that is unknown, negated, or not within a class.
    """
    if text.count("[") == 0:
        return text
    parts: list[str] = []
    at, inside = 0, False
    while at < len(text):
        taken = text[at : at + (2 if text[at] == "\\" else 1)]
        size = len(taken)
        if taken == "[":
            posix = _POSIX_NAME.match(text, at)
            if posix is not None:
                if not inside or posix[1] not in _POSIX:
                    raise re.error(
                        f"{posix[0]} must be a POSIX class within brackets, such as [[:alpha:]]"
                    )
                taken, size = _POSIX[posix[1]], len(posix[0])
            elif inside:
                taken = "\\["
            else:
                start = _CLASS_START.match(text, at)
                assert start is not None, "the text begins with a bracket here"
                taken, size, inside = start[0], len(start[0]), True
        elif taken == "]":
            inside = False
        parts.append(taken)
        at += size
    return "".join(parts)


def is_found(pattern: re.Pattern[str], text: str) -> bool:
    """True if a bounded pattern is found in a text of any length.

    In a text of more than NAME_MAX characters, a pattern that may take long is not searched for,
    and counts as not found. A routing key in MQTT may have 65,535 bytes.
    """
    length = len(text)
    if length > NAME_MAX:
        tree = _parser.parse(pattern.pattern, pattern.flags)
        if _search_ways(tree, pattern.flags, length) > LONG_PATHS_MAX:
            return False
    return pattern.search(text) is not None


def _search_ways(tree: Any, flags: int, length: int) -> int:
    """Return the largest number of ways to match that a search in `length` characters may try."""
    items = list(tree)
    anchors = _ANCHORS if flags & re.MULTILINE == 0 else _ANCHORS[1:]
    anchored = bool(items) and items[0][0].name == "AT" and items[0][1].name in anchors
    # A final `$` or `.*` adds no ways: after a `.*`, which takes all characters, nothing can fail.
    while items and (_is_end(items[-1]) or _takes_all(items[-1], flags, length)):
        items.pop()
    cost = _sequence(items, length)
    return _Cost(cost.free + (not anchored), cost.factor, True).ways(length)


def _is_end(item: Any) -> bool:
    """True if the node of a parse tree matches only at the end of a name, as `$` does."""
    return item[0].name == "AT" and item[1].name in ("AT_END", "AT_END_STRING")


def _takes_all(item: Any, flags: int, length: int) -> bool:
    """True if the node of a parse tree is `.*`, with a dot that matches all characters."""
    kind, value = item
    if kind.name != "MAX_REPEAT" or value[0] != 0 or value[1] < length:
        return False
    return bool(flags & re.DOTALL) and [part[0].name for part in value[2]] == ["ANY"]


def _sequence(items: Any, length: int) -> _Cost:
    free, factor, fixed = 0, 1, True
    for item in items:
        cost = _item(item, length)
        free += cost.free
        factor *= cost.factor
        fixed = fixed and cost.fixed
    return _Cost(free, factor, fixed)


def _item(item: Any, length: int) -> _Cost:
    """Return the cost (`_Cost`) of one node of a regular expression's parse tree."""
    kind, value = item[0].name, item[1]
    if kind in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
        inner = _sequence(value[2], length)
        return _repetition(int(value[0]), int(value[1]), inner, length)
    if kind == "BRANCH":
        costs = [_sequence(branch, length) for branch in value[1]]
        free = max(cost.free for cost in costs)
        return _Cost(free, sum(cost.factor for cost in costs), False)
    if kind == "SUBPATTERN":
        return _sequence(value[3], length)
    if kind in ("ASSERT", "ASSERT_NOT"):
        return _sequence(value[1], length)
    if kind == "ATOMIC_GROUP":
        return _sequence(value, length)
    if kind == "GROUPREF_EXISTS":
        cost = _sequence([*value[1], *(value[2] or ())], length)
        return _Cost(cost.free, cost.factor, False)
    return _Cost(0, 1, kind != "GROUPREF")


def _repetition(least: int, most: int, inner: _Cost, length: int) -> _Cost:
    """Return the cost of `least` to `most` repetitions of a part with the cost `inner`.

    The cost is exponential if the part can match in several ways.
    """
    if inner.free == 0 and inner.factor == 1 and inner.fixed:
        return _Cost(int(most > least), 1, most == least)
    most = min(most, length)
    ways = inner.ways(length)
    factor = ways ** min(most, 16) * (most - least + 1) if most > 0 else 1
    if most > 16 and ways > 1:
        factor = LONG_PATHS_MAX + 1
    return _Cost(0, factor, False)
