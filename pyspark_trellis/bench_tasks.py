"""Measures the fixed cost of a Spark task, with the source `trellis` and with an empty source.

The difference of the two is the cost of the source `trellis`. The rest is Spark's own cost: Spark
schedules the task, starts its Python function, and passes Arrow's batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

#: The number of tasks, and of rows in a task of the source.
TASKS: Final = 40
ROWS: Final = 500
#: The largest cost of a task beyond Spark's own, in CPU seconds.
_AIM: Final = 0.02


class _NothingReader(DataSourceReader):
    def __init__(self, tasks: int) -> None:
        self._tasks: Final = tasks

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(number) for number in range(self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"offset": [partition.value]})


class NothingSource(DataSource):
    """A data source that yields one row in each task (option `tasks`)."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "trellis-nothing"

    def schema(self) -> str:
        """Return the schema: one column."""
        return "offset long"

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query."""
        return _NothingReader(int(self.options["tasks"]))


def measure_tasks(
    spark: Any,
    path: str,
    took: Callable[[str, Callable[[], Any]], float],
    aim: Callable[[str, str, float, bool], None],
) -> None:
    """Measure jobs of many tasks and of one task over the same rows of a journal.

    `took` runs a job and returns its CPU seconds; `aim` records a value and its target.
    """
    spark.dataSource.register(NothingSource)

    def run(name: str, **options: Any) -> Callable[[], None]:
        table = spark.read.format(name).options(**options)
        return lambda: table.load(path).write.format("noop").mode("overwrite").save()

    part = {"endingOffsets": TASKS * ROWS}
    many, nothing = (
        took(f"{TASKS} tasks: {name}", run(form, **options))
        - took(f"one task: {name}", run(form, **others))
        for name, form, options, others in (
            ("the source", "trellis", part | {"rowsPerTask": ROWS}, part),
            ("no work", "trellis-nothing", {"tasks": TASKS}, {"tasks": 1}),
        )
    )
    own = (many - nothing) / (TASKS - 1)
    aim("Spark's own cost of a task: CPU seconds", "-", nothing / (TASKS - 1), True)
    aim("source: CPU seconds of a task beyond Spark's own", f"<= {_AIM}", own, own <= _AIM)
