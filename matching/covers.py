"""Decides whether one pattern matches every topic that another pattern matches, and finds
redundant patterns.

A pattern is a sequence of rigid runs of words with gaps between them. A ``#`` makes a gap of any
length; each ``*`` beside it makes the gap at least one word longer. Inside a run, distances are
fixed.

    a.*.#.b.*.c.#.*      runs  [a] [b * c] []     gaps  >= 1, >= 1

The first run must be at the beginning of a topic, and the last run at its end. Both may be empty.

Pattern `a` covers pattern `b` if three conditions hold. Each run of `a` occurs inside a run of `b`,
because a gap of `b` may be arbitrarily long. The runs of `a` occur in this order. Between two runs
of `a`, `b` has at least as many words as the gap of `a` needs; here each gap of `b` counts with its
least length. Placing each run as far left as possible is optimal, so one pass over `b` suffices.

Only a wildcard of `a` accepts a wildcard of `b`. The set of words is unlimited, so a wildcard of
`b` may match a word that no pattern names.

A run is searched with a bit-parallel automaton in one int, so a comparison costs a few int
operations per word: O(words). Two AMQP patterns of the maximum length, 128 words, take at most 0.03
ms (interpreted: 0.09 ms). Two MQTT filters of some 5,000 levels take 1 ms (interpreted).

In MQTT, a leading wildcard does not match topics that begin with `$` [MQTT-4.7.2-1]. So ``#`` and
``+/x`` do not cover ``$SYS/x``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from matching.grammar import Grammar
from matching.matcher import Matcher
from matching.registry import create

#: A word that no pattern contains: too long for AMQP, and MQTT forbids NUL.
_FRESH: Final = "\0" * 256
#: The most patterns of a Coverage that a query compares without a look-up in a matcher. Comparing
#: 120 short patterns takes 0.1 ms (interpreted).
COMPARED_ALL: Final = 128


class _Runs:
    """A pattern, split at each ``#`` into runs of words with gaps between them.

    ``gaps[n]`` is the least number of words between ``runs[n]`` and ``runs[n + 1]``. Every run but
    the first begins with a literal word; every run but the last ends with a literal word.
    """

    __slots__ = ("gaps", "runs", "size")

    def __init__(self, pattern: str, grammar: Grammar) -> None:
        words = grammar.split(pattern)
        if words and words[0] == grammar.many and grammar.split(""):
            # A topic of this grammar has at least one word, so a leading `#` means `+/#`.
            words = [grammar.one, *words]
        self.runs: list[list[str]] = [[]]
        self.gaps: list[int] = []
        for word in words:
            if word == grammar.many:
                run = self.runs[-1]
                gap = _stripped(run, grammar.one)
                if self.gaps and not run:
                    self.gaps[-1] += gap
                else:
                    self.gaps.append(gap)
                    self.runs.append([])
            elif word == grammar.one and self.gaps and not self.runs[-1]:
                self.gaps[-1] += 1
            else:
                self.runs[-1].append(word)
        #: The least number of words of a topic that the pattern matches.
        self.size = sum(self.gaps) + sum([len(run) for run in self.runs])


def _stripped(run: list[str], one: str) -> int:
    """Remove the wildcards `one` from the end of the list `run`; return how many were removed."""
    size = len(run)
    while run and run[-1] == one:
        run.pop()
    return size - len(run)


def covers(a: str, b: str, grammar: Grammar) -> bool:
    """True if `a` matches every topic that `b` matches. Both patterns must be valid."""
    if a == b:
        return True
    return _covers(_Runs(a, grammar), _Runs(b, grammar), b, grammar)


def _covers(a: _Runs, b: _Runs, pattern: str, grammar: Grammar) -> bool:
    """True if the parsed pattern `a` covers the parsed pattern `b`, whose text is `pattern`."""
    one = grammar.one
    if grammar.hides and grammar.hidden(pattern) and (not a.runs[0] or a.runs[0][0] == one):
        return False
    if not a.gaps:
        return not b.gaps and len(a.runs[0]) == len(b.runs[0]) and _agree(a.runs[0], b.runs[0], one)
    first = a.runs[0]
    last = a.runs[-1]
    begins = b.runs[0]
    ends = b.runs[-1]
    if len(first) > len(begins) or len(last) > len(ends):
        return False
    if not _agree(first, begins, one) or not _agree(last, ends[len(ends) - len(last) :], one):
        return False
    at = len(first)
    starts = _starts(b)
    reached = 0
    for place in range(1, len(a.gaps)):
        at += a.gaps[place - 1]
        while reached + 1 < len(starts) and starts[reached + 1] <= at:
            reached += 1
        at = _find_end(a.runs[place], b, starts, reached, at, one)
        if at < 0:
            return False
    return at + a.gaps[-1] + len(last) <= b.size


def _agree(run: list[str], other: list[str], one: str) -> bool:
    """True if the words of `run` equal the words of `other` at the same places.

    If the lists have different lengths, only the words of the shorter list are compared. `one` is
    the wildcard for one word; in `run`, this wildcard equals every word of `other`.
    """
    return all(word in (one, there) for word, there in zip(run, other, strict=False))


def _starts(b: _Runs) -> list[int]:
    """Return, for each run of `b`, its position in the shortest topic that `b` matches.

    A run is a part of a pattern between its ``#`` wildcards. Positions are counted in words.
    """
    starts = [0]
    for run, gap in zip(b.runs, b.gaps, strict=False):
        starts.append(starts[-1] + len(run) + gap)
    return starts


def _find_end(run: list[str], b: _Runs, starts: list[int], reached: int, at: int, one: str) -> int:
    """Search for the words of `run` in the runs of `b` (the parts between its ``#`` wildcards).

    Return the position after the last word of the first occurrence, or -1 if there is none.
    Positions are counted in words; ``starts[n]`` is the position where ``b.runs[n]`` begins. The
    search begins at the position `at`, which is in the run ``b.runs[reached]`` or in the gap after
    this run. A wildcard `one` in `run` stands for any word.
    """
    masks: dict[str, int] = {}
    any_word = 0
    bit = 1
    for word in run:
        if word == one:
            any_word |= bit
        else:
            masks[word] = masks.get(word, 0) | bit
        bit <<= 1
    whole = bit >> 1
    for index in range(reached, len(starts)):
        start = starts[index]
        words = b.runs[index]
        agreed = 0  # bit n: the last n + 1 words read equal the first n + 1 words of `run`
        for place in range(max(at - start, 0), len(words)):
            agreed = (agreed << 1 | 1) & (masks.get(words[place], 0) | any_word)
            if agreed & whole:
                return start + place + 1
    return -1


class Coverage:
    """A set of patterns; a query returns the patterns of the set that cover a given pattern.

    `redundant` uses a Coverage to find redundant bindings for `trellis ask audit`. The broker
    decides access rules with broker/access/rules.py, which also has variables and directions.

    A query on a set of up to COMPARED_ALL patterns compares each of them: 120 AMQP patterns of the
    maximum length take up to 4 ms (interpreted). A query on a larger set builds one topic that the
    given pattern matches, looks the topic up in a matcher, and compares only the patterns found:
    every pattern that covers the given pattern is among them. The look-up takes
    0.5 ms (interpreted) for each pattern with 128 words and many ``#``, 20 times as long as the
    comparison. Therefore, limit the size of a set that untrusted users can extend.

    Each pattern of the set is compared alone. So a query does not find two patterns that cover the
    given pattern only together.
    """

    def __init__(self, grammar: Grammar, algorithm: str = "trie") -> None:
        self.grammar: Final = grammar
        self._patterns: Matcher[str] = create(algorithm, grammar)
        self._runs: dict[str, _Runs] = {}

    def add(self, pattern: str) -> bool:
        """Add a pattern; return False if the set has it already. Raises InvalidPattern."""
        if not self._patterns.subscribe(pattern, pattern):
            return False
        self._runs[pattern] = _Runs(pattern, self.grammar)
        return True

    def remove(self, pattern: str) -> bool:
        """Remove a pattern from the set. Return False if it was not present."""
        if not self._patterns.unsubscribe(pattern, pattern):
            return False
        del self._runs[pattern]
        return True

    def covering(self, pattern: str) -> list[str]:
        """Return the patterns of the set that cover this pattern, in no order. A pattern covers
        itself.

        Raises InvalidPattern.
        """
        return list(self._covering(pattern))

    def covers(self, pattern: str) -> bool:
        """True if a pattern of the set covers `pattern`. Raises InvalidPattern."""
        return next(self._covering(pattern), None) is not None

    def _covering(self, pattern: str) -> Iterator[str]:
        grammar = self.grammar
        grammar.check(pattern)
        runs = _Runs(pattern, grammar)
        candidates: Iterable[str] = self._runs
        if len(self._runs) > COMPARED_ALL:
            candidates = self._patterns.match(_sample(runs, grammar))
        for other in candidates:
            if other == pattern or _covers(self._runs[other], runs, pattern, grammar):
                yield other

    def patterns(self) -> list[str]:
        """Return all patterns of the set, in the order in which they were added."""
        return list(self._runs)

    def __len__(self) -> int:
        return len(self._runs)

    def __contains__(self, pattern: str) -> bool:
        return pattern in self._runs


def _sample(runs: _Runs, grammar: Grammar) -> str:
    """Return a topic that a parsed pattern matches.

    The topic has the literal words of the pattern. In place of each wildcard for one word, and of
    each ``#`` (or several in a row), it has the word _FRESH, which no pattern contains.
    """
    words: list[str] = []
    for place, run in enumerate(runs.runs):
        words += [_FRESH if word == grammar.one else word for word in run]
        if place < len(runs.gaps):
            words += [_FRESH] * (runs.gaps[place] + 1)
    return grammar.separator.join(words)


def redundant(patterns: Iterable[str], grammar: Grammar) -> dict[str, str]:
    """Return the redundant patterns, each with a remaining pattern that matches all its topics.

    Of several patterns that match the same topics, the first one remains, and the others are
    redundant. Raises InvalidPattern.
    """
    distinct = list(dict.fromkeys(patterns))
    coverage = Coverage(grammar)
    for pattern in distinct:
        coverage.add(pattern)
    order = {pattern: place for place, pattern in enumerate(distinct)}
    needless: dict[str, str] = {}
    for pattern in distinct:
        for other in coverage.covering(pattern):
            if other != pattern and (
                order[other] < order[pattern] or not covers(pattern, other, grammar)
            ):
                needless[pattern] = other
                break
    for pattern in needless:
        stays = needless[pattern]
        while stays in needless:
            stays = needless[stays]
        needless[pattern] = stays
    return needless
