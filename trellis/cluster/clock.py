"""The clock that measures the lease of the active node, and the silence after which it is replaced.

The clock keeps running while the machine is suspended.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Final

try:
    from trellis.cluster import boot_clock
except ImportError:  # Trellis is installed without compiled modules.
    _boot_clock: Callable[[], float] = partial(
        time.clock_gettime, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    )
else:
    _boot_clock = boot_clock.boot_seconds

#: Return the time since the machine was started, in seconds. The event loop calls this function
#: before each flush, so the function is C code without a Python function around it. The function
#: in boot_clock.c takes a third of the instructions of `time.clock_gettime`.
boot_seconds: Final = _boot_clock


def wall_ms() -> int:
    """Return the wall clock in ms of Unix time."""
    return int(time.time() * 1000)
