"""Tests of the broker with a Celery worker process.

They cover results, chords, priorities, countdowns, broadcasts, revocations, and delays that the
broker provides.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.broker import BrokerProcess
from trellis.parent_process import end_with_parent

#: Seconds that one step of a test may take.
PATIENCE = 30.0


class Worker:
    """A Celery worker process, and the task module through which the test sends tasks to it."""

    def __init__(self, broker: BrokerProcess, directory: Path, kind: str, results: str) -> None:
        environment = {
            "CELERY_BROKER": broker.amqp_url,
            "CELERY_RESULTS": results,
            "CELERY_QUEUE": f"celery-{kind}-{results[:3]}",
            "CELERY_KIND": kind,
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        }
        self.name = f"{kind}-{results[:3]}@here"
        log = directory / f"{kind}-{results[:3]}.log"
        self._log = open(log, "wb+")  # noqa: SIM115 - stop() closes the file
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "celery",
                "-A",
                "tests.interop.celery_tasks",
                "worker",
                "--pool",
                "solo",
                "--loglevel",
                "INFO",
                "--hostname",
                self.name,
            ],
            preexec_fn=end_with_parent,
            env=os.environ | environment,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            cwd=Path(__file__).parents[2],
        )
        os.environ.update(environment)
        sys.modules.pop("tests.interop.celery_tasks", None)
        import tests.interop.celery_tasks as tasks

        self.tasks: Any = tasks
        until(lambda: b" ready." in self.log, self)

    @property
    def log(self) -> bytes:
        return os.pread(self._log.fileno(), 1 << 20, 0)

    def stop(self) -> None:
        """End the worker with SIGTERM; check its exit code, and that it logged no error."""
        self.tasks.app.close()
        self._process.send_signal(signal.SIGTERM)
        try:
            assert self._process.wait(PATIENCE) == 0
            assert b"Traceback" not in self.log and b"Couldn't" not in self.log, self.log.decode(
                errors="replace"
            )
        finally:
            self._process.kill()
            self._log.close()


def until(truth: Callable[[], object], worker: Worker | None = None) -> None:
    """Wait until another process has made the condition true; a timeout shows the worker's log."""
    end = time.monotonic() + PATIENCE
    while not truth():
        if time.monotonic() > end:
            raise AssertionError(
                f"the condition did not hold within {PATIENCE} s"
                if worker is None
                else worker.log.decode(errors="replace")
            )
        time.sleep(0.02)


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


@pytest.fixture(scope="module")
def workers(
    broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Worker]]:
    started: dict[tuple[str, str], Worker] = {}
    directory = tmp_path_factory.mktemp("celery")

    def start(kind: str = "classic", results: str = "rpc://") -> Worker:
        if (kind, results) not in started:
            started[kind, results] = Worker(broker, directory, kind, results)
        return started[kind, results]

    yield start
    for worker in started.values():
        worker.stop()


@pytest.mark.long
@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_results_are_returned(workers: Callable[..., Worker], kind: str) -> None:
    worker = workers(kind)
    results = [worker.tasks.add.delay(number, 1) for number in range(50)]
    assert [one.get(timeout=PATIENCE) for one in results] == [number + 1 for number in range(50)]


@pytest.mark.long
def test_a_task_is_retried_until_it_succeeds(
    workers: Callable[..., Worker], tmp_path: Path
) -> None:
    assert workers().tasks.stubborn.delay(str(tmp_path / "tries")).get(timeout=PATIENCE) == 3


@pytest.mark.long
def test_a_chord_waits_for_all(
    workers: Callable[..., Worker], tmp_path_factory: pytest.TempPathFactory
) -> None:
    from celery import chord, group

    worker = workers("classic", f"file://{tmp_path_factory.mktemp('results')}")
    total = chord(group(worker.tasks.add.s(number, number) for number in range(10)))(
        worker.tasks.total.s()
    )
    assert total.get(timeout=PATIENCE) == 90


@pytest.mark.long
def test_higher_priorities_go_first(workers: Callable[..., Worker], tmp_path: Path) -> None:
    worker = workers()
    path = tmp_path / "order"
    worker.tasks.hold.apply_async((str(path.with_suffix(".go")),), priority=10)
    until(lambda: b"hold" in worker.log, worker)
    for priority in (1, 9, 5, 0, 9):
        worker.tasks.note.apply_async((str(path), str(priority)), priority=priority)
    path.with_suffix(".go").touch()
    until(lambda: len(lines(path)) == 5, worker)
    # The first line is not compared: the worker may have taken one task before the others arrived.
    assert sorted(lines(path)[1:], reverse=True) == lines(path)[1:]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_tasks_with_a_countdown_run_later_than_tasks_without(
    workers: Callable[..., Worker], kind: str, tmp_path: Path
) -> None:
    worker = workers(kind)
    path, began = tmp_path / "eta", time.time()
    for number in range(6):
        worker.tasks.note.apply_async((str(path), f"late {number}"), countdown=2)
    worker.tasks.note.delay(str(path), "now")
    until(lambda: len(lines(path)) == 7, worker)
    assert lines(path)[0] == "now" and time.time() - began >= 2
    assert sorted(lines(path)[1:]) == [f"late {number}" for number in range(6)]


@pytest.mark.long
def test_native_delays_use_their_28_exchanges_and_queues(
    workers: Callable[..., Worker], broker: BrokerProcess
) -> None:
    import pika

    workers("quorum")
    connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
    for level in range(28):
        channel = connection.channel()
        channel.exchange_declare(f"celery_delayed_{level}", passive=True)
        channel.queue_declare(f"celery_delayed_{level}", passive=True)
        channel.close()
    connection.close()


@pytest.mark.long
def test_a_revoked_task_does_not_run(workers: Callable[..., Worker], tmp_path: Path) -> None:
    worker = workers()
    path = tmp_path / "revoked"
    doomed = worker.tasks.note.apply_async((str(path), "doomed"), countdown=1)
    until(lambda: doomed.id.encode() in worker.log, worker)
    worker.tasks.app.control.revoke(doomed.id, reply=True, timeout=PATIENCE, limit=1)
    worker.tasks.note.apply_async((str(path), "after"), countdown=2)
    until(lambda: lines(path), worker)
    assert lines(path) == ["after"]


@pytest.mark.long
def test_broadcasts_and_remote_control_reach_the_worker(
    workers: Callable[..., Worker], tmp_path: Path
) -> None:
    worker = workers()
    path = tmp_path / "all"
    worker.tasks.note.apply_async(
        (str(path), "to all"), exchange=worker.tasks.app.conf.task_default_queue + "-all"
    )
    until(lambda: lines(path) == ["to all"], worker)
    [answer] = worker.tasks.app.control.ping([worker.name], timeout=5.0, limit=1)
    assert answer == {worker.name: {"ok": "pong"}}
    assert worker.tasks.app.control.inspect([worker.name], timeout=5.0, limit=1).active_queues()
