"""The spans that wait for the collector, and the thread that sends them in batches."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, Generic, TypeVar

#: Largest number of spans that wait. If there are more, the oldest span is dropped.
SPANS_MAX: Final = 8_192
#: Largest number of spans in one request.
BATCH_MAX: Final = 512
#: Seconds for which a request that is not full waits for more spans.
LINGER: Final = 0.2
#: Seconds before a failed request is repeated: RETRY_MIN, doubled after each failure, at most
#: RETRY_MAX.
RETRY_MIN: Final = 1.0
RETRY_MAX: Final = 30.0
#: Number of failed requests after which a batch is dropped: the collector may refuse it for ever.
ATTEMPTS_MAX: Final = 10

Span = TypeVar("Span")


class SpanCounts:
    """Numbers of spans since the counts were last taken, and failed requests."""

    def __init__(self) -> None:
        self.exported = 0
        self.dropped_full = 0
        self.dropped_refused = 0
        self.failures = 0


class SpanQueue(Generic[Span]):
    """A bounded queue of spans, and its thread.

    `export` sends a batch, and returns "" or the reason of the failure. The thread calls `export`
    again for a failed batch, up to ATTEMPTS_MAX times, and calls `changed` after each request.
    `retry` is the pause in seconds after the first failure.
    """

    def __init__(
        self,
        export: Callable[[list[Span]], str],
        changed: Callable[[], None],
        retry: float = RETRY_MIN,
    ) -> None:
        self._export = export
        self._changed = changed
        self._retry = retry
        self._spans: deque[Span] = deque()
        self._batch: list[Span] = []
        self._counts = SpanCounts()
        self._arrived = threading.Condition()
        self._ended_at = 0.0
        #: The reason why the last request failed; "" if it succeeded.
        self.reason = ""
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def add(self, spans: Iterable[Span]) -> None:
        """Add spans; drop the oldest spans if more than SPANS_MAX wait."""
        with self._arrived:
            for span in spans:
                if len(self._spans) >= SPANS_MAX:
                    self._spans.popleft()
                    self._counts.dropped_full += 1
                self._spans.append(span)
            self._arrived.notify()

    def take_counts(self) -> SpanCounts:
        """Return the counts since the last call."""
        with self._arrived:
            counts, self._counts = self._counts, SpanCounts()
            return counts

    @property
    def waiting(self) -> int:
        """Number of spans that the collector has not accepted yet."""
        return len(self._spans) + len(self._batch)

    def end(self, seconds: float) -> None:
        """Send the spans that wait, each batch once; return after `seconds` at the latest."""
        with self._arrived:
            self._ended_at = time.monotonic() + seconds
            self._arrived.notify()
        self._thread.join(seconds)

    def _run(self) -> None:
        attempts, delay = 0, self._retry
        while self._take_batch():
            self.reason = self._export(self._batch)
            attempts += 1
            with self._arrived:
                if not self.reason:
                    self._counts.exported += len(self._batch)
                else:
                    self._counts.failures += 1
                    if attempts >= ATTEMPTS_MAX:
                        self._counts.dropped_refused += len(self._batch)
                if not self.reason or attempts >= ATTEMPTS_MAX:
                    self._batch, attempts, delay = [], 0, self._retry
            self._changed()
            if self._batch:
                self._pause(delay)
                if self._ended_at:
                    return
                delay = min(2 * delay, RETRY_MAX)

    def _take_batch(self) -> bool:
        """Fill the batch with spans of the queue, unless a failed batch must be sent again.

        Wait until the queue has spans. Return False if the thread must end.
        """
        with self._arrived:
            if self._batch:
                return not self._over()
            self._arrived.wait_for(lambda: bool(self._spans or self._ended_at))
            self._arrived.wait_for(
                lambda: len(self._spans) >= BATCH_MAX or bool(self._ended_at), LINGER
            )
            self._batch = [self._spans.popleft() for _ in range(min(BATCH_MAX, len(self._spans)))]
            return bool(self._batch) and not self._over()

    def _over(self) -> bool:
        return bool(self._ended_at) and time.monotonic() >= self._ended_at

    def _pause(self, seconds: float) -> None:
        """Wait for `seconds`, or until `end` is called."""
        with self._arrived:
            self._arrived.wait_for(lambda: bool(self._ended_at), seconds)
