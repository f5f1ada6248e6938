"""Test the clock of the lease, uncompiled and compiled: the compiled clock is C code of its own."""

from __future__ import annotations

import time

from trellis.cluster.clock import boot_seconds


def test_the_clock_counts_the_seconds_since_the_machine_was_started() -> None:
    for _ in range(1_000):
        before = time.clock_gettime(time.CLOCK_BOOTTIME)
        read = boot_seconds()
        after = time.clock_gettime(time.CLOCK_BOOTTIME)
        assert type(read) is float
        assert before <= read <= after
