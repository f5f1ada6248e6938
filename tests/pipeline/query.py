"""A process with two streaming queries of one journal, one after the other, for tests that kill it.

python -m tests.pipeline.query DIRECTORY AMQP-URL ROWS MASTER

MASTER is the URL of a Spark master, or `connect`. With `connect`, the process starts a server of
Spark Connect, which belongs to the process's POSIX session. So if all processes of the session are
killed, the queries end, too.

    DIRECTORY/journal --> DIRECTORY/lake (Parquet), checkpoint DIRECTORY/lake.checkpoint
                      `-> the exchange `out` of a broker, checkpoint DIRECTORY/sink.checkpoint
"""

from __future__ import annotations

import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from tests.pipeline import spark_places


def main(directory: Path, url: str, rows: str, master: str) -> None:
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        if master == spark_places.OWN_SERVER:
            server = spark_places.place(Path(scratch, "server"), master)
            master = stack.enter_context(server)
        spark = spark_places.session(master, "killed", Path(scratch))
        journal = (
            spark.readStream.format("trellis")
            .option("maxRowsPerTrigger", rows)
            .option("rowsPerTask", int(rows) // 2)
            .load(str(directory / "journal"))
        )
        lake = (
            journal.select("offset", "topic")
            .writeStream.format("parquet")
            .option("path", str(directory / "lake"))
        )
        sink = (
            journal.selectExpr("'out' as exchange", "topic", "body", "message_id")
            .writeStream.format("trellis")
            .option("url", url)
        )
        # The queries start one after the other. If they started together, their tasks would share a
        # table of the JVM that changes while it is serialised.
        for name, writer in (("lake", lake), ("sink", sink)):
            writer.option("checkpointLocation", str(directory / f"{name}.checkpoint")).trigger(
                availableNow=True
            ).start().awaitTermination()
        spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4])
