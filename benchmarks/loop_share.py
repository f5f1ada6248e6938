"""Measures which share of the broker's CPU time the event loop takes, by workload.

    python benchmarks/loop_share.py [WORKLOAD...]    [see WORKLOADS]
        --rounds N           rounds of each workload; the medians are shown [5]
        --seconds S          length of a round [2]
        --trellis COMMAND    the broker [.run/bin/trellis]

The event loop runs on one core. So this share shows how much of a workload is bound by one core.
The other threads of the broker (disk, checksums) use the remaining CPU time, on other cores. The
table belongs to decision 0026. Its last column is derived from the other columns: the messages for
which the event loop needs one second of CPU time. Run this program on an idle machine: other
programs raise CPU times. Linux only.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Final

from load_figures import load
from peers.brokers.trellis import TrellisPeer, parsed
from peers.machine import machine
from peers.peer import Tools

#: The workloads of the table, and the settings of the broker for each of them.
WORKLOADS: Final = {
    "mqtt-qos0": "",
    "mqtt-qos1": "",
    "mqtt-qos2": "",
    "mqtt-qos1-persistent": "",
    "mqtt-qos2-persistent": "",
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
    """Return two CPU times per message in us, as medians: of all threads, and of the event loop.

    `name` is a key of WORKLOADS. Each of the `rounds` takes `seconds`.
    """
    peer = TrellisPeer(Tools(trellis=trellis))
    workload = name.partition(" ")[0]
    with tempfile.TemporaryDirectory(prefix="trellis-share-") as directory:
        settings = Path(directory) / "share.toml"
        settings.write_text(WORKLOADS.get(name, ""))
        peer.flags = ("--config", str(settings))
        broker = peer.start(Path(directory))
        try:
            # The first run checks passwords, in threads. At later logins, the result of the check
            # is cached.
            load(trellis, broker, workload, seconds, 0)
            runs = [load(trellis, broker, workload, seconds, 0) for _ in range(rounds)]
        finally:
            broker.stop()
    return median(one["us"] for one in runs), median(one["loop"] for one in runs)


def main() -> int:
    """Measure each workload and print a row of the table; return the exit code."""
    parser = argparse.ArgumentParser(description="Measure the event loop's share of CPU time.")
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help="names of workloads")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each workload [5]")
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds per round [2]")
    options = parsed(parser)
    print(f"Trellis {TrellisPeer(Tools(trellis=options.trellis)).version()}")
    print("; ".join(f"{name} {value}" for name, value in machine().items()))
    print(f"load average at the start: {os.getloadavg()[0]:.1f}")
    print("| workload | us a message | event loop's share | messages per CPU second of the loop |")
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
