"""Alarms come in order, and cancelled ones do not: beside a sorted list."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.agenda import Agenda, Task
from protocols.mqtt.session.deadlines import Deadline, Deadlines


class Note(Task):
    """Writes down that its time came."""

    def __init__(self, number: int, told: list[int]) -> None:
        self._number = number
        self._told = told

    def run(self) -> None:
        self._told.append(self._number)


@given(
    st.lists(
        st.tuples(st.sampled_from(["set", "cancel", "wait"]), st.integers(0, 50)), max_size=300
    )
)
def test_alarms_come_in_the_order_of_their_times_and_then_as_they_were_set(
    steps: list[tuple[str, int]],
) -> None:
    agenda = Agenda()
    deadlines = Deadlines(agenda)
    told: list[int] = []
    alarms: dict[int, Deadline] = {}
    due: list[tuple[int, int]] = []
    for number, (what, much) in enumerate([*steps, ("wait", 100)]):
        now = int(agenda.now)
        if what == "set":
            alarms[number] = deadlines.at(now + much, Note(number, told))
            due.append((now + much, number))
        elif what == "cancel" and alarms:
            chosen = sorted(alarms)[much % len(alarms)]
            deadlines.cancel(alarms.pop(chosen))
            due = [one for one in due if one[1] != chosen]
        elif what == "wait":
            expected = [one for when, one in sorted(due) if when <= now + much]
            agenda.advance(now + much, 0.0)
            while not agenda.idle:
                agenda.turn()
            assert told == expected
            told.clear()
            due = [one for one in due if one[0] > now + much]
            alarms = {one: alarm for one, alarm in alarms.items() if one not in expected}
        assert len(deadlines) == len(due)
