"""The application of docs/celery-guide.md with a worker of Celery, and the page's commands."""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from celery.contrib.testing.worker import start_worker
from celery.signals import setup_logging

from tests.broker import BrokerProcess, run_command

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "docs" / "celery-guide.md").read_text()
#: The programs of the page: the application, and the calls of its tasks.
APPLICATION, CALLS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
COMMANDS: Final = [
    shlex.split(line) for line in re.findall(r"^    \.run/bin/trellis (.+)$", PAGE, re.MULTILINE)
]
#: Seconds that one step may take.
PATIENCE: Final = 30.0


@pytest.fixture
def broker() -> Iterator[BrokerProcess]:
    running = BrokerProcess()
    yield running
    running.stop()


@contextmanager
def untouched_logging() -> Iterator[None]:
    """Keep Celery from replacing the log handlers of this process, which other tests use."""

    def receive(**facts: object) -> None:
        """Do nothing: if this signal has a receiver, Celery sets up no logging itself."""

    setup_logging.connect(receive)
    try:
        yield
    finally:
        setup_logging.disconnect(receive)


def trellis(broker: BrokerProcess, *words: str) -> tuple[int, str]:
    """Run a command for the broker; return its exit code and output."""
    done = run_command(*words, HTTP_PORT=broker.addresses["http"].port)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.long
def test_the_application_and_the_commands_of_the_page(broker: BrokerProcess) -> None:
    url = f"amqp://guest:guest@127.0.0.1:{broker.amqp.port}/%2F"
    program = APPLICATION.replace("amqp://guest:guest@127.0.0.1:5672/%2F", url)
    space: dict[str, Any] = {"__name__": "orders"}
    exec(compile(program, "orders.py", "exec"), space)
    with (
        untouched_logging(),
        start_worker(
            space["app"], perform_ping_check=False, shutdown_timeout=PATIENCE, queues=["orders"]
        ),
    ):
        shipped = space["ship"].apply_async([7], priority=5).get(timeout=PATIENCE)
        assert shipped == "order 7 is shipped"
        exec(compile(CALLS, "calls.py", "exec"), space)
        until_dead_letters(broker, 1)
    outputs = {words[0]: trellis(broker, *words) for words in COMMANDS}
    assert list(outputs) == ["list", "why", "peek", "redrive"]
    assert "orders" in outputs["list"][1]
    assert outputs["why"][0] in (0, 1)
    assert "orders.charge" in outputs["peek"][1]
    assert outputs["redrive"][0] == 0
    until_dead_letters(broker, 0)


def until_dead_letters(broker: BrokerProcess, count: int) -> None:
    """Wait until the queue `failed` has this number of messages."""
    end = time.monotonic() + PATIENCE
    while True:
        _, listed = trellis(broker, "list", "queues", "--json")
        depths = {row["name"]: row["messages_ready"] for row in json.loads(listed)}
        if depths.get("failed") == count:
            return
        assert time.monotonic() < end, depths
