"""Tests of two matchers, `cstrie` and `snapshot`, for properties that `Matcher` does not require.

Snapshots are cheap, a change copies few nodes, and patterns may be deeper than Python's stack.
"""

from __future__ import annotations

import pytest

from matching import AMQP, MQTT, Matcher
from matching.cstrie import ConcurrentTrie
from matching.snapshot import Persistent
from tests.matching.concurrent.course import SteppedCell

Kind = type[ConcurrentTrie[str]] | type[Persistent[str]]

KINDS = [ConcurrentTrie, Persistent]


class CountedCell(SteppedCell[object]):
    """A cell whose class counts, in `created`, how many of its cells were created."""

    created = 0

    def __init__(self, value: object) -> None:
        super().__init__(value)
        CountedCell.created += 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_snapshot_makes_few_cells_and_so_does_the_next_change(kind: Kind) -> None:
    matcher = kind(AMQP, CountedCell)
    for number in range(500):
        matcher.subscribe(f"{number}.a.b", "x")
    CountedCell.created = 0
    snapshot = matcher.snapshot()
    assert matcher.subscribe("7.a.c", "y")
    assert matcher.unsubscribe("8.a.b", "x")
    assert CountedCell.created <= 32
    assert (len(snapshot), len(matcher)) == (500, 500)


@pytest.mark.parametrize("kind", KINDS)
def test_pairs_are_listed_as_they_were_at_the_first_step(kind: Kind) -> None:
    matcher = kind(AMQP)
    patterns = ["", "#", "*", "a.b", "a.*.#", "*.#.b", "a..b"]
    for pattern in patterns:
        matcher.subscribe(pattern, pattern)
    listed = []
    for pattern, subscriber in matcher.subscriptions():
        assert matcher.unsubscribe(pattern, subscriber)
        listed.append(pattern)
    assert sorted(listed) == sorted(patterns)
    assert matcher.stats() == kind(AMQP).stats()


@pytest.mark.parametrize("kind", KINDS)
def test_snapshots_of_every_version_are_kept(kind: Kind) -> None:
    matcher = kind(AMQP)
    versions: list[tuple[Matcher[str], set[str]]] = []
    inside: set[str] = set()
    for pattern in ["a.b", "a.#", "#.b", "a.b", "*.b", "a.#", "#.b", "", "a.*"]:
        if pattern in inside:
            matcher.unsubscribe(pattern, pattern)
        else:
            matcher.subscribe(pattern, pattern)
        inside ^= {pattern}
        versions.append((matcher.snapshot(), set(inside)))
    for snapshot, then in versions:
        assert {pattern for pattern, _ in snapshot.subscriptions()} == then
        assert set(snapshot.match("a.b")) == then - {""}
        assert snapshot.snapshot() is snapshot


@pytest.mark.parametrize("kind", KINDS)
def test_patterns_far_deeper_than_the_stack_are_held_and_freed(kind: Kind) -> None:
    matcher = kind(MQTT)
    levels = 65_535 // 2
    deep = "/".join("a" * levels)
    wide = "/".join("+" * levels)
    matcher.subscribe(deep, "literal")
    matcher.snapshot()
    matcher.subscribe(wide, "wild")
    matcher.subscribe(wide[:-1] + "#", "many")
    assert sorted(matcher.match(deep)) == ["literal", "many", "wild"]
    assert len(list(matcher.subscriptions())) == 3
    assert matcher.unsubscribe(deep, "literal")
    assert matcher.unsubscribe(wide, "wild")
    assert matcher.match(deep) == ["many"]
    matcher.clear()
    assert matcher.stats() == kind(MQTT).stats()


@pytest.mark.parametrize("kind", KINDS)
def test_nodes_of_patterns_that_are_gone_are_gone(kind: Kind) -> None:
    matcher = kind(AMQP)
    matcher.subscribe("a.b", "x")
    before = matcher.stats()
    patterns = ["a.b.c.*.#", "a.b.#.d", "a", "*.b", "#", "*.#.x"]
    for pattern in patterns:
        matcher.subscribe(pattern, "x")
    assert matcher.stats()["patterns"] == 7
    matcher.snapshot()
    for pattern in patterns:
        assert matcher.unsubscribe(pattern, "x")
    assert matcher.stats() == before


@pytest.mark.parametrize("kind", KINDS)
def test_many_wildcards_in_a_row_and_the_empty_key_are_found_as_defined(kind: Kind) -> None:
    patterns = [
        "a",
        "",
        "#.a.b",
        "#",
        "#.#",
        "#.#.#",
        "*.#",
        "#.*",
        "#.a",
        "#.a.#",
        "#.a.#.*",
        "a.#.#.b",
        "#.*.#.b",
        "#.#.b.#",
        "a.#.a",
    ]
    for known in range(1, len(patterns) + 1):
        matcher = kind(AMQP)
        for pattern in patterns[:known]:
            matcher.subscribe(pattern, pattern)
        for topic in ["", "a", "b", "a.b", "b.a", "a.a", "a.b.b", "b.a.b", "a.b.a.b", "."]:
            expected = sorted(
                pattern for pattern in patterns[:known] if AMQP.matches(pattern, topic)
            )
            assert sorted(matcher.match(topic)) == expected
            assert matcher.matches_any(topic) == bool(expected)
