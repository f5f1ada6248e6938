"""Tests of eviction: the entries that a cache of limited size removes."""

from __future__ import annotations

from broker.eviction import evict_oldest


def test_the_entries_inserted_first_are_evicted_and_returned() -> None:
    cache = {name: name.upper() for name in "abcd"}
    assert evict_oldest(cache, 2) == [("a", "A"), ("b", "B")]
    assert evict_oldest(cache) == [("c", "C")]
    assert cache == {"d": "D"}


def test_an_entry_inserted_again_is_evicted_last() -> None:
    cache = dict.fromkeys("abc")
    cache["a"] = cache.pop("a")
    assert [name for name, _ in evict_oldest(cache, 2)] == ["b", "c"]


def test_a_cache_with_fewer_entries_than_asked_for_is_emptied() -> None:
    cache = {"a": 1}
    assert evict_oldest(cache, 5) == [("a", 1)]
    assert cache == {}
    assert evict_oldest(cache) == []
