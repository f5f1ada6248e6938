"""Tests that recovery and checkpoints find the same live records as a model of the log.

The model, a State, applies all entries of a random history.
"""

from __future__ import annotations

from random import Random

import pytest

from broker.store.codecs import Codecs
from broker.store.reading import Decoder
from broker.store.segments import SegmentLog
from broker.store.state import State
from broker.store.survivors import Survivors
from tests.store.logs import DIRECTORY, QUEUES, EntryReplay, Log, random_entry
from tests.store.simulated import SimulatedDisk


@pytest.mark.parametrize("seed", range(60))
def test_survivors_equal_the_content_of_the_state(seed: int) -> None:
    random, disk = Random(seed), SimulatedDisk()
    log = Log(disk, random.choice((400, 1_500)))
    exist = {*random.sample(QUEUES, random.randrange(4)), *random.choice(((), (9,)))}
    for _ in range(random.randrange(1, 120)):
        log.put(random_entry(random, log))
        if random.random() < 0.05 and log.log.sealed() and not log.log.sealed()[-1].checkpoint:
            log.checkpoint(holder_numbers=exist)
    survivors, state = Survivors(exist), State()
    SegmentLog(SimulatedDisk(disk.contents()), DIRECTORY, 2_000, 7).open(survivors)
    SegmentLog(SimulatedDisk(disk.contents()), DIRECTORY, 2_000, 7).open(
        EntryReplay(Decoder(Codecs()), state.apply)
    )
    # Compare with the same records read as entries, and with the entries as they were written.
    for one in (state, log.state):
        held = {
            (queue, position)
            for position, live in one.messages.items()
            for queue in live.queues
            if queue in exist
        }
        assert {
            (queue, position)
            for queue, positions in survivors.copies.by_queue().items()
            for position in positions
        } == held
        assert all(survivors.copies.is_held(*copy) for copy in held)
        assert {
            copy for copy in survivors.pubrec_received if survivors.copies.is_held(*copy)
        } == one.pubrec_received & held
        assert {
            session: set(packet_ids)
            for session, packet_ids in survivors.held_packet_ids.items()
            if packet_ids
        } == {
            session: packet_ids
            for session, packet_ids in one.held_packet_ids.items()
            if session in exist
        }
        assert survivors.retained.keys() == one.retained.keys()
        assert {
            queue: marks for queue in survivors.marks if (marks := survivors.marks_of(queue))
        } == {queue: ranks for queue, ranks in one.marks.items() if queue in exist}
        assert {
            copy: count
            for copy, (count, _) in survivors.counts.items()
            if survivors.copies.is_held(*copy)
        } == {copy: count for copy, count in one.counts.items() if copy in held}
    assert all(
        list(positions) == sorted(positions) for positions in survivors.copies.by_queue().values()
    )
