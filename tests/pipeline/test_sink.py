"""Tests of `write` and `writeStream.format("trellis")`: rows become confirmed messages with an
identity, each exactly once.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import pika
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StringType, StructType

from pyspark_trellis.errors import PipelineError, line_of
from pyspark_trellis.publisher import Outgoing, SinkPublisher
from pyspark_trellis.sink import MessageSink, StagedRows, StreamWriter
from pyspark_trellis.staging import BatchManifest, stage, staged_rows
from pyspark_trellis.storage import HadoopStorage, LocalStorage, storage_at
from tests.authority import Authority
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
        published = {}
        for _ in rows:
            method, properties, body = channel.basic_get(queue, auto_ack=True)
            assert method is not None
            assert properties.delivery_mode == 2
            published[properties.message_id] = (method.routing_key, body, properties.headers)
        assert channel.basic_get(queue)[0] is None
    assert published.keys() == {each["message_id"] for each in rows}
    places: dict[str, list[int]] = {}
    for each in rows:
        key, body, headers = published[each["message_id"]]
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
    left = tmp_path / "checkpoint" / "trellis"
    assert [path.relative_to(left).as_posix() for path in left.rglob("*.*")] == ["1/manifest.json"]


def test_a_batch_query_publishes_its_rows_once_under_one_name(
    spark: SparkSession, tmp_path: Path, broker: BrokerProcess
) -> None:
    rows = spark.range(100).selectExpr("'k' as topic", "cast(id as string) as body")
    with listening(broker) as (exchange, bodies):
        options = {
            "url": broker.amqp_url,
            "exchange": exchange,
            "checkpointLocation": str(tmp_path / "c"),
        }

        def save(count: int, **others: str) -> None:
            writer = rows.repartition(count).write.format("trellis").mode("append")
            writer.options(**options, **others).save()

        for count in (3, 2):  # The second run divides the rows among fewer tasks.
            save(count, txnAppId="daily/1", txnVersion="7")
        assert sorted(bodies(), key=int) == [str(at) for at in range(100)]
        save(1, txnAppId="daily/1", txnVersion="8")
        save(1)
        assert len(bodies()) == 200
    with pytest.raises(Exception, match="PipelineError") as caught:
        rows.write.format("trellis").mode("overwrite").options(**options).save()
    assert "cannot be overwritten" in (line_of(caught.value) or "")


@contextmanager
def listening(broker: BrokerProcess) -> Iterator[tuple[str, Callable[[], list[str]]]]:
    """Yield an exchange, and a function that returns the bodies of the messages since its last
    call.
    """
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        channel = connection.channel()
        queue = channel.queue_declare("", exclusive=True).method.queue
        exchange = f"to-{queue}"
        channel.exchange_declare(exchange, "topic", auto_delete=True)
        channel.queue_bind(queue, exchange, "#")

        def bodies() -> list[str]:
            texts = []
            while (each := channel.basic_get(queue, auto_ack=True))[0] is not None:
                texts.append(each[2].decode())
            return texts

        yield exchange, bodies


SCHEMA = StructType().add("topic", StringType()).add("body", StringType())


def writer_of(url: str, exchange: str, checkpoint: Path, **options: str) -> StreamWriter:
    named = {"url": url, "exchange": exchange, "checkpointLocation": str(checkpoint)}
    return StreamWriter(SCHEMA, named | options)


def staged(checkpoint: Path, batch: int, bodies: list[str], tasks: int) -> list[Any]:
    """Stage rows in this number of tasks; return what the tasks report to Spark."""
    storage = storage_at(f"{checkpoint}/trellis")
    reports = []
    for number in range(tasks):
        part = bodies[number::tasks]
        table = pa.table({"topic": ["k"] * len(part), "body": pa.array(part, pa.string())})
        reports.append(
            StagedRows(checkpoint.name, stage(iter(table.to_batches(4)), storage, str(batch)))
        )
    return reports


def test_a_repeated_batch_that_is_divided_in_another_way_is_published_once(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    """Repeat a batch with other tasks: the manifest of the first attempt decides what is published.

    After a crash, Spark may divide the rows of the repeated batch among other tasks.
    """
    texts = [str(at) for at in range(50)]
    with listening(broker) as (exchange, bodies):
        writer = writer_of(broker.amqp_url, exchange, tmp_path)
        first = staged(tmp_path, 3, texts, 4)
        BatchManifest(tuple(each.file for each in first)).write(
            storage_at(f"{tmp_path}/trellis"), "3"
        )
        # The process ended after it had published some of the rows.
        sink = writer._sink
        storage = sink.storage()
        some = islice(
            sink.messages(
                staged_rows(storage, "3", str(first[0].file)), f"{tmp_path.name}/0", 3 << 32
            ),
            5,
        )
        sink.publisher().publish(some)
        for tasks in (3, 7):
            writer.commit(staged(tmp_path, 3, list(reversed(texts)), tasks), 3)
        assert sorted(bodies(), key=int) == texts
        writer.commit(staged(tmp_path, 4, texts, 2), 4)
        assert sorted(bodies(), key=int) == texts
    assert storage.directories() == ["4"]


def test_a_batch_that_failed_while_it_was_published_goes_on_when_it_is_repeated(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    texts = [str(at) for at in range(30)]
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        channel = connection.channel()
        queue = channel.queue_declare(
            "k", exclusive=True, arguments={"x-max-length": 9, "x-overflow": "reject-publish"}
        ).method.queue
        writer = writer_of(broker.amqp_url, "", tmp_path, publishTimeout="1")
        messages = staged(tmp_path, 0, texts, 3)
        received: list[str] = []
        for _ in range(3):
            with pytest.raises(PipelineError, match="a queue is full"):
                writer.commit(messages, 0)
            writer.abort(messages, 0)  # as Spark does
            messages = staged(tmp_path, 0, texts, 2)
            while (each := channel.basic_get(queue, auto_ack=True))[0] is not None:
                received.append(each[2].decode())
        writer.commit(messages, 0)
        while (each := channel.basic_get(queue, auto_ack=True))[0] is not None:
            received.append(each[2].decode())
    assert sorted(received, key=int) == texts


@pytest.mark.parametrize("links", [True, False])
def test_a_file_of_another_process_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    def no_links(source: Path, target: Path) -> None:
        raise OSError(errno.ENOTSUP, "Operation not supported")

    if not links:
        monkeypatch.setattr(os, "link", no_links)
    storage = LocalStorage(str(tmp_path))
    storage.write("0/manifest", "first")
    with pytest.raises(PipelineError, match="manifest: the file exists, so another process has"):
        storage.write("0/manifest", "second")
    assert storage.read("0/manifest") == "first"
    assert [file.name for file in (tmp_path / "0").iterdir()] == ["manifest"]


def test_a_batch_is_published_where_no_file_can_be_replaced(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    texts = [str(at) for at in range(20)]
    storage = LocalStorage(f"{tmp_path}/trellis")
    with listening(broker) as (exchange, bodies):
        sink = writer_of(broker.amqp_url, exchange, tmp_path)._sink
        for tasks in (3, 2):  # The batch is repeated after it was published.
            files = [each.file for each in staged(tmp_path, 0, texts, tasks)]
            sink.publish(storage, tmp_path.name, 0, files)
        assert sorted(bodies(), key=int) == texts
    assert not list(tmp_path.rglob("*.arrow"))


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        (
            {"topic": "x" * 300},
            r"message 2, with exchange '' and topic 'x+', cannot be encoded for AMQP",
        ),
        ({"priority": 300}, "message 2, .* cannot be encoded for AMQP .*<= 255"),
        ({"headers": '{"n": [1, 2.5]}'}, "column 'headers' has the number 2.5 in a row, but"),
        ({"headers": '{"n": 99999999999999999999}'}, "message 2, .* cannot be encoded for AMQP"),
    ],
)
def test_a_row_that_makes_no_message_fails_the_query(
    fields: dict[str, Any], line: str, broker: BrokerProcess, tmp_path: Path
) -> None:
    """Check that a row which cannot become a message fails the query, instead of being left out."""
    rows: list[dict[str, Any]] = [{"topic": "k", "body": str(at)} for at in range(3)]
    rows[1] |= fields
    sink = writer_of(broker.amqp_url, "", tmp_path)._sink
    with pytest.raises(PipelineError, match=line):
        sink.publisher().publish(sink.messages(iter(rows), f"{tmp_path}/0", 0))


def test_staged_rows_are_those_of_the_task_in_order(tmp_path: Path) -> None:
    storage = storage_at(str(tmp_path))
    batches = pa.table({"n": list(range(5_000))}).to_batches(1_700)
    empty = batches[0].slice(0, 0)
    name = stage(iter([empty, *batches, empty]), storage, "1")
    assert name is not None
    rows = list(staged_rows(storage, "1", name))
    assert [each["n"] for each in rows] == list(range(5_000))
    assert stage(iter([empty]), storage, "1") is None


def test_a_task_that_failed_leaves_no_rows_behind(tmp_path: Path) -> None:
    writer = writer_of("amqp://127.0.0.1:5672/", "x", tmp_path)
    writer.abort(staged(tmp_path, 3, ["a", "b"], 2), 3)
    assert not list(tmp_path.rglob("*.arrow"))


@pytest.mark.parametrize(
    ("ddl", "options", "line"),
    [
        (
            "topic string",
            {},
            "the query has no column 'body', which messages require; it has only topic",
        ),
        (
            "topic string, body int",
            {},
            "column 'body' of a message must be string or binary, not int",
        ),
        (
            "topic string, body binary, colour string",
            {},
            "a message has no field for the column 'colour'; select only topic, body, exchange",
        ),
        (
            "topic string, body binary",
            {"uri": "x"},
            "has no option 'uri'; the nearest is 'url'",
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
        "publishing to 127.0.0.1:1 failed after 0 of 0 messages: cannot connect"
    )


def test_an_invalid_url_is_named() -> None:
    with pytest.raises(PipelineError, match="option url is 'amqp://host:port/', but must be"):
        SinkPublisher("amqp://host:port/")


def test_a_full_queue_slows_the_publisher_and_loses_nothing(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    """Check that a queue which refuses messages gets each message once, in order.

    The queue has at most three messages, and a consumer slowly empties it.
    """
    texts = [str(at) for at in range(150)]
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        channel = connection.channel()
        queue = channel.queue_declare(
            "", exclusive=True, arguments={"x-max-length": 3, "x-overflow": "reject-publish"}
        ).method.queue
        rows = [{"topic": queue, "body": text} for text in texts]
        sink = MessageSink(
            SCHEMA, {"url": broker.amqp_url, "exchange": "", "checkpointLocation": str(tmp_path)}
        )
        received: list[str] = []
        publisher = sink.publisher()
        publish = threading.Thread(
            target=publisher.publish, args=(sink.messages(iter(rows), "slow/0", 0),)
        )
        publish.start()
        while len(received) < len(texts):
            method, _, body = channel.basic_get(queue, auto_ack=True)
            if method is not None:
                received.append(body.decode())
        publish.join()
        assert channel.basic_get(queue)[0] is None
    assert received == texts
    assert 0 < publisher.refusals < 20 * len(texts)


def test_a_publisher_gives_up_if_nothing_is_confirmed(broker: BrokerProcess, unique: str) -> None:
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
        with pytest.raises(PipelineError, match=r"no message for 0\.2 s and refuses messages"):
            SinkPublisher(broker.amqp_url, patience=0.2).publish(
                Outgoing("", unique, b"x", plain) for _ in range(2)
            )
        with pytest.raises(PipelineError, match="NOT_FOUND"):
            SinkPublisher(broker.amqp_url).publish(
                Outgoing(f"{each}{unique}", "k", b"x", plain) for each in "ab"
            )
        with pytest.raises(PipelineError, match="cannot connect"):
            SinkPublisher(broker.amqp_url, ("guest", "wrong")).publish(iter([]))


def test_a_lost_connection_is_made_again(broker: BrokerProcess) -> None:
    """Lose the connection while messages are in flight; check that the publisher connects again."""
    texts = [str(at) for at in range(3_000)]
    with listening(broker) as (exchange, bodies):
        publisher = SinkPublisher(broker.amqp_url)

        def messages() -> Iterator[Outgoing]:
            for number, text in enumerate(texts):
                if number in (500, 2_000):
                    # as if the network was lost
                    publisher._connection._transport._sock.shutdown(socket.SHUT_RDWR)
                yield Outgoing(
                    exchange,
                    "k",
                    text.encode(),
                    pika.BasicProperties(
                        headers={"x-trellis-producer": exchange, "x-trellis-sequence": number}
                    ),
                )

        assert publisher.publish(messages()) == len(texts)
        assert bodies() == texts
    assert publisher.reconnects == 2


def test_messages_are_published_over_tls_to_a_broker_of_the_authority(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path / "ours"), Authority(tmp_path / "other")
    flags = {
        "tls-certificate": str(authority.sign("127.0.0.1")),
        "amqps-enabled": "true",
        "amqps-port": "0",
        "amqps-host": "127.0.0.1",
    }
    words = [word for name, value in flags.items() for word in (f"--{name}", value)]
    broker = BrokerProcess("--data-dir", str(tmp_path / "data"), *words)
    try:
        url = f"amqps://127.0.0.1:{broker.addresses['amqps'].port}/"
        options = {"url": url, "exchange": "amq.topic", "checkpointLocation": str(tmp_path)}
        sink = MessageSink(SCHEMA, {**options, "caFile": str(authority.file)})
        rows = [{"topic": "k", "body": "x"}] * 3
        assert sink.publisher().publish(sink.messages(iter(rows), "tls/0", 0)) == 3
        sink = MessageSink(SCHEMA, {**options, "caFile": str(other.file)})
        with pytest.raises(PipelineError, match="cannot connect"):
            sink.publisher().publish(sink.messages(iter(rows), "tls/1", 0))
    finally:
        broker.stop()


# -- file systems


@pytest.mark.parametrize("scheme", ["file", "viewfs"])
def test_files_are_stored_through_the_api_of_hadoop(
    scheme: str, spark: SparkSession, tmp_path: Path
) -> None:
    """Check that errors of Java are recognized although PySpark converts them.

    In a process with a Spark session, PySpark raises its own exceptions in place of Java's.
    """
    (tmp_path / "real").mkdir()
    settings = {"fs.viewfs.mounttable.default.link./data": (tmp_path / "real").as_uri()}
    place = "viewfs://default/data/c" if scheme == "viewfs" else (tmp_path / "real" / "c").as_uri()
    storage = HadoopStorage(place, json.dumps(settings))
    assert storage.directories() == []
    assert storage.read("1/manifest.json") is None
    table = pa.table({"n": list(range(3_000))})
    name = stage(iter(table.to_batches(1_000)), storage, "1")
    assert name is not None
    assert (tmp_path / "real" / "c" / "1" / name).exists()
    assert [each["n"] for each in staged_rows(storage, "1", name)] == list(range(3_000))
    storage.write("1/manifest.json", "one \N{SNOWMAN}")
    with pytest.raises(PipelineError, match="the file exists, so another process has written"):
        storage.write("1/manifest.json", "two")
    assert storage.read("1/manifest.json") == "one \N{SNOWMAN}"
    assert storage.directories() == ["1"]
    storage.delete(f"1/{name}")
    storage.delete("1/absent")
    with pytest.raises(PipelineError, match=r"cannot read .*FileNotFoundException"):
        list(staged_rows(storage, "1", name))
    storage.delete()
    assert storage.directories() == []


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        ("/data/checkpoint", LocalStorage),
        ("file:/data/checkpoint", LocalStorage),
        ("file:///data/checkpoint", LocalStorage),
        ("data/of:/me", LocalStorage),
        ("s3a://bucket/checkpoint", HadoopStorage),
        ("dbfs:/checkpoint", HadoopStorage),
    ],
)
def test_the_scheme_decides_about_the_file_system(place: str, kind: type) -> None:
    assert type(storage_at(place)) is kind


def test_a_streaming_query_has_its_checkpoint_on_another_file_system(
    spark: SparkSession, tmp_path: Path, broker: BrokerProcess
) -> None:
    """Check a streaming query whose checkpoint and sink's files are on a file system of Hadoop.

    The file system is viewfs, which maps a URL to a local directory.
    """
    name = "fs.viewfs.mounttable.default.link./data"
    settings = {name: (tmp_path / "real").as_uri()}
    (tmp_path / "real").mkdir()
    spark.conf.set(name, settings[name])
    journal(tmp_path / "s", [row(at, "k", body=b"%d" % at) for at in range(60)])
    with listening(broker) as (exchange, bodies):
        for _ in range(2):
            query = (
                spark.readStream.format("trellis")
                .option("maxRowsPerTrigger", 25)
                .load(str(tmp_path / "s"))
                .select("topic", "body")
                .writeStream.format("trellis")
                .option("url", broker.amqp_url)
                .option("exchange", exchange)
                .option("hadoopSecrets", json.dumps(settings))
                .option("checkpointLocation", "viewfs://default/data/checkpoint")
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
        assert sorted(bodies(), key=int) == [str(at) for at in range(60)]
    assert (tmp_path / "real" / "checkpoint" / "trellis" / "2" / "manifest.json").exists()
