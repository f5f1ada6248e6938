"""A digest of a matcher's answers, to compare contenders that are written in different languages.

    digest = sum over topics i and subscribers s of ((i + 1) K  xor  (s + 1) L)   modulo 2^64

Topics and subscribers are numbers from 0. The order of the subscribers in an answer does not
matter. A missing or repeated subscriber changes the count or the digest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

_TOPIC: Final = 0x9E3779B97F4A7C15
_SUBSCRIBER: Final = 0xC2B2AE3D27D4EB4F
_ALL: Final = 2**64 - 1
#: A comparison that would probably take longer than this number of seconds is skipped. The first
#: comparison is never skipped.
_PATIENCE: Final = 1.0


class MatchAnswers(NamedTuple):
    """A summary of a matcher's answers for the first `topics` topics.

    `subscribers` is the number of subscribers in all answers, `digest` a checksum of the answers.
    """

    topics: int
    subscribers: int
    digest: int


class WrongMatch(Exception):
    """Raised if the answers of a matcher differ from the expected answers."""


def answers(match: Callable[[str], Sequence[int]], topics: Sequence[str]) -> MatchAnswers:
    """Match all topics; return the number of topics and of subscribers found, and a checksum."""
    subscribers = digest = 0
    for number, topic in enumerate(topics, 1):
        row = number * _TOPIC & _ALL
        for subscriber in match(topic):
            subscribers += 1
            digest += row ^ ((subscriber + 1) * _SUBSCRIBER & _ALL)
    return MatchAnswers(len(topics), subscribers, digest & _ALL)


def check(
    match: Callable[[str], Sequence[int]], topics: Sequence[str], expected: Sequence[Sequence[int]]
) -> None:
    """Raise WrongMatch unless `match` gives the expected answers.

    Each entry of `expected` is a `MatchAnswers` as a list; the entry with the fewest topics comes
    first and is always compared. A later entry is compared only if the comparison will probably
    take less than a second.
    """
    rate = 0.0
    for wanted in expected:
        if rate * wanted[0] > _PATIENCE:
            return
        began = time.monotonic()
        summary = answers(match, topics[: wanted[0]])
        if list(summary) != list(wanted):
            raise WrongMatch(
                f"the matcher found {summary.subscribers:,} subscribers for {summary.topics} "
                f"topics (digest {summary.digest:x}), but {wanted[1]:,} are expected (digest "
                f"{wanted[2]:x})"
            )
        rate = (time.monotonic() - began) / wanted[0]
