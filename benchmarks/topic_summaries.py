"""Measures the summary of the topics of a full segment: CPU time to make it, its size, and the CPU
time of a reader's decision. The segment has the default size of 64 MiB and bodies of 100 bytes.

    python benchmarks/topic_summaries.py

Run this program with the Python of an installed `trellis-broker[arrow,test]`.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path.insert(1, str(ROOT))

import trellis  # noqa: E402
from broker.store.disk import RealDisk  # noqa: E402
from broker.stream.arrow import END_OF_STREAM, encode_schema  # noqa: E402
from broker.stream.segment_topics import write_summary  # noqa: E402
from broker.stream.segment_writer import SEGMENT_SIZE, write_index  # noqa: E402
from broker.stream.segments import Segment, segment_name  # noqa: E402
from pyspark_trellis.segment_topics import condition_of, summary_of  # noqa: E402
from trellis.archive.restoring import encode_batch  # noqa: E402

#: Number of rows of a batch.
BATCH: Final = 2_500
#: The time of the first row, in microseconds.
BEGIN: Final = 1_700_000_000_000_000


def topics_of(count: int) -> Callable[[], list[str]]:
    """Return a function that draws the topics of a batch from `count` topics.

    If `count` is 0, every topic is different.
    """
    rng = random.Random(7)

    def topic(number: int) -> str:
        return f"plant.line{number % 40}.machine{number:08d}.temperature"

    if not count:
        return lambda: [f"request.{rng.getrandbits(64):016x}" for _ in range(BATCH)]
    pool = [topic(number) for number in range(count)]
    return lambda: rng.choices(pool, k=BATCH)


def write_segment(directory: Path, topics: Callable[[], list[str]]) -> tuple[Path, Segment]:
    """Write a full segment and its index; return the segment's path and the Segment."""
    path = directory / segment_name(1, 0)
    segment = Segment(RealDisk(), str(path), 1, 0)
    schema = pa.ipc.read_schema(pa.py_buffer(encode_schema(1, 1, 0))).remove_metadata()
    with path.open("wb") as out:
        out.write(encode_schema(1, 1, 0))
        while segment.size < SEGMENT_SIZE:
            data = encode_batch(batch_of(schema, int(segment.end), topics()))
            at = BEGIN + int(segment.end)
            segment.add_batch(segment.end, BATCH, segment.size, len(data), at, at)
            out.write(data)
        out.write(END_OF_STREAM)
    write_index(RealDisk(), segment)
    return path, segment


def batch_of(schema: pa.Schema, base: int, topics: list[str]) -> pa.RecordBatch:
    """Return a batch of rows from the offset `base` on."""
    equal: dict[str, Any] = {
        "published_at": BEGIN + base,
        "vhost": "/",
        "exchange": "amq.topic",
        "protocol": "mqtt50",
        "qos": 1,
        "publisher": "guest",
        "routed": 1,
        "size": 100,
        "content_header": bytes(14),
        "body": bytes(100),
    }
    columns = [
        pa.array(range(base, base + BATCH), field.type)
        if field.name == "offset"
        else pa.array(topics, field.type)
        if field.name == "topic"
        else pa.repeat(pa.scalar(equal.get(field.name), field.type), BATCH)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def main() -> None:
    """Print a table in Markdown."""
    print(f"compiled: {trellis.compiled()}\n")
    print("| topics | rows | CPU ms, summary | CPU ns for each row | bytes | CPU ms, decision |")
    print("|---|---:|---:|---:|---:|---:|")
    for count in (5_000, 50_000, 0):
        with tempfile.TemporaryDirectory() as directory:
            path, segment = write_segment(Path(directory), topics_of(count))
            begun = time.process_time()
            write_summary(RealDisk(), str(path))
            spent = time.process_time() - begun
            data = path.with_name(f"{path.name}.topics").read_bytes()
            condition = condition_of("plant/+/machine99999999/#", "mqtt")
            assert condition is not None
            begun = time.process_time()
            summary = summary_of(data, 1, 0, int(segment.end))
            assert summary is not None
            assert not condition.may_hold(summary)
            decided = time.process_time() - begun
        rows = int(segment.end)
        print(
            f"| {f'{count:,}' if count else 'one for each row'} | {rows:,} | {spent * 1e3:.0f} | "
            f"{spent / rows * 1e9:.0f} | {len(data):,} | {decided * 1e3:.1f} |"
        )


if __name__ == "__main__":
    main()
