"""How do results get into a document?"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from peers.chart import chart, cpu, latency
from peers.results import Results
from peers.table import FAMILIES, LATENCY, page

BEGIN: Final = "<!-- results:begin -->"
END: Final = "<!-- results:end -->"


def report(results: Results, document: Path, charts: Path) -> list[Path]:
    """Put tables and links to charts between the marks of the document, which is made if there is none, and the charts
    into a folder. Returns what was written. Raises ValueError where the marks are not once each, in order."""
    pictures = {name: picture for name, picture in _pictures(results) if picture}
    paths = {name: charts / f"{name}.svg" for name in pictures}
    links = {name: Path(os.path.relpath(path, document.parent)).as_posix() for name, path in paths.items()}
    before = document.read_text() if document.exists() else f"# Performance\n\n{BEGIN}\n{END}\n"
    after = between(before, page(results, links), document.name)
    charts.mkdir(parents=True, exist_ok=True)
    for name, picture in pictures.items():
        paths[name].write_text(picture)
    document.write_text(after)
    return [document, *paths.values()]


def _pictures(results: Results) -> Iterator[tuple[str, str]]:
    """Name and SVG of each chart; empty where there is nothing to draw."""
    for family, title in FAMILIES.items():
        yield family, chart(cpu(results, family), f"{title}: broker CPU per message", "microseconds of broker CPU per published message")
    yield LATENCY, chart(latency(results), "Latency: p99", "microseconds from sending to receiving")


def between(document: str, words: str, name: str) -> str:
    """The document with `words` in place of what stood between its marks."""
    head, begin, rest = document.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end or BEGIN in rest or END in head or END in tail:
        raise ValueError(f"{name} needs the lines {BEGIN} and {END}, once each, in this order")
    return f"{head}{BEGIN}\n\n{words}\n{END}{tail}"
