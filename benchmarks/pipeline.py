"""What the source of Spark and bulk matching cost: `trellis pipeline bench`, kept with what was
measured where.

    python benchmarks/pipeline.py [--output FILE]      results as JSON [benchmarks/results/DATE-pipeline.json], the table on stdout

Run it with the Python of an installed `trellis-broker[pipeline]`, on a machine that does nothing
else: CPU seconds are compared, and a busy processor makes all of them longer, and not evenly.
`docs/pipeline.md`, "What it costs", says what is measured.
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

from peers.machine import machine  # noqa: E402  (found only now)

from pyspark_trellis import java  # noqa: E402

PACKAGES: Final = ("pyspark", "pyarrow", "pandas", "numpy")


def main() -> int:
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    parser = argparse.ArgumentParser(description="Measure the pipeline and keep the figures.")
    parser.add_argument(
        "--output",
        type=Path,
        default=ROOT / "benchmarks" / "results" / f"{today}-pipeline.json",
        help="results",
    )
    output: Path = parser.parse_args().output
    facts = machine()
    with tempfile.TemporaryDirectory() as scratch:
        figures = Path(scratch) / "figures.json"
        command = [sys.executable, "-m", "trellis", "pipeline", "bench", "--json", str(figures)]
        ended = subprocess.run(command, check=False).returncode
        if ended:
            return ended
        found = json.loads(figures.read_text())
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
    } | found
    output.write_text(json.dumps(kept, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
