"""The C library's heap: gives freed memory back to the operating system, in a thread.

glibc keeps freed memory for later allocations, so an emptied queue of 1 GB leaves a process of 1 GB
until `malloc_trim` is called. That call locks the heap: an allocation above 1 KB in the event loop
waits until it is over, 0.08 ms for each MB given back (docs/performance.md). So it is called only
after much was freed, and not often. On musl and macOS, which have no `malloc_trim`, nothing is
done.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Final

#: Bytes that must have been freed since the last trim for the next one.
TRIM_BYTES: Final = 64 << 20
#: Least number of seconds between two trims.
TRIM_INTERVAL: Final = 10.0


class _MallocInfo(ctypes.Structure):
    """The result of glibc's mallinfo2()."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    ]


class HeapTrimmer:
    """Gives freed memory back to the operating system. Both methods run in a thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        library = ctypes.CDLL(None)
        self._trim: Callable[[int], int] | None = getattr(library, "malloc_trim", None)
        self._info: Callable[[], _MallocInfo] | None = None
        info = getattr(library, "mallinfo2", None)
        if info is not None:  # glibc has it since 2.33.
            info.restype = _MallocInfo
            self._info = info
        self._clock = clock
        #: Free bytes of the heap that are known to be given back, or to be in use.
        self._least_free = 0
        self._trimmed_at = clock() - TRIM_INTERVAL
        #: Number of trims, their total duration, and that of the longest one, in seconds.
        self.trims = 0
        self.trim_seconds = 0.0
        self.longest_trim = 0.0

    @property
    def due(self) -> bool:
        """True if TRIM_INTERVAL has passed since the last trim, and a trim is possible."""
        return self._trim is not None and self._clock() - self._trimmed_at >= TRIM_INTERVAL

    def free_bytes(self) -> int:
        """Return the free bytes of the heap, given back or not; 0 if the C library cannot say."""
        return 0 if self._info is None else int(self._info().fordblks)

    def trim_if_worthwhile(self) -> bool:
        """Trim the heap if TRIM_BYTES were freed since the last trim. Return True if it did."""
        free = self.free_bytes()
        # Memory that was given back and is used again lowers `free`: then freeing it counts anew.
        self._least_free = min(self._least_free, free)
        if not self.due or free - self._least_free < TRIM_BYTES:
            return False
        self.trim()
        return True

    def trim(self) -> None:
        """Give all freed memory back to the operating system."""
        if self._trim is None:
            return
        began = self._clock()
        self._trim(0)
        self._trimmed_at = self._clock()
        seconds = self._trimmed_at - began
        self.trims += 1
        self.trim_seconds += seconds
        self.longest_trim = max(self.longest_trim, seconds)
        self._least_free = self.free_bytes()
