"""The base class of the measured brokers (peers), and the class of a started broker."""

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
    """The directories and files in which the programs of the brokers are found.

    `installed` is the directory that `install.sh` fills. `trellis` is the command of an installed
    Trellis, or None.
    """

    installed: Path = HERE / ".tools"
    trellis: Path | None = None

    def program(self, name: str) -> Path | None:
        """Return the path of a program, or None if it is not installed.

        Search the programs installed by `install.sh`, then PATH, then the `sbin` directories.
        """
        ours = self.installed / "bin" / name
        if ours.is_file():
            return ours
        path = shutil.which(name) or shutil.which(name, path=":".join(SYSTEM))
        return Path(path) if path else None


@dataclass
class Running:
    """A started broker, with its processes and its ports on loopback.

    The port 0 means that the broker does not support the protocol.
    """

    amqp: int = 0
    mqtt: int = 0
    login: str = ""  # `user:password@`, or empty if anonymous clients may connect
    children: list[Child] = field(default_factory=list)
    #: Returns the load tool's arguments for a case: the workload's name, and additional flags.
    load: Callable[[Case], list[str]] = lambda case: [case.workload.name]

    @property
    def amqp_url(self) -> str:
        """The URL of the AMQP port; "" if the broker does not support AMQP."""
        return f"amqp://{self.login}{LOOPBACK}:{self.amqp}/%2F" if self.amqp else ""

    @property
    def mqtt_url(self) -> str:
        """The URL of the MQTT port; "" if the broker does not support MQTT."""
        return f"mqtt://{self.login}{LOOPBACK}:{self.mqtt}" if self.mqtt else ""

    @property
    def roots(self) -> list[int]:
        """The identifiers of the started processes, without their child processes."""
        return [child.pid for child in self.children]

    @property
    def alive(self) -> bool:
        """True if all started processes are running."""
        return all(child.alive for child in self.children)

    def log_end(self) -> str:
        """Return the last lines of each process's log."""
        return "\n".join(child.log_end() for child in self.children)

    def stop(self) -> None:
        """Stop all processes, the last one started first."""
        for child in reversed(self.children):
            child.stop()


class PeerBroker:
    """The base class of brokers that can be started. Each broker has a subclass in its own file."""

    name: ClassVar[str]  # The name of the peer on the command line and in results.
    title: ClassVar[str]  # The name of the peer in tables.
    protocols: ClassVar[frozenset[str]] = frozenset()  # The supported protocols: "amqp", "mqtt".
    # The settings that differ from the broker's defaults, and why.
    settings: ClassVar[tuple[str, ...]] = ()
    # True if the peer is not a broker, but a lower bound of any broker's cost.
    floor: ClassVar[bool] = False
    highest_qos: ClassVar[int] = 2  # The highest MQTT QoS that the broker supports.
    start_seconds: ClassVar[float] = 1.0  # The approximate time of a start and a stop together.

    def __init__(self, tools: Tools) -> None:
        self.tools = tools

    def missing(self) -> str:
        """Return which program is missing and how to install it; "" if nothing is missing."""
        raise NotImplementedError

    def version(self) -> str:
        """Return the version of the broker and its runtime."""
        raise NotImplementedError

    def refusal(self, case: Case) -> str:
        """Return the reason why the broker cannot run a workload; an empty string if it can."""
        foreign = sorted(case.protocols - self.protocols)
        if foreign:
            return f"it does not support {' or '.join(name.upper() for name in foreign)}"
        if case.qos > self.highest_qos:
            return f"this version does not support QoS {case.qos}"
        return ""

    def overhead(self, case: Case) -> float:
        """Return the approximate seconds that a measurement takes in addition to its load, for the
        start of the load tool and the connections.
        """
        return 1.0 + 0.002 * case.workload.subscribers

    def warning(self) -> str:
        """Return a warning for readers of this broker's figures; "" if there is none."""
        return ""

    def start(self, directory: Path) -> Running:
        """Start the broker with its files in `directory`; return it when it answers.

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
        """Start the processes, set the fields of `running`, and wait until the broker answers.

        Add each process to `running` at once: if this method raises, `start` stops the added
        processes.
        """
        raise NotImplementedError

    def program_path(self, program: str) -> Path:
        """Return the path of a program. Raises Failed if the program is not installed.

        Subclasses call this method only after `missing` has returned "".
        """
        path = self.tools.program(program)
        if path is None:
            raise Failed(f"{program} is not installed")
        return path
