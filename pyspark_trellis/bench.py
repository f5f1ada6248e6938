"""`trellis pipeline bench`: measures reading with the Spark data source, and bulk matching.

The source and the matching are each compared with hand-written code for the same task.

The bench asserts that all variants have equal results. Costs are CPU seconds of all processes of
this session (driver, JVM and Python workers), read from /proc. A variant that would take too long
is measured on a part of the messages; the output says how many messages that part has.
"""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from matching.grammar import AMQP
from pyspark_trellis.bench_tasks import ROWS, TASKS, measure_tasks
from pyspark_trellis.bulk import match_topics, regex, spelled
from pyspark_trellis.columns import COLUMNS
from pyspark_trellis.errors import PipelineError
from pyspark_trellis.progress import PipelineProgress
from pyspark_trellis.source import DefaultSource, JournalReader

TOPICS: Final = 50_000
#: The number of rows in a batch that the broker writes under load: 256 KiB of bodies of 100 bytes
#: each.
A_BATCH: Final = 2_621
#: The number of reads before the source is measured, because the JVM compiles hot code only after
#: some million rows.
WARM: Final = 3
_TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Figure:
    """The CPU time of one variant: `seconds` is the median of `runs`, each over `rows` rows."""

    name: str
    rows: int
    seconds: float
    runs: list[float]
    patterns: int = 0


@dataclass
class PipelineFigures:
    """The results of one run of the bench."""

    measured: list[Figure] = field(default_factory=list)
    targets: list[tuple[str, str, float, bool]] = field(default_factory=list)

    def aim(self, name: str, bound: str, value: float, met: bool) -> None:
        """Record a measured value and its target `bound`; `met` is True if the value meets it."""
        self.targets.append((name, bound, round(value, 3), met))

    def lines(self) -> list[str]:
        """Return the results as lines of text."""
        lines = [
            f"{each.name:58} {each.rows:>10,} rows {each.seconds:8.2f} CPU s  "
            f"{each.rows / max(each.seconds, 0.01):>12,.0f} rows/CPU s"
            for each in self.measured
        ]
        return [
            *lines,
            "",
            *[
                f"{name:70} {bound:>10}  {value:>10,.2f}  {'met' if met else 'MISSED'}"
                for name, bound, value, met in self.targets
            ],
        ]

    def document(self) -> dict[str, Any]:
        """Return the results as a JSON document."""
        return asdict(self)


def cpu_seconds() -> float:
    """Return the CPU seconds of all processes of this session, including ended processes.

    Raises PipelineError if the system has no /proc.
    """
    if not Path("/proc/self/stat").exists():
        raise PipelineError(
            "the bench reads CPU times from /proc, which this system does not have: run the bench "
            "on Linux"
        )
    own = _facts(os.getpid())
    family = {os.getpid()}
    facts = {
        int(entry.name): process_facts
        for entry in Path("/proc").iterdir()
        if entry.name.isdecimal() and (process_facts := _facts(int(entry.name)))
    }
    grown = True
    while grown:
        more = {pid for pid, process_facts in facts.items() if process_facts[0] in family} - family
        grown = bool(more)
        family |= more
    assert own
    return sum(facts[pid][1] for pid in family if pid in facts) / _TICKS


def _facts(pid: int) -> tuple[int, int] | None:
    """Return the ID of a process's parent, and the process's CPU time in clock ticks.

    The CPU time includes the CPU time of ended child processes. Return None if the process has
    ended.
    """
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return int(words[1]), sum(map(int, words[11:15]))


def pool(rng: random.Random, count: int = TOPICS) -> list[str]:
    """Return `count` distinct topics, in the style of sensors of machines in several factories."""
    topics: dict[str, None] = {}
    while len(topics) < count:
        topics[
            f"site{rng.randrange(60)}.line{rng.randrange(40)}.dev{rng.randrange(400)}."
            f"{rng.choice(('temp', 'hum', 'vib', 'press'))}"
        ] = None
    return list(topics)


def patterns_of(topics: list[str], count: int, rng: random.Random) -> list[str]:
    """Return `count` distinct patterns, made from topics chosen at random.

    A third of the patterns are literal; the others have `*` at any position or `#` at the end.
    """
    patterns: dict[str, None] = {}
    while len(patterns) < count:
        words = rng.choice(topics).split(".")
        draw = rng.random()
        if draw > 0.33:
            for _ in range(rng.choice((1, 1, 2))):
                words[rng.randrange(len(words))] = "*"
        if draw > 0.85:
            words = [*words[: rng.randrange(1, 4)], "#"]
        patterns[".".join(words)] = None
    return list(patterns)


def bench(spark: Any, quick: bool, progress: PipelineProgress) -> PipelineFigures:
    """Run all measurements and return their results; `quick` uses a hundredth of the messages."""
    scale = 100 if quick else 1
    figures = PipelineFigures()
    with tempfile.TemporaryDirectory(prefix="trellis-bench-") as scratch:
        _matching(spark, 5_000_000 // scale, TOPICS // (10 if quick else 1), figures, progress)
        _source(spark, Path(scratch), max(1_000_000 // scale, TASKS * ROWS), figures, progress)
    progress.end()
    return figures


def _measured(
    figures: PipelineFigures,
    progress: PipelineProgress,
    name: str,
    rows: int,
    work: Callable[[], Any],
    patterns: int = 0,
    times: int = 1,
) -> tuple[float, Any]:
    """Run `work` `times` times, and record the CPU seconds under `name`.

    Return the median of the CPU seconds, and the result of the last run. `rows` and `patterns` are
    the numbers of rows and patterns that one run processes.
    """
    runs = []
    for number in range(times):
        progress.say(f"{name}, {number + 1} of {times}")
        before = cpu_seconds()
        result = work()
        runs.append(round(cpu_seconds() - before, 3))
    median = sorted(runs)[times // 2]
    figures.measured.append(Figure(name, rows, median, runs, patterns))
    return median, result


def _matching(
    spark: Any, count: int, topics_count: int, figures: PipelineFigures, progress: PipelineProgress
) -> None:
    rng = random.Random(1)
    topics = pool(rng, topics_count)
    many, few = patterns_of(topics, 100_000 if count >= 1_000_000 else 5_000, rng), 1_000
    names = spark.createDataFrame(
        [(at, topic) for at, topic in enumerate(topics)], "id long, topic string"
    )
    messages = (
        spark.range(count)
        .select((F.hash("id") % topics_count).alias("draw"))
        .select(F.pmod("draw", F.lit(topics_count)).cast("long").alias("id"))
    )
    messages = messages.join(F.broadcast(names), "id").select("topic").cache()
    assert messages.count() == count

    def total(patterns: list[str]) -> tuple[int, int]:
        row = match_topics(messages, patterns).agg(F.sum("messages"), F.count("*")).collect()[0]
        return row[0], row[1]

    total(many[:10])  # A first run warms up the Python workers and the JVM; it is not measured.
    a_few, matches = _measured(
        figures, progress, "bulk matching, 1,000 patterns", count, lambda: total(many[:few]), few, 3
    )
    a_lot, _ = _measured(
        figures,
        progress,
        f"bulk matching, {len(many):,} patterns",
        count,
        lambda: total(many),
        len(many),
        3,
    )
    part = max(count // 1000, 1000)
    some = messages.limit(part).cache()
    assert some.count() == part
    patterns_table = spark.createDataFrame(
        [(at, regex(pattern, AMQP)) for at, pattern in enumerate(many[:few])],
        "pattern long, regex string",
    )
    crossed = (
        some.select(spelled(F.col("topic"), AMQP).alias("spelled"))
        .crossJoin(F.broadcast(patterns_table))
        .where(F.expr("spelled rlike regex"))
    )
    rival, number = _measured(
        figures,
        progress,
        f"crossJoin + rlike, 1,000 patterns, {part:,} of the messages",
        part,
        crossed.count,
        few,
    )
    ours = match_topics(some, many[:few]).agg(F.sum("messages")).collect()[0][0]
    assert (ours or 0) == number, (
        f"bulk matching found {ours} pairs, but crossJoin with rlike found {number}"
    )
    assert matches[0] > 0
    times = rival / part * count / a_few
    figures.aim(
        "bulk matching, 1,000 patterns: speed relative to crossJoin + rlike",
        ">= 500",
        times,
        times >= 500,
    )
    figures.aim(
        f"bulk matching, {len(many):,} patterns: time relative to 1,000 patterns",
        "<= 1.5",
        a_lot / a_few,
        a_lot <= 1.5 * a_few,
    )
    figures.aim(
        f"{count:,} messages, {len(many):,} patterns, CPU seconds", "<= 10", a_lot, a_lot <= 10
    )
    messages.unpersist()
    some.unpersist()


def _source(
    spark: Any, scratch: Path, count: int, figures: PipelineFigures, progress: PipelineProgress
) -> None:
    path = scratch / "journal"
    write(path, count)
    for rival in (_RowSource, _ColumnSource):
        spark.dataSource.register(rival)

    def table(name: str, **options: Any) -> DataFrame:
        loaded: DataFrame = spark.read.format(name).options(**options).load(str(path))
        return loaded

    def read(name: str, **options: Any) -> None:
        table(name, **options).write.format("noop").mode(
            "overwrite"
        ).save()  # All columns reach the JVM, and nothing is written.

    def digest(name: str) -> tuple[Any, ...]:
        return tuple(
            table(name)
            .agg(F.count("*"), F.sum(F.xxhash64(*COLUMNS).cast("decimal(38,0)")))
            .collect()[0]
        )

    def measured(name: str, work: Callable[[], Any], times: int) -> float:
        return _measured(figures, progress, name, count, work, 0, times)[0]

    measured("source, all columns, the first time", lambda: read("trellis"), 1)
    digests = {name: digest(name) for name in ("trellis", "trellis-rows", "trellis-columns")}
    assert len(set(digests.values())) == 1, f"the sources read different rows: {digests}"
    assert digests["trellis"][0] == count
    for _ in range(WARM):
        read("trellis")
    seconds = measured("source, all columns", lambda: read("trellis"), 5)
    unchecked = measured(
        "source, all columns, verify=false", lambda: read("trellis", verify=False), 5
    )
    measure_tasks(spark, str(path), lambda name, work: measured(name, work, 5), figures.aim)
    thin = spark.read.format("trellis").schema("offset long, topic string").load(str(path))
    measured("source, two columns", lambda: thin.write.format("noop").mode("overwrite").save(), 5)
    rows = measured("a source that yields tuples, row by row", lambda: read("trellis-rows"), 3)
    columns = measured(
        "a source that yields tuples, column by column", lambda: read("trellis-columns"), 3
    )
    figures.aim(
        "source, all columns: rows per CPU second",
        ">= 500000",
        count / seconds,
        count / seconds >= 500_000,
    )
    figures.aim(
        "source: speed relative to a source of tuples, row by row",
        ">= 8",
        rows / seconds,
        rows >= 8 * seconds,
    )
    figures.aim(
        "source: speed relative to a source of tuples, column by column",
        ">= 8",
        columns / seconds,
        columns >= 8 * seconds,
    )
    figures.aim(
        "checksums: share of the source's CPU time",
        "<= 0.10",
        1 - unchecked / seconds,
        unchecked >= 0.9 * seconds,
    )


def summed(batch: pa.RecordBatch) -> bytes:
    """Return the bytes of a record batch with its checksum in its metadata, as in a segment."""
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, batch.schema) as writer:
        writer.write_batch(batch, custom_metadata={"crc32": "0" * 8})
        end = out.tell()
    data: bytes = out.getvalue().to_pybytes()[batch.schema.serialize().size : end]
    # The metadata comes before the rows, so the first eight zeros are the place of the checksum.
    return data.replace(b"0" * 8, b"%08x" % crc32(data), 1)


def write(path: Path, count: int, a_batch: int = A_BATCH) -> None:
    """Write a journal of `count` rows in one segment, with `a_batch` rows in each batch.

    The bodies have 100 bytes.
    """
    path.mkdir(parents=True)
    topics = pool(random.Random(2), min(TOPICS, count))
    kinds: dict[str, pa.DataType] = {
        "long": pa.int64(),
        "int": pa.int32(),
        "short": pa.uint8(),
        "string": pa.string(),
        "binary": pa.binary(),
        "timestamp": pa.timestamp("us", tz="UTC"),
    }
    schema = pa.schema(
        [pa.field(name, kinds[kind]) for name, kind in COLUMNS.items()],
        metadata={"trellis.format": "1"},
    )
    with path.joinpath("0000000001-00000000000000000000.arrow").open("wb") as file:
        file.write(schema.serialize())
        for first in range(0, count, a_batch):
            size = min(a_batch, count - first)
            offsets = np.arange(first, first + size)
            known: dict[str, Any] = {
                "offset": offsets,
                "published_at": pa.array(offsets * 1000, pa.int64()).cast(kinds["timestamp"]),
                "vhost": ["/"] * size,
                "exchange": ["amq.topic"] * size,
                "topic": [topics[at % len(topics)] for at in offsets.tolist()],
                "protocol": ["amqp"] * size,
                "publisher": ["guest"] * size,
                "routed": np.ones(size, np.int32),
                "size": np.full(size, 100),
                "qos": np.ones(size, np.uint8),
                "content_type": ["application/json"] * size,
                "content_header": [b"\0\x3c" + bytes(20)] * size,
                "body": [bytes(100)] * size,
            }
            columns = [
                pa.array(known[field.name], field.type)
                if field.name in known
                else pa.nulls(size, field.type)
                for field in schema
            ]
            file.write(summed(pa.RecordBatch.from_arrays(columns, schema=schema)))


class _RowReader(JournalReader):
    """A reader for comparison: it converts each row to a dict, then to a tuple.

    This is the reader that a programmer would write first.
    """

    def read(self, partition: InputPartition) -> Iterator[Any]:
        for batch in super().read(partition):
            for row in batch.to_pylist():
                yield tuple(row.values())


class _ColumnReader(JournalReader):
    """A reader for comparison: it makes tuples as fast as Python can.

    Each column becomes a list of Python objects, and `zip` makes the rows.
    """

    def read(self, partition: InputPartition) -> Iterator[Any]:
        for batch in super().read(partition):
            yield from zip(*[column.to_pylist() for column in batch.columns], strict=True)


class _RowSource(DefaultSource):
    """A data source for comparison: it yields the rows of a journal as tuples (_RowReader)."""

    @classmethod
    def name(cls) -> str:
        return "trellis-rows"

    def reader(self, schema: StructType) -> DataSourceReader:
        return _RowReader(schema, self._read())


class _ColumnSource(DefaultSource):
    """A data source for comparison: it yields a journal's rows as tuples, by columns
    (_ColumnReader).
    """

    @classmethod
    def name(cls) -> str:
        return "trellis-columns"

    def reader(self, schema: StructType) -> DataSourceReader:
        return _ColumnReader(schema, self._read())
