"""Celery: a worker and a program that sends tasks continue at the other node after a failover.

python with_celery.py HOST:PORT HOST:PORT
"""

from __future__ import annotations

import subprocess
import sys

from celery import Celery
from kombu.exceptions import OperationalError

app = Celery(
    "numbers", broker=";".join(f"amqp://guest:guest@{address}//" for address in sys.argv[-2:])
)
app.conf.update(
    task_acks_late=True,
    worker_redirect_stdouts=False,
    broker_connection_max_retries=None,
    broker_connection_retry_on_startup=True,
    broker_failover_strategy="round-robin",
    broker_transport_options={"confirm_publish": True},
    task_publish_retry_policy={"max_retries": 100, "interval_start": 0, "interval_max": 0.2},
)


@app.task(name="numbers.receive")
def receive(number: int) -> None:
    """Print a number. The task of a number may run more than once."""
    print("received", number, flush=True)


def send_tasks() -> None:
    """Send tasks; Celery repeats a task that the broker has not confirmed."""
    number = 0
    while True:
        try:
            receive.delay(number)
        except OperationalError:
            continue
        print("confirmed", number, flush=True)
        number += 1


if __name__ == "__main__":
    if "worker" in sys.argv:
        app.worker_main(["worker", "--pool=solo", "--loglevel=warning", "--without-gossip"])
    else:
        with subprocess.Popen([sys.executable, __file__, "worker", *sys.argv[1:]]):
            send_tasks()
