"""Groups topics into addresses: a level with many values becomes a parameter.

    sensors.17.temperature, sensors.18.temperature -> sensors.{sensor}.temperature

A level is a word of a topic in AMQP notation. Topics whose earlier levels are equal, or belong to
the same parameter, are compared at the next level, by these rules in this order:

1. Identifiers become a parameter: a UUID, a hexadecimal number of 8 or more digits, the name of a
   queue that the broker made, and two or more words that differ in decimal digits only (`lamp1`
   and `lamp2`; not versions such as `v1`).
2. If more than `most` other words remain, the whole level becomes a parameter.

A word with a brace becomes a parameter as well, because AsyncAPI would read it as one.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

#: Number of levels of a topic that are compared. The last of them and all further levels become one
#: parameter.
LEVELS_MAX: Final = 32
#: Largest number of queue names of a virtual host that stay separate addresses.
QUEUES_MAX: Final = 1_000
#: Largest number of values of a parameter that are shown as examples, and the largest length of an
#: example in characters.
EXAMPLES: Final = 3
EXAMPLE_LENGTH: Final = 100
#: A word of a pattern; None stands for a parameter.
Word = str | None

_IDENTIFIER: Final = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
    r"|(?=.*\d)[0-9a-f]{8,}"
    r"|gen-.{16,}|amq\.gen-.*|amq\.rabbitmq\.reply-to.*",
    re.IGNORECASE,
)
_DIGITS: Final = re.compile(r"\d+")
_VERSION: Final = re.compile(r"v\d+", re.IGNORECASE)
_UNNAMED: Final = re.compile(r"[^A-Za-z0-9_-]+")


@dataclass(frozen=True)
class Parameter:
    """A parameter of an address: its name, the number of its observed values, and examples."""

    name: str
    values: int
    examples: tuple[str, ...]


@dataclass(frozen=True)
class Template:
    """An address: words, and a Parameter for each level that has many values.

    `more` is True if the last parameter stands for several levels.
    """

    words: tuple[str | Parameter, ...]
    more: bool = False

    @property
    def parameters(self) -> list[Parameter]:
        """The parameters in the order of the address."""
        return [word for word in self.words if isinstance(word, Parameter)]

    def address(self, separator: str) -> str:
        """Return the address, with the words in AMQP notation joined by `separator`.

        With the separator "/", slashes inside words become dots, as in MQTT notation.
        """
        texts = [
            f"{{{word.name}}}"
            if isinstance(word, Parameter)
            else word.replace("/", ".")
            if separator == "/"
            else word
            for word in self.words
        ]
        return separator.join(texts)


def templates(topics: Sequence[str], most: int) -> list[Template]:
    """Return the address of each topic; topics with equal addresses get the same object.

    A level with more than `most` different words becomes a parameter.
    """
    return _templates([topic.split(".") for topic in topics], most, "")


def queue_templates(names: Sequence[str]) -> list[Template]:
    """Return the address of each queue: its name, or {queue} if the name is an identifier.

    The rules at the top of this module say which names are identifiers, such as a UUID.
    """
    return _templates([[name] for name in names], QUEUES_MAX, "queue")


def _templates(split: list[list[str]], most: int, name: str) -> list[Template]:
    words: list[list[str]] = [
        each
        if len(each) <= LEVELS_MAX
        else [*each[: LEVELS_MAX - 1], ".".join(each[LEVELS_MAX - 1 :])]
        for each in split
    ]
    patterns: list[tuple[Word, ...]] = [()] * len(split)
    # A stack of groups: topics that have the same pattern up to a level.
    groups: list[tuple[int, list[int]]] = [(0, list(range(len(split))))]
    while groups:
        level, members = groups.pop()
        longer = [member for member in members if len(words[member]) > level]
        grouped = _parameters({words[member][level] for member in longer}, most, level)
        branches: dict[Word, list[int]] = defaultdict(list)
        for member in longer:
            word = words[member][level]
            branches[None if word in grouped else word].append(member)
        for branch, inside in branches.items():
            for member in inside:
                patterns[member] = (*patterns[member], branch)
            groups.append((level + 1, inside))
    return _named(words, patterns, [len(each) > LEVELS_MAX for each in split], name)


def pattern_template(key: str) -> Template:
    """Return the address of a binding key in AMQP notation: wildcards become parameters."""
    words = key.split(".")[:LEVELS_MAX]
    pattern: tuple[Word, ...] = tuple(
        None if word in ("*", "#") or "{" in word or "}" in word else word for word in words
    )
    names = _names(pattern, "")
    parts = (
        Parameter(names[at], 0, ()) if word is None else word for at, word in enumerate(pattern)
    )
    return Template(tuple(parts), "#" in words)


def _parameters(words: Collection[str], most: int, level: int) -> set[str]:
    """Return the words of a level that become values of a parameter.

    `level` is the index of the level in the topic. `most` is the largest number of words that may
    stay separate.
    """
    masks: dict[str, list[str]] = defaultdict(list)
    variable_words: set[str] = set()
    for word in words:
        if level == LEVELS_MAX - 1 or "{" in word or "}" in word or _IDENTIFIER.fullmatch(word):
            variable_words.add(word)
        elif _DIGITS.search(word) and not _VERSION.fullmatch(word):
            masks[_DIGITS.sub("0", word)].append(word)
    for alike in masks.values():
        if len(alike) > 1:
            variable_words.update(alike)
    return set(words) if len(words) - len(variable_words) > most else variable_words


def _named(
    words: list[list[str]], patterns: list[tuple[Word, ...]], long: list[bool], name: str
) -> list[Template]:
    values: dict[tuple[Word, ...], list[set[str]]] = {}
    for own, pattern in zip(words, patterns, strict=True):
        sets = values.setdefault(pattern, [set() for _ in pattern])
        for at, word in enumerate(pattern):
            if word is None:
                sets[at].add(own[at])
    by_pattern: dict[tuple[Word, ...], Template] = {}
    templates = []
    for pattern, more in zip(patterns, long, strict=True):
        if pattern not in by_pattern:
            names = _names(pattern, name)
            by_pattern[pattern] = Template(
                tuple(
                    _parameter(names[at], values[pattern][at]) if word is None else word
                    for at, word in enumerate(pattern)
                ),
                more,
            )
        templates.append(by_pattern[pattern])
    return templates


def _parameter(name: str, values: set[str]) -> Parameter:
    short = sorted(value for value in values if len(value) <= EXAMPLE_LENGTH)
    return Parameter(name, len(values), tuple(short[:EXAMPLES]))


def _names(pattern: tuple[Word, ...], usual: str) -> dict[int, str]:
    """Return the names of the parameters of a pattern, by level.

    A parameter has the name of the word before it, without a plural s: `sensors.*` has {sensor}.
    `usual` is the name of a parameter at the beginning of the pattern or after another parameter.
    If `usual` is "", such a parameter is named after its level, such as {level2}.
    """
    names: dict[int, str] = {}
    for at, word in enumerate(pattern):
        if word is not None:
            continue
        before = pattern[at - 1] if at else None
        name = _UNNAMED.sub("", before or "")
        if len(name) > 3 and name.endswith("s") and not name.endswith("ss"):
            name = name[:-1]
        name = name or usual or f"level{at + 1}"
        while name in names.values():
            name += str(at + 1)
        names[at] = name
    return names
