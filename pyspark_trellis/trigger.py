"""The arithmetic of offsets for a micro-batch: where it ends in each journal, and its tasks.

shares(backlog, most)            how many rows of each journal a batch gets
tasks_of(streams, ranges, ...)   the pieces that each task reads
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from pyspark_trellis.journal import ROWS_PER_TASK, JournalStream, Piece
from pyspark_trellis.segment_topics import TopicCondition


class OffsetSpan(NamedTuple):
    """The offsets of one journal that a batch reads, from `low` up to, not including, `high`."""

    low: int
    high: int


def shares(backlog: Mapping[str, int], most: int) -> dict[str, int]:
    """Divide `most` rows among journals, in proportion to the unread rows of each (`backlog`).

    No journal gets more rows than it has. If all journals together have at most `most` rows, each
    gets all its rows. Rows that remain after rounding go to the journals with the fewest rows, so
    that a busy journal does not delay other journals.
    """
    total = sum(backlog.values())
    if total <= most:
        return dict(backlog)
    portions = {name: most * rows // total for name, rows in backlog.items()}
    left = most - sum(portions.values())
    for name in sorted(backlog, key=lambda name: (backlog[name], name)):
        if left and portions[name] < backlog[name]:
            portions[name] += 1
            left -= 1
    return portions


def rows_of_a_task(total: int, rows: int, least: int) -> int:
    """Return the number of rows that each task reads: at most `rows`, and so few that `total` rows
    make at least `least` tasks.
    """
    return max(1, min(rows, total // max(least, 1) or 1))


def tasks_of(
    streams: Mapping[str, JournalStream],
    spans: Mapping[str, OffsetSpan],
    rows: int = ROWS_PER_TASK,
    least: int = 1,
    whole: bool = True,
    topics: TopicCondition | None = None,
) -> list[tuple[Piece, ...]]:
    """Return the pieces that each task reads; a task reads pieces of several segments and journals.

    `rows` is the number of rows of a task, `least` the smallest number of tasks. If `whole` is
    false, missing rows are left out. Segments in which no row matches the condition `topics` are
    left out, too. Raises PipelineError.
    """
    parts = {
        name: streams[name].parts(span.low, span.high, whole, topics)
        for name, span in spans.items()
    }
    total = sum(part.high - part.low for each in parts.values() for part in each)
    size = rows_of_a_task(total, rows, least)
    tasks: list[tuple[Piece, ...]] = []
    pieces: list[Piece] = []
    room = size
    for name, each in parts.items():
        for piece in streams[name].divided(each, size, room):
            pieces.append(piece)
            room -= piece.cut.high - piece.cut.low
            if not room:
                tasks.append(tuple(pieces))
                pieces, room = [], size
    if pieces:
        tasks.append(tuple(pieces))
    return tasks
