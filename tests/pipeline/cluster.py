"""A Spark driver on a cluster: python -m tests.pipeline.cluster MASTER JOURNAL SCRATCH.

Prints its results as a line of JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from pyspark_trellis import match_topics
from pyspark_trellis.session import start


def where(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return the files from which a worker imported this code."""
    import matching
    import pyspark_trellis

    for _ in batches:
        yield pa.RecordBatch.from_pydict({"file": [matching.__file__, pyspark_trellis.__file__]})


def main(master: str, journal: str, scratch: str) -> None:
    spark = start(
        master,
        "cluster",
        small=True,
        scratch=Path(scratch),
        settings={
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executor.memory": "512m",
            "spark.cores.max": "1",
        },
    )
    table = spark.read.format("trellis").schema("offset long, topic string").load(journal)
    found = match_topics(table, ["t.#", "t.1", "*.2"]).collect()
    files = [row[0] for row in spark.range(1).mapInArrow(where, "file string").collect()]
    print(
        json.dumps(
            {
                "rows": table.count(),
                "files": files,
                "found": sorted([row[0], row[1], row[2]] for row in found),
            }
        )
    )
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
