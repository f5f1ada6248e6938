"""Files with messages of a deleted queue stay until the deletion is durable."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pamqp.commands as spec
import pytest

from broker.queues.slices import MESSAGES_PER_SLICE
from broker.store.dropping import drop_dead_files
from tests.store.homes import Home

COUNT = 40
DISCONNECT = b"\xe0\x00"


def fill_queue(home: Home) -> None:
    client = home.amqp()
    client.queue("q", durable=True)
    for number in range(COUNT):
        client.publish("", "q", b"%d" % number + bytes(500), delivery_mode=2)


def delete_queue(home: Home) -> None:
    home.amqp().send(spec.Queue.Delete(queue="q"))


def fill_delays(home: Home) -> None:
    client = home.amqp()
    client.send(
        spec.Exchange.Declare(
            exchange="later",
            exchange_type="x-delayed-message",
            durable=True,
            arguments={"x-delayed-type": "topic"},
        )
    )
    client.queue("q", "later", "#", durable=True)
    headers = {"x-delay": 1_000_000}
    for number in range(COUNT):
        client.publish("later", "k", b"%d" % number + bytes(500), delivery_mode=2, headers=headers)


def delete_delays(home: Home) -> None:
    home.amqp().send(spec.Exchange.Delete(exchange="later"))


def fill_session(home: Home, topic_filter: str = "a/#") -> None:
    client = home.mqtt("c", clean=False)
    client.subscribe(topic_filter, 1)
    client.send(DISCONNECT)
    publisher = home.amqp()
    for number in range(COUNT):
        publisher.publish("amq.topic", "a.b", b"%d" % number + bytes(500), delivery_mode=2)


def fill_group(home: Home) -> None:
    fill_session(home, "$share/g/a/#")


def end_session(home: Home) -> None:
    home.mqtt("c", clean=True)


def holding(home: Home) -> int:
    """Return the number of messages in queues, delayed exchanges and inboxes."""
    vhost = home.vhost
    held = [
        *vhost.queues.values(),
        *vhost.delays.values(),
        *vhost.histories.values(),
        *vhost.inboxes.values(),
    ]
    return sum(int(queue.depth + queue.unacked) for queue in held)


@pytest.mark.parametrize(
    ("fill", "delete"),
    [
        (fill_queue, delete_queue),
        (fill_delays, delete_delays),
        (fill_session, end_session),
        (fill_group, end_session),
    ],
)
@pytest.mark.parametrize("idle", [True, False])
def test_the_messages_are_there_after_a_crash_before_the_deletion_is_durable(
    fill: Callable[[Home], None], delete: Callable[[Home], None], idle: bool, tmp_path: Path
) -> None:
    """If the broker crashes before a deletion is durable, a restart must find all messages.

    The deletion has already purged all messages: there are few enough for one step of a purge.
    """
    assert COUNT <= MESSAGES_PER_SLICE
    home = Home(tmp_path / "d")
    log = home.opened.store.log
    log.segment_size = 4_096
    fill(home)
    home.turn()
    drop_dead_files(log)
    assert holding(home) == COUNT and len(log.files) > 3
    before = log.size
    home.slow_disk = True
    if not idle:
        home.amqp().queue("other", durable=True)
    delete(home)
    assert holding(home) == 0
    assert drop_dead_files(log) == 0, "nothing is dropped before the deletion is durable"
    home.crash()

    home = Home(tmp_path / "d")
    log = home.opened.store.log
    assert holding(home) == COUNT and home.complaints == []
    delete(home)
    home.turn()
    drop_dead_files(log)
    assert log.size < before // 3, "the files are dropped once the deletion is durable"
    home.crash()
    home = Home(tmp_path / "d")
    assert holding(home) == 0 and home.complaints == []
    home.crash()
