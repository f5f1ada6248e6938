"""The tasks of the Celery workers in test_celery.py.

Environment variables name the broker, the result backend, the queue and its kind.
"""

from __future__ import annotations

import os
import time

from celery import Celery
from kombu import Queue
from kombu.common import Broadcast

app = Celery("tests", broker=os.environ["CELERY_BROKER"], backend=os.environ["CELERY_RESULTS"])
app.conf.update(
    task_default_queue=os.environ["CELERY_QUEUE"],
    worker_prefetch_multiplier=1,
    task_acks_late=True,
    broker_connection_retry_on_startup=True,
    task_queues=[
        Queue(
            os.environ["CELERY_QUEUE"],
            routing_key=os.environ["CELERY_QUEUE"],
            queue_arguments={"x-max-priority": 10}
            if os.environ["CELERY_KIND"] == "classic"
            else {"x-queue-type": "quorum"},
        ),
        Broadcast(os.environ["CELERY_QUEUE"] + "-all"),
    ],
    result_chord_retry_interval=0.1,
)
if os.environ["CELERY_KIND"] == "quorum":
    app.conf.update(
        task_default_queue_type="quorum",
        worker_detect_quorum_queues=True,
        broker_native_delayed_delivery_queue_type="quorum",
        task_default_exchange_type="topic",
        broker_transport_options={"confirm_publish": True},
    )


@app.task
def add(one: int, other: int) -> int:
    """Return the sum of two numbers."""
    return one + other


@app.task
def total(numbers: list[int]) -> int:
    """Return the sum of a list of numbers."""
    return sum(numbers)


@app.task
def note(path: str, line: str) -> None:
    """Append a line to a file."""
    with open(path, "a") as file:
        file.write(line + "\n")


@app.task(bind=True, max_retries=3)
def stubborn(self: object, path: str) -> int:
    """Fail at the first two attempts; at the third one, return the number of attempts."""
    with open(path, "a") as file:
        file.write("x")
    tries = os.path.getsize(path)
    if tries < 3:
        # With bind=True, `self` is the task.
        raise self.retry(countdown=0.1)  # type: ignore[attr-defined]
    return tries


@app.task
def hold(path: str) -> None:
    """Keep the worker busy until a file exists."""
    while not os.path.exists(path):
        time.sleep(0.01)
