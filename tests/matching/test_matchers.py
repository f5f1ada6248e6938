"""Tests of the contract of `Matcher` beyond the matching itself."""

from __future__ import annotations

import gc
import subprocess
import sys
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

import matching
from matching import AMQP, MQTT, NAMES, InvalidPattern, Matcher, create
from matching.uncompiled import mypyc_attr
from tests.matching.words import Listed


@pytest.fixture(params=NAMES)
def matcher(request: pytest.FixtureRequest) -> Matcher[object]:
    return create(request.param, AMQP)


def test_an_unknown_name_is_refused_with_the_known_ones_and_the_nearest() -> None:
    known = ", ".join(NAMES)
    with pytest.raises(
        ValueError,
        match=f"unknown matcher 'tire'; the nearest is trie; known matchers are {known}$",
    ):
        create("tire", AMQP)
    with pytest.raises(ValueError, match="the nearest is bitmap"):
        create("roaring-bitmaps", AMQP)


def test_subscribing_twice_is_once(matcher: Matcher[object]) -> None:
    assert matcher.subscribe("a.*", "x")
    assert not matcher.subscribe("a.*", "x")
    assert len(matcher) == 1
    assert matcher.unsubscribe("a.*", "x")
    assert not matcher.unsubscribe("a.*", "x")
    assert matcher.match("a.b") == []


@pytest.mark.parametrize("pattern", ["a.*", "a.#", "a.#.b", "b", "", "*", "#"])
def test_an_absent_pair_cannot_be_unsubscribed(matcher: Matcher[object], pattern: str) -> None:
    matcher.subscribe("a.*.c", "x")
    matcher.subscribe("a.#.b.c", "x")
    assert not matcher.unsubscribe(pattern, "x")
    assert (pattern, "x") not in matcher
    assert not matcher.unsubscribe("a.*.c", "y")
    assert not matcher.unsubscribe("a.#.b.c", "y")
    assert len(matcher) == 2


@pytest.mark.parametrize("pattern", ["a.*", "a.#.b"])
def test_several_subscribers_of_one_pattern_come_and_go(
    matcher: Matcher[object], pattern: str
) -> None:
    people = list(range(40))
    for person in people:
        assert matcher.subscribe(pattern, person)
        assert not matcher.subscribe(pattern, person)
    assert len(matcher) == 40
    while people:
        assert set(matcher.match("a.b")) == set(people)
        assert matcher.matches_any("a.b")
        assert matcher.unsubscribe(pattern, people.pop())
    assert matcher.match("a.b") == []
    assert not matcher.matches_any("a.b")


class Options(dict[str, int]):
    """A hashable dict, which can be a subscriber."""

    def __hash__(self) -> int:  # type: ignore[override] # that is the point
        return 1


def test_any_hashable_subscribes_even_none_and_false_values(matcher: Matcher[object]) -> None:
    everybody = [None, 0, "", (), frozenset[int](), float("nan"), Options(a=1)]
    for person in everybody:
        assert matcher.subscribe("a", person)
        assert ("a", person) in matcher
        assert not matcher.subscribe("a", person)
        assert matcher.match("a") == [person]
        assert matcher.unsubscribe("a", person)
    for person in everybody:
        matcher.subscribe("a", person)
    assert set(matcher.match("a")) == set(everybody)
    for person in reversed(everybody):
        assert matcher.unsubscribe("a", person)
    assert list(matcher.subscriptions()) == []


@pytest.mark.parametrize("last", [None, Options(a=1), "x"])
def test_any_of_several_subscribers_may_remain_last(matcher: Matcher[object], last: object) -> None:
    matcher.subscribe("a", last)
    matcher.subscribe("a", 1)
    assert matcher.unsubscribe("a", 1)
    assert matcher.match("a") == [last]
    assert list(matcher.subscriptions()) == [("a", last)]
    assert matcher.subscribe("a", 1)
    assert not matcher.subscribe("a", last)
    assert len(matcher) == 2


@pytest.mark.parametrize(
    "patterns", [("a.*", "a.#"), ("a.b", "*.b"), ("#.b", "a.#.b"), ("#.b", "*.b"), ("a.*", "#.*")]
)
def test_a_subscriber_of_two_patterns_is_found_once_until_both_are_gone(
    matcher: Matcher[object], patterns: tuple[str, str]
) -> None:
    for pattern in patterns:
        matcher.subscribe(pattern, "x")
    matcher.subscribe("a.*", "y")
    assert sorted(map(str, matcher.match("a.b"))) == ["x", "y"]
    matcher.unsubscribe(patterns[0], "x")
    assert sorted(map(str, matcher.match("a.b"))) == ["x", "y"]
    matcher.unsubscribe(patterns[1], "x")
    assert matcher.match("a.b") == ["y"]


@pytest.mark.parametrize("name", ["trie", "bitmap"])
def test_subscribers_of_several_patterns_are_counted(name: str) -> None:
    matcher: Matcher[str] = create(name, AMQP)
    for pattern in ("a", "b.*", "c.#.d"):
        matcher.subscribe(pattern, "x")
        matcher.subscribe(pattern, "only " + pattern)
    assert matcher.stats()["shared"] == 1
    matcher.unsubscribe("a", "x")
    assert matcher.stats()["shared"] == 1
    matcher.unsubscribe("c.#.d", "x")
    assert matcher.stats()["shared"] == 0
    matcher.subscribe("a", "x")
    assert matcher.stats()["shared"] == 1


def test_equal_subscribers_are_one(matcher: Matcher[object]) -> None:
    assert matcher.subscribe("a", (1, "x"))
    assert not matcher.subscribe("a", (1.0, "x"))
    assert matcher.unsubscribe("a", (1.0, "x"))


def test_an_unhashable_subscriber_is_rejected_without_a_change(matcher: Matcher[object]) -> None:
    fresh = matcher.stats()
    for pattern in ("a.*", "a.#.b"):
        with pytest.raises(TypeError):
            matcher.subscribe(pattern, [])
    assert matcher.stats() == fresh
    assert not matcher.matches_any("a.b")


def test_the_answer_belongs_to_the_caller(matcher: Matcher[object]) -> None:
    matcher.subscribe("a", "x")
    matcher.match("a").append("y")
    assert matcher.match("a") == ["x"]


def test_clearing_leaves_nothing(matcher: Matcher[object]) -> None:
    fresh = matcher.stats()
    for pattern in ("a.*", "a.#", "#.b", "b"):
        matcher.subscribe(pattern, "x")
        matcher.subscribe(pattern, "y")
    matcher.clear()
    assert len(matcher) == 0
    assert matcher.match("a.b") == []
    assert matcher.stats() == fresh
    assert matcher.subscribe("a.*", "x")


@pytest.mark.parametrize("name", NAMES)
def test_an_invalid_pattern_is_refused_and_leaves_nothing(name: str) -> None:
    matcher: Matcher[str] = create(name, MQTT)
    with pytest.raises(InvalidPattern):
        matcher.subscribe("a/#/b", "x")
    assert len(matcher) == 0
    assert not matcher.unsubscribe("a/#/b", "x")


def test_a_snapshot_cannot_be_changed(matcher: Matcher[object]) -> None:
    matcher.subscribe("a.#.b", "x")
    snapshot = matcher.snapshot()
    with pytest.raises(TypeError):
        snapshot.subscribe("b", "y")
    with pytest.raises(TypeError):
        snapshot.unsubscribe("a.#.b", "x")
    with pytest.raises(TypeError):
        snapshot.clear()
    assert snapshot.match("a.b") == ["x"]


def test_a_snapshot_outlives_its_matcher(matcher: Matcher[object]) -> None:
    matcher.subscribe("a.*", "x")
    snapshot = matcher.snapshot()
    again = snapshot.snapshot()
    matcher.unsubscribe("a.*", "x")
    matcher.subscribe("a.*", "y")
    for kept in (snapshot, again):
        assert kept.grammar is AMQP
        assert kept.match("a.b") == ["x"]
        assert kept.matches_any("a.b")
        assert ("a.*", "x") in kept
        assert ("a.*", "y") not in kept
        assert len(kept) == 1
        assert list(kept.subscriptions()) == [("a.*", "x")]
        assert kept.stats()["subscriptions"] == 1


def test_a_third_party_writes_four_methods_and_has_the_rest() -> None:
    matcher = Listed(AMQP)
    matcher.subscribe("a.*", 1)
    matcher.subscribe("#", 2)
    assert len(matcher) == 2
    assert ("#", 2) in matcher
    assert ("#", 1) not in matcher
    assert matcher.matches_any("a")
    assert matcher.stats() == {"subscriptions": 2}
    snapshot = matcher.snapshot()
    matcher.clear()
    assert len(matcher) == 0
    assert sorted(snapshot.match("a.b")) == [1, 2]


def test_the_contract_alone_matches_nothing() -> None:
    matcher: Matcher[str] = Matcher(AMQP)
    with pytest.raises(NotImplementedError):
        matcher.subscribe("a", "x")
    with pytest.raises(NotImplementedError):
        matcher.unsubscribe("a", "x")
    with pytest.raises(NotImplementedError):
        matcher.match("a")
    with pytest.raises(NotImplementedError):
        matcher.subscriptions()


def test_the_trie_forgets_the_nodes_of_patterns_that_are_gone() -> None:
    matcher: Matcher[str] = create("trie", AMQP)
    matcher.subscribe("a.b", "x")
    before = matcher.stats()
    for pattern in ("a.b.c.*.#", "a.b.#.d", "a", "*.b", "#"):
        matcher.subscribe(pattern, "x")
    assert matcher.stats() == {"subscriptions": 6, "patterns": 6, "nodes": 11, "shared": 1}
    for pattern in ("a.b.c.*.#", "a.b.#.d", "a", "*.b", "#"):
        matcher.unsubscribe(pattern, "x")
    assert matcher.stats() == before


def test_the_bitmap_uses_the_numbers_of_patterns_that_are_gone_again() -> None:
    matcher: Matcher[str] = create("bitmap", AMQP)
    for n in range(10):
        matcher.subscribe(f"{n}.*", "x")
    for n in range(0, 10, 2):
        matcher.unsubscribe(f"{n}.*", "x")
    assert matcher.stats()["free"] == 5
    for n in range(0, 10, 2):
        matcher.subscribe(f"*.{n}", "y")
    assert matcher.stats()["free"] == 0
    assert matcher.match("3.4") in (["x", "y"], ["y", "x"])


def test_the_bitmap_drops_the_rows_behind_its_longest_pattern() -> None:
    matcher: Matcher[str] = create("bitmap", AMQP)
    matcher.subscribe("a", "x")
    before = matcher.stats()
    matcher.subscribe("a.b.*.d.#", "x")
    assert matcher.stats()["positions"] > before["positions"]
    matcher.unsubscribe("a.b.*.d.#", "x")
    assert {**matcher.stats(), "free": 0} == before


def test_the_bitmap_counts_the_patterns_in_its_fallback_trie() -> None:
    matcher: Matcher[str] = create("bitmap", AMQP)
    for pattern in ("a.#", "#", "a.#.b", "#.b", "#.#"):
        matcher.subscribe(pattern, "x")
    stats = matcher.stats()
    assert (stats["subscriptions"], stats["patterns"], stats["fallback"]) == (5, 5, 3)


@pytest.mark.parametrize("name", ["trie", "bitmap"])
def test_patterns_far_deeper_than_the_stack_are_held_and_freed(name: str) -> None:
    matcher: Matcher[str] = create(name, MQTT)
    levels = 65_535 // 2
    deep = "/".join("a" * levels)
    wide = "/".join("+" * levels)
    matcher.subscribe(deep, "literal")
    matcher.subscribe(wide, "wild")
    matcher.subscribe(wide[:-1] + "#", "many")
    assert sorted(matcher.match(deep)) == ["literal", "many", "wild"]
    assert len(list(matcher.subscriptions())) == 3
    assert matcher.unsubscribe(deep, "literal")
    assert sorted(matcher.match(deep)) == ["many", "wild"]


def test_the_stand_in_for_the_compilers_decorator_changes_nothing() -> None:
    class Decorated:
        pass

    assert mypyc_attr(allow_interpreted_subclasses=True)(Decorated) is Decorated


def test_matching_runs_from_a_zip_without_other_packages(tmp_path: Path) -> None:
    source = Path(matching.__file__).parent
    with zipfile.ZipFile(tmp_path / "matching.zip", "w") as archive:
        for path in source.glob("*.py"):
            archive.write(path, f"matching/{path.name}")
    program = (
        "import sys; sys.path.insert(0, 'matching.zip')\n"
        "from matching import AMQP, create\n"
        "matcher = create('trie', AMQP)\n"
        "matcher.subscribe('a.#.b', 'x')\n"
        "print(matcher.match('a.b'), "
        "'mypy_extensions' in sys.modules, 'pyroaring' in sys.modules)\n"
    )
    # -S leaves site-packages out, so only the standard library can be imported.
    command = [sys.executable, "-I", "-S", "-c", program]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.stderr) == ("['x'] False False\n", "")


def test_many_subscribers_under_several_patterns_are_counted_in_parts() -> None:
    """Subscribe so many subscribers that the trie counts them in several dicts instead of one.

    A lookup must find each subscriber once, even after some of its patterns are removed.
    """
    trie: Matcher[str] = create("trie", AMQP)
    people = [f"person {number}" for number in range(20_000)]
    for person in people:
        trie.subscribe("a.*", person)
    for person in people[:100]:
        trie.subscribe("*.b", person)
    assert sorted(trie.match("a.b")) == sorted(people)
    assert trie.stats()["shared"] == 100
    for person in people[:100]:
        trie.unsubscribe("a.*", person)
    assert trie.stats()["shared"] == 0
    assert sorted(trie.match("a.b")) == sorted(people)
    for person in people[100:]:
        trie.unsubscribe("a.*", person)
    assert sorted(trie.match("a.b")) == sorted(people[:100])


def taken(name: str, pattern: Callable[[int], str], gone: bool = False) -> int:
    """Return the bytes that a matcher of the algorithm `name` uses for 1,000 patterns.

    With `gone`, unsubscribe all patterns except the first one before measuring.
    """
    matcher: Matcher[int] = create(name, AMQP)
    gc.collect()
    tracemalloc.start()
    for number in range(1_000):
        matcher.subscribe(pattern(number), number)
    for number in range(1 if gone else 1_000, 1_000):
        matcher.unsubscribe(pattern(number), number)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert matcher.match(pattern(0)) == [0]
    return size


@pytest.mark.parametrize("name", ["trie", "shapes", "dfa"])
def test_a_word_that_stands_in_many_patterns_is_held_once(name: str) -> None:
    assert (
        taken(name, lambda number: f"{number}.{number:060}")
        - taken(name, lambda number: f"{number}.{'0' * 60}")
        > 0.9 * 60 * 1_000
    )


@pytest.mark.parametrize("name", ["trie", "shapes", "dfa"])
def test_long_words_are_not_held_after_their_pattern(name: str) -> None:
    assert taken(name, lambda number: f"{number:0250}", gone=True) < 0.6 * 250 * 1_000


def test_words_may_be_more_than_are_held_once() -> None:
    trie: Matcher[int] = create("trie", AMQP)
    for number in range(40_000):
        trie.subscribe(f"{number}.x", number)
    assert all(trie.match(f"{number}.x") == [number] for number in range(0, 40_000, 99))
