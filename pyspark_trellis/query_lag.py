"""Tells how far a streaming query is behind its journals.

    for each in lag(query.lastProgress): print(each.journal, each.rows, each.seconds)

In Spark's interface for Python data sources, a source cannot define metrics. So the source reports
the lag in the offset JSON `latestOffset` of the progress, where Spark's web interface and listeners
of queries show it: `lagRows` and `lagSeconds` of each journal.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

ROWS: Final = "lagRows"
SECONDS: Final = "lagSeconds"


@dataclass(frozen=True)
class JournalLag:
    """The distance of a query from the end of a journal after a batch.

    `rows` is the number of rows in the journal that the query had not read when it planned the
    batch. `seconds` is the age of the oldest of these rows at that time: 0 if there are none, None
    if it is unknown.
    """

    journal: str
    rows: int
    seconds: float | None


def lag(progress: Any) -> list[JournalLag]:
    """Return the lag of each journal, from the progress of a streaming query.

    `progress` is `query.lastProgress`, an element of `query.recentProgress`, or the `progress` of
    an event that a StreamingQueryListener gets. Sources other than `trellis` are ignored.
    """
    return [each for source in _sources(progress) for each in _of_source(source)]


def input_rows(progress: Any) -> int:
    """Return the number of rows that a batch has read. `progress` is the progress as a dict.

    The numbers of the sources are added, because Spark Connect reports no number for the batch.
    """
    return sum(source["numInputRows"] for source in progress["sources"])


def _sources(progress: Any) -> list[Any]:
    if progress is None:
        return []
    if isinstance(progress, dict):
        return [source.get("latestOffset") for source in progress["sources"]]
    return [source.latestOffset for source in progress.sources]


def _of_source(latest: Any) -> Iterator[JournalLag]:
    try:
        document = json.loads(latest) if isinstance(latest, str) else latest
    except ValueError:
        return
    if not isinstance(document, dict):
        return
    if ROWS in document:
        document = {str(document.get("journal", "")): document}
    for name, position in document.items():
        if isinstance(position, dict) and ROWS in position:
            yield JournalLag(name, position[ROWS], position[SECONDS])
