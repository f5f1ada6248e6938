"""The speed guard: instructions a publication costs inside the compiled broker, beside what they
were.

    python -P benchmarks/guard.py            compare with benchmarks/guard.json; exit code 1 when a flow costs over 10 % more
    python -P benchmarks/guard.py --rules    what the same costs a user with 100 rules about topics; exit code 1 when it is more
    python -P benchmarks/guard.py --write WHY    make today's counts the ones to compare with; CHANGELOG.md must say WHY

Instructions are counted by callgrind (valgrind must be installed), so the machine's mood does not
matter. Each flow of flows.py runs twice, with few and with more messages: the difference leaves out
starting and warming up. Run it with the Python that has the compiled broker installed. A change
that makes a flow dearer for a good reason rewrites the file, and the reason recorded there must
stand in CHANGELOG.md, word for word.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import broker.queues.queue

HERE = Path(__file__).resolve().parent
BASELINE = HERE / "guard.json"
CHANGELOG = HERE.parent / "CHANGELOG.md"
FLOWS = (
    "mqtt-qos0-1-1",
    "mqtt-qos0-1-10",
    "mqtt-qos1-1-1",
    "amqp-auto-ack",
    "amqp-ack-confirm",
    "amqp-1-10",
)
#: Messages of the two runs, and by how much a flow may cost more than it did.
FEW, MORE = 2_000, 6_000
TOLERANCE = 0.10
#: ... and than without rules.
NOISE = 0.005


def instructions(flow: str, messages: int, *more: str) -> int:
    """Instructions of a whole run."""
    command = [
        "valgrind",
        "--tool=callgrind",
        "--callgrind-out-file=/dev/null",
        sys.executable,
        "-P",
        str(HERE / "flows.py"),
        "--rounds",
        "1",
        "--messages",
        str(messages),
        *more,
        flow,
    ]
    # Hash order decides about collisions in dicts, and so about instructions.
    environment = os.environ | {"PYTHONHASHSEED": "0"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
    found = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode or found is None:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return int(found[1])


def measure() -> dict[str, int]:
    """Instructions a publication, by flow."""
    counts = {}
    for flow in FLOWS:
        counts[flow] = round((instructions(flow, MORE) - instructions(flow, FEW)) / (MORE - FEW))
        print(f"{flow:18} {counts[flow]:7,} instructions a publication", flush=True)
    return counts


def compare_rules() -> int:
    """Whether a publication that is allowed costs the same with rules and without.

    (Hash order differs by a little.)
    """
    worse = 0
    for flow in FLOWS:
        plain, ruled = (
            round((instructions(flow, MORE, *more) - instructions(flow, FEW, *more)) / (MORE - FEW))
            for more in ((), ("--rules",))
        )
        worse += ruled > plain * (1 + NOISE)
        print(
            f"{flow:18} {plain:7,} instructions a publication without rules, {ruled:7,} with {ruled - plain:+,}",
            flush=True,
        )
    return 1 if worse else 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Compare instructions per publication with the recorded ones."
    )
    parser.add_argument(
        "--write",
        metavar="WHY",
        help="record today's counts, for this reason, which stands in CHANGELOG.md",
    )
    parser.add_argument(
        "--rules", action="store_true", help="compare users with and without rules about topics"
    )
    options = parser.parse_args()
    if (broker.queues.queue.__file__ or "").endswith(".py"):
        sys.exit(
            "guard: the broker that this Python finds is not compiled; use .run/bin/python -P, from another directory"
        )
    if shutil.which("valgrind") is None:
        sys.exit("guard: valgrind is missing (on Debian and Ubuntu: apt install valgrind)")
    if options.rules:
        return compare_rules()
    known = json.loads(BASELINE.read_text())
    why = known["why"] if options.write is None else options.write
    if not why or " ".join(why.split()) not in " ".join(CHANGELOG.read_text().split()):
        sys.exit(f"guard: CHANGELOG.md does not say why the counts are what they are: {why!r}")
    counts = measure()
    python = ".".join(platform.python_version_tuple()[:2])
    if options.write is not None:
        baseline = {
            "python": python,
            "compiler": platform.python_compiler(),
            "why": why,
            "flows": counts,
        }
        BASELINE.write_text(json.dumps(baseline, indent=2) + "\n")
        print(f"recorded in {BASELINE}")
        return 0
    if known["python"] != python:
        print(f"recorded with Python {known['python']}, this is {python}: counts are not compared")
        return 0
    dearer = {
        flow: count / known["flows"][flow] - 1
        for flow, count in counts.items()
        if count > known["flows"][flow] * (1 + TOLERANCE)
    }
    for flow, more in dearer.items():
        print(
            f"{flow}: {counts[flow]:,} instructions a publication, {known['flows'][flow]:,} recorded: {more:+.0%}"
        )
    return 1 if dearer else 0


if __name__ == "__main__":
    sys.exit(main())
