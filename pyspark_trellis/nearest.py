"""Finds the binding key that is most similar to a topic, for topics that no binding matches.

    sensor.7.tmep     nearest: sensor.*.temp, which differs in one word

The distance of a topic and a key is the number of words that must be changed, added or removed. Of
several keys at the smallest distance, the one with the most similar spelling is the nearest.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from matching.grammar import AMQP, MQTT, swap
from pyspark_trellis.definitions import BoundQueue, DefinitionsFile

#: The largest weight of a difference in spelling; a word that differs has the weight 1. Up to 128
#: differences in spelling together weigh less than one word that differs.
_SPELLING: Final = 1 / 256
_WHOLE: Final = 1 + _SPELLING


#: The types of exchanges that compare a topic with the keys of their bindings.
_BY_KEY: Final = ("direct", "topic")


class NearestBindings:
    """Finds the nearest key among the bindings of each exchange of a definitions file."""

    def __init__(self, definitions: DefinitionsFile) -> None:
        self._definitions: Final = definitions
        self._exchanges: Final[dict[tuple[str, str], NearestKeys]] = {}

    def key(self, vhost: str, exchange: str, topic: str) -> tuple[str | None, int]:
        """Return the key of the exchange that is nearest to a topic, and its distance in words;
        (None, 0) if the exchange has no bindings, or does not route by their keys.
        """
        keys = self._exchanges.get((vhost, exchange))
        if keys is None:
            host = self._definitions.hosts.get(vhost)
            by_key = host is not None and host.types.get(exchange) in _BY_KEY
            bound = host.outgoing.get(exchange, []) if host is not None and by_key else []
            keys = self._exchanges[vhost, exchange] = NearestKeys(map(_in_amqp, bound))
        return keys.nearest(topic) or (None, 0)


def _in_amqp(bound: BoundQueue) -> str:
    """Return the key of a binding as an AMQP pattern, for the count of words that differ.

    The wildcard `+` of an MQTT topic filter becomes `*`. The pattern need not match exactly the
    topics of the filter.
    """
    if bound.grammar == AMQP.name:
        return bound.key
    return AMQP.separator.join(
        AMQP.one if level == MQTT.one else level for level in swap(bound.key).split(AMQP.separator)
    )


class NearestKeys:
    """Binding keys in AMQP notation, with a search for the key that is nearest to a topic."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._keys: Final = sorted(set(keys))
        self._vocabulary: Final[dict[str, int]] = {}
        owners: list[int] = []
        words: list[int] = []
        split = [AMQP.split(key) for key in self._keys]
        for owner, key in enumerate(split):
            for word in key:
                if word not in (AMQP.one, AMQP.many):
                    owners.append(owner)
                    words.append(self._vocabulary.setdefault(word, len(self._vocabulary)))
        #: For each literal word of a key: the number of the key and the number of the word.
        self._owners: Final = np.array(owners, np.int64)
        self._words: Final = np.array(words, np.int64)
        self._lengths: Final = np.array([len(key) for key in split], np.int64)
        self._exact: Final = np.array([AMQP.many not in key for key in split], bool)

    def nearest(self, topic: str) -> tuple[str, int] | None:
        """Return the nearest key, and its distance in words; None if there are no keys."""
        words = AMQP.split(topic)
        least = self._lower_bounds(words)
        best: tuple[float, str] | None = None
        for at_least in np.unique(least).tolist():
            if best is not None and at_least > best[0]:
                break  # The distances of all further keys are larger.
            for number in np.nonzero(least == at_least)[0].tolist():
                key = self._keys[number]
                candidate = (distance(words, AMQP.split(key)), key)
                best = candidate if best is None else min(best, candidate)
        return None if best is None else (best[1], int(best[0]))

    def _lower_bounds(self, words: list[str]) -> NDArray[np.int64]:
        """Return a lower bound of the distance between each key and a topic, the words `words`.

        The distance is at least the number of the key's literal words that the topic lacks. For a
        key without ``#``, it is also at least the difference between the numbers of words.
        """
        lacking = np.ones(len(self._vocabulary), bool)
        lacking[[self._vocabulary[word] for word in words if word in self._vocabulary]] = False
        lacks = np.bincount(self._owners[lacking[self._words]], minlength=len(self._keys))
        bounds: NDArray[np.int64] = np.maximum(
            lacks, np.abs(self._lengths - len(words)) * self._exact
        )
        return bounds


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
            change = 0.0 if want in (AMQP.one, word) else _word_difference(word, want)
            row.append(min(before[at] + change, before[at + 1] + _WHOLE, row[at] + _WHOLE))
    return row[-1]


@lru_cache(maxsize=100_000)
def _word_difference(word: str, other: str) -> float:
    return 1 + (1 - SequenceMatcher(None, word, other, autojunk=False).ratio()) * _SPELLING
