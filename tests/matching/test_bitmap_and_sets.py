"""Tests of `bitmap`, `bitmap-fixed`, `word-sets`, `word-cache` and `trie-backtracking`.

These matchers cache data about topics and words. The tests check the caches and their limits.
"""

from __future__ import annotations

import timeit
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matching import AMQP, MQTT, Grammar, Matcher
from matching.backtracking import Backtracking
from matching.bitmap import Bitmap
from matching.bitmap_fixed import BitmapFixed
from matching.naive import Naive
from matching.numbered import Numbered
from matching.trie import Trie
from matching.word_cache import WordCache
from matching.word_sets import WordSets
from tests.matching.words import GRAMMARS, patterns, topics

NEW: dict[str, Callable[[Grammar], Matcher[int]]] = {
    "bitmap": Bitmap,
    "bitmap-fixed": BitmapFixed,
    "bitmap-fixed of no topics": lambda grammar: BitmapFixed(grammar, capacity=0),
    "bitmap-fixed of 3 topics": lambda grammar: BitmapFixed(grammar, capacity=3),
    "word-sets": WordSets,
    "word-cache": WordCache,
    "word-cache of nothing": lambda grammar: WordCache(grammar, capacity=0),
    "word-cache of 8": lambda grammar: WordCache(grammar, capacity=8),
    "trie-backtracking": Backtracking,
}


@pytest.mark.parametrize("algorithm", NEW)
@pytest.mark.parametrize("grammar", GRAMMARS, ids=str)
@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_learned_state_stays_correct_while_patterns_change(
    algorithm: str, grammar: Grammar, data: st.DataObject
) -> None:
    matcher = NEW[algorithm](grammar)
    truth: Matcher[int] = Naive(grammar)
    lookup_topics = data.draw(st.lists(topics(grammar), min_size=1, max_size=4))
    changes = st.tuples(
        st.sampled_from(["subscribe", "subscribe", "unsubscribe"]),
        patterns(grammar),
        st.integers(1, 3),
    )
    for verb, pattern, subscriber in data.draw(st.lists(changes, max_size=15)):
        if verb == "subscribe":
            matcher.subscribe(pattern, subscriber)
            truth.subscribe(pattern, subscriber)
        else:
            matcher.unsubscribe(pattern, subscriber)
            truth.unsubscribe(pattern, subscriber)
        for topic in lookup_topics:
            assert sorted(matcher.match(topic)) == sorted(truth.match(topic)), topic
            assert matcher.matches_any(topic) == truth.matches_any(topic), topic
        sizes = matcher.stats()
        assert sizes.get("topics", 0) <= sizes.get("capacity", 0)
        assert sizes.get("kept", 0) <= sizes.get("capacity", 0)


def test_bitmap_fixed_learns_a_topic_at_its_first_lookup() -> None:
    matcher: Matcher[str] = BitmapFixed(AMQP)
    matcher.match("a.b")
    assert matcher.stats()["topics"] == 0, (
        "the matcher cached topics although it has no subscription"
    )
    matcher.subscribe("a.*", "x")
    for _ in range(2):
        assert matcher.match("a.b") == ["x"]
        assert matcher.match("b.b") == []
    assert matcher.stats()["topics"] == 2


def test_bitmap_fixed_knows_no_more_topics_than_its_capacity_and_answers_all() -> None:
    matcher: Matcher[str] = BitmapFixed(AMQP, capacity=2)
    matcher.subscribe("a.*", "x")
    for word in "bcde" * 2:
        assert matcher.match("a." + word) == ["x"]
        assert matcher.match("b." + word) == []
    assert matcher.stats()["topics"] == 2
    matcher.subscribe("#.e", "y")
    assert sorted(matcher.match("a.e")) == ["x", "y"]
    matcher.unsubscribe("a.*", "x")
    assert matcher.match("a.b") == []
    assert matcher.match("a.e") == ["y"]


def test_bitmap_fixed_forgets_rows_that_a_subscription_cannot_visit_in_time() -> None:
    matcher: Matcher[str] = BitmapFixed(MQTT, capacity=10_000)
    topics = [f"plant/line{index % 7}/machine{index}" for index in range(5_000)]
    matcher.subscribe("plant/line3/+", "narrow")
    for topic in topics:
        matcher.match(topic)

    matcher.subscribe("plant/+/machine49", "middle")
    assert matcher.stats()["topics"] == 5_000, "few nodes were visited, so the rows are changed"
    matcher.subscribe("plant/#", "wide")
    sizes = matcher.stats()
    assert sizes["topics"] == 0
    assert 4_900 < sizes["forgotten"] < 5_000, "a call frees a bounded number of rows"

    for number, topic in enumerate(topics, 1):
        expected = {"wide"}
        if "/line3/" in topic:
            expected.add("narrow")
        if topic.endswith("/machine49"):
            expected.add("middle")
        assert set(matcher.match(topic)) == expected
        sizes = matcher.stats()
        assert sizes["topics"] == number
        assert sizes["topics"] + sizes["forgotten"] <= 5_000
    assert matcher.stats()["forgotten"] == 0

    matcher.unsubscribe("plant/#", "wide")
    assert matcher.match("plant/line3/machine3") == ["narrow"]
    assert matcher.match("plant/line0/machine49") == ["middle"]


@pytest.mark.parametrize(("new", "learned"), [(BitmapFixed, "topics"), (WordCache, "words")])
def test_learned_state_is_reset_with_the_last_pattern(
    new: Callable[[Grammar], Matcher[str]], learned: str
) -> None:
    matcher = new(AMQP)
    fresh = matcher.stats()
    matcher.subscribe("a.*", "x")
    matcher.subscribe("*.b", "x")
    matcher.match("a.b")
    assert matcher.stats()[learned] > 0
    matcher.unsubscribe("a.*", "x")
    assert matcher.stats()[learned] > 0
    matcher.unsubscribe("*.b", "x")
    assert matcher.stats() == fresh


@pytest.mark.parametrize(
    "matcher", [BitmapFixed(AMQP, 2), WordCache(AMQP, 2)], ids=["bitmap-fixed", "word-cache"]
)
def test_a_snapshot_has_the_same_capacity(matcher: Matcher[str]) -> None:
    matcher.subscribe("a", "x")
    snapshot = matcher.snapshot()
    assert snapshot.match("a") == ["x"]
    assert snapshot.stats()["capacity"] == 2


def test_word_cache_keeps_a_set_per_word_up_to_its_capacity() -> None:
    matcher: Matcher[str] = WordCache(AMQP, capacity=6)
    matcher.subscribe("a.*", "x")
    matcher.subscribe("a.b", "y")
    assert sorted(matcher.match("a.b")) == ["x", "y"]
    assert (matcher.stats()["words"], matcher.stats()["kept"]) == (2, 6)
    assert matcher.match("a.c") == ["x"]
    assert (matcher.stats()["words"], matcher.stats()["kept"]) == (0, 0)
    assert matcher.match("a.c") == ["x"]
    assert (matcher.stats()["words"], matcher.stats()["kept"]) == (2, 5)


def test_word_cache_is_emptied_when_a_subscription_fills_it() -> None:
    matcher: Matcher[str] = WordCache(AMQP, capacity=4)
    matcher.subscribe("a.*", "x")
    assert matcher.match("a.b") == ["x"]
    assert matcher.stats()["kept"] == 4
    matcher.subscribe("*.b", "y")
    assert matcher.stats()["kept"] == 0
    assert sorted(matcher.match("a.b")) == ["x", "y"]


def test_word_cache_forgets_the_words_of_a_length_without_patterns() -> None:
    matcher: Matcher[str] = WordCache(AMQP)
    matcher.subscribe("a.b", "x")
    matcher.subscribe("a", "y")
    matcher.match("a.b")
    matcher.match("a")
    assert matcher.stats()["kept"] == 6
    matcher.unsubscribe("a.b", "x")
    assert (matcher.stats()["words"], matcher.stats()["kept"]) == (1, 2)


@pytest.mark.parametrize("new", [WordSets, WordCache])
def test_patterns_with_the_many_wildcard_stand_in_the_trie_beside(
    new: Callable[[Grammar], Matcher[str]],
) -> None:
    matcher = new(AMQP)
    for pattern in ("a.#", "#", "a.#.b", "*.b", "a.b"):
        matcher.subscribe(pattern, pattern)
    assert (
        matcher.stats()["subscriptions"],
        matcher.stats()["patterns"],
        matcher.stats()["fallback"],
    ) == (5, 5, 3)
    assert len(matcher.match("a.b")) == 5


def test_word_sets_keeps_no_empty_set() -> None:
    matcher: Matcher[str] = WordSets(AMQP)
    matcher.subscribe("a.*.c", "x")
    assert matcher.stats()["sets"] == 3
    matcher.subscribe("b.*.*", "x")
    assert matcher.stats()["sets"] == 5
    matcher.subscribe("b", "x")
    assert matcher.stats()["sets"] == 6
    matcher.unsubscribe("b.*.*", "x")
    matcher.unsubscribe("b", "x")
    assert matcher.stats()["sets"] == 3
    matcher.subscribe("a.b.c", "y")
    assert matcher.stats()["sets"] == 4
    matcher.unsubscribe("a.*.c", "x")
    assert matcher.match("a.b.c") == ["y"]
    assert matcher.stats()["sets"] == 3


@pytest.mark.parametrize("new", [Bitmap, BitmapFixed, WordSets, WordCache, Backtracking])
def test_a_hidden_topic_is_found_by_its_name_only(new: Callable[[Grammar], Matcher[str]]) -> None:
    matcher = new(MQTT)
    for filter_ in ("+/x", "$SYS/+", "$SYS/x", "#", "$SYS/#", "+/#"):
        matcher.subscribe(filter_, filter_)
    for _ in range(2):
        assert sorted(matcher.match("$SYS/x")) == ["$SYS/#", "$SYS/+", "$SYS/x"]
        assert sorted(matcher.match("SYS/x")) == ["#", "+/#", "+/x"]
    matcher.subscribe("+/+", "late")
    assert "late" not in matcher.match("$SYS/x")
    assert "late" in matcher.match("SYS/x")


@pytest.mark.parametrize("new", [Bitmap, BitmapFixed, WordSets, WordCache, Backtracking])
def test_words_known_separately_match_no_subscriber_together(
    new: Callable[[Grammar], Matcher[str]],
) -> None:
    matcher = new(AMQP)
    for pattern in ("forex.usd", "stock.nyse", "*.msft.*"):
        matcher.subscribe(pattern, pattern)
    for _ in range(2):
        assert matcher.match("forex.nyse") == []
        assert matcher.match("stock.usd") == []
        assert matcher.match("stock.nyse.nyse") == []
        assert matcher.match("stock.msft.nyse") == ["*.msft.*"]


@pytest.mark.parametrize("new", [Bitmap, BitmapFixed, WordSets, WordCache, Backtracking])
def test_the_empty_key_is_matched_by_patterns_of_no_word(
    new: Callable[[Grammar], Matcher[str]],
) -> None:
    matcher = new(AMQP)
    for pattern in ("", "#", "*", "*.#"):
        matcher.subscribe(pattern, pattern)
    for _ in range(2):
        assert sorted(matcher.match("")) == ["", "#"]
        assert matcher.matches_any("")
    matcher.unsubscribe("", "")
    matcher.unsubscribe("#", "#")
    assert matcher.match("") == []
    assert not matcher.matches_any("")


@pytest.mark.parametrize("new", [BitmapFixed, WordSets, WordCache, Backtracking])
def test_topics_far_deeper_than_the_stack_are_learned_and_freed(
    new: Callable[[Grammar], Matcher[str]],
) -> None:
    matcher = new(MQTT)
    deep = "/".join("a" * 10_000)
    wide = "/".join("+" * 10_000)
    matcher.subscribe(deep, "literal")
    matcher.subscribe(wide, "wild")
    matcher.subscribe(wide[:-1] + "#", "many")
    for _ in range(2):
        assert sorted(matcher.match(deep)) == ["literal", "many", "wild"]
    assert matcher.unsubscribe(deep, "literal")
    assert sorted(matcher.match(deep)) == ["many", "wild"]
    matcher.clear()
    assert matcher.match(deep) == []


def test_the_common_part_of_numbered_patterns_is_abstract() -> None:
    matcher: Numbered[str] = Numbered(AMQP)
    for lacking in (
        lambda: matcher.can_hold(["a"]),
        lambda: matcher.enter("a", ["a"], 0),
        lambda: matcher.leave("a", ["a"], 0),
        matcher.reset,
        lambda: matcher.accepting("a"),
    ):
        with pytest.raises(NotImplementedError):
            lacking()


def test_the_backtracking_walk_costs_more_with_each_many_wildcard_and_the_trie_does_not() -> None:
    topic = ".".join("a" * 24)
    times: dict[type[Trie[str]], list[float]] = {Backtracking: [], Trie: []}
    for new, taken in times.items():
        for wildcards in (1, 4):
            matcher = new(AMQP)
            matcher.subscribe(".".join(["#", "a"] * wildcards), "x")
            assert matcher.match(topic) == ["x"]
            taken.append(
                min(
                    timeit.repeat(
                        lambda matcher=matcher: matcher.match(topic),  # type: ignore[misc]
                        number=1,
                        repeat=3,
                    )
                )
            )
    # For 24 words and 4 wildcards, backtracking tries about 20,000 continuations instead of 25; the
    # trie visits only 4 times as many nodes.
    assert times[Backtracking][1] > 50 * times[Backtracking][0]
    assert times[Trie][1] < 50 * times[Trie][0]


def test_the_backtracking_walk_may_stop_at_the_first() -> None:
    matcher: Matcher[str] = Backtracking(AMQP)
    matcher.subscribe("#", "x")
    matcher.subscribe("a.#", "y")
    assert matcher.matches_any("a.b")
    assert not Backtracking[str](AMQP).matches_any("a.b")
