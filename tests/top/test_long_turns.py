"""Long turns of the event loop: counted by CPU time, and logged."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from broker.agenda import Task
from tests.top.conftest import Start
from tests.top.running import Running
from trellis.server.turn import CPU_SAMPLE_SECONDS, LOGGED_SECONDS, LONG_SECONDS


class Holding(Task):
    """A task of the agenda that runs once and calls `hold`, which may block the event loop."""

    def __init__(self, hold: Callable[[], None]) -> None:
        self._hold = hold
        self.done = False

    def run(self) -> None:
        self._hold()
        self.done = True


async def held(running: Running, hold: Callable[[], None]) -> None:
    """Call `hold` in a turn of the broker's event loop, and wait until the turn is over."""
    task = Holding(hold)
    turns = running.node.turn.turns
    running.node.broker.agenda.add(task)
    await running.until(lambda: task.done and running.node.turn.turns > turns)


def work() -> None:
    """Use the CPU for longer than a turn may take."""
    end = time.thread_time() + 2 * LONG_SECONDS
    while time.thread_time() < end:
        pass


def wait() -> None:
    """Wait without using the CPU, as if the machine did not run this thread."""
    time.sleep(3 * LONG_SECONDS)


async def test_a_turn_that_works_long_is_told_from_one_that_waited(start: Start) -> None:
    running = await start()
    await held(running, lambda: None)
    before = await running.scrape()
    await held(running, work)
    page = await running.scrape()

    def grown(spent: str) -> float:
        name = "trellis_long_turns_total"
        return page.value(name, spent=spent) - before.value(name, spent=spent)

    assert grown("working") >= 1
    assert page.value("trellis_loop_held_cpu_seconds_max") >= 2 * LONG_SECONDS
    assert page.value("trellis_loop_held_seconds_max") >= 2 * LONG_SECONDS

    waited = running.node.turn.long_turns_waiting
    await held(running, wait)
    assert running.node.turn.long_turns_waiting > waited


async def test_the_start_of_the_broker_is_not_counted_as_a_turn(start: Start) -> None:
    running = await start()
    turn = running.node.turn
    await held(running, lambda: None)
    assert turn.long_turns_working == 0
    turn.schedule()
    work()
    turn.begin_counting()
    await held(running, lambda: None)
    assert turn.long_turns_working == 0


async def test_the_cpu_time_of_a_turn_leaves_out_the_time_before_it(start: Start) -> None:
    running = await start()
    turn = running.node.turn
    work()  # This CPU time belongs to the task of the test, before the turn.
    turn.longest_seconds = turn.longest_cpu_seconds = 0.0
    await held(running, wait)
    assert turn.longest_seconds >= 3 * LONG_SECONDS
    assert turn.longest_cpu_seconds < LONG_SECONDS + CPU_SAMPLE_SECONDS


async def test_a_very_long_turn_is_logged_once_with_both_times(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    running = await start()
    caplog.clear()
    running.node.turn._logged_at = -1e9

    def lines() -> list[str]:
        messages = [record.getMessage() for record in caplog.records]
        return [message for message in messages if message.startswith("long_turn ")]

    await held(running, lambda: time.sleep(LOGGED_SECONDS))
    await running.until(lambda: bool(lines()))
    await held(running, lambda: time.sleep(LOGGED_SECONDS))
    for _ in range(3):
        running.node.turn._log_long_turn()
    (line,) = lines()
    fields = dict(word.split("=") for word in line.split()[1:3])
    assert int(fields["ms"]) >= LOGGED_SECONDS * 1000
    assert 0 <= int(fields["cpu_ms"]) < int(fields["ms"])
