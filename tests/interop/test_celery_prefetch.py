"""Tests of how many tasks an unmodified Celery worker prefetches from several queues."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pika
import pytest

from tests.broker import BrokerProcess
from trellis.parent_process import end_with_parent

#: Queues that the worker consumes.
QUEUES = ("one", "two", "three")
#: Number of tasks in each queue.
TASKS = 40
#: The configured prefetch count.
TOLD = 4
#: Seconds that one step may take.
PATIENCE = 30.0

TASK_MODULE = """
import os, time
from celery import Celery
from kombu import Queue
app = Celery("slow", broker=os.environ["CELERY_BROKER"])
app.conf.update(
    worker_prefetch_multiplier=4,
    worker_concurrency=1,
    task_acks_late=True,
    task_queues=[Queue(name, routing_key=name) for name in ("one", "two", "three")],
)
@app.task(name="wait")
def wait():
    while not os.path.exists(os.environ["CELERY_GO_ON"]):
        time.sleep(0.02)
"""


def taken(port: int) -> int:
    """Return the number of tasks that the worker has taken from the queues, done or not."""
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port)) as connection:
        channel = connection.channel()
        left = [channel.queue_declare(name, passive=True).method.message_count for name in QUEUES]
    return int(len(QUEUES) * TASKS - sum(left))


@pytest.mark.long
@pytest.mark.parametrize(
    ("flags", "most"), [((), TOLD), (("--amqp-product", "Trellis"), len(QUEUES) * TOLD)]
)
def test_worker_on_several_queues_prefetches_its_configured_number(
    tmp_path: Path, flags: tuple[str, ...], most: int
) -> None:
    """Check that a Celery worker takes `most` tasks of several queues before it finishes one.

    Celery's prefetch count limits the tasks of all queues together if the broker names itself
    RabbitMQ, as Trellis does by default. With another name, the count applies to each queue.
    """
    (tmp_path / "slow.py").write_text(TASK_MODULE)
    go_on = tmp_path / "go-on"
    broker = BrokerProcess(*flags)
    environment = os.environ | {"CELERY_BROKER": broker.amqp_url, "CELERY_GO_ON": str(go_on)}
    parameters = pika.ConnectionParameters("127.0.0.1", broker.amqp.port)
    with open(tmp_path / "log", "wb") as log:
        worker = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "celery",
                "-A",
                "slow",
                "worker",
                "--pool",
                "solo",
                "--loglevel",
                "INFO",
            ],
            preexec_fn=end_with_parent,
            env=environment,
            cwd=tmp_path,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        _until(lambda: b" ready." in (tmp_path / "log").read_bytes(), tmp_path)
        headers = {"lang": "py", "task": "wait", "argsrepr": "()", "kwargsrepr": "{}"}
        with pika.BlockingConnection(parameters) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            for number in range(TASKS):
                for name in QUEUES:
                    channel.basic_publish(
                        "",
                        name,
                        b"[[], {}, {}]",
                        pika.BasicProperties(
                            content_type="application/json",
                            content_encoding="utf-8",
                            correlation_id=f"{name}-{number}",
                            headers=headers | {"id": f"{name}-{number}"},
                        ),
                    )
        assert taken(broker.amqp.port) == most
        go_on.touch()
        _until(lambda: taken(broker.amqp.port) == len(QUEUES) * TASKS, tmp_path)
    finally:
        worker.send_signal(signal.SIGTERM)
        try:
            worker.wait(PATIENCE)
        finally:
            worker.kill()
            worker.wait()
            broker.stop()


def _until(truth: Callable[[], object], directory: Path) -> None:
    end = time.monotonic() + PATIENCE
    while not truth():
        assert time.monotonic() < end, (directory / "log").read_text(errors="replace")
        time.sleep(0.05)
