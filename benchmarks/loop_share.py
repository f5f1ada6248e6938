"""Measures which share of the broker's CPU time the event loop takes, by workload.

    python benchmarks/loop_share.py [WORKLOAD...]    [see WORKLOADS]
        --rounds N           rounds of each workload; the medians are shown [5]
        --seconds S          length of a round [2]
        --trellis COMMAND    the broker [.run/bin/trellis]

The event loop runs on one core. So this share says how much of a workload is bound by one core, and
what the threads of the broker (disk, checksums) already do on others. The table belongs to decision
0026. The figures are CPU times of threads, so other programs on the machine change them little.
Linux only.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Final

from load_figures import load
from peers.brokers.trellis import TrellisPeer
from peers.machine import machine
from peers.peer import ROOT, Tools

#: The workloads of the table, and the settings of the broker for each of them.
WORKLOADS: Final = {
    "mqtt-qos0": "",
    "mqtt-qos1": "",
    "mqtt-qos2": "",
    "mqtt-fan1000": "",
    "mqtt-50pub": "",
    "mqtt-pingpong": "",
    "amqp-auto": "",
    "amqp-ack": "",
    "amqp-64k": "",
    "amqp-50pub": "",
    "amqp-pingpong": "",
    "amqp-bindings100k": "",
    "amqp-durable": "",
    "amqp-durable-one": "",
    "amqp-ack with a journal": '[stream]\njournals = ["/=everything"]\n',
}


def shares(trellis: Path, name: str, rounds: int, seconds: float) -> tuple[float, float]:
    """Return the medians of two CPU times per message in us: of all threads, and of the loop."""
    peer = TrellisPeer(Tools(trellis=trellis))
    workload = name.partition(" ")[0]
    with tempfile.TemporaryDirectory(prefix="trellis-share-") as directory:
        settings = Path(directory) / "share.toml"
        settings.write_text(WORKLOADS.get(name, ""))
        peer.flags = ("--config", str(settings))
        broker = peer.start(Path(directory))
        try:
            # The first run checks passwords, in threads. Later logins find them checked.
            load(trellis, broker, workload, seconds, 0)
            found = [load(trellis, broker, workload, seconds, 0) for _ in range(rounds)]
        finally:
            broker.stop()
    return median(one["us"] for one in found), median(one["loop"] for one in found)


def main() -> int:
    """Measure each workload and print a row of the table; return the exit code."""
    parser = argparse.ArgumentParser(description="Measure the event loop's share of CPU time.")
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help="workloads to measure")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each workload [5]")
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds per round [2]")
    parser.add_argument(
        "--trellis",
        type=Path,
        default=ROOT / ".run" / "bin" / "trellis",
        help="command of the broker [.run/bin/trellis]",
    )
    options = parser.parse_args()
    if not options.trellis.exists():
        sys.exit(
            f"loop_share: {options.trellis} does not exist; `make run ARGS=--help` installs it, or "
            "give --trellis"
        )
    print("; ".join(f"{name} {value}" for name, value in machine().items()))
    print("| workload | us a message | of these, the event loop | messages/s of one core |")
    print("|---|---:|---:|---:|", flush=True)
    for name in options.workloads or WORKLOADS:
        every, loop = shares(options.trellis, name, options.rounds, options.seconds)
        print(
            f"| `{name}` | {every:,.2f} | {100 * loop / every:.0f} % | {1e6 / loop:,.0f} |",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
