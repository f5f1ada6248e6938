"""Measures `trellis ask audit` and `trellis ask whatif`, which route each message by the bindings
that existed in the message's minute. The journal is the worst case: a million messages in 17
minutes, with nearly all of 50,000 topics in each minute, and 1,003 bindings, of which one ends in
each minute.

    python benchmarks/minutes.py [--rounds N]     CPU seconds of each whole command (user, system)

Run this program with the Python of an installed `trellis-broker[pipeline,test]`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path.insert(1, str(ROOT))

from pyspark_trellis.bench import TOPICS, patterns_of, pool, write  # noqa: E402
from tests.pipeline.traffic import bound, numbered, snapshot  # noqa: E402
from tests.pipeline.written import Row, journal  # noqa: E402

MESSAGES: Final = 1_000_000
#: The time of the first message. `write` gives the times of one second to each 1,000 messages.
BEGIN: Final = datetime(1970, 1, 1, tzinfo=UTC)
MINUTES: Final = MESSAGES // 60_000 + 1
BINDINGS: Final = 1_003


def definitions() -> dict[str, Any]:
    """Return definitions with BINDINGS bindings of 200 queues to amq.topic."""
    rng = random.Random(2)
    # The binding `#` makes all topics routable. For unroutable topics, `audit` would also search
    # the nearest binding, which is not measured here.
    keys = ["#", *patterns_of(pool(rng, TOPICS), BINDINGS - 1, rng)]
    return {
        "vhosts": [{"name": "/"}],
        "exchanges": [],
        "queues": [{"name": f"q{number}", "vhost": "/"} for number in range(200)],
        "bindings": [
            {
                "vhost": "/",
                "source": "amq.topic",
                "destination": f"q{number % 200}",
                "destination_type": "queue",
                "routing_key": key,
                "arguments": {},
            }
            for number, key in enumerate(keys)
        ],
    }


def changes(document: dict[str, Any]) -> list[Row]:
    """Return the rows of the stream `$topology`: in each minute, one binding ends."""
    rows = snapshot(document, [], BEGIN - timedelta(hours=1))
    for minute in range(MINUTES):
        at = BEGIN + timedelta(minutes=minute, seconds=30)
        rows.append(bound(document["bindings"][minute + 1], at, "unbind"))
    return numbered(rows)


def cpu_seconds(arguments: list[str]) -> tuple[float, float]:
    """Run `trellis ask`; return its CPU seconds, and its largest memory in MB."""
    command = [sys.executable, "-m", "trellis", "ask", *arguments, "--json", os.devnull]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 1):
        sys.exit(f"minutes: `{' '.join(command)}` failed with exit code {process.returncode}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def main() -> None:
    """Write the journals, run the commands in turns, and print the medians."""
    parser = argparse.ArgumentParser(description="Measure routing by the bindings of each minute.")
    parser.add_argument("--rounds", type=int, default=3)
    rounds: int = parser.parse_args().rounds
    with tempfile.TemporaryDirectory(prefix="trellis-minutes-") as scratch:
        place = Path(scratch, "journal")
        write(place, MESSAGES)
        document = definitions()
        journal(Path(scratch, "%24topology"), changes(document), 500, 100_000)
        file = Path(scratch, "new.json")
        file.write_text(json.dumps(document | {"bindings": document["bindings"][:-20]}))
        commands = {
            "audit": ["audit", "--journal", str(place)],
            "whatif": ["whatif", "--journal", str(place), "--definitions", str(file)],
        }
        runs: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
        for _ in range(rounds):
            for name, words in commands.items():
                runs[name].append(cpu_seconds(words))
    for name, measurements in runs.items():
        seconds = [round(each[0], 2) for each in measurements]
        memory = median(each[1] for each in measurements)
        print(f"{name}: {median(seconds):.2f} CPU seconds {seconds}, {memory:.0f} MB")


if __name__ == "__main__":
    main()
