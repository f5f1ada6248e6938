"""Starts and stops processes, and checks if brokers answer on their ports.

Linux only, because the module reads /proc.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

LOOPBACK: Final = "127.0.0.1"
#: Seconds between SIGTERM and SIGKILL.
GRACE: Final = 10.0
#: The limit of open files of a started process.
FILES: Final = 65_536
#: Lines of a failed process's log that are shown.
SHOWN: Final = 12


class Failed(Exception):
    """Raised if a program does not start, ends unexpectedly or gives no answer.

    The text names the program and the reason.
    """


def allow_files() -> None:
    """Raise this process's limit of open files, which started processes inherit, as far as the
    system permits.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # A limit above FILES would cost memory: Erlang allocates memory for the permitted files.
    wanted = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def free_ports(count: int) -> list[int]:
    """Return `count` unused ports on loopback."""
    listening = [socket.create_server((LOOPBACK, 0)) for _ in range(count)]
    ports = [int(each.getsockname()[1]) for each in listening]
    for each in listening:
        each.close()
    return ports


def _parents() -> dict[int, int]:
    """Return the identifier of the parent of every process, by the identifier of the process."""
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            status = _stat(int(entry))
            if status is not None:
                parents[int(entry)] = int(status[1])
    return parents


def _stat(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat after the name in parentheses: state, parent, ...

    Return None if the process does not exist.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def tree(root: int) -> list[int]:
    """Return the identifiers of the process `root` and all its descendants."""
    children: dict[int, list[int]] = {}
    for pid, parent in _parents().items():
        children.setdefault(parent, []).append(pid)
    pids = [root]
    for pid in pids:  # The list grows during the iteration.
        pids += children.get(pid, ())
    return pids


def first_words(
    command: Sequence[str | os.PathLike[str]], environment: Mapping[str, str] | None = None
) -> str:
    """Run a short command; return its output, stdout and stderr together.

    Raises Failed if the command cannot be started or takes more than a minute.
    """
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=60,
            check=False,
            text=True,
            errors="replace",
            env=None if environment is None else {**os.environ, **environment},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Failed(f"{os.fspath(command[0])}: {error}") from None
    return done.stdout.strip()


class Child:
    """A started process and its descendants. Its output goes to `log`."""

    def __init__(
        self,
        command: Sequence[str | os.PathLike[str]],
        directory: Path,
        environment: Mapping[str, str] | None = None,
        name: str = "",
    ) -> None:
        self.name = name or Path(command[0]).name
        self.log = directory / f"{self.name}.log"
        with self.log.open("wb") as log:
            try:
                # A separate session: Ctrl-C in the terminal reaches this program, which stops its
                # processes itself.
                self._process = subprocess.Popen(
                    command,
                    cwd=directory,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    env={**os.environ, **(environment or {})},
                )
            except OSError as error:
                raise Failed(f"{self.name}: {error}") from None

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """True if the process is running."""
        return self._process.poll() is None

    def log_end(self) -> str:
        """Return the last lines of the process's log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-SHOWN:])

    def wait_until(self, ready: Callable[[], bool], seconds: float) -> None:
        """Wait until `ready()` returns True.

        Raises Failed if the process ends, or if `ready()` is still False after `seconds`.
        """
        deadline = time.monotonic() + seconds
        while not ready():
            if not self.alive:
                raise Failed(
                    f"{self.name} ended with exit code {self._process.returncode}:\n"
                    f"{self.log_end()}"
                )
            if time.monotonic() > deadline:
                raise Failed(
                    f"{self.name} is still not ready after {seconds:.0f} s:\n{self.log_end()}"
                )
            time.sleep(0.02)

    def stop(self) -> None:
        """Stop the process and its descendants.

        The process gets SIGTERM, and SIGKILL if it has not ended after GRACE seconds. Then
        descendants that still run get SIGKILL.
        """
        below = [(pid, _birth(pid)) for pid in tree(self.pid)[1:]]
        if self.alive:
            self._process.terminate()
            try:
                self._process.wait(GRACE)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        for pid, birth in below:
            # This is still the same process, not a later process with the same id.
            if birth and _birth(pid) == birth:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue


def _birth(pid: int) -> str:
    """Return a process's start time in ticks since boot; "" if the process does not exist."""
    status = _stat(pid)
    return status[19] if status else ""


def _converses(port: int, words: bytes, answer: bytes) -> bool:
    try:
        with socket.create_connection((LOOPBACK, port), 1) as connection:
            connection.settimeout(1)
            connection.sendall(words)
            return connection.recv(len(answer)) == answer
    except OSError:
        return False


def speaks_mqtt(port: int) -> bool:
    """True if the port accepts an MQTT 3.1.1 client without a user name and password."""
    name = b"ready"
    return _converses(
        port,
        b"\x10\x11\x00\x04MQTT\x04\x02\x00\x3c\x00\x05" + name + b"\xe0\x00",
        b"\x20\x02\x00\x00",
    )


def speaks_amqp(port: int) -> bool:
    """True if the port answers AMQP's protocol header with connection.start (AMQP 0-9-1 section
    2.2.4).
    """
    return _converses(port, b"AMQP\x00\x00\x09\x01", b"\x01\x00\x00")
