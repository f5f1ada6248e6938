"""Reads the sums of published messages into memory: from a journal, or from the Parquet files that
`trellis pipeline traffic` wrote.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_trellis import offsets
from pyspark_trellis.columns import ARROW, projection
from pyspark_trellis.counts import (
    COUNTS,
    KEYS,
    NEEDED,
    PERIOD,
    PUBLISHER,
    SPLIT_KEYS,
    TopicSums,
    split_columns,
)
from pyspark_trellis.errors import PipelineError
from pyspark_trellis.periods import RowSplits
from pyspark_trellis.rows import SelectedRows, stream_of

#: Batches of rows are combined to at least this many rows, some 100 bytes each, before they are
#: added up. The more rows are added up at once, the fewer partial sums of each topic there are.
_TOGETHER: Final = 1 << 18
#: The names and types of the sums.
SUMS: Final = pa.schema(
    [
        ("minute", ARROW["timestamp"]),
        *((name, ARROW["string"]) for name in KEYS),
        *((name, ARROW["long"]) for name in COUNTS),
        ("first_at", ARROW["timestamp"]),
        ("last_at", ARROW["timestamp"]),
    ]
)
#: The names and types of the sums that are divided by period and publisher.
DIVIDED_SUMS: Final = SUMS.append(pa.field(PERIOD, pa.int32())).append(
    pa.field(PUBLISHER, pa.string())
)


class JournalRange:
    """The rows of a journal that the arguments of a command select.

    `since` and `until` are times in microseconds since 1970, or None: only rows that the broker
    received from `since` on and before `until` are selected.
    """

    def __init__(
        self,
        options: dict[str, str],
        ending: str = offsets.LATEST,
        since: int | None = None,
        until: int | None = None,
    ) -> None:
        self.options: Final = {name.lower(): value for name, value in options.items()}
        self._stream: Final = stream_of(self.options)
        self._starting: Final = self.options.get("startingoffsets", offsets.EARLIEST)
        self._ending: Final = ending
        self._since: Final = since
        self._until: Final = until

    def bounds(self, read: int | None = None) -> tuple[int, int]:
        """Return the first offset to read, and the offset after the last. Raises PipelineError.

        `read` is the offset at which an earlier read ended; None for the first read.
        """
        bounds = self._stream.bounds()
        name = self._stream.name
        if read is None:
            low = offsets.starting(self._starting, bounds, name)
            if self._since is not None:
                low = max(low, self._stream.first_since(self._since))
        else:
            low = read
        return low, offsets.ending(self._ending, bounds, name)

    def end(self) -> int:
        """Return the offset after the last row of the journal. Raises PipelineError."""
        return self._stream.bounds().next

    def batches(self, selected: SelectedRows, low: int, high: int) -> Iterator[pa.RecordBatch]:
        """Iterate over the selected rows from offset `low` to before `high`.

        The columns of `selected` must include `published_at`. Raises PipelineError.
        """
        for piece in self._stream.pieces(low, high, topics=selected.condition):
            for batch in selected.batches(piece):
                for at, compare in (
                    (self._since, pc.greater_equal),
                    (self._until, pc.less),
                ):
                    if at is not None:
                        limit = pa.scalar(at, ARROW["timestamp"])
                        batch = batch.filter(compare(batch.column("published_at"), limit))
                if batch.num_rows:
                    yield batch

    def tables(self, selected: SelectedRows, low: int, high: int) -> Iterator[pa.Table]:
        """Iterate over the selected rows from offset `low` to before `high`, in tables.

        Each table has _TOGETHER rows or more; the last table may be smaller. Raises PipelineError.
        """
        group: list[pa.RecordBatch] = []
        rows = 0
        for batch in self.batches(selected, low, high):
            group.append(batch)
            rows += batch.num_rows
            if rows >= _TOGETHER:
                yield pa.Table.from_batches(group)
                group, rows = [], 0
        if group:
            yield pa.Table.from_batches(group)


class JournalFeed:
    """The sums of the rows of a journal. Each call of `sums` reads only the rows that are new.

    `since` and `until` are times in microseconds since 1970, or None: only rows that the broker
    received from `since` on and before `until` count.
    """

    def __init__(
        self,
        options: dict[str, str],
        keys: tuple[str, ...],
        ending: str = offsets.LATEST,
        since: int | None = None,
        until: int | None = None,
    ) -> None:
        self._range: Final = JournalRange(options, ending, since, until)
        self._selected: Final = SelectedRows(projection(NEEDED), self._range.options)
        self._keys: Final = keys
        self._sums: TopicSums | None = None
        #: The offset after the last row that was read; None before the first read.
        self._next: int | None = None

    def sums(self, splits: RowSplits | None = None) -> pa.Table:
        """Return the sums of all rows so far. Raises PipelineError.

        With `splits`, the sums of each topic are divided by PERIOD and PUBLISHER. Pass `splits` in
        all calls, or in none.
        """
        if self._sums is None:
            self._sums = TopicSums(*(self._keys if splits is None else SPLIT_KEYS))
        low, high = self._range.bounds(self._next)
        for rows in self._range.tables(self._selected, low, high):
            self._sums.add(rows, splits)
        self._next = max(low, high)
        table = self._sums.table()
        if table is not None:
            return table
        return (SUMS if splits is None else DIVIDED_SUMS).empty_table()

    def extended(self) -> bool:
        """True if rows were published since the last call of `sums`. Raises PipelineError."""
        return self._range.end() != self._next


class RollupFeed:
    """The sums in the directory that `trellis pipeline traffic --target` wrote."""

    def __init__(self, path: str) -> None:
        self._path: Final = Path(path.removeprefix("file://"))
        self._read: frozenset[Path] = frozenset()

    def sums(self, splits: RowSplits | None = None) -> pa.Table:
        """Return the sums in all valid files. Raises PipelineError.

        With `splits`, the sums have the column PERIOD, by the minute of the event time, and the
        column PUBLISHER, which is empty: the files do not have the publishers.
        """
        from pyarrow import parquet

        files = self._files()
        tables = []
        for file in sorted(files):
            try:
                table = parquet.read_table(
                    file, coerce_int96_timestamp_unit="us", partitioning=None
                )
                tables.append(table.select(SUMS.names).cast(SUMS))
            except (OSError, KeyError, pa.ArrowException) as error:
                raise PipelineError(
                    f"{file} cannot be read as the output of `trellis pipeline traffic`: {error}; "
                    "to write new files, run that command with a new --target"
                ) from None
        self._read = files
        table = pa.concat_tables(tables) if tables else SUMS.empty_table()
        if splits is not None:
            for name, column in split_columns(table, "minute", splits).items():
                table = table.append_column(name, column)
        return table

    def extended(self) -> bool:
        """True if files were added since the last call of `sums`. Raises PipelineError."""
        return self._files() != self._read

    def _files(self) -> frozenset[Path]:
        """Return the valid files of the directory: the files that Spark's log in the directory
        lists.

        A file that a killed task has written is not in the log. The log, `_spark_metadata`, has a
        file `N` with the names for each batch N. Some batches have a file `N.compact` instead,
        which has the names for all batches up to N.
        """
        log = self._path / "_spark_metadata"
        try:
            names = {path.name for path in log.iterdir()}
            numbers = {int(name.partition(".")[0]) for name in names if name[0].isdecimal()}
            compacted = max((n for n in numbers if f"{n}.compact" in names), default=-1)
            files: set[Path] = set()
            for number in sorted(numbers):
                if number < compacted:
                    continue
                name = f"{number}.compact" if number == compacted else str(number)
                for line in (log / name).read_text(encoding="utf-8").splitlines()[1:]:
                    path = unquote(urlsplit(json.loads(line)["path"]).path)
                    files.add(self._path / Path(path).name)
        except (OSError, ValueError, KeyError, TypeError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise PipelineError(
                f"{self._path} cannot be read as the output of `trellis pipeline traffic`: cannot "
                f"read the list of its files in {log} ({reason}); name the directory that was the "
                "--target of that command"
            ) from None
        return frozenset(files)
