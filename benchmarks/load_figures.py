"""The figures of one run of `trellis bench load`, with the CPU time of the broker's event loop."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Final, Protocol

#: The latencies of a run, by their names in the load tool's results.
LATENCIES: Final = ("p50", "p99", "p999", "max")
Figures = dict[str, float]


class LoadedBroker(Protocol):
    """A broker that runs for a measurement, such as a `peers.peer.Running`."""

    @property
    def amqp_url(self) -> str:
        """The URL of the AMQP port."""

    @property
    def mqtt_url(self) -> str:
        """The URL of the MQTT port."""

    @property
    def roots(self) -> list[int]:
        """The identifiers of the broker's processes, without their child processes."""


def spent(pid: int) -> tuple[int, int]:
    """Return two CPU times of a broker's process in ns: the time of its first thread, which runs
    the event loop, and the time of all threads.
    """
    tasks = {
        task.name: int((task / "schedstat").read_text().split()[0])
        for task in Path(f"/proc/{pid}/task").iterdir()
    }
    return tasks[str(pid)], sum(tasks.values())


def load(
    trellis: Path, broker: LoadedBroker, workload: str, seconds: float, rate: float
) -> Figures:
    """Run the load tool once for `seconds`, and return its figures.

    `us` is the broker's CPU time per message, `loop` the event loop's part of it, and `rate` the
    messages per second. Latencies are present if the load tool measured them. If `rate` is 0, the
    rate is unlimited.
    """
    command = [
        str(trellis),
        "bench",
        "load",
        workload,
        "--amqp",
        broker.amqp_url,
        "--mqtt",
        broker.mqtt_url,
        "--rounds",
        "1",
        "--seconds",
        str(seconds),
        "--pid",
        ",".join(map(str, broker.roots)),
        "--json",
        "-",
    ]
    [pid] = broker.roots
    before = spent(pid)
    done = subprocess.run(
        [*command, "--rate", str(int(rate))] if rate else command,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    after = spent(pid)
    if done.returncode:
        sys.exit(f"`trellis bench load` failed: {done.stderr}{done.stdout}")
    [entry] = json.loads(done.stdout)["workloads"]
    middle = entry["median"]
    loop = (after[0] - before[0]) / (after[1] - before[1])
    figures = {
        "rate": middle["rate"],
        "us": middle["broker_us"],
        "loop": middle["broker_us"] * loop,
    }
    return figures | (
        {name: middle["latency"][name] for name in LATENCIES} if middle["latency"] else {}
    )
