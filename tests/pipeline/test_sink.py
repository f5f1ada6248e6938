"""Tests of the Spark sink `writeStream.format("trellis")`.

The sink publishes each row as a message, with numbers for deduplication, and waits for the confirm.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pika
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from pyspark_trellis.errors import PipelineError, line_of
from pyspark_trellis.publisher import SinkPublisher
from pyspark_trellis.sink import StreamWriter, _claim
from tests.broker import BrokerProcess
from tests.pipeline.written import journal, row

COLUMNS = ("'out' as exchange", "topic", "body", "headers", "message_id")


def write(spark: SparkSession, tmp_path: Path, url: str) -> Any:
    query = (
        spark.readStream.format("trellis")
        .option("maxRowsPerTrigger", 30)
        .option("rowsPerTask", 10)
        .load(str(tmp_path / "s"))
        .selectExpr(*COLUMNS)
        .writeStream.format("trellis")
        .option("url", url)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    return query


@pytest.mark.smoke
def test_every_row_is_published_with_its_place_in_the_query(
    spark: SparkSession, tmp_path: Path, broker: BrokerProcess
) -> None:
    rows = journal(
        tmp_path / "s",
        [
            row(
                at,
                f"t.{at % 3}",
                body=b"%d" % at,
                message_id=f"m{at}",
                headers=json.dumps({"n": at}),
            )
            for at in range(50)
        ],
    )
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        channel = connection.channel()
        channel.exchange_declare("out", "topic", auto_delete=True)
        queue = channel.queue_declare("", exclusive=True).method.queue
        channel.queue_bind(queue, "out", "#")
        query = write(spark, tmp_path, broker.amqp_url)
        found = {}
        for _ in rows:
            method, properties, body = channel.basic_get(queue, auto_ack=True)
            assert method is not None
            assert properties.delivery_mode == 2
            found[properties.message_id] = (method.routing_key, body, properties.headers)
        assert channel.basic_get(queue)[0] is None
    assert found.keys() == {each["message_id"] for each in rows}
    places: dict[str, list[int]] = {}
    for each in rows:
        key, body, headers = found[each["message_id"]]
        assert (key, body, headers["n"]) == (
            each["topic"],
            each["body"],
            json.loads(each["headers"])["n"],
        )
        places.setdefault(headers["x-trellis-producer"], []).append(headers["x-trellis-sequence"])
    assert all(producer.startswith(str(query.id)) for producer in places)
    assert {sequence >> 32 for some in places.values() for sequence in some} == {0, 1}
    for some in places.values():
        assert len(set(some)) == len(some)
    assert [path.name for path in (tmp_path / "checkpoint" / "trellis").iterdir()] == ["1"]


def test_a_batch_that_is_divided_in_another_way_is_refused(tmp_path: Path) -> None:
    rows = [{"topic": "a", "body": b"1"}, {"topic": "b", "body": b"2"}]
    _claim(str(tmp_path), 3, 0, rows)
    _claim(f"file:{tmp_path}", 3, 0, rows)
    _claim(str(tmp_path), 3, 1, [])
    with pytest.raises(
        PipelineError, match="batch 3 is repeated with other partitions than before"
    ):
        _claim(str(tmp_path), 3, 0, rows[:1])


@pytest.mark.parametrize(
    ("ddl", "options", "line"),
    [
        ("topic string", {}, "a message needs a column 'body'; the query has only topic"),
        ("topic string, body int", {}, "column 'body' of a message is string or binary, not int"),
        (
            "topic string, body binary, colour string",
            {},
            "a message has no field for the column 'colour'; select only topic, body, exchange",
        ),
        (
            "topic string, body binary",
            {"uri": "x"},
            "has no option 'uri'; the options are url, exchange, checkpointLocation",
        ),
    ],
)
def test_columns_that_make_no_message_are_rejected_at_once(
    ddl: str, options: dict[str, str], line: str, spark: SparkSession
) -> None:
    schema = StructType.fromDDL(ddl)
    assert isinstance(schema, StructType)
    with pytest.raises(PipelineError, match=line):
        StreamWriter(schema, {"checkpointlocation": "c"} | options)


def test_a_broker_that_is_not_there_ends_the_query_with_one_line(
    spark: SparkSession, tmp_path: Path
) -> None:
    journal(tmp_path / "s", [row(0, "a")])
    with pytest.raises(Exception, match="PipelineError") as caught:
        write(spark, tmp_path, "amqp://guest:guest@127.0.0.1:1/")
    assert (line_of(caught.value) or "").startswith(
        "publishing to 127.0.0.1:1 failed after 0 of 0 messages: no connection"
    )


def test_an_invalid_url_is_named() -> None:
    with pytest.raises(PipelineError, match="option url is 'amqp://host:port/', and should be"):
        SinkPublisher("amqp://host:port/")


def test_a_queue_that_does_not_take_more_ends_the_publisher(
    broker: BrokerProcess, unique: str
) -> None:
    from pyspark_trellis.publisher import Outgoing

    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        connection.channel().queue_declare(
            unique, exclusive=True, arguments={"x-max-length": 2, "x-overflow": "reject-publish"}
        )
        plain = pika.BasicProperties()
        assert (
            SinkPublisher(broker.amqp_url).publish(
                Outgoing("", unique, b"x", plain) for _ in range(2)
            )
            == 2
        )
        with pytest.raises(PipelineError, match="the broker refused message"):
            SinkPublisher(broker.amqp_url).publish(
                Outgoing("", unique, b"x", plain) for _ in range(2)
            )
        with pytest.raises(PipelineError, match="NOT_FOUND"):
            SinkPublisher(broker.amqp_url).publish(
                Outgoing(f"{each}{unique}", "k", b"x", plain) for each in "ab"
            )
