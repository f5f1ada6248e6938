"""A Spark driver on a cluster, which prints its results as a line of JSON.

python cluster.py JOURNAL MASTER SCRATCH      pyspark_trellis starts the session, and sends its own
                                              code to the workers
spark-submit ... cluster.py JOURNAL           spark-submit starts the session, and has sent the code
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession


def where(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the files of `matching` and `pyspark_trellis` in this worker, and the worker's
    directory.
    """
    import matching
    import pyspark_trellis

    for _ in batches:
        names = [matching.__file__, pyspark_trellis.__file__]
        yield pa.RecordBatch.from_pydict({"file": names, "place": [str(Path.cwd())] * 2})


def main(journal: str, master: str = "", scratch: str = "") -> None:
    spark: Any
    if scratch:
        from pyspark_trellis.session import start

        settings = json.loads(os.environ["SETTINGS"])
        spark = start(master, "cluster", small=True, scratch=Path(scratch), settings=settings)
    else:
        spark = SparkSession.builder.getOrCreate()
    if master == "register":
        from pyspark_trellis import DefaultSource

        spark.dataSource.register(DefaultSource)
    from pyspark_trellis import match_topics

    table = spark.read.format("trellis").schema("offset long, topic string").load(journal)
    matches = match_topics(table, ["t.#", "t.1", "*.2"]).collect()
    # A barrier starts both tasks at the same time, so each of the two workers must run one.
    workers = spark.range(0, 2, 1, 2).mapInArrow(where, "file string, place string", barrier=True)
    places = workers.collect()
    print(
        json.dumps(
            {
                "rows": table.count(),
                "files": sorted({row[0] for row in places}),
                "places": sorted({row[1] for row in places}),
                "matches": sorted([row[0], row[1], row[2]] for row in matches),
            }
        )
    )
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
