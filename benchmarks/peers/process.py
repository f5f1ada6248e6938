"""Which processes have we started, what do they use, and how do they end?

Linux only: what a process uses is read from /proc.
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
#: Seconds that a process may take to end after SIGTERM, before SIGKILL.
GRACE: Final = 10.0
#: Open files of a process that we start.
FILES: Final = 65_536
#: Lines of its log that are shown of a process which failed.
SHOWN: Final = 12


class Failed(Exception):
    """A process did not do what it was started for. Says which, and why."""


def allow_files() -> None:
    """Let processes that we start have many connections, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # No more than this: Erlang sets aside memory for as many as there may be.
    wanted = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def free_ports(count: int) -> list[int]:
    """Ports on loopback that nobody listens on now."""
    listening = [socket.create_server((LOOPBACK, 0)) for _ in range(count)]
    ports = [int(each.getsockname()[1]) for each in listening]
    for each in listening:
        each.close()
    return ports


def _parents() -> dict[int, int]:
    """Every process's parent."""
    found = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            status = _stat(int(entry))
            if status is not None:
                found[int(entry)] = int(status[1])
    return found


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat that follow the name in parentheses: state, parent, ..."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def tree(root: int) -> list[int]:
    """`root` and all processes below it."""
    children: dict[int, list[int]] = {}
    for pid, parent in _parents().items():
        children.setdefault(parent, []).append(pid)
    found = [root]
    for pid in found:  # grows while it is read
        found += children.get(pid, ())
    return found


def first_words(
    command: Sequence[str | os.PathLike[str]], environment: Mapping[str, str] | None = None
) -> str:
    """What a short command prints, stdout and stderr together. Raises Failed."""
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
    """A process that we started, with those below it. Its output goes to `log`."""

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
                # A session of its own: Ctrl-C in the terminal reaches us, and we end our processes
                # ourselves.
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
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def said(self) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-SHOWN:])

    def wait_until(self, ready: Callable[[], bool], seconds: float) -> None:
        """Return as soon as `ready()`. Raises Failed when the process ends, or after `seconds`."""
        deadline = time.monotonic() + seconds
        while not ready():
            if not self.alive:
                raise Failed(
                    f"{self.name} ended with exit code {self._process.returncode}:\n{self.said()}"
                )
            if time.monotonic() > deadline:
                raise Failed(f"{self.name} is not ready after {seconds:.0f} s:\n{self.said()}")
            time.sleep(0.02)

    def stop(self) -> None:
        """End the process and whatever is below it: SIGTERM, and after GRACE seconds SIGKILL."""
        below = [(pid, _birth(pid)) for pid in tree(self.pid)[1:]]
        if self.alive:
            self._process.terminate()
            try:
                self._process.wait(GRACE)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        for pid, birth in below:
            if birth and _birth(pid) == birth:  # the same process, not a later one with its number
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue


def _birth(pid: int) -> str:
    """When the process began, in ticks since boot; empty if there is none."""
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
    """Does it accept an MQTT 3.1.1 client without a name and a password?"""
    name = b"ready"
    return _converses(
        port,
        b"\x10\x11\x00\x04MQTT\x04\x02\x00\x3c\x00\x05" + name + b"\xe0\x00",
        b"\x20\x02\x00\x00",
    )


def speaks_amqp(port: int) -> bool:
    """Does it answer AMQP's protocol header with connection.start (AMQP 0-9-1 section 2.2.4)?"""
    return _converses(port, b"AMQP\x00\x00\x09\x01", b"\x01\x00\x00")
