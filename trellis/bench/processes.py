"""CPU time and memory of the broker's processes, read from /proc.

CPU time is the sum over all threads of /proc/PID/task/TID/schedstat: user and system time together,
in ns. This sum lacks the threads that have ended. /proc/PID/stat includes them, in ticks of 10 ms,
so the greater of both values is used. The share of system time always comes from /proc/PID/stat.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, NamedTuple

from trellis.bench.errors import Unreachable

_PROC: Final = Path("/proc")
_TICK: Final = os.sysconf("SC_CLK_TCK")
#: Largest excess of the ticks of /proc/PID/stat over schedstat that rounding explains, in
#: nanoseconds. A larger excess shows that a thread has ended.
_ROUNDING: Final = 30_000_000
_KIB: Final = 1024
#: Columns of /proc/PID/stat, counted behind the command's closing parenthesis.
_PARENT, _USER, _SYSTEM = 1, 11, 12


class Cpu(NamedTuple):
    """CPU time used so far: ns of each thread, and ticks of user and of system time."""

    threads: dict[tuple[int, int], int]
    user: int
    system: int

    def since(self, before: Cpu) -> Spent:
        """Return the CPU time used between the earlier reading `before` and this one."""
        ns = sum(after - before.threads.get(thread, 0) for thread, after in self.threads.items())
        user, system = self.user - before.user, self.system - before.system
        ticked = round((user + system) / _TICK * 1e9)
        if (
            not self.threads
            or before.threads.keys() - self.threads.keys()
            or ticked - ns > _ROUNDING
        ):
            ns = max(ns, ticked)
        return Spent(ns / 1e9, system / (user + system) if user + system else 0.0)


class Spent(NamedTuple):
    """CPU time in seconds, user and system together, and the share of system time (0 to 1)."""

    seconds: float
    system_share: float


class Memory(NamedTuple):
    """Resident memory in bytes: the present value, and the peak since `reset_peak`."""

    now: int
    peak: int


class Processes:
    """The broker's processes. With `children`, each reading includes their present descendants."""

    def __init__(self, pids: list[int], children: bool = False) -> None:
        if pids and not (_PROC / "self" / "stat").exists():
            raise Unreachable(
                "--pid: the load tool reads CPU time and memory from /proc, which this system "
                "does not have; leave --pid out"
            )
        for pid in pids:
            if not (_PROC / str(pid)).exists():
                raise Unreachable(
                    f"--pid: the process {pid} does not exist; give a process of the broker"
                )
        self._roots = pids
        self._children = children

    def __bool__(self) -> bool:
        return bool(self._roots)

    @property
    def pids(self) -> list[int]:
        """The process identifiers; with `children`, also of the present descendants."""
        if not self._children:
            return list(self._roots)
        below: dict[int, list[int]] = {}
        for entry in _PROC.iterdir():
            if entry.name.isdigit() and (columns := _stat(entry)):
                below.setdefault(int(columns[_PARENT]), []).append(int(entry.name))
        pids = list(self._roots)
        for pid in pids:  # Children that the loop appends are visited, too.
            pids += [child for child in below.get(pid, ()) if child not in pids]
        return pids

    def cpu(self) -> Cpu:
        """Return the CPU time used so far. Raises Unreachable if a given process has ended."""
        threads: dict[tuple[int, int], int] = {}
        user = system = 0
        for pid in self.pids:
            columns = _stat(_PROC / str(pid))
            if not columns:
                if pid in self._roots:
                    raise Unreachable(f"the broker's process {pid} has ended")
                continue
            user += int(columns[_USER])
            system += int(columns[_SYSTEM])
            for task in _entries(_PROC / str(pid) / "task"):
                figures = _read(task / "schedstat").split()
                if figures:
                    threads[pid, int(task.name)] = int(figures[0])
        return Cpu(threads, user, system)

    def reset_peak(self) -> None:
        """Set the peak of each process's memory to its present value, if the system allows it.

        See clear_refs in proc(5).
        """
        for pid in self.pids:
            try:
                (_PROC / str(pid) / "clear_refs").write_text("5")
            except OSError:
                pass

    def memory(self) -> Memory:
        """Return the resident memory of all processes together.

        A page that several processes share is counted once for each of them.
        """
        now = peak = 0
        for pid in self.pids:
            for line in _read(_PROC / str(pid) / "status").splitlines():
                if line.startswith("VmRSS:"):
                    now += int(line.split()[1]) * _KIB
                elif line.startswith("VmHWM:"):
                    peak += int(line.split()[1]) * _KIB
        return Memory(now, peak)


def _read(path: Path) -> str:
    """Return a file of /proc, "" if its process or thread has ended."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _entries(path: Path) -> list[Path]:
    try:
        return list(path.iterdir())
    except OSError:
        return []


def _stat(process: Path) -> list[str]:
    """Return the columns of /proc/PID/stat after the command; [] if the process has ended.

    The command may contain blanks and parentheses, so the columns begin after the last `)`.
    """
    return _read(process / "stat").rpartition(")")[2].split()
