"""Tests of a standby whose log is trimmed between any two of its reads."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.replication.contract import Fenced, LogTrimmed
from broker.replication.owner import LogOwner
from tests.replication.test_log_replaced import Cluster, shipped


class Trims:
    """An owner that trims the log between the reads of a standby.

    `plan` has an element for each of the first reads: if it is True, the owner appends a beat and a
    mark before the read, and trims the log to the mark.
    """

    def __init__(self, plan: list[bool], batches: int = 5) -> None:
        self.cluster = Cluster()
        self.owner: LogOwner = shipped(self.cluster, batches)
        self.state = self.cluster.state()
        self._plan = iter(plan)
        self.cluster.before_read = self._before_read

    def _before_read(self) -> None:
        if next(self._plan, False):
            self.cluster.before_read = lambda: None
            try:
                self.trim()
            except Fenced:  # The standby owns the log now.
                return
            self.cluster.before_read = self._before_read

    def trim(self) -> None:
        """Append a beat and a mark, and remove all records before the mark."""
        self.cluster.run(self.owner.beat())
        self.cluster.run(self.owner.mark())
        self.cluster.log.trim(self.owner.marks[-1])


@given(st.lists(st.booleans(), max_size=40))
@settings(deadline=None)
def test_standby_with_all_batches_continues_however_often_the_log_is_trimmed(
    plan: list[bool],
) -> None:
    trims = Trims(plan)
    assert trims.cluster.own(trims.state, 33).epoch == 2


@pytest.mark.parametrize("plan", [[True], [True, True], [False, True, True, True]])
def test_standby_that_lacks_a_batch_names_the_offset_and_the_log_as_it_is_now(
    plan: list[bool],
) -> None:
    trims = Trims(plan)
    lacking = trims.state
    trims.cluster.run(trims.owner.ship(b"new", 9))
    if not plan[0]:
        trims.trim()
    with pytest.raises(LogTrimmed) as ended:
        trims.cluster.own(lacking, 33)
    text = str(ended.value)
    assert (ended.value.low, ended.value.offset) == (trims.cluster.log.low, lacking.last + 1)
    trimmed = r"cannot read the replicated log at offset \d+: the log now begins at offset \d+; rep"
    assert re.match(trimmed, text)
    assert "\n" not in text and "trellis cluster seed" in text
