"""Did it find what it should? A number for all answers, the same in whatever order, in any
language.

    digest = sum over topics i and subscribers s of ((i + 1) K  xor  (s + 1) L)   modulo 2^64

Topics and subscribers are numbers from 0. A subscriber that is missing, or there twice, changes
count or digest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

_TOPIC: Final = 0x9E3779B97F4A7C15
_SUBSCRIBER: Final = 0xC2B2AE3D27D4EB4F
_ALL: Final = 2**64 - 1
_PATIENCE: Final = 1.0  # seconds


class MatchAnswers(NamedTuple):
    """What the first `topics` topics find: so many subscribers, with this digest."""

    topics: int
    found: int
    digest: int


class WrongMatch(Exception):
    """An answer is not the expected one."""


def answers(match: Callable[[str], Sequence[int]], topics: Sequence[str]) -> MatchAnswers:
    """What these topics find."""
    found = digest = 0
    for number, topic in enumerate(topics, 1):
        row = number * _TOPIC & _ALL
        for subscriber in match(topic):
            found += 1
            digest += row ^ ((subscriber + 1) * _SUBSCRIBER & _ALL)
    return MatchAnswers(len(topics), found, digest & _ALL)


def check(
    match: Callable[[str], Sequence[int]], topics: Sequence[str], expected: Sequence[Sequence[int]]
) -> None:
    """Raise Wrong unless the topics find what is expected: `Answers`, as lists, the fewest topics
    first.

    The first of them is compared whatever that takes, the others where that is likely to take no
    more than a second.
    """
    rate = 0.0
    for wanted in expected:
        if rate * wanted[0] > _PATIENCE:
            return
        began = time.monotonic()
        found = answers(match, topics[: wanted[0]])
        if list(found) != list(wanted):
            raise WrongMatch(
                f"{found.topics} topics found {found.found:,} subscribers (digest {found.digest:x}), "
                f"not {wanted[1]:,} ({wanted[2]:x})"
            )
        rate = (time.monotonic() - began) / wanted[0]
