"""Test that no source file is too long."""

from __future__ import annotations

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
FOLDERS: Final = (
    *("broker", "matching", "protocols", "trellis", "pyspark_trellis"),
    *("config", "tools", "benchmarks", "build_backend"),
)
#: Largest number of lines of a source file.
LINES_MAX: Final = 450
#: The files that are longer, and the number of lines that they must not exceed. The methods of
#: Queue share the state of one object, on the path of every message.
LONGER: Final = {"broker/queues/queue.py": 710}


def test_source_files_have_at_most_450_lines() -> None:
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text().splitlines())
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
    }
    assert len(lengths) > 300
    too_long = {
        name: length for name, length in lengths.items() if length > LONGER.get(name, LINES_MAX)
    }
    assert not too_long, "split these files by concept (docs/architecture.md)"
    assert all(lengths[name] > LINES_MAX for name in LONGER), "this file is short now: remove it"
