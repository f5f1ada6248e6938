"""Tests of the agenda: the order of tasks, and the most tasks and slices in one turn."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.agenda import TIMER_SLACK, TURN_SLICES, TURN_TASKS, Agenda, BulkTask, Task


class Note(Task):
    """A task that appends its name to `notes`.

    The task then fails if `fails` is True. With `agenda`, it adds itself again, with
    `Agenda.later` if `later` is True.
    """

    def __init__(
        self,
        notes: list[str],
        name: str,
        agenda: Agenda | None = None,
        later: bool = False,
        fails: bool = False,
    ) -> None:
        self.notes = notes
        self.name = name
        self.agenda = agenda
        self.later = later
        self.fails = fails

    def run(self) -> None:
        self.notes.append(self.name)
        if self.fails:
            raise RuntimeError(self.name)
        if self.agenda is not None:
            (self.agenda.later if self.later else self.agenda.add)(self)


def test_tasks_run_once_in_the_order_in_which_they_were_added() -> None:
    agenda, notes = Agenda(), list[str]()
    for name in "abc":
        agenda.add(Note(notes, name))
    agenda.turn()
    agenda.turn()
    assert notes == ["a", "b", "c"]
    assert agenda.idle


def test_a_task_that_adds_itself_again_runs_at_most_turn_tasks_times_per_turn() -> None:
    agenda, notes, wakes = Agenda(), list[str](), list[int]()
    agenda.wake = lambda: wakes.append(1)
    agenda.add(Note(notes, "again", agenda))
    agenda.turn()
    assert len(notes) == TURN_TASKS
    assert len(wakes) == 2, "once for the task, once for the rest of its work"
    agenda.turn()
    assert len(notes) == 2 * TURN_TASKS


def test_a_task_added_for_later_runs_once_per_turn() -> None:
    agenda, notes = Agenda(), list[str]()
    agenda.add(Note(notes, "slice", agenda, later=True))
    agenda.turn()
    assert notes == ["slice"]
    agenda.turn()
    assert notes == ["slice", "slice"]


def test_a_task_that_fails_does_not_prevent_the_others() -> None:
    agenda, notes = Agenda(), list[str]()
    for name in "abc":
        agenda.add(Note(notes, name, fails=name == "b"))
    with pytest.raises(RuntimeError):
        agenda.turn()
    assert not agenda.idle
    agenda.turn()
    assert notes == ["a", "b", "c"]


def test_timers_run_in_the_order_of_their_times_when_the_clock_advances() -> None:
    agenda, notes = Agenda(), list[str]()
    agenda.advance(1_000, 5.0)
    agenda.at(3_000, Note(notes, "late"))
    agenda.at(2_000, Note(notes, "early"))
    agenda.at(2_000, Note(notes, "early too"))
    assert agenda.deadline == 2_000
    agenda.advance(1_999, 6.0)
    agenda.turn()
    assert notes == []
    agenda.advance(3_000, 7.0)
    agenda.turn()
    assert notes == ["early", "early too", "late"]
    assert (agenda.deadline, agenda.wall) == (0, 7.0)


class Slices(BulkTask):
    """A bulk task that appends its name to `notes` at each run, and ends after `slices` runs."""

    def __init__(self, notes: list[str], name: str, agenda: Agenda, slices: int) -> None:
        self._notes, self._name, self._agenda, self._left = notes, name, agenda, slices

    def run(self) -> None:
        self._notes.append(self._name)
        self._left -= 1
        if self._left:
            self._agenda.add_bulk(self)
        if self._name == "bad":
            raise RuntimeError(self._name)


def test_bulk_tasks_take_turns_behind_all_other_tasks() -> None:
    agenda, notes = Agenda(), list[str]()
    agenda.add_bulk(Slices(notes, "x", agenda, 3))
    agenda.add_bulk(Slices(notes, "y", agenda, 2))
    agenda.add(Note(notes, "a"))
    agenda.turn()
    assert notes == ["a", "x", "y"] and not agenda.idle
    agenda.later(Note(notes, "b"))
    agenda.turn()
    assert notes == ["a", "x", "y", "b", "x", "y"]
    agenda.turn()
    assert notes[6:] == ["x"] and agenda.idle


def test_a_turn_without_time_left_runs_one_slice_and_the_next_turn_another_task() -> None:
    agenda, notes = Agenda(), list[str]()
    times = iter(range(1_000_000))
    agenda.clock, agenda.share = lambda: float(next(times)), 0.5
    wakes: list[int] = []
    agenda.wake = lambda: wakes.append(1)
    for name in "xy":
        agenda.add_bulk(Slices(notes, name, agenda, 2))
    for turn in range(4):
        agenda.add(Note(notes, "a"))
        agenda.add(Note(notes, "b"))
        before = len(wakes)
        agenda.turn()
        assert turn == 3 or len(wakes) > before
    assert [name for name in notes if name in "xy"] == ["x", "y", "x", "y"]


def test_a_turn_runs_a_bounded_number_of_slices() -> None:
    agenda, notes = Agenda(), list[str]()
    for number in range(TURN_SLICES + 3):
        agenda.add_bulk(Slices(notes, str(number), agenda, 1))
    agenda.turn()
    assert len(notes) == TURN_SLICES
    agenda.turn()
    assert notes == [str(number) for number in range(TURN_SLICES + 3)] and agenda.idle


def test_a_bulk_task_that_fails_does_not_prevent_the_others_or_its_own_next_slice() -> None:
    agenda, notes = Agenda(), list[str]()
    agenda.add_bulk(Slices(notes, "bad", agenda, 2))
    agenda.add_bulk(Slices(notes, "good", agenda, 1))
    with pytest.raises(RuntimeError):
        agenda.turn()
    with pytest.raises(RuntimeError):
        agenda.turn()
    assert notes == ["bad", "good", "bad"] and agenda.idle


def test_the_timer_of_a_bulk_task_adds_it_to_the_bulk_work() -> None:
    agenda, notes = Agenda(), list[str]()
    agenda.at(10, Slices(notes, "x", agenda, 1))
    agenda.at(10, Note(notes, "a"))
    agenda.advance(10, 0.0)
    agenda.turn()
    assert notes == ["a", "x"]


class Moved(Task):
    """A task with one timer, which a test moves; `ran` has the times at which the task ran."""

    def __init__(self, agenda: Agenda) -> None:
        self.agenda = agenda
        self.due = 0
        self.ran: list[int] = []

    def move(self, when: int) -> None:
        moved, self.due = self.due > 0, when
        self.agenda.at(when, self)
        if moved:
            self.agenda.drop_timer()

    def needs_timer(self, when: int) -> bool:
        return when == self.due

    def run(self) -> None:
        if self.agenda.now >= self.due > 0:
            self.ran.append(int(self.agenda.now))
            self.due = 0


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 1_000)), max_size=400))
def test_dropped_timers_are_forgotten_and_all_others_run(steps: list[tuple[int, int]]) -> None:
    agenda = Agenda()
    tasks = [Moved(agenda) for _ in range(3)]
    expected: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for which, value in steps:
        if which < 3:
            tasks[which].move(int(agenda.now) + value)
        else:
            now = int(agenda.now) + value // 10
            for number, task in enumerate(tasks):
                if 0 < task.due <= now:
                    expected[number].append(now)
            agenda.advance(now, 0.0)
            agenda.turn()
        assert len(agenda._timers) <= 2 * len(tasks) + TIMER_SLACK
    assert [task.ran for task in tasks] == list(expected.values())
