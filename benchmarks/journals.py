"""Measures what a journal costs the publishers whose messages it records: compares a broker with a
journal and a broker without, in turns.

    python benchmarks/journals.py [WORKLOAD...]     [mqtt-qos0 mqtt-qos1 amqp-auto amqp-ack]
        --rounds N           alternating rounds without and with a journal [3]
        --seconds S          length of a measurement [1]
        --rate R             messages per second that both brokers can sustain [50,000]
        --trellis COMMAND    the broker [.run/bin/trellis]
        --output FILE        results as JSON [benchmarks/results/DATE-journals.json]
        --into FILE          the document whose marked part gets the tables [docs/streams.md]

Each round starts one broker without a journal and one with a journal, each in a temporary directory
of its own. Each broker is measured by `trellis bench load`, which checks every message, at three
rates: unlimited; half of the rate that the first round reached with a journal; and --rate.
Latencies are meaningful at the last two rates. Linux only; takes a minute per round.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any, Final

from load_figures import LATENCIES, Figures, load
from peers.brokers.trellis import TrellisPeer, parsed
from peers.machine import machine
from peers.peer import ROOT, Tools
from peers.report import between

STATES: Final = ("without", "with")
PACES: Final = ("full", "half", "rate")
#: The settings of the broker with a journal.
JOURNAL: Final = '[stream]\njournals = ["/=everything"]\n'
#: The figures of each round, by workload, pace (of PACES) and journal (of STATES).
FiguresByWorkload = dict[str, dict[str, dict[str, list[Figures]]]]


def measure(
    trellis: Path, workloads: list[str], rounds: int, seconds: float, rate: float
) -> FiguresByWorkload:
    """Run all rounds, without and with a journal; return each round's figures, by workload."""
    by_workload: FiguresByWorkload = {
        name: {pace: {state: [] for state in STATES} for pace in PACES} for name in workloads
    }
    halves: dict[str, float] = {}
    for number in range(rounds):
        # The first round begins with the journal, so that half of the measured rate can be
        # sustained with and without it.
        for state in STATES[:: 1 if number % 2 else -1]:
            peer = TrellisPeer(Tools(trellis=trellis))
            with tempfile.TemporaryDirectory(prefix="trellis-journals-") as directory:
                settings = Path(directory) / "journal.toml"
                settings.write_text(JOURNAL if state == "with" else "")
                peer.flags = ("--config", str(settings))
                broker = peer.start(Path(directory))
                try:
                    for name in workloads:
                        for pace in PACES:
                            wanted = {"full": 0.0, "half": halves.get(name, 0.0), "rate": rate}[
                                pace
                            ]
                            figures = load(trellis, broker, name, seconds, wanted)
                            by_workload[name][pace][state].append(figures)
                            halves.setdefault(name, figures["rate"] / 2)
                finally:
                    broker.stop()
        print(
            f"round {number + 1}: "
            + ", ".join(
                f"{name} {paces['full']['without'][-1]['us']:.3f} -> "
                f"{paces['full']['with'][-1]['us']:.3f} us"
                for name, paces in by_workload.items()
            ),
            flush=True,
        )
    return by_workload


def middle(rounds: list[Figures], name: str) -> float:
    """Return the median of one figure over the rounds."""
    return median(one[name] for one in rounds)


def table(results: dict[str, Any]) -> str:
    """Return the results as Markdown tables, for docs/streams.md."""
    facts = "; ".join(f"{name} {value}" for name, value in results["machine"].items())
    lines = [
        f"Measured on {results['date']} with `{results['command']}`, Trellis {results['version']}:",
        (
            f"medians of {results['rounds']} alternating rounds of {results['seconds']:g} s, "
            "without a "
            "journal and with one."
        ),
        f"Machine: {facts}.",
        "",
        (
            "At full speed; `us` is the CPU time in microseconds of all threads of the broker per "
            "message, `loop` the event loop's part of it:"
        ),
        "",
        "| workload | us without | with | loop without | with | messages/s without | with |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, paces in results["figures"].items():
        without, recorded = (paces["full"][state] for state in STATES)
        lines.append(
            f"| `{name}` | {middle(without, 'us'):.2f} | {middle(recorded, 'us'):.2f} "
            f"| {middle(without, 'loop'):.3f} | {middle(recorded, 'loop'):.3f} "
            f"| {middle(without, 'rate'):,.0f} | {middle(recorded, 'rate'):,.0f} |"
        )
    lines += [
        "",
        "At a fixed rate, with latencies in microseconds:",
        "",
        (
            "| workload | messages/s | us without | with | p50 without | with | p99 without | with "
            "| "
            "p99.9 without | with |"
        ),
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name, paces in results["figures"].items():
        for pace in ("half", "rate"):
            without, recorded = (paces[pace][state] for state in STATES)
            cells = [f"{middle(rounds, 'us'):.2f}" for rounds in (without, recorded)]
            cells += [
                f"{middle(rounds, key):,.0f}"
                for key in LATENCIES[:3]
                for rounds in (without, recorded)
            ]
            lines.append(f"| `{name}` | {middle(recorded, 'rate'):,.0f} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    """Run the rounds, write results and tables; return the exit code."""
    today = datetime.date.today().isoformat()
    parser = argparse.ArgumentParser(description="Measure workloads with a journal and without.")
    parser.add_argument(
        "workloads",
        nargs="*",
        metavar="WORKLOAD",
        help="workloads to measure [mqtt-qos0 mqtt-qos1 amqp-auto amqp-ack]",
    )
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds [3]")
    parser.add_argument("--seconds", type=float, default=1.0, help="seconds per measurement [1]")
    parser.add_argument(
        "--rate",
        type=int,
        default=50_000,
        help="messages per second that both brokers can sustain [50,000]",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=ROOT / "benchmarks" / "results" / f"{today}-journals.json",
        help="write the figures to this JSON file [benchmarks/results/DATE-journals.json]",
    )
    parser.add_argument(
        "--into",
        type=Path,
        default=ROOT / "docs" / "streams.md",
        help="write the tables into the marked part of this document [docs/streams.md]",
    )
    options = parsed(parser)
    workloads = options.workloads or ["mqtt-qos0", "mqtt-qos1", "amqp-auto", "amqp-ack"]
    results: dict[str, Any] = {
        "format": 1,
        "date": today,
        "command": "python benchmarks/journals.py",
        "rounds": options.rounds,
        "seconds": options.seconds,
        "version": TrellisPeer(Tools(trellis=options.trellis)).version(),
        "machine": machine(),
        "figures": measure(
            options.trellis, workloads, options.rounds, options.seconds, options.rate
        ),
    }
    text = table(results)
    print(text)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(results, indent=1) + "\n")
    options.into.write_text(between(options.into.read_text(), text, options.into.name, "journals"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
