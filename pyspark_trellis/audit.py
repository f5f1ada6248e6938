"""`trellis ask audit` and `trellis pipeline audit`: finds bindings that do nothing, redundant
bindings and unroutable topics.

    dead         no topic of the history matched the binding
    duplicate    an earlier binding of the file has the same source, destination and key (if the
                 source is a fanout exchange, the same source and destination)
    subsumed     another binding to the same destination takes every topic that this one takes
                 (`matching.covers`: exact, for all possible topics)
    overlapping  two bindings to the same destination both took topics of the history, and neither
                 covers the other
    unroutable   a topic that reached no queue, with the binding nearest to it
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import lru_cache
from typing import Final

from matching.covers import covers, redundant
from matching.grammar import AMQP, MQTT, swap
from pyspark_trellis.counts import Span
from pyspark_trellis.definitions import BY_NAME, BoundQueue, DefinitionsFile
from pyspark_trellis.grammars import GRAMMARS
from pyspark_trellis.topics import PublishedTopics

#: The largest weight of a difference in spelling; a word that differs has the weight 1. Up to 128
#: differences in spelling together weigh less than one word that differs.
_SPELLING: Final = 1 / 256
_WHOLE: Final = 1 + _SPELLING


@dataclass(frozen=True)
class Subsumed:
    """A redundant binding, and the other binding `by` that makes it redundant."""

    binding: BoundQueue
    by: BoundQueue


@dataclass(frozen=True)
class Overlap:
    """Two bindings to the same destination that both matched topics of the history."""

    one: BoundQueue
    other: BoundQueue
    topics: int
    messages: int


@dataclass(frozen=True)
class Unroutable:
    """A topic that reached no queue.

    `nearest` is the binding key, among those of the topic's exchange, that is most similar to the
    topic; None if the exchange has no bindings. `words` is the number of words in which key and
    topic differ.
    """

    vhost: str
    exchange: str
    topic: str
    messages: int
    nearest: str | None
    words: int


@dataclass(frozen=True)
class Audit:
    """The result of an audit.

    `bindings` is the number of examined bindings. `dead`, `duplicate`, `subsumed`, `overlapping`
    and `unroutable` have the findings of these kinds, which the module's text defines. `span` has
    the number of messages and the times of the history.
    """

    span: Span
    bindings: int
    dead: list[BoundQueue]
    duplicate: list[Subsumed]
    subsumed: list[Subsumed]
    overlapping: list[Overlap]
    unroutable: list[Unroutable]

    @property
    def clean(self) -> bool:
        """True if the audit found no dead or redundant bindings and no unroutable topics."""
        return not (self.dead or self.duplicate or self.subsumed or self.unroutable)


def audit(
    topics: PublishedTopics, definitions: DefinitionsFile, then: DefinitionsFile | None = None
) -> Audit:
    """Return the findings about the bindings in `definitions`, given the published topics.

    `then` has the same bindings, with the same numbers, and further bindings that do not exist any
    more; each has the periods in which it existed (`bindings_by_time`). With `then`, each message
    is routed by the bindings of its minute.
    """
    taken = topics.taken(then or definitions)
    of_file = definitions.bindings
    duplicate, subsumed = needless(definitions)
    overlapping = [
        Overlap(of_file[each.one], of_file[each.other], each.topics, each.messages)
        for each in taken.met
        if max(each.one, each.other) < len(of_file)
        and definitions.hosts[of_file[each.one].vhost].types[of_file[each.one].source] == "topic"
        and not _takes_all(of_file[each.one], of_file[each.other])
        and not _takes_all(of_file[each.other], of_file[each.one])
    ]
    return Audit(
        topics.span(),
        len(of_file),
        [each for each in of_file if each.number not in taken.hit and _says(definitions, each)],
        duplicate,
        subsumed,
        overlapping,
        [_nearest(definitions, *row) for row in taken.lost],
    )


def _takes_all(one: BoundQueue, other: BoundQueue) -> bool:
    """True if the binding `one` takes every topic that the binding `other` takes.

    Both bindings lead to one destination, and have the same grammar.
    """
    return covers(one.key, other.key, GRAMMARS[one.grammar])


def _says(definitions: DefinitionsFile, bound: BoundQueue) -> bool:
    """True if topics alone decide whether a message reaches the binding.

    False if the binding's exchange, or an exchange that passes messages on to it, routes by more
    than the topic (types headers, hash, delay).
    """
    host = definitions.hosts[bound.vhost]
    seen: set[str] = set()
    ahead = [bound.source]
    while ahead:
        name = ahead.pop()
        if name in seen:
            continue
        seen.add(name)
        if host.types.get(name) not in BY_NAME:
            return False
        ahead += [
            source
            for source, outgoing in host.outgoing.items()
            if any(each.to_exchange and each.destination == name for each in outgoing)
        ]
        ahead += [source for source, alternate in host.alternates.items() if alternate == name]
    return True


def needless(definitions: DefinitionsFile) -> tuple[list[Subsumed], list[Subsumed]]:
    """Return the redundant bindings of a file in two lists: duplicate and subsumed bindings.

    The text of this module explains both kinds. The lists are in the order of the file.
    """
    groups: dict[tuple[str, str, str, str], list[BoundQueue]] = defaultdict(list)
    for each in definitions.bindings:
        groups[each.vhost, each.source, each.destination, each.kind].append(each)
    duplicate: list[Subsumed] = []
    subsumed: list[Subsumed] = []
    for (vhost, source, _, _), group in groups.items():
        kind = definitions.hosts[vhost].types[source]
        if kind not in ("topic", "direct", "fanout"):
            continue
        first: dict[str, BoundQueue] = {}
        for each in group:
            key = "" if kind == "fanout" else each.key
            if key in first:
                duplicate.append(Subsumed(each, first[key]))
            else:
                first[key] = each
        if kind == "topic":
            grammar = GRAMMARS[group[0].grammar]
            subsumed += [
                Subsumed(first[key], first[by]) for key, by in redundant(first, grammar).items()
            ]
    return sorted(duplicate, key=_number), sorted(subsumed, key=_number)


def _number(found: Subsumed) -> int:
    return found.binding.number


def _nearest(
    definitions: DefinitionsFile, vhost: str, exchange: str, topic: str, messages: int
) -> Unroutable:
    best = nearest_key(definitions, vhost, exchange, topic)
    return Unroutable(vhost, exchange, topic, messages, *(best if best is not None else (None, 0)))


def nearest_key(
    definitions: DefinitionsFile, vhost: str, exchange: str, topic: str
) -> tuple[str, int] | None:
    """Return the binding key of an exchange that is nearest to the topic, and its distance in
    words; None if the exchange has no bindings.
    """
    host = definitions.hosts.get(vhost)
    bound = host.outgoing.get(exchange, []) if host is not None else []
    return nearest(
        topic, {each.key if each.grammar == AMQP.name else _in_amqp(each.key) for each in bound}
    )


def _in_amqp(topic_filter: str) -> str:
    """Return an MQTT topic filter as an AMQP pattern, for the count of words that differ.

    The wildcard `+` becomes `*`. The pattern need not match exactly the topics of the filter.
    """
    return AMQP.separator.join(
        AMQP.one if level == MQTT.one else level
        for level in swap(topic_filter).split(AMQP.separator)
    )


def nearest(topic: str, patterns: Iterable[str]) -> tuple[str, int] | None:
    """Return the pattern nearest to the topic, and its distance in words; None if there are no
    patterns.

    The distance is the number of words that must be changed, added or removed. Of several nearest
    patterns, the one with the most similar spelling is returned.
    """
    words = AMQP.split(topic)
    known = set(words)
    bounded = sorted(
        (max(sum(word not in known for word in literals), abs(len(words) - length) * exact), key)
        for key in patterns
        for literals, length, exact in [_outline(key)]
    )
    best: tuple[float, str] | None = None
    for least, key in bounded:
        if best is not None and least > best[0]:
            break  # The distances of all further patterns are larger.
        found = (distance(words, AMQP.split(key)), key)
        best = found if best is None else min(best, found)
    return None if best is None else (best[1], int(best[0]))


@lru_cache(maxsize=100_000)
def _outline(pattern: str) -> tuple[tuple[str, ...], int, bool]:
    """Return a pattern's literal words, its number of words, and True if it has no ``#``.

    A topic's distance to the pattern is at least the number of literal words that the topic lacks,
    and without ``#`` at least the difference of the numbers of words.
    """
    words = AMQP.split(pattern)
    literals = tuple(word for word in words if word not in (AMQP.one, AMQP.many))
    return literals, len(words), AMQP.many not in words


def distance(words: list[str], pattern: list[str]) -> float:
    """Return the number of words that must be changed, added or removed until the pattern matches.

    The integer part of the result is Levenshtein's distance over words. The fraction measures the
    difference in spelling.
    """
    row: list[float] = [at * _WHOLE for at in range(len(words) + 1)]
    for want in pattern:
        if want == AMQP.many:
            for at in range(1, len(row)):
                row[at] = min(row[at], row[at - 1])
            continue
        before, row = row, [row[0] + _WHOLE]
        for at, word in enumerate(words):
            change = 0.0 if want in (AMQP.one, word) else _unlike(word, want)
            row.append(min(before[at] + change, before[at + 1] + _WHOLE, row[at] + _WHOLE))
    return row[-1]


@lru_cache(maxsize=100_000)
def _unlike(word: str, other: str) -> float:
    return 1 + (1 - SequenceMatcher(None, word, other, autojunk=False).ratio()) * _SPELLING
