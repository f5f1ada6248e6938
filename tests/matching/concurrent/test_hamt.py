"""Compares the persistent map with a dict that is copied for every change."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matching.hamt import Hamt, only


class Key:
    """A key with a chosen hash."""

    def __init__(self, number: int, of_hash: int) -> None:
        self.number = number
        self.of_hash = of_hash

    def __hash__(self) -> int:
        return self.of_hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and other.number == self.number

    def __repr__(self) -> str:
        return f"Key({self.number}, {self.of_hash})"


def pairs(some: Hamt[Key, int] | None) -> dict[Key, int]:
    content: dict[Key, int] = {}
    for leaf in () if some is None else some.leaves():
        assert not content.keys() & leaf.keys()
        content |= leaf
    return content


def many(keys: list[Key]) -> Hamt[Key, int]:
    some = only(keys[0], 0)
    for value, key in enumerate(keys[1:], 1):
        some = some.put(key, value)
    return some


#: Hashes that are spread, share their low bits, are equal, or are negative.
HASHES: list[Callable[[int], int]] = [
    lambda n: n,
    lambda n: n << 12,
    lambda n: 7,
    lambda n: -n,
    lambda n: n % 3,
]


@pytest.mark.parametrize("number", [1, 64, 65, 300, 1_100])
@pytest.mark.parametrize("spread", range(len(HASHES)))
def test_added_pairs_are_present_and_removed_pairs_are_not(spread: int, number: int) -> None:
    keys = [Key(n, HASHES[spread](n)) for n in range(number)]
    full = many(keys)
    assert len(full) == number
    assert pairs(full) == {key: value for value, key in enumerate(keys)}
    assert [full.get(key) for key in keys] == list(range(number))
    assert full.get(Key(number, HASHES[spread](number))) is None
    rest: Hamt[Key, int] | None = full
    for left, key in enumerate(keys, 1):
        assert rest is not None
        rest = rest.without(key)
        assert (0 if rest is None else len(rest)) == number - left
    assert rest is None
    assert len(pairs(full)) == number


def test_a_map_that_shrank_is_as_small_as_one_that_never_grew() -> None:
    keys = [Key(n, n) for n in range(1_000)]
    some = many(keys)
    assert len(some.leaves()) == 16
    for key in keys[20:]:
        fewer = some.without(key)
        assert fewer is not None
        some = fewer
    assert len(some.leaves()) == 1


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 150), st.integers(0, 5)), max_size=250),
    st.sampled_from([2, 1 << 20, 1 << 40]),
)
def test_a_map_equals_a_dict_and_earlier_versions_do_not_change(
    steps: list[tuple[bool, int, int]], hashes: int
) -> None:
    some: Hamt[Key, int] | None = None
    truth: dict[Key, int] = {}
    versions: list[tuple[Hamt[Key, int] | None, dict[Key, int]]] = []
    for put, number, value in steps:
        key = Key(number, number * 0x9E3779B97F4A7C15 % hashes)
        if put:
            some = only(key, value) if some is None else some.put(key, value)
            truth[key] = value
        elif some is not None and key in truth:
            some = some.without(key)
            del truth[key]
        assert (None if some is None else some.get(key)) == truth.get(key)
        versions.append((some, dict(truth)))
    for version, then in versions:
        assert pairs(version) == then
        assert (0 if version is None else len(version)) == len(then)
