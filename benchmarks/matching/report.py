"""Writes tables and charts of `trellis bench matching` into a document.

python benchmarks/matching/report.py RESULTS.json...
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

_HERE = Path(__file__).resolve().parent
ROOT = _HERE.parent.parent
# The directories in which Python finds trellis, the package `figures`, and `peers`, which draws
# charts.
sys.path[:0] = [
    str(ROOT),
    str(_HERE),
    str(_HERE.parent),
]

from figures.charts import charts  # noqa: E402
from figures.page import page  # noqa: E402
from peers.report import between  # noqa: E402  (needs the new path)

from trellis.bench.matching.results import merged, read  # noqa: E402


def main(argv: Sequence[str] | None = None) -> int:
    """Write the document and its charts; return the exit code.

    The exit code is 2 if a results file or the document cannot be read, or if the document lacks
    the lines `<!-- results:begin -->` and `<!-- results:end -->`.
    """
    parser = argparse.ArgumentParser(
        prog="report.py", description="Write tables and charts of results into a document."
    )
    parser.add_argument(
        "results",
        type=Path,
        nargs="+",
        help="files written by `trellis bench matching --json FILE`; if several files have "
        "the same figure, the last file's figure is used",
    )
    parser.add_argument(
        "--into",
        type=Path,
        default=ROOT / "docs" / "matching.md",
        metavar="FILE",
        help="document to write into [docs/matching.md]",
    )
    parser.add_argument(
        "--charts",
        type=Path,
        metavar="FOLDER",
        help="directory for the charts, which are SVG files [the document's path without .md]",
    )
    arguments = parser.parse_args(argv)
    into: Path = arguments.into
    folder: Path = arguments.charts or into.parent / into.stem
    try:
        results = merged([read(path) for path in arguments.results])
        drawn = {name: (title, picture) for name, title, picture in charts(results)}
        paths = {name: folder / f"{name}.svg" for name in drawn}
        links = {
            name: (title, Path(os.path.relpath(paths[name], into.parent)).as_posix())
            for name, (title, _) in drawn.items()
        }
        after = between(into.read_text(), page(results, links), into.name)
    except (OSError, ValueError) as error:
        print(f"matching: {error}", file=sys.stderr)
        return 2
    folder.mkdir(parents=True, exist_ok=True)
    for name, (_, picture) in drawn.items():
        paths[name].write_text(picture)
    into.write_text(after)
    for path in (into, *paths.values()):
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
