"""Measures how much idle connections raise the CPU time of other clients' messages, on a real
broker.

    python benchmarks/connections.py [WORKLOAD...]     [mqtt-qos0 mqtt-qos1]
        --idle N             idle connections, each with a subscription
                             [as many as file descriptors allow, at most 20,000]
        --rounds N           alternating rounds with few and with many connections [5]
        --trellis COMMAND    the broker [.run/bin/trellis]
        --output FILE        results as JSON [benchmarks/results/DATE-connections.json]
        --into FILE          the document whose marked part gets the table [docs/performance.md]

Each round runs `trellis bench load` against one broker, first without other clients, then with the
idle connections; the load tool checks every message. The table compares medians of the broker's CPU
time per message within one run. Linux only; takes a minute.
"""

from __future__ import annotations

import argparse
import datetime
import json
import resource
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any, Final

import memory
from memory import ROOT
from peers.brokers.trellis import TrellisPeer, parsed
from peers.machine import machine
from peers.peer import Tools
from peers.process import allow_files
from peers.report import between

#: The number of idle connections is SHARE of the permitted file descriptors, minus SPARE
#: descriptors for the load tool and other files, and at most MOST.
SHARE: Final = 0.9
SPARE: Final = 100
MOST: Final = 20_000
#: The largest permitted ratio of the CPU time per message with idle connections to the time without
#: them.
ALLOWED: Final = 1.25


def load(trellis: Path, broker: memory.MeasuredBroker, workloads: list[str]) -> dict[str, float]:
    """Run the load tool once; return the broker's CPU time in us per published message, by
    workload.
    """
    command = [
        str(trellis),
        "bench",
        "load",
        *workloads,
        "--mqtt",
        str(broker.mqtt),
        "--rounds",
        "1",
        "--seconds",
        "1",
        "--pid",
        ",".join(map(str, broker.pids)),
        "--json",
        "-",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode:
        sys.exit(f"connections: `trellis bench load` failed: {done.stderr}")
    return {one["name"]: one["median"]["broker_us"] for one in json.loads(done.stdout)["workloads"]}


def measure(
    trellis: Path, workloads: list[str], idle: int, rounds: int
) -> dict[str, dict[str, list[float]]]:
    """Measure the broker's CPU time per message in every round, in microseconds.

    Return {workload: {"few": [...], "many": [...]}}: the times without ("few") and with ("many")
    the idle connections, one for each round.
    """
    times: dict[str, dict[str, list[float]]] = {name: {"few": [], "many": []} for name in workloads}
    with memory.running(trellis) as broker:
        for number in range(rounds):
            for state in ("few", "many"):
                if state == "many":
                    memory.mqtt_subscribers(broker, 0, idle)
                for name, us in load(trellis, broker, workloads).items():
                    times[name][state].append(us)
            while broker.clients:
                broker.clients.pop().close()
            print(
                f"round {number + 1}: "
                + ", ".join(
                    f"{name} {kinds['few'][-1]:.3f} -> {kinds['many'][-1]:.3f} us"
                    for name, kinds in times.items()
                ),
                flush=True,
            )
    return times


def table(results: dict[str, Any]) -> str:
    """Return the results as the Markdown table for docs/performance.md (option --into)."""
    facts = "; ".join(f"{name} {value}" for name, value in results["machine"].items())
    lines = [
        f"Measured on {results['date']} with `{results['command']}`, Trellis {results['version']}:",
        f"medians of {results['rounds']} rounds, first without and then with idle connections.",
        f"Machine: {facts}.",
        "",
        (
            f"| workload | CPU us per message | with {results['idle']:,} idle connections | "
            "ratio | allowed ratio |"
        ),
        "|---|---:|---:|---:|---:|",
    ]
    for name, kinds in results["us"].items():
        few, many = median(kinds["few"]), median(kinds["many"])
        lines.append(f"| `{name}` | {few:.3f} | {many:.3f} | {many / few:.2f} | {ALLOWED} |")
    return "\n".join(lines)


def main() -> int:
    """Run the rounds, print a line for each, write results and table; return the exit code."""
    today = datetime.date.today().isoformat()
    parser = argparse.ArgumentParser(description="Measure messages beside many idle connections.")
    parser.add_argument(
        "workloads",
        nargs="*",
        metavar="WORKLOAD",
        help="workloads to measure [mqtt-qos0 mqtt-qos1]",
    )
    parser.add_argument(
        "--idle",
        type=int,
        default=0,
        help="number of idle connections [as many as file descriptors allow, at most 20,000]",
    )
    parser.add_argument("--rounds", type=int, default=5, help="number of rounds [5]")
    parser.add_argument(
        "--output",
        type=Path,
        default=ROOT / "benchmarks" / "results" / f"{today}-connections.json",
        help="write the figures to this JSON file [benchmarks/results/DATE-connections.json]",
    )
    parser.add_argument(
        "--into",
        type=Path,
        default=ROOT / "docs" / "performance.md",
        help="write the table into the marked part of this document [docs/performance.md]",
    )
    options = parsed(parser)
    allow_files()
    idle = options.idle or min(
        int(resource.getrlimit(resource.RLIMIT_NOFILE)[0] * SHARE) - SPARE, MOST
    )
    workloads = options.workloads or ["mqtt-qos0", "mqtt-qos1"]
    results: dict[str, Any] = {
        "format": 1,
        "date": today,
        "command": "python benchmarks/connections.py",
        "idle": idle,
        "rounds": options.rounds,
        "version": TrellisPeer(Tools(trellis=options.trellis)).version(),
        "machine": machine(),
        "us": measure(options.trellis, workloads, idle, options.rounds),
    }
    text = table(results)
    print(text)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(results, indent=1) + "\n")
    options.into.write_text(
        between(options.into.read_text(), text, options.into.name, "connections")
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
