"""The agenda: deferred tasks run once, in order, and bounded by turns."""

from __future__ import annotations

import pytest

from broker.agenda import TURN_TASKS, Agenda, Task


class Note(Task):
    """A task that notes its name, and adds itself again if `agenda` is given."""

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
    assert len(wakes) == 2, "once for the task, once for what is left"
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
