"""Tests of the queue of fetches from the archive: it is bounded, and each reader gets an answer."""

from __future__ import annotations

from random import Random

from broker.stream.archived import ArchiveBackend, ArchivedRows
from broker.stream.open_files import OpenFiles
from trellis.archive.fetch_queue import SENT_MAX, WANTED_MAX, FetchQueue, Wanted


def stream_rows() -> ArchivedRows:
    return ArchivedRows(ArchiveBackend(), "/", "s", OpenFiles())


def test_every_reader_that_asks_again_is_served_with_bounded_memory() -> None:
    random, queue = Random(1), FetchQueue()
    streams = [stream_rows() for _ in range(3)]
    waiting = {Wanted(random.choice(streams), "time", n) for n in range(3 * WANTED_MAX)}
    sent: list[Wanted] = []
    for wanted in waiting:
        queue.add(wanted)
    rounds = 0
    while waiting:
        rounds += 1
        while (following := queue.next()) is not None:
            sent.append(following)
        assert 0 < len(sent) <= SENT_MAX and len(queue) <= WANTED_MAX
        if random.randrange(10) == 0:
            queue.put_back(sent.pop(0))
            queue.drop_stale()
            continue
        answered = sent.pop(random.randrange(len(sent)))
        assert answered in waiting
        queue.finish(answered)
        waiting.remove(answered)
        dropped = queue.take_dropped()
        for wanted in waiting:  # The readers of these streams ask again.
            if wanted.rows in dropped:
                queue.add(wanted)
    assert len(queue) == 0 and rounds < 5 * WANTED_MAX


def test_requests_of_readers_that_have_gone_are_dropped() -> None:
    queue, rows = FetchQueue(), stream_rows()
    for moment in range(100):
        queue.add(Wanted(rows, "time", moment))
    queue.drop_stale()
    assert queue.next() == Wanted(rows, "time", 0) and queue.next() is None
    assert queue.take_dropped() == {rows} and queue.take_dropped() == set()


def test_a_deleted_stream_leaves_nothing() -> None:
    queue, rows, other = FetchQueue(), stream_rows(), stream_rows()
    for moment in range(WANTED_MAX):
        queue.add(Wanted(rows, "time", moment))
    queue.add(Wanted(rows, "first", 0))
    queue.add(Wanted(other, "first", 0))
    queue.remove_stream(rows)
    assert len(queue) == 0 and queue.take_dropped() == {other}
