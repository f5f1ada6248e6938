"""A message that a producer publishes again is confirmed and stored once, at any crash."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pamqp.commands as spec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.broker import DELETIONS_PER_SLICE, SLICE_PAUSE_MS
from broker.routing.deduplication import PRODUCERS_MAX, REFUSAL_MS, NumberedPublication
from broker.store.checkpoint import Checkpointing
from broker.store.opening import CATALOG
from tests.clients import Amqp, World
from tests.store.homes import Home, restore
from tests.streams.tables import rows_of, stream
from tests.streams.test_stream_queues import declare, reason
from tests.wire.mqtt5.client import Client5, subscription
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
def test_invalid_sequence_number_of_a_producer_is_refused(producer: Any, sequence: Any) -> None:
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
    assert home.vhost.producers.last.by_owner == {"guest": {"p": 4}}


@settings(max_examples=15, deadline=None)
@given(cuts=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 400)), min_size=1, max_size=4))
def test_wherever_the_end_comes_each_message_is_there_once(
    tmp_path_factory: Any, cuts: list[tuple[int, int]]
) -> None:
    """The log is cut anywhere in a batch whose messages are not confirmed yet, as in a crash.

    The producer publishes these messages again. Each message must be stored once.
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
        catalog = {path: path.read_bytes() for path in directory.glob(f"{CATALOG}*")}
        home.store.take().write()
        home.crash()
        restore(catalog)
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
    reader.subscribe(subscription("a", 0))
    replies = []
    for packet_id, sequence in enumerate((1, 2, 2, 1, 5, 3, 6), 1):
        replies += writer.send(publish5("a", b"%d" % sequence, qos, packet_id, **numbers(sequence)))
    writer.send(publish5("a", b"1", qos, 9, **numbers(1, "other")))
    assert [(one.packet_id, int(one.reason_code)) for one in replies] == (
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
    assert world.vhost.producers.last.by_owner == {"guest": {"p": 6}}


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("sequence", ["", "-1", "one", "9" * 19, "\u0664"])
def test_invalid_sequence_number_of_an_mqtt_5_publisher_is_refused(qos: int, sequence: str) -> None:
    world = World()
    mqtt_prepared(world)
    writer = Client5(world, "w")
    replies = writer.send(publish5("a", b"x", qos, **numbers(sequence)))
    assert [int(one.reason_code) for one in replies] == ([0x83] if qos else [])
    assert world.queue("q").depth == 0 and world.fates()["refused"] == 1
    assert [int(one.reason_code) for one in writer.send(publish5("a", b"x", 2, **numbers(1)))] == [
        0
    ], "the packet identifier is free"


def test_repeated_message_does_not_replace_the_retained_one() -> None:
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


def test_a_new_vhost_does_not_inherit_the_numbers_of_a_deleted_vhost(tmp_path: Path) -> None:
    home = Home(tmp_path / "d")
    producers = DELETIONS_PER_SLICE + 1
    for _ in range(2):
        home.broker.create_vhost("v")
        client = home.amqp(vhost="v")
        client.queue("q", "amq.fanout", durable=True)
        client.send(spec.Confirm.Select())
        for number in range(producers):
            publish(client, 5, f"p{number}")
        assert home.broker.vhosts["v"].queues["q"].depth == producers
        home.broker.close_vhost("v")
        home.review()
        while "v" in home.broker.vhosts:
            home.sleep(SLICE_PAUSE_MS)
        home.broker.create_vhost("v")
        home.turn()
        home.crash()
        home = Home(tmp_path / "d")
        assert home.broker.vhosts["v"].producers.last.by_owner == {}
    home.crash()


# -- refused messages


def full(world: World, room: int = 1) -> Amqp:
    """Declare the queue `full` for at most `room` messages; return a publisher with confirms."""
    client = world.amqp()
    client.queue("full", durable=True, x_max_length=room, x_overflow="reject-publish")
    client.send(spec.Confirm.Select())
    return client


def offer(client: Amqp, sequence: int, producer: str = "p") -> str:
    """Publish a numbered message to the queue, and return the name of the broker's answer."""
    headers = {"x-trellis-producer": producer, "x-trellis-sequence": sequence}
    [answer] = client.publish("", "full", b"%d" % sequence, delivery_mode=2, headers=headers)
    return str(answer.name)


def drained(client: Amqp) -> list[bytes]:
    """Remove all messages from the queue `full`, and return their bodies."""
    bodies: list[bytes] = []
    while got := client.bodies(client.send(spec.Basic.Get(queue="full", no_ack=True))):
        bodies += got
    return bodies


ACK, NACK = "Basic.Ack", "Basic.Nack"


def test_numbers_behind_a_refused_one_are_refused_until_it_is_accepted() -> None:
    world = World()
    client = full(world)
    assert [offer(client, 0), offer(client, 1)] == [ACK, NACK]
    assert drained(client) == [b"0"]
    assert [offer(client, 2), offer(client, 3)] == [NACK, NACK]
    assert offer(client, 2, "other") == ACK and drained(client) == [b"2"]
    assert [offer(client, 0), offer(client, 1)] == [ACK, ACK] and drained(client) == [b"1"]
    for sequence in (2, 3, 4):
        assert offer(client, sequence) == ACK and drained(client) == [b"%d" % sequence]
    assert world.fates() == {"routed": 6, "refused": 3, "repeated": 1}


def test_a_refused_number_that_is_refused_again_stays_the_next_one() -> None:
    world = World()
    client = full(world)
    assert [offer(client, sequence) for sequence in (0, 1, 1, 2, 1)] == [
        ACK,
        NACK,
        NACK,
        NACK,
        NACK,
    ]
    assert drained(client) == [b"0"] and [offer(client, 2), offer(client, 1)] == [NACK, ACK]
    assert offer(client, 2) == NACK and drained(client) == [b"1"]
    assert offer(client, 2) == ACK and drained(client) == [b"2"]


def test_a_refused_number_that_its_producer_gives_up_holds_it_back_for_a_while() -> None:
    world = World()
    client = full(world)
    assert [offer(client, 0), offer(client, 1)] == [ACK, NACK]
    drained(client)
    world.sleep(REFUSAL_MS - 1)
    assert offer(client, 2) == NACK
    world.sleep(1)
    assert offer(client, 2) == ACK and world.vhost.producers.refused.size == 0


def test_a_publisher_that_hears_no_answer_is_not_held_back() -> None:
    world = World()
    full(world)
    silent = world.amqp()
    writer = Client5(world, "w")
    silent.send(spec.Queue.Bind(queue="full", exchange="amq.topic", routing_key="full"))
    for sequence in (0, 1):
        headers = {"x-trellis-producer": "p", "x-trellis-sequence": sequence}
        silent.publish("", "full", b"%d" % sequence, headers=headers)
    assert drained(silent) == [b"0"]
    headers = {"x-trellis-producer": "p", "x-trellis-sequence": 2}
    silent.publish("", "full", b"2", headers=headers)
    assert drained(silent) == [b"2"]
    for sequence in (3, 4):
        writer.send(publish5("full", b"%d" % sequence, 0, **numbers(sequence)))
    assert drained(silent) == [b"3"]
    writer.send(publish5("full", b"5", 0, **numbers(5)))
    assert drained(silent) == [b"5"]


def test_an_mqtt_5_producer_is_held_back_too() -> None:
    world = World()
    client = full(world)
    client.send(spec.Queue.Bind(queue="full", exchange="amq.topic", routing_key="full"))
    writer = Client5(world, "w")

    def reason_code(sequence: int) -> int:
        [answer] = writer.send(publish5("full", b"%d" % sequence, 1, 1, **numbers(sequence)))
        return int(answer.reason_code)

    assert [reason_code(0), reason_code(1)] == [0, 0x97] and drained(client) == [b"0"]
    assert [reason_code(2), reason_code(1), reason_code(2)] == [0x97, 0, 0x97] and drained(
        client
    ) == [b"1"]
    assert reason_code(2) == 0 and drained(client) == [b"2"]


def test_the_refused_numbers_that_are_remembered_have_a_bound() -> None:
    producers = World().vhost.producers
    for number in range(PRODUCERS_MAX + 5):
        producers.refuse("u", NumberedPublication(f"p{number}", 7))
    assert producers.refused.size == PRODUCERS_MAX
    assert not producers.is_held_back("u", NumberedPublication("p4", 8))
    assert producers.is_held_back("u", NumberedPublication("p5", 8))
    assert not producers.is_held_back("u", NumberedPublication("p5", 7))


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("publish"), st.integers(1, 6)),
            st.tuples(st.just("drain"), st.integers(1, 4)),
            st.tuples(st.just("crash"), st.just(0)),
        ),
        max_size=25,
    )
)
def test_producer_that_repeats_refused_messages_is_accepted_once_and_in_order(
    tmp_path_factory: Any, steps: list[tuple[str, int]]
) -> None:
    """Check that a queue gets each message of a producer once, in ascending order.

    The producer has several messages in flight to a queue that may be full at any moment. The
    producer publishes refused and unanswered messages again, in ascending order.
    """
    directory: Path = tmp_path_factory.mktemp("d")
    home = Home(directory)
    client = full(home, 2)
    heard: list[bytes] = []
    open_numbers: list[int] = []
    first = 0

    def publish_window() -> list[int]:
        return [one for one in open_numbers if offer(client, one) != ACK]

    for step, count in steps:
        if step == "publish":
            open_numbers += range(first, first + count)
            first += count
            open_numbers = publish_window()
        elif step == "drain":
            for _ in range(count):
                heard += client.bodies(client.send(spec.Basic.Get(queue="full", no_ack=True)))
        else:
            home.crash()
            home = Home(directory)
            client = full(home, 2)
    while open_numbers:
        heard += drained(client)
        open_numbers = publish_window()
    heard += drained(client)
    assert heard == [b"%d" % number for number in range(first)]
    home.crash()
