"""A Debian system in a directory, with its own systemd as the first process."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from trellis.parent_process import end_with_parent

BOOT: Final = Path(__file__).with_name("boot.sh")
#: Longest wait in seconds: for the boot, for a command, and for a line of a log.
PATIENCE: Final = 120.0
#: The path of the commands in the system.
PATH: Final = "/usr/sbin:/usr/bin:/sbin:/bin"
#: Removes the control groups that the system has made. The argument is the name of the first one.
REMOVE_GROUPS: Final = """
groups=$(mktemp -d)
mount -t cgroup2 cgroup2 "$groups"
[ ! -d "$groups/$1" ] || find "$groups/$1" -depth -type d -exec rmdir {} +
umount "$groups"
rmdir "$groups"
"""


def can_boot() -> bool:
    """Return True if this process may make the namespaces and the mounts of a system."""
    names = ("mount", "pid", "net", "uts", "ipc", "cgroup", "fork")
    words = ["unshare", *(f"--{name}" for name in names), "mount", "-t", "cgroup2", "none", "/tmp"]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


class BootedSystem:
    """A system with its own processes, control groups, mounts and network (loopback only).

    `root` is a directory with a Debian that has systemd. Needs root's rights.
    """

    def __init__(self, root: Path) -> None:
        """Boot the system, and wait until systemd has started all services."""
        self._first_ends = -1
        self._group = f"trellis-test-{os.getpid()}"
        booted = root / "booted"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as reports:
            reports.bind(str(booted))
            self._process = subprocess.Popen(
                ["unshare", "--mount", "sh", str(BOOT), str(root), self._group],
                preexec_fn=end_with_parent,
                stdin=subprocess.DEVNULL,
            )
            try:
                self._wait_for_boot(reports)
            except BaseException:
                self.close()
                raise
        booted.unlink()
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        self._first = int(children.read_text())
        self._first_ends = os.pidfd_open(self._first)

    def _wait_for_boot(self, reports: socket.socket) -> None:
        exit_of_system = os.pidfd_open(self._process.pid)
        try:
            report = ""
            while "READY=1" not in report.split("\n"):
                ready, _, _ = select.select([reports.fileno(), exit_of_system], [], [], PATIENCE)
                assert reports.fileno() in ready, (
                    f"the system has not booted; its last report: {report!r}"
                )
                report = reports.recv(4096).decode()
        finally:
            os.close(exit_of_system)

    def _enter(self, *words: str) -> list[str]:
        """Return the command line that runs a command in the system."""
        inside = ("nsenter", f"--target={self._first}", "--all", "--root", "--wd")
        return [*inside, "env", "-i", f"PATH={PATH}", *words]

    def try_to(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the system, which may fail."""
        return subprocess.run(
            self._enter(*words), capture_output=True, text=True, timeout=PATIENCE, check=False
        )

    def run(self, *words: str) -> str:
        """Run a command in the system, check that it succeeds, and return its output."""
        done = self.try_to(*words)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout

    def properties(self, unit: str, *names: str) -> list[str]:
        """Return the values of properties of a unit, in the order of their `names`."""
        rows = self.run("systemctl", "show", unit, *(f"--property={name}" for name in names))
        values = dict(row.split("=", 1) for row in rows.splitlines())
        return [values[name] for name in names]

    def kill(self, unit: str, number: signal.Signals) -> None:
        """Send a signal to the main process of a unit."""
        [pid] = self.properties(unit, "MainPID")
        self.run("sh", "-c", f"kill -{int(number)} {pid}")

    @contextmanager
    def log(self, unit: str) -> Iterator[LogLines]:
        """Yield the lines that are added to the log of a unit from now on."""
        words = ("timeout", str(PATIENCE), "journalctl", "--follow", "--output=cat", "--unit", unit)
        process = subprocess.Popen(
            self._enter(*words, "--lines=1"), stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        try:
            process.stdout.readline()  # journalctl has begun to follow the log.
            yield LogLines(process.stdout)
        finally:
            # journalctl ends at its next line, or after PATIENCE; it is a child of nsenter.
            process.stdout.close()
            process.kill()
            process.wait()

    def close(self) -> None:
        """Kill all processes of the system, and remove its control groups."""
        self._end()
        remove = ("unshare", "--mount", "sh", "-euc", REMOVE_GROUPS, "sh", self._group)
        subprocess.run(remove, check=True)

    def _end(self) -> None:
        # The first process ends with unshare (--kill-child), after all others of its namespace.
        self._process.kill()
        self._process.wait()
        if self._first_ends >= 0:
            assert select.select([self._first_ends], [], [], PATIENCE)[0]
            os.close(self._first_ends)


class LogLines:
    """The lines of a log as they are written."""

    def __init__(self, lines: Iterator[str]) -> None:
        self._lines = lines

    def wait(self, text: str) -> None:
        """Read lines until one contains the text. Raises AssertionError if no line does."""
        passed = []
        for line in self._lines:
            passed.append(line)
            if text in line:
                return
        raise AssertionError(f"no line with {text!r} in {passed}")
