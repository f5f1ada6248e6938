"""What is a peer? The base class of all of them, and what one is while it runs."""

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
    """Where programs are that no package manager put on PATH.

    `installed`: what `install.sh` made. `trellis`: the command of an installed broker, or none
    found.
    """

    installed: Path = HERE / ".tools"
    trellis: Path | None = None

    def program(self, name: str) -> Path | None:
        """The program `name`, ours first, then on PATH, then where servers are that are not on
        everybody's.
        """
        ours = self.installed / "bin" / name
        if ours.is_file():
            return ours
        found = shutil.which(name) or shutil.which(name, path=":".join(SYSTEM))
        return Path(found) if found else None


@dataclass
class Running:
    """A broker that has been started.

    Ports are on loopback, 0 means that it does not speak the protocol.
    """

    amqp: int = 0
    mqtt: int = 0
    login: str = ""  # `user:password@`, or nothing where anybody may come
    children: list[Child] = field(default_factory=list)
    #: The load tool's workload for a case, and flags of its own for that.
    load: Callable[[Case], list[str]] = lambda case: [case.workload.name]

    @property
    def amqp_url(self) -> str:
        return f"amqp://{self.login}{LOOPBACK}:{self.amqp}/%2F" if self.amqp else ""

    @property
    def mqtt_url(self) -> str:
        return f"mqtt://{self.login}{LOOPBACK}:{self.mqtt}" if self.mqtt else ""

    @property
    def roots(self) -> list[int]:
        """The processes that we started; there may be others below them."""
        return [child.pid for child in self.children]

    @property
    def alive(self) -> bool:
        return all(child.alive for child in self.children)

    def said(self) -> str:
        return "\n".join(child.said() for child in self.children)

    def stop(self) -> None:
        """End all its processes, the last one started first."""
        for child in reversed(self.children):
            child.stop()


class Peer:
    """One broker that we know how to start. Subclasses say how, in one file each."""

    name: ClassVar[str]  # on the command line and in results
    title: ClassVar[str]  # in tables
    protocols: ClassVar[frozenset[str]] = frozenset()  # "amqp", "mqtt"
    settings: ClassVar[tuple[str, ...]] = ()  # what differs from its defaults, and why
    floor: ClassVar[bool] = False  # no broker, but what any broker must cost at least
    highest_qos: ClassVar[int] = 2  # with MQTT
    start_seconds: ClassVar[float] = 1.0  # what starting and ending it takes, about

    def __init__(self, tools: Tools) -> None:
        self.tools = tools

    def missing(self) -> str:
        """What is not installed, and what would install it; an empty string when nothing is
        missing.
        """
        raise NotImplementedError

    def version(self) -> str:
        raise NotImplementedError

    def refusal(self, case: Case) -> str:
        """Why it cannot do the workload; an empty string when it can."""
        foreign = sorted(case.protocols - self.protocols)
        if foreign:
            return f"speaks no {' and no '.join(name.upper() for name in foreign)}"
        if case.qos > self.highest_qos:
            return f"has no QoS {case.qos} in this version"
        return ""

    def overhead(self, case: Case) -> float:
        """About how many seconds a measurement takes beside its load: the load tool's start,
        connections.
        """
        return 1.0 + 0.002 * case.workload.subscribers

    def warning(self) -> str:
        """What whoever reads its figures must know first; mostly nothing."""
        return ""

    def start(self, directory: Path) -> Running:
        """Start it with its files in `directory`, wait until it answers.

        Raises Failed; leaves no process then.
        """
        running = Running()
        try:
            self.launch(directory, running)
        except BaseException:
            running.stop()
            raise
        return running

    def launch(self, directory: Path, running: Running) -> None:
        """Start its processes and fill in `running`, which ends them if this raises."""
        raise NotImplementedError

    def found(self, program: str) -> Path:
        """The program, which `missing` said to be there."""
        path = self.tools.program(program)
        if path is None:
            raise Failed(f"{program} is not installed")
        return path
