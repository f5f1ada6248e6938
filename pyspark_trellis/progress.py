"""Shows Spark's progress in one line of the terminal. Shows nothing if stderr is not a terminal."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, TextIO

from pyspark_trellis.query_lag import input_rows
from pyspark_trellis.spark_connect import is_connect

#: Seconds between two updates.
_EVERY: Final = 0.5


class RunningTasks:
    """The tasks of the stages that a session runs at the moment."""

    def counts(self) -> tuple[int, int]:
        """Return the numbers of finished tasks and of all tasks."""
        raise NotImplementedError

    def close(self) -> None:
        """Stop counting."""


class ContextTasks(RunningTasks):
    """The running tasks of a session with a SparkContext."""

    def __init__(self, spark: Any) -> None:
        self._tracker: Final = spark.sparkContext.statusTracker()

    def counts(self) -> tuple[int, int]:
        stages = [self._tracker.getStageInfo(each) for each in self._tracker.getActiveStageIds()]
        known = [stage for stage in stages if stage is not None]
        return sum(each.numCompletedTasks for each in known), sum(each.numTasks for each in known)


class ConnectTasks(RunningTasks):
    """The running tasks of a client of Spark Connect, as the server reports them."""

    def __init__(self, spark: Any) -> None:
        self._counts = (0, 0)
        self._spark: Final = spark
        spark.registerProgressHandler(self._report)

    def _report(self, stages: Any, inflight_tasks: int, operation_id: Any, done: bool) -> None:
        active = [] if done else [stage for stage in stages or () if not stage.done]
        self._counts = (
            sum(stage.num_completed_tasks for stage in active),
            sum(stage.num_tasks for stage in active),
        )

    def counts(self) -> tuple[int, int]:
        return self._counts

    def close(self) -> None:
        self._spark.removeProgressHandler(self._report)


class QueryCounts:
    """Counts of the batches that a streaming query has finished."""

    def __init__(self) -> None:
        #: Number of rows that the query has read; number of batches with at least one row.
        self.rows = self.batches = 0
        #: Number of the last counted batch, as Spark numbers the batches; -1 before the first one.
        self.last = -1

    def read(self, query: Any) -> float | None:
        """Count the batches that the query has finished since the last call.

        Return the speed of the last new batch in rows per second; None if there is no new batch.
        """
        speed = None
        for progress in query.recentProgress:  # Spark keeps the last hundred batches.
            if progress["batchId"] > self.last:
                self.last = progress["batchId"]
                rows = input_rows(progress)
                self.rows += rows
                self.batches += rows > 0
                speed = progress.get("processedRowsPerSecond") or 0.0
        return speed


class PipelineProgress:
    """A progress line that overwrites itself."""

    def __init__(self, stream: TextIO | None = None, shown: bool | None = None) -> None:
        self._stream = stream or sys.stderr
        self.shown: Final = self._stream.isatty() if shown is None else shown
        self._lock = threading.Lock()

    def say(self, text: str) -> None:
        """Show a text in the progress line; it replaces the previous text."""
        width = shutil.get_terminal_size().columns - 1
        self._write("\r" + text[:width] + "\x1b[K")

    def end(self) -> None:
        """Remove the progress line from the terminal."""
        self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        if self.shown:
            with self._lock:
                self._stream.write(text)
                self._stream.flush()

    @contextmanager
    def of(self, spark: Any, title: str) -> Iterator[None]:
        """Show the number of finished Spark tasks, with `title`, while the block runs."""
        if not self.shown:
            yield
            return
        ended = threading.Event()
        thread = threading.Thread(target=self._watch, args=(spark, title, ended), daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            self.end()

    def _watch(self, spark: Any, title: str, ended: threading.Event) -> None:
        began = time.monotonic()
        tasks = ConnectTasks(spark) if is_connect(spark) else ContextTasks(spark)
        while not ended.wait(_EVERY):
            done, all_tasks = tasks.counts()
            self.say(
                f"{title}  {f'{done} of {all_tasks} tasks, ' if all_tasks else ''}"
                f"{time.monotonic() - began:.0f} s"
            )
        tasks.close()

    def watch(self, query: Any, title: str, counts: QueryCounts) -> None:
        """Show the rows that a streaming query has read, until the query ends; add them to
        `counts`.

        Raises the query's error.
        """
        ended = False
        try:
            while not ended:
                ended = query.awaitTermination(_EVERY)
                speed = counts.read(query)
                if speed is not None:
                    self.say(
                        f"{title}  {counts.rows:,} rows, batch {counts.last}, {speed:,.0f} rows/s"
                    )
        finally:
            self.end()
