"""Defines the base class of all peers, and a running broker."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Final

from peers.process import LOOPBACK, Child, Failed
from peers.workloads import Case

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parent.parent
SYSTEM: Final = ("/usr/sbin", "/usr/local/sbin")


@dataclass(frozen=True)
class Tools:
    """The paths of programs that a package manager does not put on PATH.

    `installed` is the directory that `install.sh` fills; `trellis` is the command of an installed
    broker, or None.
    """

    installed: Path = HERE / ".tools"
    trellis: Path | None = None

    def program(self, name: str) -> Path | None:
        """Return the path of a program, or None.

        Programs installed by `install.sh` come first, then PATH, then directories of servers.
        """
        ours = self.installed / "bin" / name
        if ours.is_file():
            return ours
        found = shutil.which(name) or shutil.which(name, path=":".join(SYSTEM))
        return Path(found) if found else None


@dataclass
class Running:
    """A started broker.

    Its ports are on loopback; 0 means that it does not support the protocol.
    """

    amqp: int = 0
    mqtt: int = 0
    login: str = ""  # `user:password@`, or empty if anonymous clients may connect
    children: list[Child] = field(default_factory=list)
    #: Return the load tool's workload for a case, and additional flags.
    load: Callable[[Case], list[str]] = lambda case: [case.workload.name]

    @property
    def amqp_url(self) -> str:
        """The URL of the AMQP port."""
        return f"amqp://{self.login}{LOOPBACK}:{self.amqp}/%2F" if self.amqp else ""

    @property
    def mqtt_url(self) -> str:
        """The URL of the MQTT port."""
        return f"mqtt://{self.login}{LOOPBACK}:{self.mqtt}" if self.mqtt else ""

    @property
    def roots(self) -> list[int]:
        """Return the started processes; they may have child processes."""
        return [child.pid for child in self.children]

    @property
    def alive(self) -> bool:
        """True if all processes are running."""
        return all(child.alive for child in self.children)

    def log_end(self) -> str:
        """Return the end of the processes' logs."""
        return "\n".join(child.log_end() for child in self.children)

    def stop(self) -> None:
        """Stop all processes, the last one started first."""
        for child in reversed(self.children):
            child.stop()


class PeerBroker:
    """A broker that can be started; each subclass, in a file of its own, defines how."""

    name: ClassVar[str]  # on the command line and in results
    title: ClassVar[str]  # in tables
    protocols: ClassVar[frozenset[str]] = frozenset()  # "amqp", "mqtt"
    settings: ClassVar[tuple[str, ...]] = ()  # settings that differ from its defaults, and why
    floor: ClassVar[bool] = False  # not a broker, but a lower bound of any broker's cost
    highest_qos: ClassVar[int] = 2  # with MQTT
    start_seconds: ClassVar[float] = 1.0  # the approximate time of a start and stop

    def __init__(self, tools: Tools) -> None:
        self.tools = tools

    def missing(self) -> str:
        """Return what is not installed and how to install it; an empty string if nothing is
        missing.
        """
        raise NotImplementedError

    def version(self) -> str:
        """Return the version of the broker and its runtime."""
        raise NotImplementedError

    def refusal(self, case: Case) -> str:
        """Return the reason why the broker cannot run a workload; an empty string if it can."""
        foreign = sorted(case.protocols - self.protocols)
        if foreign:
            return f"speaks no {' and no '.join(name.upper() for name in foreign)}"
        if case.qos > self.highest_qos:
            return f"has no QoS {case.qos} in this version"
        return ""

    def overhead(self, case: Case) -> float:
        """Return the approximate seconds of a measurement beside its load: tool start and
        connections.
        """
        return 1.0 + 0.002 * case.workload.subscribers

    def warning(self) -> str:
        """Return a warning for readers of its figures, or an empty string."""
        return ""

    def start(self, directory: Path) -> Running:
        """Start the broker with its files in `directory` and wait until it answers.

        Raises Failed, after stopping all its processes.
        """
        running = Running()
        try:
            self.launch(directory, running)
        except BaseException:
            running.stop()
            raise
        return running

    def launch(self, directory: Path, running: Running) -> None:
        """Start the processes and fill in `running`, which stops them if this raises."""
        raise NotImplementedError

    def found(self, program: str) -> Path:
        """Return the path of a program whose presence `missing` has checked."""
        path = self.tools.program(program)
        if path is None:
            raise Failed(f"{program} is not installed")
        return path
