"""Memory, file descriptors and disk space of this process, from the operating system."""

from __future__ import annotations

import os
import re
import resource
import sys
from pathlib import Path
from typing import Final

_STATM: Final = "/proc/self/statm"
_MOUNTS: Final = Path("/proc/self/mountinfo")
#: Pattern of a space, tab, line feed or backslash as _MOUNTS escapes it, such as \040.
_OCTAL: Final = re.compile(rb"\\(0[0-7]{2}|134)")
#: File systems on which writing into allocated space may find the disk full.
_COPY_ON_WRITE: Final = ("btrfs", "zfs", "bcachefs", "nilfs2")
_FDS: Final = Path("/proc/self/fd") if Path("/proc/self/fd").exists() else Path("/dev/fd")

#: The file descriptor of the open file _STATM; -1 before its first use.
_statm = -1


def resident_bytes() -> int:
    """Return the resident memory in bytes; on systems without /proc, its peak so far."""
    global _statm
    try:
        if _statm < 0:
            # The file stays open, so that memory can be read even when no descriptor is left.
            _statm = os.open(_STATM, os.O_RDONLY | os.O_CLOEXEC)
        return int(os.pread(_statm, 200, 0).split()[1]) * resource.getpagesize()
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def memory_bytes() -> int:
    """Return the memory of this machine, or the limit of the container if it is lower, in bytes."""
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


def copies_on_write(path: Path) -> bool:
    """True if the file system of a directory copies on write, or if its type is unknown.

    Such a file system cannot reserve space for overwriting a file.
    """
    try:
        lines = _MOUNTS.read_bytes().splitlines()
        resolved = path.resolve()
    except OSError:
        return True
    best, kind = -1, b""
    for line in lines:
        fields, _, rest = line.partition(b" - ")
        # A space in a path is written as \040.
        name = _OCTAL.sub(lambda octal: bytes([int(octal[1], 8)]), fields.split()[4])
        mount = Path(os.fsdecode(name))
        depth = len(mount.parts)
        if depth >= best and resolved.is_relative_to(mount):
            best, kind = depth, rest.split()[0]
    return not kind or os.fsdecode(kind) in _COPY_ON_WRITE


def free_disk_bytes(path: Path) -> int:
    """Return the free bytes on the disk of a directory; 0 if they cannot be determined."""
    try:
        disk = os.statvfs(path)
    except OSError:
        return 0
    return disk.f_bavail * disk.f_frsize
