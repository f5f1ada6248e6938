"""A message that a producer publishes again is confirmed and stored once, at any crash."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pamqp.commands as spec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.store.checkpoint import Checkpointing
from tests.clients import Amqp, World
from tests.store.homes import Home
from tests.streams.tables import rows_of, stream
from tests.streams.test_stream_queues import declare, reason
from tests.wire.mqtt5.client import Client5, wish
from tests.wire.mqtt5.client import publish as publish5


def publish(client: Amqp, sequence: Any, producer: Any = "p", **properties: Any) -> list[Any]:
    headers = {"x-trellis-producer": producer, "x-trellis-sequence": sequence}
    body = b"%d" % sequence if isinstance(sequence, int) else b""
    return client.publish("amq.fanout", "", body, delivery_mode=2, headers=headers, **properties)


def prepared(world: World) -> Amqp:
    client = world.amqp()
    declare(client)
    client.queue("q", "amq.fanout", durable=True)
    client.send(
        spec.Queue.Bind(queue="s", exchange="amq.fanout", routing_key=""), spec.Confirm.Select()
    )
    return client


def test_a_second_time_is_confirmed_and_goes_nowhere() -> None:
    world = World()
    client = prepared(world)
    for sequence in (1, 2, 2, 1, 5, 3, 6):
        assert [type(frame) for frame in publish(client, sequence)] == [spec.Basic.Ack]
    publish(client, 1, "other")
    assert [row["body"] for row in rows_of(stream(world.broker, "s"))] == [
        b"1",
        b"2",
        b"5",
        b"6",
        b"1",
    ]
    assert world.queue("q").depth == 5 and world.fates()["repeated"] == 3


def test_a_repeated_message_is_not_confirmed_before_the_first_one() -> None:
    world = World()
    client = prepared(world)
    world.slow_disk = True
    assert publish(client, 1) == [] and publish(client, 1) == []
    world.durable()
    [ack] = client.read()
    assert (ack.delivery_tag, ack.multiple) == (2, True)


@pytest.mark.parametrize(
    ("producer", "sequence"),
    [
        ("p", -1),
        ("p", "one"),
        ("p", "-1"),
        ("p", "9" * 19),
        ("p", None),
        (7, 1),
        ("", 1),
        ("x" * 256, 1),
    ],
)
def test_what_is_no_number_of_a_producer_is_refused(producer: Any, sequence: Any) -> None:
    world = World()
    client = prepared(world)
    code, text = reason(publish(client, sequence, producer))
    assert code == 406 and "header 'x-trellis-" in text
    world.fates()


def test_a_transaction_counts_each_of_its_messages() -> None:
    world = World()
    prepared(world)
    client = world.amqp()
    client.send(spec.Tx.Select())
    for sequence in (1, 2, 2):
        publish(client, sequence)
    client.send(spec.Tx.Commit())
    assert world.queue("q").depth == 2


def test_a_checkpoint_of_the_log_keeps_the_last_numbers(tmp_path: Path) -> None:
    home = Home(tmp_path / "d")
    client = prepared(home)
    for sequence in range(1, 5):
        publish(client, sequence)
    home.crash()
    home = Home(tmp_path / "d")
    home.amqp().publish("", "q", b"x", delivery_mode=2)
    log = home.opened.store.log
    Checkpointing(log, log.sealed(), set(home.opened.store.holder_numbers)).run()
    home.crash()
    home = Home(tmp_path / "d")
    assert home.vhost.producers.last == {"p": 4}


@settings(max_examples=15, deadline=None)
@given(cuts=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 400)), min_size=1, max_size=4))
def test_wherever_the_end_comes_each_message_is_there_once(
    tmp_path_factory: Any, cuts: list[tuple[int, int]]
) -> None:
    """Cut the log anywhere in an unconfirmed batch; the producer publishes unconfirmed messages
    again.
    """
    directory: Path = tmp_path_factory.mktemp("d")
    home = Home(directory)
    prepared(home)
    done = 0
    for count, size in cuts:
        client = home.amqp()
        client.send(spec.Confirm.Select())
        home.slow_disk = True
        before = sum(path.stat().st_size for path in (directory / "log").glob("0*.log"))
        for sequence in range(done, done + count):
            publish(client, sequence)
        home.store.take().write()
        home.crash()
        last = max((directory / "log").glob("0*.log"))
        written = sum(path.stat().st_size for path in (directory / "log").glob("0*.log")) - before
        whole = last.read_bytes()
        last.write_bytes(whole[: len(whole) - min(size, max(written - 64, 0))])
        home = Home(directory)
        client = home.amqp()
        client.send(spec.Confirm.Select())
        for sequence in range(done, done + count):
            assert [type(frame) for frame in publish(client, sequence)] == [spec.Basic.Ack]
        done += count
        rows = rows_of(stream(home.broker, "s"))
        assert [row["body"] for row in rows] == [b"%d" % number for number in range(done)]
        assert [row["offset"] for row in rows] == list(range(done))
        assert home.queue("q").depth == done
    home.crash()


def numbers(sequence: Any, producer: str = "p") -> dict[str, Any]:
    return {
        "user_properties": [
            ("other", "1"),
            ("x-trellis-producer", producer),
            ("x-trellis-sequence", str(sequence)),
        ]
    }


def mqtt_prepared(world: World) -> None:
    client = world.amqp()
    declare(client)
    client.queue("q", "amq.topic", "a", durable=True)
    client.send(spec.Queue.Bind(queue="s", exchange="amq.topic", routing_key="a"))


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_an_mqtt_5_publisher_numbers_its_messages_with_user_properties(qos: int) -> None:
    world = World()
    mqtt_prepared(world)
    writer, reader = Client5(world, "w"), Client5(world, "r")
    reader.subscribe(wish("a", 0))
    told = []
    for packet_id, sequence in enumerate((1, 2, 2, 1, 5, 3, 6), 1):
        told += writer.send(publish5("a", b"%d" % sequence, qos, packet_id, **numbers(sequence)))
    writer.send(publish5("a", b"1", qos, 9, **numbers(1, "other")))
    assert [(one.packet_id, int(one.reason_code)) for one in told] == (
        [(at, 0) for at in range(1, 8)] if qos else []
    )
    assert [row["body"] for row in rows_of(stream(world.broker, "s"))] == [
        b"1",
        b"2",
        b"5",
        b"6",
        b"1",
    ]
    assert [one.payload for one in reader.publications()] == [b"1", b"2", b"5", b"6", b"1"]
    assert world.queue("q").depth == 5 and world.fates()["repeated"] == 3


def test_numbers_are_one_row_for_both_protocols_and_go_on_where_a_text_crosses() -> None:
    world = World()
    client = prepared(world)
    mqtt_prepared(world)
    writer = Client5(world, "w")
    publish(client, 4)
    writer.send(publish5("a", b"4", 1, **numbers(4)), publish5("a", b"5", 1, **numbers(5)))
    publish(client, 5)
    publish(client, "6")
    assert [row["body"] for row in rows_of(stream(world.broker, "s"))] == [b"4", b"5", b""]
    assert world.vhost.producers.last == {"p": 6}


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("sequence", ["", "-1", "one", "9" * 19, "\u0664"])
def test_what_is_no_number_of_an_mqtt_5_publisher_is_refused(qos: int, sequence: str) -> None:
    world = World()
    mqtt_prepared(world)
    writer = Client5(world, "w")
    told = writer.send(publish5("a", b"x", qos, **numbers(sequence)))
    assert [int(one.reason_code) for one in told] == ([0x83] if qos else [])
    assert world.queue("q").depth == 0 and world.fates()["refused"] == 1
    assert [int(one.reason_code) for one in writer.send(publish5("a", b"x", 2, **numbers(1)))] == [
        0
    ], "the identifier is free"


def test_what_is_retained_is_not_replaced_by_a_second_time() -> None:
    world = World()
    writer = Client5(world, "w")
    for body, sequence in ((b"old", 1), (b"new", 2), (b"old", 1)):
        writer.send(publish5("a", body, 1, retain=True, **numbers(sequence)))
    kept = world.vhost.retained.get("a")
    assert kept is not None and kept.body == b"new"


def test_a_second_time_over_mqtt_is_answered_when_the_first_one_is_durable(tmp_path: Path) -> None:
    home = Home(tmp_path / "d")
    mqtt_prepared(home)
    writer = Client5(home, "w")
    home.slow_disk = True
    assert (
        writer.send(
            publish5("a", b"1", 1, 1, **numbers(1)), publish5("a", b"1", 2, 2, **numbers(1))
        )
        == []
    )
    home.durable()
    assert [one.packet_id for one in writer.read()] == [1, 2]
    home.crash()
    home = Home(tmp_path / "d")
    again = Client5(home, "w")
    assert [
        int(one.reason_code) for one in again.send(publish5("a", b"1", 1, 1, **numbers(1)))
    ] == [0]
    assert [row["body"] for row in rows_of(stream(home.broker, "s"))] == [b"1"] and home.queue(
        "q"
    ).depth == 1
    home.crash()
