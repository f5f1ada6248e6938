"""What the operating system says of this process: memory and descriptors."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path
from typing import Final

_STATM: Final = Path("/proc/self/statm")
_FDS: Final = Path("/proc/self/fd") if Path("/proc/self/fd").exists() else Path("/dev/fd")


def resident_bytes() -> int:
    """Octets of memory in use (where there is no /proc: the most that ever was)."""
    try:
        return int(_STATM.read_text().split()[1]) * resource.getpagesize()
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def memory_bytes() -> int:
    """Octets of memory of this machine, or of the container that we are in."""
    whole = os.sysconf("SC_PHYS_PAGES") * resource.getpagesize()
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            return min(whole, int(Path(path).read_text()))
        except (OSError, ValueError):
            continue
    return whole


def open_descriptors() -> int:
    """Open file descriptors."""
    try:
        return len(os.listdir(_FDS))
    except OSError:
        return 0


def raise_descriptor_limit() -> int:
    """Take as many file descriptors as we may have; returns how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError):
            pass  # macOS has a lower limit of its own that it does not tell.
    return 1 << 20 if soft == resource.RLIM_INFINITY else soft


def free_disk_bytes(path: Path) -> int:
    """Octets free for us on the disk of a directory; none where there is no such directory any
    more.
    """
    try:
        found = os.statvfs(path)
    except OSError:
        return 0
    return found.f_bavail * found.f_frsize
