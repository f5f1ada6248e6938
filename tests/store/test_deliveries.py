"""Tests of redelivered, x-delivery-count and x-delivery-limit after crashes and restarts."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pamqp.body
import pamqp.commands as spec
import pamqp.header
import pytest

from broker.store.contract import MARK_PATIENCE, MARK_SPAN, WAITING_MARKED
from broker.store.disk import RealDisk
from broker.store.dropping import drop_dead_files
from broker.store.inspect import verify
from tests.clients import Amqp, publication
from tests.store.homes import Home

B = spec.Basic
#: Seeds of random histories; most of them run with the slow tests.
SEEDS: list[Any] = [
    *range(3),
    *(pytest.param(seed, marks=pytest.mark.long) for seed in range(3, 60)),
]
KINDS: list[dict[str, Any]] = [
    {},
    {"x_max_length": 100_000},
    {"x_queue_type": "quorum"},
    {"x_max_priority": 3},
]


def fill(client: Amqp, first: int, last: int, **properties: Any) -> None:
    client.connection.receive_data(
        b"".join(
            publication("", "q", b"%d" % number, delivery_mode=2, **properties)
            for number in range(first, last)
        )
    )
    client.read()


def deliveries(frames: list[Any]) -> dict[int, tuple[bool, int]]:
    """Return message -> (redelivered, x-delivery-count) of the delivered messages in these frames.

    The count is -1 if a message does not have the header.
    """
    delivered: dict[int, tuple[bool, int]] = {}
    redelivered, count = False, -1
    for frame in frames:
        if isinstance(frame, (B.Deliver, B.GetOk)):
            redelivered = frame.redelivered
        elif isinstance(frame, pamqp.header.ContentHeader):
            headers: dict[str, Any] = frame.properties.headers or {}
            count = headers.get("x-delivery-count", -1)
        elif isinstance(frame, pamqp.body.ContentBody):
            delivered[int(frame.value)] = redelivered, count
    return delivered


def flags(home: Home) -> dict[int, bool]:
    """Consume all messages of the queue; return message -> redelivered flag."""
    client = home.amqp()
    frames = client.send(B.Consume(queue="q"))
    while home.queue("q").depth:
        home.turn()
        frames += client.read()
    return {message: flag for message, (flag, _) in deliveries(frames).items()}


def restart(home: Home) -> Home:
    home.crash()
    return Home(home.directory)


def stop(home: Home, *clients: Amqp) -> Home:
    """Disconnect the clients, stop the broker cleanly, and start it again."""
    for client in clients:
        client.connection.on_closed()
    home.settle()
    home.broker.write_deliveries()
    home.durable()
    home.opened.store.close()
    return Home(home.directory)


@pytest.mark.parametrize("arguments", KINDS)
def test_a_message_that_a_consumer_held_in_a_crash_comes_back_as_redelivered(
    tmp_path: Path, arguments: dict[str, Any]
) -> None:
    home = Home(tmp_path / "d")
    client = home.amqp()
    client.queue("q", durable=True, **arguments)
    fill(client, 0, 3000)
    frames = client.send(B.Qos(prefetch_count=10), B.Consume(queue="q"))
    assert not any(flag for flag, _ in deliveries(frames).values())
    assert list(deliveries(frames)) == list(range(10))
    home = restart(home)
    redelivered = flags(home)
    assert list(redelivered) == list(range(3000))
    assert all(redelivered[number] for number in range(10))
    assert sum(redelivered.values()) <= 10 + WAITING_MARKED
    assert not any(redelivered[number] for number in range(10 + int(WAITING_MARKED), 3000))
    home.crash()


@pytest.mark.parametrize("arguments", KINDS)
def test_after_a_stop_in_order_exactly_the_delivered_messages_are_redelivered(
    tmp_path: Path, arguments: dict[str, Any]
) -> None:
    home = Home(tmp_path / "d")
    client, other = home.amqp(), home.amqp()
    client.queue("q", durable=True, **arguments)
    fill(other, 0, 50)
    client.send(B.Qos(prefetch_count=10), B.Consume(queue="q"))
    client.send(B.Ack(3))
    fill(other, 50, 60)
    client.send(B.Nack(1, requeue=True))
    home = stop(home, client, other)
    redelivered = flags(home)
    assert {number for number, flag in redelivered.items() if flag} == {*range(11)} - {2}
    home.crash()


@pytest.mark.parametrize("arguments", KINDS)
def test_after_a_stop_in_order_delayed_retries_make_no_other_message_redelivered(
    tmp_path: Path, arguments: dict[str, Any]
) -> None:
    home = Home(tmp_path / "d")
    client, other = home.amqp(), home.amqp()
    retry: dict[str, Any] = {"x_delayed_retry_type": "all", "x_delayed_retry_min": 60_000}
    client.queue("q", durable=True, **retry, **arguments)
    fill(other, 0, 50, priority=2)
    client.send(B.Qos(prefetch_count=10), B.Consume(queue="q"))
    client.send(B.Ack(3))
    client.send(B.Nack(1, requeue=True))
    home = stop(home, client, other)
    redelivered = flags(home)
    assert sorted(redelivered) == [0, 1, *range(3, 50)]
    assert {number for number, flag in redelivered.items() if flag} == {*range(12)} - {2}
    home.crash()


@pytest.mark.parametrize("arguments", KINDS)
@pytest.mark.parametrize("clean", [True, False])
def test_a_message_that_no_consumer_ever_got_is_not_redelivered(
    tmp_path: Path, arguments: dict[str, Any], clean: bool
) -> None:
    home = Home(tmp_path / "d")
    client = home.amqp()
    client.queue("q", durable=True, **arguments)
    fill(client, 0, 20)
    home = stop(home, client) if clean else restart(home)
    assert flags(home) == dict.fromkeys(range(20), False)
    home.crash()


def test_a_priority_queue_has_a_mark_for_each_priority(tmp_path: Path) -> None:
    home = Home(tmp_path / "d")
    client = home.amqp()
    client.queue("q", durable=True, x_max_priority=5)
    count = int(WAITING_MARKED)
    fill(client, 0, count, priority=1)
    fill(client, count, count + 5, priority=3)
    client.send(B.Qos(prefetch_count=2), B.Consume(queue="q"))
    home = restart(home)
    redelivered = flags(home)
    assert {number for number, flag in redelivered.items() if flag} == {*range(count, count + 5)}
    home.crash()


@pytest.mark.parametrize("clean", [True, False])
def test_the_delivery_count_and_its_limit_go_on_after_restarts(tmp_path: Path, clean: bool) -> None:
    home = Home(tmp_path / "d")
    client = home.amqp()
    client.queue("dead", durable=True)
    client.queue(
        "q",
        durable=True,
        x_queue_type="quorum",
        x_delivery_limit=4,
        x_dead_letter_exchange="",
        x_dead_letter_routing_key="dead",
    )
    fill(client, 0, 2)
    for returns in range(5):
        client.send(B.Qos(prefetch_count=1))
        frames = client.send(B.Consume(queue="q", consumer_tag="t"))
        count = -1 if returns == 0 else returns
        assert deliveries(frames) == {0: (returns > 0, count)}
        client.send(B.Cancel("t"), B.Nack(1, requeue=True))
        home = stop(home, client) if clean else restart(home)
        client = home.amqp()
    assert client.bodies(client.send(B.Get(queue="dead"))) == [b"0"]
    [(message, (flag, _))] = deliveries(client.send(B.Get(queue="q"))).items()
    # After a crash, a message may be marked as redelivered although it was not delivered; after a
    # clean stop, it must not.
    assert message == 1 and not (clean and flag)
    home.crash()


def test_a_crash_counts_as_one_return_of_a_message_at_most(tmp_path: Path) -> None:
    home = Home(tmp_path / "d")
    client = home.amqp()
    client.queue("q", durable=True, x_queue_type="quorum", x_delivery_limit=1)
    fill(client, 0, 1)
    for returns in range(5):
        frames = client.send(B.Consume(queue="q"))
        assert deliveries(frames) == {0: (returns > 0, 1 if returns else -1)}
        home = restart(home)
        client = home.amqp()
    home.crash()


@pytest.mark.parametrize("arguments", KINDS)
def test_messages_that_wait_below_a_mark_are_few(tmp_path: Path, arguments: dict[str, Any]) -> None:
    home = Home(tmp_path / "d")
    client, count = home.amqp(), 3 * int(WAITING_MARKED)
    client.queue("q", durable=True, **arguments)
    client.send(B.Consume(queue="q", consumer_tag="t"))
    fill(client, 0, 5)
    client.send(B.Ack(0, multiple=True), B.Cancel("t"))
    fill(client, 0, count)
    home = restart(home)
    redelivered = flags(home)
    assert len(redelivered) == count and sum(redelivered.values()) <= WAITING_MARKED
    home.crash()


def test_messages_that_are_published_after_a_restart_are_new(tmp_path: Path) -> None:
    home = Home(tmp_path / "d")
    home.store.waiting_marked = 1_000
    client = home.amqp()
    client.queue("q", durable=True)
    client.send(B.Consume(queue="q"))
    fill(client, 0, 600)
    home = restart(home)
    client = home.amqp()
    fill(client, 600, 2_000)
    redelivered = flags(home)
    assert list(redelivered) == list(range(2_000))
    assert {number for number, flag in redelivered.items() if flag} == {*range(600)}
    home.crash()


def test_a_delivery_waits_until_its_mark_is_durable(tmp_path: Path) -> None:
    home = Home(tmp_path / "d")
    client = home.amqp()
    client.queue("q", durable=True)
    fill(client, 0, 3)
    home.slow_disk = True
    assert not deliveries(client.send(B.Consume(queue="q")))
    home.durable()
    assert len(deliveries(client.read())) == 3
    # A message stored after the mark is delivered before its own record is durable.
    fill(client, 3, 4)
    assert home.queue("q").unacked == 4
    home.crash()


def test_a_get_waits_until_its_mark_is_durable(tmp_path: Path) -> None:
    home = Home(tmp_path / "d")
    client = home.amqp()
    client.queue("q", durable=True)
    fill(client, 0, 3)
    home.slow_disk = True
    assert client.send(B.Get(queue="q")) == []
    assert home.broker.agenda.idle, "while a client waits for the disk, turns do no work"
    home.durable()
    assert deliveries(client.read()) == {0: (False, -1)}
    assert deliveries(client.send(B.Get(queue="q"))) == {1: (False, -1)}
    home.crash()


@pytest.mark.parametrize("arguments", KINDS)
def test_a_slow_disk_does_not_hold_back_deliveries(
    tmp_path: Path, arguments: dict[str, Any]
) -> None:
    home = Home(tmp_path / "d")
    client, other = home.amqp(), home.amqp()
    client.queue("q", durable=True, **arguments)
    fill(client, 0, 20)
    home.slow_disk = True
    assert not deliveries(client.send(B.Qos(prefetch_count=10), B.Consume(queue="q")))
    assert not deliveries(other.send(B.Get(queue="q")))
    home.sleep(MARK_PATIENCE - 1)
    assert not deliveries(client.read() + other.read())
    home.sleep(1)
    assert {*deliveries(client.read()), *deliveries(other.read())} == {*range(11)}
    client.send(B.Ack(5))
    # Deliveries on this slow disk have stopped waiting for marks, so the later message is delivered
    # at once.
    assert home.queue("q").unacked == 11
    assert home.store.unmarked_deliveries == 12
    # Once the marks are written, these deliveries are known after a crash, too.
    home.durable()
    home.durable()
    home.slow_disk = False
    home = restart(home)
    redelivered = flags(home)
    assert len(redelivered) == 19 and all(
        flag for number, flag in redelivered.items() if number <= 11
    )
    home.crash()


def test_a_mark_catches_up_with_the_messages_that_a_slow_disk_did_not_hold_back(
    tmp_path: Path,
) -> None:
    home = Home(tmp_path / "d")
    home.store.waiting_marked, home.store.mark_span = 3, 5
    client = home.amqp()
    client.queue("q", durable=True)
    fill(client, 0, 50)
    home.slow_disk = True
    client.send(B.Qos(prefetch_count=30), B.Consume(queue="q"))
    home.sleep(MARK_PATIENCE)
    assert len(deliveries(client.read())) == 30
    home.durable()  # This makes the first mark durable, which covers 3 messages.
    home.durable()  # This makes the second mark durable, which covers the other 27.
    home = restart(home)
    redelivered = flags(home)
    assert {number for number, flag in redelivered.items() if flag} >= {*range(30)}
    home.crash()


def test_a_crash_before_a_slow_disk_has_caught_up_loses_the_flag_and_no_message(
    tmp_path: Path,
) -> None:
    home = Home(tmp_path / "d")
    client = home.amqp()
    client.queue("q", durable=True)
    fill(client, 0, 5)
    home.slow_disk = True
    client.send(B.Consume(queue="q"))
    home.sleep(MARK_PATIENCE)
    assert len(deliveries(client.read())) == 5
    home = restart(home)
    assert flags(home) == dict.fromkeys(range(5), False)
    home.crash()


@pytest.mark.parametrize("arguments", KINDS)
def test_deliveries_write_few_bytes(tmp_path: Path, arguments: dict[str, Any]) -> None:
    """Check how many delivery marks (records of which messages were delivered) a queue writes.

    A queue whose consumer keeps up writes one or two of them.
    """
    home = Home(tmp_path / "d")
    client = home.amqp()
    client.queue("q", durable=True, **arguments)
    client.send(B.Consume(queue="q", no_ack=True))
    for first in range(0, 2_000, 50):
        fill(client, first, first + 50)
    assert 1 <= sum("marked" in line for line in home.records()) <= 2
    home.crash()
    home = Home(tmp_path / "e")
    client = home.amqp()
    client.queue("q", durable=True, **arguments)
    count = 8 * int(WAITING_MARKED)
    fill(client, 0, count)
    assert not any("marked" in line for line in home.records())
    assert len(flags(home)) == count
    marks = sum("marked" in line for line in home.records())
    assert marks <= 2 * count // int(WAITING_MARKED) + 2
    home.crash()


def test_a_mark_keeps_no_dead_file(tmp_path: Path) -> None:
    home = Home(tmp_path / "d", segment_size=4_000)
    client, other = home.amqp(), home.amqp()
    client.queue("q", durable=True)
    client.queue("still", durable=True)
    client.send(B.Consume(queue="q", no_ack=True), B.Consume(queue="still", no_ack=True))
    for number in range(300):
        other.publish("", "q", b"%d" % number, delivery_mode=2)
    log = home.opened.store.log
    assert len(log.files) > 10
    drop_dead_files(log)
    assert len(log.files) <= 3
    home.crash()
    home = Home(tmp_path / "d", segment_size=4_000)
    assert home.opened.survivors.marks.keys() == {
        int(home.queue(name).number) for name in ("q", "still")
    }
    assert [finding.kind for finding in verify(RealDisk(), str(tmp_path / "d" / "log"))] == [
        "fine"
    ] * len(home.opened.store.log.files)
    home.crash()


@pytest.mark.parametrize("arguments", KINDS)
@pytest.mark.parametrize("seed", SEEDS)
def test_any_history(tmp_path: Path, arguments: dict[str, Any], seed: int) -> None:
    """Compare the queue with a model of its messages and deliveries.

    While the disk is slow, the broker may deliver messages before a delivery mark is stored. After
    a crash, such messages need not have the flag `redelivered`.
    """
    random = Random(seed)
    home = Home(tmp_path / "d", segment_size=3_000)
    home.store.window = random.choice((4, 50, 4_096))
    home.store.waiting_marked, home.store.mark_span = random.choice(((3, 20), (10, 100), (1, 2)))
    marking = home.store.waiting_marked, home.store.mark_span
    client, other = home.amqp(), home.amqp()
    client.queue("q", durable=True, **arguments)
    there: list[int] = []
    delivered: set[int] = set()
    exact = True
    held: dict[int, int] = {}
    published = tags = 0

    def got(frames: list[Any]) -> None:
        nonlocal tags
        for message, (flag, _) in deliveries(frames).items():
            tags += 1
            held[tags] = message
            assert flag or message not in delivered, f"{message} was delivered before"
            assert not flag or message in delivered or not exact, f"{message} is new"
            delivered.add(message)

    consuming = False
    for _ in range(120):
        choice = random.random()
        if choice < 0.35:
            for _ in range(random.choice((1, 3, 30))):
                other.publish("", "q", b"%d" % published, delivery_mode=2, priority=published % 3)
                there.append(published)
                published += 1
        elif choice < 0.45 and not consuming:
            consuming = True
            client.send(B.Qos(prefetch_count=random.choice((1, 5, 40))))
            got(client.send(B.Consume(queue="q", consumer_tag="t")))
        elif choice < 0.5 and consuming:
            consuming = False
            got(client.send(B.Cancel("t")))
        elif choice < 0.6:
            got(client.send(B.Get(queue="q")))
        elif choice < 0.9 and held:
            tag = random.choice(list(held))
            if random.random() < 0.7:
                message = held.pop(tag)
                there.remove(message)
                delivered.discard(message)
                got(client.send(B.Ack(tag)))
            else:
                held.pop(tag)
                got(client.send(B.Nack(tag, requeue=True)))
        elif choice > 0.97:
            home.slow_disk = not home.slow_disk
        elif choice > 0.93:
            home.slow_disk = False
            home.turn()
            home.turn()
            got(client.read())
            if random.random() < 0.5:
                home, exact = restart(home), False
            else:
                home = stop(home, client, other)
            home.store.waiting_marked, home.store.mark_span = marking
            client, other = home.amqp(), home.amqp()
            held.clear()
            tags, consuming = 0, False
        home.sleep(random.choice((1, 50, 200)))
        got(client.read())
    home.slow_disk = False
    home.turn()
    home.turn()
    got(client.read())
    home = restart(home)
    redelivered = flags(home)
    assert sorted(redelivered) == there
    assert all(redelivered[message] for message in delivered)
    home.crash()


def test_marks_are_far_ahead_of_a_queue_that_is_empty(tmp_path: Path) -> None:
    home = Home(tmp_path / "d")
    client = home.amqp()
    client.queue("q", durable=True)
    client.send(B.Consume(queue="q"))
    [line] = [line for line in home.records() if "marked" in line]
    position = int(line.split()[0])
    assert abs(int(line.split("up_to=")[1]) - MARK_SPAN - position) < 10
    home.crash()
