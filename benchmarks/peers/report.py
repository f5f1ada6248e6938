"""Writes the results of a run: tables and links to charts into a document, and the charts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from peers.chart import chart, cpu, latency, overview
from peers.results import Results
from peers.table import FAMILIES, LATENCY, page

RESULTS: Final = "results"
BEGIN: Final = f"<!-- {RESULTS}:begin -->"
END: Final = f"<!-- {RESULTS}:end -->"


def report(results: Results, document: Path, charts: Path) -> list[Path]:
    """Write tables and links to charts into the document, and the charts into a directory.

    The tables replace the text between the lines `<!-- results:begin -->` and
    `<!-- results:end -->`. Create the document if it does not exist. Return the written files.
    Raises ValueError unless the document has each of the two lines once, in order.
    """
    links = {
        name: Path(os.path.relpath(charts / f"{name}.svg", document.parent)).as_posix()
        for name, picture in _pictures(results)
        if picture
    }
    before = document.read_text() if document.exists() else f"# Performance\n\n{BEGIN}\n{END}\n"
    after = between(before, page(results, links), document.name)
    paths = write_charts(results, charts)
    document.write_text(after)
    return [document, *paths]


def write_charts(results: Results, charts: Path) -> list[Path]:
    """Write the charts into the directory `charts`, and return the written files."""
    charts.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, picture in _pictures(results):
        if picture:
            paths.append(charts / f"{name}.svg")
            paths[-1].write_text(picture)
    return paths


def _pictures(results: Results) -> Iterator[tuple[str, str]]:
    """Iterate over the name and SVG of each chart; the SVG is empty if there is nothing to draw."""
    for family, title in FAMILIES.items():
        yield (
            family,
            chart(
                cpu(results, family),
                f"{title}: broker CPU per message",
                "microseconds of broker CPU per published message",
            ),
        )
    yield LATENCY, chart(latency(results), "Latency: p99", "microseconds from sending to receiving")
    yield "overview", overview(results)


def between(document: str, words: str, name: str, part: str = RESULTS) -> str:
    """Return the document's text with `words` between the lines that begin and end the part `part`.

    The lines are `<!-- PART:begin -->` and `<!-- PART:end -->`. Raises ValueError unless each
    occurs once, in order; the error's text names the document `name`.
    """
    opening, closing = f"<!-- {part}:begin -->", f"<!-- {part}:end -->"
    head, begin, rest = document.partition(opening)
    _, end, tail = rest.partition(closing)
    if not begin or not end or opening in rest or closing in head or closing in tail:
        raise ValueError(
            f"{name} must have the lines {opening} and {closing}, once each and in this order"
        )
    return f"{head}{opening}\n\n{words}\n{closing}{tail}"
