"""Tests of the broker with a Dramatiq worker over pika: retries, delays, dead letters."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import dramatiq
import pika
import pytest
from dramatiq.brokers.rabbitmq import RabbitmqBroker

from tests.broker import BrokerProcess

PATIENCE = 20.0


@pytest.fixture
def peer(broker: BrokerProcess) -> Iterator[Any]:
    peer: Any = RabbitmqBroker(url=broker.amqp_url, max_priority=5, confirm_delivery=True)
    yield peer
    peer.close()


def test_messages_are_processed_retried_and_delayed(peer: Any, unique: str) -> None:
    words: list[str] = []
    done = threading.Event()

    def work(word: str) -> None:
        words.append(word)
        if words.count("again") == 1 and word == "again":
            raise ValueError("once more")
        if len(words) == 4:
            done.set()

    declare: Any = dramatiq.actor
    actor = declare(
        work,
        broker=peer,
        queue_name=unique,
        actor_name=unique,
        max_retries=2,
        min_backoff=50,
        max_backoff=60,
    )
    worker = dramatiq.Worker(peer, worker_threads=1, worker_timeout=50)
    actor.send_with_options(args=("late",), delay=400)
    actor.send("first")
    actor.send("again")
    worker.start()
    try:
        assert done.wait(PATIENCE), words
        assert sorted(words) == ["again", "again", "first", "late"] and words[-1] == "late"
    finally:
        worker.stop()


def test_a_message_without_retries_left_is_dead_lettered(
    peer: Any, broker: BrokerProcess, unique: str
) -> None:
    def work() -> None:
        raise ValueError("never")

    declare: Any = dramatiq.actor
    actor = declare(work, broker=peer, queue_name=unique, actor_name=unique, max_retries=0)
    worker = dramatiq.Worker(peer, worker_threads=1, worker_timeout=50)
    actor.send()
    worker.start()
    connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
    try:
        channel = connection.channel()
        for _, properties, _ in channel.consume(f"{unique}.XQ", inactivity_timeout=PATIENCE):
            assert (
                properties is not None and properties.headers["x-death"][0]["reason"] == "rejected"
            )
            break
    finally:
        connection.close()
        worker.stop()
