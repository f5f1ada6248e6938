"""Tests of Spark queries over HTTP from a running broker.

The queries are batch queries, and streaming queries with a checkpoint. Each error is one line.
"""

from __future__ import annotations

import base64
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pika
import pytest
from pyspark.sql import DataFrame, SparkSession

from pyspark_trellis.columns import projection
from pyspark_trellis.errors import PipelineError
from pyspark_trellis.journals import one_stream
from pyspark_trellis.publisher import Outgoing, SinkPublisher
from pyspark_trellis.rows import SelectedRows
from tests.broker import BrokerProcess
from tests.pipeline.test_source import error_of, offsets_of

#: The size of a segment in bytes; the stream `short` keeps two segments.
SEGMENT: Final = 16_384
TOPICS: Final = ("a.b", "a.c", "b")


class Served:
    """A running broker with streams."""

    def __init__(self, directory: Path) -> None:
        self.process = BrokerProcess("--data-dir", str(directory))
        http = self.process.addresses["http"]
        self.place = f"{http.host}:{http.port}"
        self.url = f"http://{self.place}"

    def put(self, path: str, **document: str) -> None:
        """Send a PUT request to the management API; `document` is its JSON body."""
        request = urllib.request.Request(
            f"http://{self.place}/api/{path}", json.dumps(document).encode(), method="PUT"
        )
        request.add_header("Authorization", "Basic " + base64.b64encode(b"guest:guest").decode())
        urllib.request.urlopen(request, timeout=30).close()

    def declare(self, name: str, **arguments: object) -> None:
        """Declare a stream, and bind the stream with `#` to a new topic exchange of its name."""
        with pika.BlockingConnection(pika.URLParameters(self.process.amqp_url)) as connection:
            channel = connection.channel()
            channel.queue_declare(
                name,
                durable=True,
                arguments={"x-queue-type": "stream", "x-stream-max-segment-size-bytes": SEGMENT}
                | arguments,
            )
            channel.exchange_declare(name, "topic", durable=True)
            channel.queue_bind(name, name, "#")

    def publish(self, stream: str, first: int, end: int, body: int = 10) -> None:
        """Publish the messages `first` to `end` - 1, and wait until they are durable.

        The body of a message is its number, filled with zeros to at least `body` digits.
        """
        properties = pika.BasicProperties(delivery_mode=2)
        SinkPublisher(self.process.amqp_url).publish(
            Outgoing(stream, TOPICS[at % 3], b"%0*d" % (body, at), properties)
            for at in range(first, end)
        )


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    served = Served(tmp_path_factory.mktemp("served") / "data")
    try:
        served.declare("all")
        served.publish("all", 0, 90)
        yield served
    finally:
        served.process.stop()


def load(spark: SparkSession, url: str, stream: str = "all", **options: Any) -> DataFrame:
    return spark.read.format("trellis").options(stream=stream, **options).load(url)


def test_query_reads_the_published_messages(spark: SparkSession, served: Served) -> None:
    rows = load(spark, served.url, rowsPerTask=20).orderBy("offset").collect()
    assert [
        (row["offset"], row["topic"], int(bytes(row["body"])), row["exchange"], row["publisher"])
        for row in rows
    ] == [(at, TOPICS[at % 3], at, "all", "guest") for at in range(90)]
    part = load(
        spark, served.url, stream="//all", pattern="a.*", startingOffsets=31, endingOffsets=60
    )
    assert offsets_of(part) == [at for at in range(31, 60) if at % 3 < 2]
    thin = (
        spark.read.format("trellis")
        .schema("topic string, offset long")
        .options(stream="all", startingOffsets=88)
        .load(served.url)
    )
    assert sorted(map(tuple, thin.collect())) == [("a.c", 88), ("b", 89)]


def test_a_streaming_query_continues_after_a_restart(
    spark: SparkSession, served: Served, tmp_path: Path
) -> None:
    served.declare("followed")
    served.publish("followed", 0, 60)

    def follow() -> list[tuple[int, str, int]]:
        query = (
            spark.readStream.format("trellis")
            .schema("offset long, topic string, body binary")
            .options(
                stream="followed",
                pattern="a.#",
                startingOffsets=10,
                maxRowsPerTrigger=25,
                rowsPerTask=12,
            )
            .load(served.url)
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return sorted(
            (row[0], row[1], int(bytes(row[2])))
            for row in spark.read.parquet(str(tmp_path / "out")).collect()
        )

    def expected(end: int) -> list[tuple[int, str, int]]:
        return [(at, TOPICS[at % 3], at) for at in range(10, end) if at % 3 < 2]

    assert follow() == expected(60)
    assert len(list((tmp_path / "checkpoint" / "commits").glob("[0-9]*"))) == 2
    served.publish("followed", 60, 90)
    assert follow() == expected(90)
    assert len(list((tmp_path / "checkpoint" / "commits").glob("[0-9]*"))) == 4


def test_an_error_is_one_line(spark: SparkSession, served: Served) -> None:
    served.put("users/blind", password="night", tags="")
    served.put("permissions/%2F/blind", configure="", write="", read="^other$")
    wrong = error_of(lambda: load(spark, served.url, password="wrong").count())
    assert (
        wrong
        == f"http://{served.place} answered a request of user 'guest' with status 401: unknown "
        "user or wrong password"
    )
    refused = error_of(lambda: load(spark, served.url, user="blind", password="night").count())
    assert refused.startswith(
        f"http://{served.place} answered a request of user 'blind' with status 403: "
    )
    assert "'all'" in refused
    unknown = error_of(lambda: load(spark, served.url, stream="al").count())
    assert (
        unknown
        == f"http://{served.place} answered a request of user 'guest' with status 404: there is no "
        "stream 'al' in vhost '/'"
    )
    elsewhere = error_of(lambda: load(spark, served.url, stream="other/all").count())
    assert (
        elsewhere
        == f"http://{served.place} answered a request of user 'guest' with status 404: there is no "
        "vhost 'other'"
    )
    unsaid = error_of(lambda: spark.read.format("trellis").load(served.url).count())
    assert unsaid == (
        f"the query names no stream of http://{served.place}: set the option stream to QUEUE or "
        "VHOST/QUEUE"
    )
    assert "is after the end of stream 'all'" in error_of(
        lambda: load(spark, served.url, startingOffsets=91).count()
    )
    assert error_of(lambda: load(spark, "http://127.0.0.1:1").count()).startswith(
        "http://127.0.0.1:1 does not answer: "
    )


def test_an_offset_that_retention_has_removed_is_an_error_and_nothing_is_passed_over(
    spark: SparkSession, served: Served
) -> None:
    served.declare("short", **{"x-max-length-bytes": 2 * SEGMENT})
    for first in range(0, 200, 20):
        served.publish("short", first, first + 20, 1_000)
    first = min(offsets_of(load(spark, served.url, stream="short")))
    assert 0 < first < 190
    line = error_of(
        lambda: load(spark, served.url, stream="short", startingOffsets=first - 1).count()
    )
    assert line == (
        f"retention removed offset {first - 1} of stream 'short' in vhost '/' of "
        f"http://{served.place}: the first remaining offset is {first}; read from "
        "startingOffsets=earliest, or increase retention"
    )
    assert offsets_of(load(spark, served.url, stream="short", startingOffsets=first)) == list(
        range(first, 200)
    )


@pytest.mark.long
def test_rows_that_retention_removes_after_the_plan_are_lost_without_an_archive(
    served: Served,
) -> None:
    served.declare("lost", **{"x-max-length-bytes": 2 * SEGMENT})
    served.publish("lost", 0, 20, 1_000)
    stream = one_stream(
        {"path": served.url, "journal": "lost", "user": "guest", "password": "guest"}
    )
    pieces = stream.pieces(0, 20, 5)
    for first in range(20, 60, 20):
        served.publish("lost", first, first + 20, 1_000)
    assert stream.bounds().first > 0
    columns = projection(["offset"])
    with pytest.raises(PipelineError, match=r"with status 410: .* does not exist, or retention"):
        list(SelectedRows(columns, {}).batches(pieces[0]))
    lenient = SelectedRows(columns, {"failondataloss": "false"})
    offsets = [
        offset
        for piece in pieces
        for batch in lenient.batches(piece)
        for offset in batch.column("offset").to_pylist()
    ]
    assert offsets == list(range(min(stream.bounds().first, 20), 20))
