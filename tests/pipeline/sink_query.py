"""A process with a streaming query from a journal to a broker, for tests that kill it.

The argument is a JSON object: the fields of SinkQuery.
"""

from __future__ import annotations

import json
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tests.pipeline import spark_places


@dataclass(frozen=True)
class SinkQuery:
    """A query that publishes the rows of a journal, and the Spark that runs it."""

    journal: str
    #: Rows of a batch, and of a task.
    rows: int
    rows_per_task: int
    #: The broker's URL, and the exchange.
    url: str
    exchange: str
    checkpoint: str
    #: The option `hadoopSecrets`.
    secrets: str
    #: The URL of a master, or `connect`: the process starts a server of Spark Connect, so that a
    #: kill of the process's session ends the query, too.
    master: str
    #: Settings of Spark.
    settings: dict[str, str]

    def run(self) -> None:
        """Run the query until it has published all rows that the journal has."""
        with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
            if self.master == spark_places.OWN_SERVER:
                server = spark_places.place(Path(scratch, "server"), self.master, self.settings)
                master, settings = stack.enter_context(server), {}
            else:
                master, settings = self.master, self.settings
            spark = spark_places.session(master, "killed", Path(scratch), settings)
            stack.callback(spark.stop)
            (
                spark.readStream.format("trellis")
                .option("maxRowsPerTrigger", self.rows)
                .option("rowsPerTask", self.rows_per_task)
                .load(self.journal)
                .select("topic", "body")
                .writeStream.format("trellis")
                .option("url", self.url)
                .option("exchange", self.exchange)
                .option("hadoopSecrets", self.secrets)
                .option("checkpointLocation", self.checkpoint)
                .trigger(availableNow=True)
                .start()
                .awaitTermination()
            )


if __name__ == "__main__":
    SinkQuery(**json.loads(sys.argv[1])).run()
