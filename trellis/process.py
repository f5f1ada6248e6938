"""Memory, file descriptors and disk space of this process, from the operating system."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path
from typing import Final

_STATM: Final = Path("/proc/self/statm")
_FDS: Final = Path("/proc/self/fd") if Path("/proc/self/fd").exists() else Path("/dev/fd")


def resident_bytes() -> int:
    """Return the resident memory in bytes; on systems without /proc, its peak so far."""
    try:
        return int(_STATM.read_text().split()[1]) * resource.getpagesize()
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def memory_bytes() -> int:
    """Return the memory of this machine, or the limit of the container if less, in bytes."""
    whole = os.sysconf("SC_PHYS_PAGES") * resource.getpagesize()
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            return min(whole, int(Path(path).read_text()))
        except (OSError, ValueError):
            continue
    return whole


def open_descriptors() -> int:
    """Return the number of open file descriptors; 0 if it is unknown."""
    try:
        return len(os.listdir(_FDS))
    except OSError:
        return 0


def raise_descriptor_limit() -> int:
    """Raise the limit of open file descriptors as far as allowed. Return the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError):
            pass  # macOS has a lower limit that it does not report.
    return 1 << 20 if soft == resource.RLIM_INFINITY else soft


def free_disk_bytes(path: Path) -> int:
    """Return the free bytes on the disk of a directory; 0 if they cannot be determined."""
    try:
        disk = os.statvfs(path)
    except OSError:
        return 0
    return disk.f_bavail * disk.f_frsize
