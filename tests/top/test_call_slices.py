"""Tests of the pauses (rests) that the broker makes between slices of work for API calls."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trellis.http.slices import BURST, REST_SECONDS, SLICES, RestBudget


def test_a_single_call_works_without_a_rest_and_continuous_calls_rest_after_each_few_slices() -> (
    None
):
    budget = RestBudget()
    assert [budget.spend() for _ in range(BURST)] == [False] * (BURST - 1) + [True]
    assert [budget.spend() for _ in range(SLICES)] == [False] * (SLICES - 1) + [True]
    budget.add_idle(REST_SECONDS / 2)
    assert [budget.spend() for _ in range(SLICES)] == [False] * (SLICES - 1) + [True]


@given(st.lists(st.floats(0, 1), max_size=40))
def test_the_work_never_exceeds_its_share_of_the_time(idle: list[float]) -> None:
    """Check that the number of slices has a bound.

    The bound is BURST, plus SLICES for each rest, plus SLICES for each REST_SECONDS without calls.
    """
    budget = RestBudget()
    rests = slices = 0
    for seconds in idle:
        budget.add_idle(seconds)
        while not budget.spend():
            slices += 1
        slices, rests = slices + 1, rests + 1
        assert slices <= BURST + SLICES * (rests + sum(idle) / REST_SECONDS)
        assert 0 < budget.slices <= BURST
