"""The load generator's loop: sends as the window allows, and receives until all is delivered.

    publishers --batch--> broker --> subscribers
        ^                                |        in flight: sent, but not yet received by all its
        +-------- window -----------------+        subscribers, or not acknowledged to its publisher

Hot path: one thread, non-blocking sockets and epoll. Messages are encoded before, and no object is
created for a message.
"""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from mypy_extensions import i64

from trellis.bench.errors import BenchError
from trellis.bench.line import BenchConnection

_READ: Final = 1  # The flag for input: EPOLLIN of epoll, POLLIN of poll.
_WRITE: Final = 4  # The flag for room to write: EPOLLOUT of epoll, POLLOUT of poll.
#: Nanoseconds between two checks of the progress. Each check reports the progress to the caller.
_TICK: Final[i64] = 100_000_000
#: Tolerated delay in sending a message at a fixed rate, in nanoseconds. If a message is sent later
#: than that, its latency counts from the time at which it was due, so that a stalled broker cannot
#: hide its delay.
_LATE: Final[i64] = 1_000_000


class Flow:
    """Rules for sending: `batch` messages in one send, and at most `window` messages in flight.

    `to_all` is true if each subscriber gets every message, false if each message goes to one
    subscriber. `acknowledged` is true if the broker acknowledges messages to publishers.
    """

    def __init__(self, batch: i64, window: i64, to_all: bool, acknowledged: bool) -> None:
        self.batch = batch
        self.window = window
        self.to_all = to_all
        self.acknowledged = acknowledged


class Poller:
    """Waits for sockets with epoll, or with poll on systems without epoll."""

    def __init__(self) -> None:
        self._epoll = sys.platform == "linux"
        self._poll: Any = select.epoll() if sys.platform == "linux" else select.poll()

    def add(self, fd: int) -> None:
        """Watch a socket for input."""
        self._poll.register(fd, _READ)

    def writable(self, fd: int, wanted: bool) -> None:
        """Watch a socket for input, and if `wanted` is True, also for room to write."""
        self._poll.modify(fd, _READ | _WRITE if wanted else _READ)

    def wait(self, ns: i64) -> list[tuple[int, int]]:
        """Return the ready file descriptors with their events; [] if none is ready within `ns`."""
        if not self._epoll:
            return self._poll.poll(int(ns // 1_000_000))  # type: ignore[no-any-return]
        if 0 < ns < 5_000_000:
            # epoll's timeout is in whole milliseconds, so `select` waits on epoll's descriptor.
            select.select([self._poll], [], [], float(ns) / 1e9)
            ns = 0
        return self._poll.poll(float(ns) / 1e9)  # type: ignore[no-any-return]

    def close(self) -> None:
        """Close epoll's file descriptor. The sockets stay open."""
        if sys.platform == "linux":
            self._poll.close()


class Generator:
    """Drives the publishers and subscribers of a run.

    `tick` is called every 0.1 s with the number of messages delivered since `run` began. `tick`
    must not be compiled code, so that Python can handle Ctrl-C. After `patience` seconds without
    progress, `run` raises BenchError.
    """

    def __init__(
        self,
        publishers: list[BenchConnection],
        subscribers: list[BenchConnection],
        flow: Flow,
        tick: Callable[[int], None],
        patience: float,
    ) -> None:
        self.publishers = publishers
        self.subscribers = subscribers
        self._flow = flow
        self._tick = tick
        self._patience: i64 = int(patience * 1e9)
        self._poller = Poller()
        self._lines = {line.fd: line for line in publishers + subscribers}
        for fd in self._lines:
            self._poller.add(fd)
        #: Number of messages passed to publishers for sending, in all runs.
        self.started: i64 = 0
        #: Number of messages that all their subscribers received (and the broker acknowledged, if
        #: `flow` demands it), in all runs.
        self.done: i64 = 0
        self._slow: i64 = 0
        self._turn: i64 = 0
        self._goal: i64 = 0
        self._base: i64 = 0
        self._due: i64 = 0
        self._next_tick: i64 = 0
        self._steps: i64 = 0
        self._moved_at: i64 = 0

    def run(self, messages: i64, seconds: float, rate: float) -> None:
        """Publish `messages` messages, and wait until all are delivered and acknowledged.

        If `messages` is 0, publish for `seconds`. `rate` is in messages per second; 0 is as many as
        the window allows. Raises WrongAnswer, BenchError.
        """
        began: i64 = time.perf_counter_ns()
        now: i64 = began
        end: i64 = began + int(seconds * 1e9)
        self._base = self.started
        self._goal = self.started + messages if messages > 0 else (1 << 62)
        self._next_tick = now + _TICK
        self._moved_at = now
        interval: float = 1e9 / rate if rate > 0 else 0.0
        while True:
            if now >= self._next_tick:
                self._check_progress(now)
            if messages == 0 and now >= end:
                self._goal = self.started
                end = now + (1 << 62)
            wait: i64 = _TICK
            if self.started < self._goal:
                if interval > 0.0:
                    wait = self._publish_due(now, began, interval)
                elif self._publish(now):
                    wait = 0
            if (
                self.started >= self._goal
                and self._delivered(self.started)
                and not self._has_pending()
            ):
                break
            self._poll(wait)
            now = time.perf_counter_ns()

    def linger(self, seconds: float) -> None:
        """Receive for `seconds` after a run. Raises WrongAnswer if a surplus message arrives."""
        end: i64 = time.perf_counter_ns() + int(seconds * 1e9)
        while True:
            left: i64 = end - time.perf_counter_ns()
            if left <= 0:
                return
            self._poll(left)

    def close(self) -> None:
        """Close the poller. The sockets belong to the caller."""
        self._poller.close()

    def _publish(self, now: i64) -> bool:
        """Send a batch from each publisher in turn while the window has room for it.

        Return True if publishers can send more messages now. Return False if the window or the
        sockets are full, or all messages are sent.
        """
        flow = self._flow
        lines = self.publishers
        count: i64 = len(lines)
        tried: i64 = 0
        more = False
        while tried < count:
            tried += 1
            line = lines[self._turn]
            size: i64 = min(flow.batch, self._goal - self.started)
            if size <= 0 or not self._delivered(self.started + size - flow.window):
                return False
            self._turn += 1
            if self._turn == count:
                self._turn = 0
            if line.blocked:
                continue
            self._start(line, size, now)
            self._send(line)
            if not line.blocked:
                more = True
        return more

    def _publish_due(self, now: i64, began: i64, interval: float) -> i64:
        """Send the messages that are due at `now`; return the time to wait in ns, at most _TICK.

        The wait ends when the next message is due. The wait is _TICK if a message is overdue and
        cannot be sent. `began` and `interval` are as in `_due_at`.
        """
        flow = self._flow
        due: i64 = self._due_at(began, interval)
        touched: list[BenchConnection] = []
        while due <= now and self.started < self._goal:
            line = self.publishers[self._turn]
            if line.blocked or not self._delivered(self.started + 1 - flow.window):
                break
            self._turn += 1
            if self._turn == len(self.publishers):
                self._turn = 0
            self._start(line, 1, due if now - due > _LATE else now)
            if len(touched) < len(self.publishers):
                touched.append(line)
            due = self._due_at(began, interval)
        for line in touched:
            self._send(line)
        return min(due - now, _TICK) if due > now else _TICK

    def _due_at(self, began: i64, interval: float) -> i64:
        """Return the time in ns at which the next message is due.

        The run began at the time `began`, in ns. A message is due every `interval` ns.
        """
        return began + i64(float(self.started - self._base) * interval)

    def _start(self, line: BenchConnection, count: i64, at: i64) -> None:
        feed = line.feed
        assert feed is not None
        feed.start(count, at)
        self.started += count

    def _send(self, line: BenchConnection) -> None:
        blocked = line.blocked
        line.send()
        if line.blocked != blocked:
            self._poller.writable(line.fd, line.blocked)

    def _poll(self, wait: i64) -> None:
        """Wait at most `wait` ns for sockets to be ready; then read from them or write to them."""
        events = self._poller.wait(wait)
        if not events:
            return
        now: i64 = time.perf_counter_ns()
        for fd, ready in events:
            line = self._lines[fd]
            if ready & _WRITE:
                line.blocked = False
                line.send()
                if not line.blocked:
                    self._poller.writable(fd, False)
            if ready & ~_WRITE:
                blocked = line.blocked
                line.read(now)
                if line.blocked and not blocked:
                    self._poller.writable(fd, True)

    def _delivered(self, wanted: i64) -> bool:
        """Return True if at least `wanted` messages are delivered.

        If the broker acknowledges messages, at least `wanted` must also be acknowledged.
        """
        if self.done >= wanted:
            return True
        done: i64 = self.started
        if self._flow.to_all:
            # The subscriber that was slowest in the last check is probably still the slowest.
            slow: i64 = self._slow
            if slow < len(self.subscribers) and self.subscribers[slow].reader.count() < wanted:
                return False
            for index, line in enumerate(self.subscribers):
                count = line.reader.count()
                if count < done:
                    done = count
                    self._slow = index
        else:
            done = 0
            for line in self.subscribers:
                done += line.reader.count()
        if self._flow.acknowledged:
            acknowledged: i64 = 0
            for line in self.publishers:
                acknowledged += line.reader.count()
            if acknowledged < done:
                done = acknowledged
        self.done = done
        return done >= wanted

    def _has_pending(self) -> bool:
        """True if a connection has unsent bytes, or waits for input other than a new message.

        Such input is, for example, a PUBREL, or the rest of a packet that has arrived in part.
        """
        for line in self._lines.values():
            if line.unsent() > 0 or line.reader.pending():
                return True
        return False

    def _check_progress(self, now: i64) -> None:
        """Call `tick`. Raises BenchError if the run has made no progress for `patience`."""
        self._next_tick = now + _TICK
        steps: i64 = self.started
        for line in self._lines.values():
            steps += line.reader.steps() - line.unsent()
        # At a slow rate, all messages may be delivered and the next one not yet due.
        resting = self._delivered(self.started) and self.started < self._goal
        if steps != self._steps or resting:
            self._steps = steps
            self._moved_at = now
        elif now - self._moved_at > self._patience:
            raise BenchError(
                f"no progress for {float(self._patience) / 1e9:g} s: {self._missing()}"
            )
        self._tick(int(self.done - self._base))

    def _missing(self) -> str:
        """Return a phrase for errors: the connection that waits, and the data it waits for."""
        for line in self.publishers + self.subscribers:
            if line.blocked:
                return (
                    f"{line.reader.where} waits for the broker to read {line.unsent()} more bytes"
                )
        behind = [line.reader for line in self.subscribers if line.reader.count() < self.started]
        if self._flow.to_all and behind:
            reader = behind[0]
            others = f", and {len(behind) - 1} others wait" if len(behind) > 1 else ""
            left = self.started - reader.count()
            return f"{reader.where} waits for {left} of {self.started} messages{others}"
        received: i64 = sum(line.reader.count() for line in self.subscribers)
        if received < self.started and not self._flow.to_all:
            left = self.started - received
            readers = len(self.subscribers)
            return f"{readers} subscribers wait for {left} of {self.started} messages"
        for line in self.publishers:
            feed = line.feed
            if (
                self._flow.acknowledged
                and feed is not None
                and line.reader.count() < feed.published.count
            ):
                left = feed.published.count - line.reader.count()
                return f"{line.reader.where} waits for {left} confirms"
        for line in self.publishers + self.subscribers:
            if line.reader.pending():
                return f"{line.reader.where} waits for {line.reader.pending()}"
        return "no connection waits for data"
