"""`trellis ask audit` and `trellis pipeline audit`: finds bindings that do nothing, redundant
bindings and unroutable topics.

    dead         no topic of the history matched the binding, although the history has messages of
                 the binding's virtual host
    duplicate    an earlier binding of the file has the same source, destination and key (if the
                 source is a fanout exchange, the same source and destination)
    subsumed     another binding to the same destination matches every topic that this binding
                 matches (`matching.covers`: exact, for all possible topics)
    overlapping  two bindings to the same destination matched topics of the history, and neither
                 covers the other
    unroutable   a topic that reached no queue, with the binding nearest to it
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass

from matching.covers import covers, redundant
from pyspark_trellis.counts import Span
from pyspark_trellis.definitions import BY_NAME, BoundQueue, DefinitionsFile
from pyspark_trellis.grammars import GRAMMARS
from pyspark_trellis.nearest import NearestBindings
from pyspark_trellis.topics import PublishedTopics


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

    `nearest` is the binding key of the topic's exchange that is most similar to the topic; None if
    the exchange has no bindings. `words` is the number of words in which key and topic differ.
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
    and `unroutable` have the findings of these kinds, which the docstring of this module defines.
    `span` has the number of messages and the times of the history.
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
    topics: PublishedTopics,
    definitions: DefinitionsFile,
    then: DefinitionsFile | None = None,
    recorded: Collection[str] = (),
) -> Audit:
    """Return the findings about the bindings in `definitions`, given the published topics.

    `recorded` are the virtual hosts whose messages are in `topics`; empty for all of them. A
    binding of another virtual host is never dead, because its messages are not known.

    `then` has the same bindings, with the same numbers, and further bindings that do not exist any
    more; each has the periods in which it existed (`bindings_by_time`). With `then`, each message
    is routed by the bindings of its minute.
    """
    matched = topics.matched(then or definitions)
    nearest = NearestBindings(definitions)
    of_file = definitions.bindings
    duplicate, subsumed = redundant_bindings(definitions)
    overlapping = [
        Overlap(of_file[each.one], of_file[each.other], each.topics, each.messages)
        for each in matched.overlaps
        if max(each.one, each.other) < len(of_file)
        and definitions.hosts[of_file[each.one].vhost].types[of_file[each.one].source] == "topic"
        and not _covers(of_file[each.one], of_file[each.other])
        and not _covers(of_file[each.other], of_file[each.one])
    ]
    return Audit(
        topics.span(),
        len(of_file),
        [
            each
            for each in of_file
            if each.number not in matched.numbers
            and (not recorded or each.vhost in recorded)
            and _is_routed_by_topic(definitions, each)
        ],
        duplicate,
        subsumed,
        overlapping,
        [
            Unroutable(*row, *nearest.key(row.vhost, row.exchange, row.topic))
            for row in matched.lost
        ],
    )


def _covers(one: BoundQueue, other: BoundQueue) -> bool:
    """True if the binding `one` matches every topic that the binding `other` matches.

    Both bindings lead to one destination, and have the same grammar.
    """
    return covers(one.key, other.key, GRAMMARS[one.grammar])


def _is_routed_by_topic(definitions: DefinitionsFile, bound: BoundQueue) -> bool:
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


def redundant_bindings(definitions: DefinitionsFile) -> tuple[list[Subsumed], list[Subsumed]]:
    """Return the redundant bindings of a file in two lists: duplicate and subsumed bindings.

    The docstring of this module explains both kinds. The lists are in the order of the file.
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


def _number(subsumed: Subsumed) -> int:
    return subsumed.binding.number
