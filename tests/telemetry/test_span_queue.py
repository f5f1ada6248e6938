"""Tests of the span queue: it is bounded, sends failed batches again, and ends in limited time."""

from __future__ import annotations

import threading

from trellis.telemetry.span_queue import ATTEMPTS_MAX, BATCH_MAX, SPANS_MAX, SpanQueue

#: Longest wait in seconds. A test that waits so long fails.
PATIENCE = 60.0


class Collector:
    """A collector that accepts spans while `up` is True, and the span queue that sends to it.

    `requests` has the spans of each request.
    """

    def __init__(self, up: bool = True) -> None:
        self.up = up
        self.requests: list[list[int]] = []
        self.accepted: list[int] = []
        self.queue = SpanQueue[int](self.export, self._changed, retry=0.001)
        self._change = threading.Condition()

    def export(self, spans: list[int]) -> str:
        self.requests.append(list(spans))
        if self.up:
            self.accepted += spans
        return "" if self.up else "away"

    def _changed(self) -> None:
        with self._change:
            self._change.notify_all()

    def wait_for(self, accepted: int = 0, requests: int = 0) -> None:
        """Wait until at least `accepted` spans were accepted and `requests` requests answered."""
        with self._change:
            assert self._change.wait_for(
                lambda: len(self.accepted) >= accepted and len(self.requests) >= requests, PATIENCE
            )


def test_spans_come_in_order_and_in_bounded_batches() -> None:
    collector = Collector()
    collector.queue.add(range(3 * BATCH_MAX))
    collector.queue.start()
    collector.wait_for(accepted=3 * BATCH_MAX)
    assert collector.accepted == list(range(3 * BATCH_MAX))
    assert max(map(len, collector.requests)) == BATCH_MAX
    assert collector.queue.take_counts().exported == 3 * BATCH_MAX
    assert collector.queue.waiting == 0


def test_a_collector_that_comes_back_gets_all_spans() -> None:
    collector = Collector(up=False)
    collector.queue.start()
    collector.queue.add(range(5))
    collector.wait_for(requests=3)
    assert collector.queue.reason == "away" and collector.queue.waiting == 5
    collector.up = True
    collector.queue.add(range(5, 7))
    collector.wait_for(accepted=7)
    assert collector.accepted == list(range(7))
    counts = collector.queue.take_counts()
    assert counts.failures >= 3 and counts.exported == 7
    assert (counts.dropped_full, counts.dropped_refused) == (0, 0)
    assert collector.queue.reason == ""


def test_a_full_queue_drops_the_oldest_spans() -> None:
    collector = Collector()
    collector.queue.add(range(SPANS_MAX + 9))
    assert collector.queue.waiting == SPANS_MAX
    assert collector.queue.take_counts().dropped_full == 9
    collector.queue.start()
    collector.wait_for(accepted=SPANS_MAX)
    assert collector.accepted == list(range(9, SPANS_MAX + 9))


def test_a_batch_that_is_never_accepted_is_dropped_and_the_next_one_sent() -> None:
    collector = Collector(up=False)
    collector.queue.add(range(BATCH_MAX + 1))

    def export(spans: list[int]) -> str:
        collector.up = len(collector.requests) >= ATTEMPTS_MAX
        return Collector.export(collector, spans)

    collector.queue._export = export
    collector.queue._retry = 0.0001
    collector.queue.start()
    collector.wait_for(accepted=1)
    assert collector.accepted == [BATCH_MAX]
    counts = collector.queue.take_counts()
    assert (counts.dropped_refused, counts.failures) == (BATCH_MAX, ATTEMPTS_MAX)


def test_the_end_sends_what_waits() -> None:
    collector = Collector()
    collector.queue.start()
    collector.queue.add(range(2 * BATCH_MAX + 1))
    collector.queue.end(PATIENCE)
    assert collector.accepted == list(range(2 * BATCH_MAX + 1))


def test_the_end_tries_a_collector_that_is_away_once_more() -> None:
    collector = Collector(up=False)
    collector.queue._retry = PATIENCE
    collector.queue.start()
    collector.queue.add([1])
    collector.wait_for(requests=1)
    collector.queue.end(PATIENCE)
    assert not collector.queue._thread.is_alive()


def test_the_end_does_not_wait_for_a_request_that_hangs() -> None:
    collector, hanging, over = Collector(), threading.Event(), threading.Event()

    def export(spans: list[int]) -> str:
        hanging.set()
        over.wait(PATIENCE)
        return ""

    collector.queue._export = export
    collector.queue.start()
    collector.queue.add([1])
    assert hanging.wait(PATIENCE)
    collector.queue.end(0.01)
    assert collector.queue._thread.is_alive()
    over.set()
