"""The clock that measures the lease of the active node, and the silence after which it is replaced.

The clock keeps running while the machine is suspended.
"""

from __future__ import annotations

import time

_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boot_seconds() -> float:
    """Return the time since the machine was started, in seconds."""
    return time.clock_gettime(_BOOTTIME)


def wall_ms() -> int:
    """Return the wall clock in ms of Unix time."""
    return int(time.time() * 1000)
