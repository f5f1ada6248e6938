"""Runs `trellis pipeline bench` and writes its figures, with the machine's description, to a file.

    python benchmarks/pipeline.py [--output FILE]
        results as JSON [benchmarks/results/DATE-pipeline.json], the table on stdout

Run this program with the Python of an installed `trellis-broker[pipeline]`, on an otherwise idle
machine: the figures are CPU seconds, which grow on a busy processor by different factors.
`docs/pipeline.md`, "Costs", describes the measurements.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path.insert(1, str(ROOT))

from peers.machine import machine  # noqa: E402  (needs the new path)

from pyspark_trellis import java  # noqa: E402

PACKAGES: Final = ("pyspark", "pyarrow", "pandas", "numpy")


def main() -> int:
    """Run `trellis pipeline bench`, print the table, write the results; return the exit code."""
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    parser = argparse.ArgumentParser(description="Measure the pipeline and write the figures.")
    parser.add_argument(
        "--output",
        type=Path,
        default=ROOT / "benchmarks" / "results" / f"{today}-pipeline.json",
        help="write the figures to this JSON file [benchmarks/results/DATE-pipeline.json]",
    )
    output: Path = parser.parse_args().output
    facts = machine()
    with tempfile.TemporaryDirectory() as scratch:
        figures = Path(scratch) / "figures.json"
        command = [sys.executable, "-m", "trellis", "pipeline", "bench", "--json", str(figures)]
        ended = subprocess.run(command, check=False).returncode
        if ended:
            return ended
        document = json.loads(figures.read_text())
    versions = {package: version(package) for package in PACKAGES} | {
        "python": platform.python_version(),
        "java": str(java.version_of(java.find() / "bin" / "java")),
    }
    kept = {
        "format": 1,
        "date": today,
        "command": "python benchmarks/pipeline.py",
        "machine": facts,
        "versions": versions,
    } | document
    output.write_text(json.dumps(kept, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
