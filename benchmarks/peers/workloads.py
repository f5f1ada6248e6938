"""Lists the workloads: all workloads of `trellis bench load`, and some of these a second time, at
half of the rate that a reference peer reaches.

The load tool's own table defines what a workload does; this module only reads it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from trellis.bench.workloads import ALL, WORKLOADS, Workload

#: Workloads that are repeated at half of a reference peer's full rate, by the peer's name. Latency
#: is meaningful at that rate.
_HALVES: Final = {"mosquitto": ("mqtt-qos0", "mqtt-qos1", "mqtt-fan10"), "rabbitmq": ("amqp-ack",)}


@dataclass(frozen=True)
class Case:
    """A workload at full speed, or if `half` names a peer, at half of that peer's full rate."""

    workload: Workload
    half: str = ""

    @property
    def name(self) -> str:
        """The name of the case on the command line and in results."""
        return f"{self.workload.name}-half" if self.half else self.workload.name

    @property
    def title(self) -> str:
        """The title of the case in tables. A case with one protocol leaves out the protocol's name,
        because each table has one protocol.
        """
        text = self.workload.text
        text = (
            text.removeprefix("MQTT ").removeprefix("AMQP ") if len(self.protocols) == 1 else text
        )
        return f"{text}, at half of {self.half}'s rate" if self.half else text

    @property
    def protocols(self) -> frozenset[str]:
        """The protocols that the workload uses."""
        return frozenset(self.workload.protocols)

    @property
    def family(self) -> str:
        """The group of workloads with a common table and chart: "mqtt", "amqp" or "crossing"."""
        return "crossing" if len(self.protocols) > 1 else self.workload.publish

    @property
    def qos(self) -> int:
        """The QoS of the workload's MQTT messages; 0 without MQTT."""
        return self.workload.qos if "mqtt" in self.protocols else 0

    @property
    def blind(self) -> bool:
        """True if a relay that does not parse packets could run the workload.

        In such a workload, every message goes to every subscriber, without acknowledgements.
        """
        workload = self.workload
        plain = (
            not workload.qos
            and not workload.acks
            and not workload.confirms
            and not workload.bindings
            and not workload.headers
        )
        return plain and workload.sharing == ALL and len(self.protocols) == 1

    def about(self, rate: float | None) -> dict[str, Any]:
        """Return the workload's description for the results."""
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
    # The cases at half rate come before the last workload, because that workload leaves the broker
    # with 10,000 connections to close.
    cases[-1:-1] = halves
    return {case.name: case for case in cases}


CASES: Final = _cases()


def chosen(names: Iterable[str]) -> list[Case]:
    """Return the named cases, in the order of the tables; all cases if none are named.

    Raises ValueError for an unknown name.
    """
    wanted = list(names) or list(CASES)
    for name in wanted:
        if name not in CASES:
            near = difflib.get_close_matches(name, CASES, 1, 0)
            raise ValueError(f"unknown workload {name}; the nearest is {near[0]}")
    return [case for name, case in CASES.items() if name in wanted]
