"""The C library's heap: gives freed memory back to the operating system, in a thread.

glibc keeps freed memory for later allocations. So a process with an emptied queue of 1 GB keeps its
size until `malloc_trim` is called.

`malloc_trim` locks the heap: an allocation above 1 KB in the event loop waits until the call is
over, 0.08 ms for each MB given back (docs/performance.md). So `malloc_trim` is called only after
much memory was freed, and not often. `mallinfo2`, which returns the size of the free memory, also
locks the heap (50 ms for 750,000 free blocks), and is called rarely, too. On musl and macOS, which
have no `malloc_trim`, nothing is done.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Final

from trellis import process

#: Bytes that must have been freed since the last trim before the heap is trimmed again.
TRIM_BYTES: Final = 64 << 20
#: Shortest time in seconds between two trims.
TRIM_INTERVAL: Final = 10.0
#: Shortest time between two measurements of the heap (`_look`), as a multiple of the duration of
#: the last measurement.
LOOK_FACTOR: Final = 1_000
#: Parameters of mallopt(), and their values: the largest free end of the heap that `free` does not
#: give back, and the size from which a block of memory gets pages of its own. With the defaults,
#: one call of `free` in the event loop can give back the whole memory of a purged queue, 40 ms for
#: 0.9 GB. The second value is the largest that glibc chooses by itself; without it, glibc would use
#: 128 KiB.
_TRIM_THRESHOLD: Final = (-1, (1 << 31) - 1)
_MMAP_THRESHOLD: Final = (-3, 32 << 20)


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
    """Gives freed memory back to the operating system.

    The methods block, so call them in a thread.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        library = ctypes.CDLL(None)
        self._trim: Callable[[int], int] | None = getattr(library, "malloc_trim", None)
        self._info: Callable[[], _MallocInfo] | None = None
        info = getattr(library, "mallinfo2", None)
        if info is not None:  # glibc has mallinfo2 since 2.33.
            info.restype = _MallocInfo
            self._info = info
        if self._trim is not None:
            for parameter, value in (_TRIM_THRESHOLD, _MMAP_THRESHOLD):
                library.mallopt(parameter, value)
        self._clock = clock
        #: The smallest difference seen between resident memory and the allocated part of the heap,
        #: in bytes: memory outside the heap, and free memory that a trim does not give back.
        self._least_idle = self._idle_and_free()[0]
        self._look_again_at = clock()
        #: Number of measurements of the heap (`_look`).
        self.looks = 0
        self._trimmed_at = clock() - TRIM_INTERVAL
        #: Number of trims; then, in seconds, the total duration of all trims and measurements, and
        #: the duration of the longest trim or measurement.
        self.trims = 0
        self.trim_seconds = 0.0
        self.longest_trim = 0.0

    @property
    def due(self) -> bool:
        """True if the heap can be trimmed, and TRIM_INTERVAL has passed since the last trim."""
        return self._trim is not None and self._clock() - self._trimmed_at >= TRIM_INTERVAL

    def _idle_and_free(self) -> tuple[int, int]:
        """Return two sizes in bytes: memory outside the allocated heap, and the free heap.

        The first size is the resident memory of the process without the allocated part of the heap.
        The free heap includes pages that were given back already. Both sizes are 0 if the C library
        does not report them.
        """
        if self._info is None:
            return 0, 0
        info = self._info()
        return process.resident_bytes() - info.uordblks - info.hblkhd, int(info.fordblks)

    def _look(self) -> int:
        """Measure the heap. Return an estimate of the bytes that a trim would give back."""
        began = self._clock()
        idle, free = self._idle_and_free()
        self.looks += 1
        seconds = self._note_duration(began)
        self._look_again_at = began + max(TRIM_INTERVAL, LOOK_FACTOR * seconds)
        self._least_idle = min(self._least_idle, idle)
        return min(idle - self._least_idle, free)

    def _note_duration(self, began: float) -> float:
        seconds = self._clock() - began
        self.trim_seconds += seconds
        self.longest_trim = max(self.longest_trim, seconds)
        return seconds

    def trim_if_worthwhile(self) -> bool:
        """Trim the heap if TRIM_BYTES were freed since the last trim.

        Return True if the heap was trimmed.
        """
        if not self.due or self._clock() < self._look_again_at or self._look() < TRIM_BYTES:
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
        self._note_duration(began)
        self.trims += 1
        self._least_idle = self._idle_and_free()[0]
