"""Tests of deadlines, with a sorted list as the model.

Timers run in order, and cancelled timers do not run.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.agenda import Agenda, Task
from protocols.mqtt.session.deadlines import Deadline, Deadlines


class Note(Task):
    """A task that appends its number to a list."""

    def __init__(self, number: int, ran: list[int]) -> None:
        self._number = number
        self._ran = ran

    def run(self) -> None:
        self._ran.append(self._number)


@given(
    st.lists(
        st.tuples(st.sampled_from(["set", "cancel", "wait"]), st.integers(0, 50)), max_size=300
    )
)
def test_timers_run_in_the_order_of_their_times_and_then_as_they_were_set(
    steps: list[tuple[str, int]],
) -> None:
    agenda = Agenda()
    deadlines = Deadlines(agenda)
    ran: list[int] = []
    alarms: dict[int, Deadline] = {}
    due: list[tuple[int, int]] = []
    for number, (step, value) in enumerate([*steps, ("wait", 100)]):
        now = int(agenda.now)
        if step == "set":
            alarms[number] = deadlines.at(now + value, Note(number, ran))
            due.append((now + value, number))
        elif step == "cancel" and alarms:
            chosen = sorted(alarms)[value % len(alarms)]
            deadlines.cancel(alarms.pop(chosen))
            due = [one for one in due if one[1] != chosen]
        elif step == "wait":
            expected = [one for when, one in sorted(due) if when <= now + value]
            agenda.advance(now + value, 0.0)
            while not agenda.idle:
                agenda.turn()
            assert ran == expected
            ran.clear()
            due = [one for one in due if one[0] > now + value]
            alarms = {one: alarm for one, alarm in alarms.items() if one not in expected}
        assert len(deadlines) == len(due)
