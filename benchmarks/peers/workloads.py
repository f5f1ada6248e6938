"""What is measured? The workloads of `trellis bench load`, and some of them once more at a moderate
rate.

What a workload asks of a broker is said by the load tool's own table; here it is only looked at.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from trellis.bench.workloads import EVERYBODY, WORKLOADS, Workload

#: Workloads that are measured again at half the rate that this peer reaches at full speed: there
#: latency means something.
_HALVES: Final = {"mosquitto": ("mqtt-qos0", "mqtt-qos1", "mqtt-fan10"), "rabbitmq": ("amqp-ack",)}


@dataclass(frozen=True)
class Case:
    """A workload, at full speed or at half the rate of the peer named by `half`."""

    workload: Workload
    half: str = ""

    @property
    def name(self) -> str:
        return f"{self.workload.name}-half" if self.half else self.workload.name

    @property
    def title(self) -> str:
        """In tables, below the name of its protocol."""
        text = self.workload.text
        text = (
            text.removeprefix("MQTT ").removeprefix("AMQP ") if len(self.protocols) == 1 else text
        )
        return f"{text}, at half of {self.half}'s rate" if self.half else text

    @property
    def protocols(self) -> frozenset[str]:
        return frozenset(self.workload.protocols)

    @property
    def family(self) -> str:
        """The table and chart that it belongs to."""
        return "crossing" if len(self.protocols) > 1 else self.workload.publish

    @property
    def qos(self) -> int:
        """The highest, with MQTT."""
        return self.workload.qos if "mqtt" in self.protocols else 0

    @property
    def blind(self) -> bool:
        """Could something do it that reads nothing? Every message to everybody, and nobody
        acknowledges.
        """
        workload = self.workload
        plain = (
            not workload.qos
            and not workload.acks
            and not workload.confirms
            and not workload.bindings
            and not workload.headers
        )
        return plain and workload.sharing == EVERYBODY and len(self.protocols) == 1

    def about(self, rate: float | None) -> dict[str, Any]:
        """For the results."""
        return {
            "title": self.title,
            "family": self.family,
            "workload": self.workload.name,
            "half": self.half,
            "rate": rate,
        }


def _cases() -> dict[str, Case]:
    cases = [Case(workload) for workload in WORKLOADS.values()]
    halves = [
        Case(WORKLOADS[name], reference) for reference, names in _HALVES.items() for name in names
    ]
    cases[-1:-1] = halves  # the last workload leaves brokers with 10,000 connections to clear up
    return {case.name: case for case in cases}


CASES: Final = _cases()


def chosen(names: Iterable[str]) -> list[Case]:
    """The cases with these names, in our order; all when there are none.

    Raises ValueError for a name nobody has.
    """
    wanted = list(names) or list(CASES)
    for name in wanted:
        if name not in CASES:
            near = difflib.get_close_matches(name, CASES, 1, 0)
            raise ValueError(f"no workload is called {name}; the nearest is {near[0]}")
    return [case for name, case in CASES.items() if name in wanted]
