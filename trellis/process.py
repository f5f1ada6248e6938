"""Memory, file descriptors and disk space of this process, from the operating system."""

from __future__ import annotations

import os
import re
import resource
import sys
from pathlib import Path
from typing import Final

_STATM: Final = "/proc/self/statm"
#: The control groups of this process: lines such as `0::/system.slice/trellis.service`.
_CGROUP: Final = Path("/proc/self/cgroup")
_MOUNTS: Final = Path("/proc/self/mountinfo")
#: Pattern of a space, tab, line feed or backslash as _MOUNTS escapes it, such as \040.
_OCTAL: Final = re.compile(rb"\\(0[0-7]{2}|134)")
#: File systems on which writing into allocated space may find the disk full.
_COPY_ON_WRITE: Final = ("btrfs", "zfs", "bcachefs", "nilfs2")
_FDS: Final = Path("/proc/self/fd") if Path("/proc/self/fd").exists() else Path("/dev/fd")

#: The file descriptor of the open file _STATM; -1 before its first use.
_statm = -1


def resident_bytes() -> int:
    """Return the resident memory in bytes; on systems without /proc, the highest value so far."""
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
    """Return the memory that this process may use, in bytes.

    The result is the memory of the machine, or the lowest limit of the control groups of this
    process. A container or a service (`MemoryMax` of systemd) sets such limits.
    """
    try:
        groups = _CGROUP.read_text()
    except OSError:
        groups = ""
    whole = os.sysconf("SC_PHYS_PAGES") * resource.getpagesize()
    return min([whole, *memory_limits(Path("/sys/fs/cgroup"), groups)])


def memory_limits(root: Path, groups: str) -> list[int]:
    """Return the memory limits, in bytes, that control groups set for a process.

    `root` is the directory of the control groups, and `groups` is the text of the process's
    /proc/PID/cgroup. In version 2 of control groups, each group is a directory with a file for its
    limit; the limit also applies to the groups below it.
    """
    own = [line.removeprefix("0::/") for line in groups.splitlines() if line.startswith("0::/")]
    files = [root / "memory" / "memory.limit_in_bytes"]
    names = Path(own[0] if own else "")
    files += [root / above / "memory.max" for above in (names, *names.parents)]
    limits = []
    for file in files:
        try:
            limits.append(int(file.read_text()))
        except (OSError, ValueError):  # The file is absent, or has `max`: no limit.
            continue
    return limits


def open_descriptors() -> int:
    """Return the number of open file descriptors; 0 if the system does not tell the number."""
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
