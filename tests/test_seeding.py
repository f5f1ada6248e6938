"""Tests that a property test's use of the module `random` is the same in each run."""

from __future__ import annotations

import random

from hypothesis import control, given
from hypothesis import strategies as st
from hypothesis.internal import entropy

from tests.conftest import PROFILE


def test_each_example_starts_with_the_same_random_numbers_and_leaves_others() -> None:
    first: list[float] = []

    @given(st.integers())
    def example(number: int) -> None:
        first.append(random.random())

    example()
    assert len(first) > 10 and len(set(first)) == 1
    assert random.random() != first[0]


def test_the_functions_of_hypothesis_are_replaced_for_fixed_examples_only() -> None:
    for function in (control.deprecate_random_in_strategy, entropy.get_seeder_and_restorer):
        assert (function.__module__ == "tests.seeding") == (PROFILE == "fixed")
