"""Tests of the load generator's histogram of durations.

A percentile of the histogram is at most 0.4 % above the exact percentile of the durations.
"""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trellis.bench.latency import Histogram

durations = st.lists(st.integers(0, 1 << 40) | st.integers(0, 3_000), min_size=1, max_size=60)


@given(durations, st.sampled_from([0.0, 0.5, 0.9, 0.99, 0.999, 1.0]))
def test_percentiles_are_close(values: list[int], share: float) -> None:
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    exact = sorted(values)[max(1, math.ceil(share * len(values))) - 1]
    assert exact <= histogram.percentile(share) <= exact * (1 + 1 / 256)
    assert (
        histogram.maximum == max(values)
        and histogram.total == sum(values)
        and histogram.count == len(values)
    )


def test_extremes() -> None:
    histogram = Histogram()
    assert histogram.percentile(0.5) == 0
    histogram.add(-5)
    assert histogram.percentile(1.0) == 0
    histogram.add(1 << 62)
    assert histogram.percentile(1.0) == histogram.maximum == 1 << 62


@pytest.mark.parametrize("value", [511, 512, 513, 1_023, 1_024, 1 << 20, (1 << 20) - 1])
def test_edges_of_buckets(value: int) -> None:
    histogram = Histogram()
    histogram.add(value)
    histogram.add(value * 4)
    assert value <= histogram.percentile(0.5) <= value * (1 + 1 / 256)
