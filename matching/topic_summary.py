"""Compact summaries of sets of topics: a summary tells if a pattern cannot match any of the topics.

    encode_summary(topics, most)   the bytes of the summary of a set of topics, at most `most`
    decode_summary(data)           the TopicSummary
    summary.may_match(question)    False only if no topic of the set matches

A summary of few topics is the list of the topics, so its answers are exact. A summary of more
topics is a Bloom filter of their parts:

    the first words    "plant", "plant.line4", ...    for a pattern that begins with words
    a word at a place  (1, "line4"), (2, "temp")      for a pattern such as `*.line4.#`
    the last word      "temp"                         for a pattern such as `#.temp`

A pattern can match a topic of the set only if the filter has each part that the pattern requires. A
Bloom filter may claim a part that no topic has, but never lacks a part, so the summary never
excludes a pattern that matches. Topics are in AMQP's notation; an MQTT filter is compared with them
as `swap` defines.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Collection, Iterable, Sequence
from hashlib import blake2b
from typing import Final

from matching.grammar import MQTT, Grammar, swap
from matching.trie import Trie

#: The most topics that a summary lists; a summary of more topics is a Bloom filter.
LISTED_MAX: Final = 16_384
#: Size of a Bloom filter in bits for each topic, unless that exceeds the size of the summary. A
#: topic adds about three parts: with 32 bits, a part that no topic has is claimed in 1 % of cases.
BITS_PER_TOPIC: Final = 32
#: Smallest size of a Bloom filter in bytes.
BLOOM_MIN: Final = 8
#: Number of bits that each part sets.
HASHES: Final = 4
#: The most words, from the first one, whose places are in a Bloom filter.
WORDS_MAX: Final = 8
#: The most parts that are remembered while a Bloom filter is made, so that a part which many topics
#: have is hashed once.
_SEEN_MAX: Final = 65_536
#: The most topics whose results a question caches.
_KNOWN_MAX: Final = 1_000_000

_LISTED: Final = b"L"
_BLOOM: Final = b"B"
_COUNT: Final = struct.Struct("<I")


class TopicQuestion:
    """A question about a set of topics: does a topic of the set match a condition?"""

    def matches(self, topic: str) -> bool:
        """True if the topic matches; the topic is in AMQP's notation."""
        raise NotImplementedError

    def alternatives(self) -> Iterable[Sequence[bytes]]:
        """Iterate over lists of parts: a matching topic has all parts of at least one list."""
        raise NotImplementedError


class PatternQuestion(TopicQuestion):
    """The question whether a topic matches a pattern. Raises InvalidPattern."""

    def __init__(self, pattern: str, grammar: Grammar) -> None:
        self._trie: Trie[int] = Trie(grammar)
        self._trie.subscribe(pattern, 0)
        self._swapped: Final = grammar is MQTT
        self._parts: Final = _required_parts(pattern, grammar)
        self._known: dict[str, bool] = {}

    def matches(self, topic: str) -> bool:
        answer = self._known.get(topic)
        if answer is None:
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            answer = self._trie.matches_any(swap(topic) if self._swapped else topic)
            self._known[topic] = answer
        return answer

    def alternatives(self) -> Iterable[Sequence[bytes]]:
        return [self._parts]


class EqualityQuestion(TopicQuestion):
    """The question whether a topic is one of the given topics, which are in AMQP's notation."""

    def __init__(self, topics: Iterable[str]) -> None:
        self._topics: Final = frozenset(topics)

    def matches(self, topic: str) -> bool:
        return topic in self._topics

    def alternatives(self) -> Iterable[Sequence[bytes]]:
        return [list(_parts(_encoded(topic))) for topic in self._topics]


class TopicSummary:
    """A summary of a set of topics: the list `topics`, or a Bloom filter if `topics` is None."""

    def __init__(self, topics: Sequence[str] | None, bloom: bytes = b"") -> None:
        self.topics: Final = topics
        self._bloom: Final = bloom

    def may_match(self, question: TopicQuestion) -> bool:
        """Return False if certainly no topic of the set matches the question's condition."""
        topics = self.topics
        if topics is not None:
            return any(question.matches(topic) for topic in topics)
        return any(
            all(self._has(part) for part in alternative) for alternative in question.alternatives()
        )

    def _has(self, part: bytes) -> bool:
        bloom = self._bloom
        return all(bloom[bit >> 3] >> (bit & 7) & 1 for bit in _bits(part, 8 * len(bloom)))


def encode_summary(topics: Collection[bytes], most: int) -> bytes:
    """Return the bytes of the summary of a set of topics.

    The size is at most `most` bytes, but a Bloom filter has at least BLOOM_MIN + 1 bytes. The
    topics are in AMQP's notation and in UTF-8.
    """
    if len(topics) <= LISTED_MAX:
        ordered = sorted(topics)
        sizes = struct.pack(f"<{len(ordered)}I", *map(len, ordered))
        data = _LISTED + _COUNT.pack(len(ordered)) + zlib.compress(sizes + b"".join(ordered))
        if len(data) <= most:
            return data
    bloom = bytearray(max(min(BITS_PER_TOPIC * len(topics) // 8, most - 1), BLOOM_MIN))
    seen: set[bytes] = set()
    for topic in topics:
        for part in _parts(topic):
            if part in seen:
                continue
            if len(seen) < _SEEN_MAX:
                seen.add(part)
            for bit in _bits(part, 8 * len(bloom)):
                bloom[bit >> 3] |= 1 << (bit & 7)
    return _BLOOM + bytes(bloom)


def decode_summary(data: bytes) -> TopicSummary | None:
    """Return the summary that `encode_summary` has encoded; None for other bytes."""
    kind, rest = data[:1], data[1:]
    if kind == _BLOOM and len(rest) >= BLOOM_MIN:
        return TopicSummary(None, rest)
    if kind != _LISTED:
        return None
    try:
        [count] = _COUNT.unpack_from(rest)
        texts = zlib.decompress(rest[_COUNT.size :])
        sizes = struct.unpack_from(f"<{count}I", texts)
        topics: list[str] = []
        at = 4 * count
        for size in sizes:
            topics.append(texts[at : at + size].decode())
            at += size
    except (ValueError, struct.error, zlib.error):
        return None
    return TopicSummary(topics) if at == len(texts) else None


def _encoded(text: str) -> bytes:
    # A pattern may have lone surrogates, which stand for bytes that are not UTF-8. They are encoded
    # as well; no topic of a summary has them.
    return text.encode("utf-8", "surrogatepass")


def _bits(part: bytes, size: int) -> list[int]:
    """Return the numbers of the bits that a part sets in a Bloom filter of `size` bits."""
    digest = blake2b(part, digest_size=16).digest()
    first, step = int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")
    return [(first + number * step) % size for number in range(HASHES)]


def _first_words(words: Sequence[bytes]) -> bytes:
    return b"<" + b".".join(words)


def _word_at(place: int, word: bytes) -> bytes:
    return b"%d=" % place + word


def _last_word(word: bytes) -> bytes:
    return b">" + word


def _parts(topic: bytes) -> Iterable[bytes]:
    """Return all parts of a topic.

    There is no part for the place of the first word, because another part, the list of the first
    words up to word 1, has the same meaning.
    """
    words = topic.split(b".")
    most = min(len(words), WORDS_MAX)
    parts = [_first_words(words[:count]) for count in range(1, most + 1)]
    parts += [_word_at(place, words[place]) for place in range(1, most)]
    parts.append(_last_word(words[-1]))
    return parts


def _required_parts(pattern: str, grammar: Grammar) -> list[bytes]:
    """Return the parts that every topic matching `pattern` has."""
    words = grammar.split(pattern)
    literal = [word not in (grammar.one, grammar.many) for word in words]
    texts = [_encoded(swap(word) if grammar is MQTT else word) for word in words]
    parts: list[bytes] = []
    # Number of words before the first wildcard, and before the first wildcard for any words.
    begin = literal.index(False) if False in literal else len(words)
    known = words.index(grammar.many) if grammar.many in words else len(words)
    if begin:
        parts.append(_first_words(texts[: min(begin, WORDS_MAX)]))
    for place in range(begin, min(known, WORDS_MAX)):
        if literal[place]:
            parts.append(_word_at(place, texts[place]))
    if words and literal[-1]:
        parts.append(_last_word(texts[-1]))
    return parts
