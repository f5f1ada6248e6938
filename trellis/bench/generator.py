"""The load generator's loop: send what the window allows, hear what comes, until all has gone all
the way. Hot path.

    publishers --batch--> broker --> subscribers
        ^                                |            in flight: begun, and not yet received by all who must (nor
        +-------- window -----------------+            acknowledged to the publisher, where the broker does that)

One thread, raw non-blocking sockets, epoll; nothing is encoded, and no object is made for a
message.
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

_READ: Final = 1  # EPOLLIN, and POLLIN
_WRITE: Final = 4  # EPOLLOUT, and POLLOUT
#: ns between two looks at whether anything moves at all; the caller is told then, too.
_TICK: Final[i64] = 100_000_000
#: A paced message that leaves later than this, in ns, is counted from when it was due: a stalled
#: broker cannot hide that.
_LATE: Final[i64] = 1_000_000


class Flow:
    """How messages go: how many a publisher sends at once, how many may be in flight, whether each
    subscriber gets every message (else each message goes to one), whether the broker acknowledges
    to publishers.
    """

    def __init__(self, batch: i64, window: i64, everybody: bool, acknowledged: bool) -> None:
        self.batch = batch
        self.window = window
        self.everybody = everybody
        self.acknowledged = acknowledged


class Poller:
    """Which sockets have something to read or take more: epoll, and poll where there is none."""

    def __init__(self) -> None:
        self._epoll = sys.platform == "linux"
        self._poll: Any = select.epoll() if sys.platform == "linux" else select.poll()

    def add(self, fd: int) -> None:
        self._poll.register(fd, _READ)

    def writable(self, fd: int, wanted: bool) -> None:
        """Tell when this one takes more, or no longer."""
        self._poll.modify(fd, _READ | _WRITE if wanted else _READ)

    def wait(self, ns: i64) -> list[tuple[int, int]]:
        """File descriptors and what they are ready for; after so many ns an empty list."""
        if not self._epoll:
            return self._poll.poll(int(ns // 1_000_000))  # type: ignore[no-any-return]
        if 0 < ns < 5_000_000:
            # epoll counts in ms; select on the one descriptor of epoll does not.
            select.select([self._poll], [], [], float(ns) / 1e9)
            ns = 0
        return self._poll.poll(float(ns) / 1e9)  # type: ignore[no-any-return]

    def close(self) -> None:
        if sys.platform == "linux":
            self._poll.close()


class Generator:
    """Drives publishers and subscribers. `tick` is told every 0.1 s how many messages have gone all
    the way since `run` began; it must not be compiled, so that Ctrl-C is heard. After `patience`
    seconds without progress it gives up.
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
        #: Messages begun, and known to have gone all the way, since the beginning.
        self.started: i64 = 0
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
        """Publish so many messages, or (if 0) for so many seconds; `rate` a second, or (if 0) as
        many as the window allows. Returns when every one has been received and acknowledged. Raises
        WrongAnswer, BenchError.
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
                self._look(now)
            if messages == 0 and now >= end:
                self._goal = self.started
                end = now + (1 << 62)
            wait: i64 = _TICK
            if self.started < self._goal:
                if interval > 0.0:
                    wait = self._publish_due(now, began, interval)
                elif self._publish(now):
                    wait = 0
            if self.started >= self._goal and self._reached(self.started) and not self._owed():
                break
            self._hear(wait)
            now = time.perf_counter_ns()

    def linger(self, seconds: float) -> None:
        """Hear whatever still comes, for so long: a message more than there should be raises
        WrongAnswer.
        """
        end: i64 = time.perf_counter_ns() + int(seconds * 1e9)
        while True:
            left: i64 = end - time.perf_counter_ns()
            if left <= 0:
                return
            self._hear(left)

    def close(self) -> None:
        """Let go of the poller; the sockets are not ours."""
        self._poller.close()

    def _publish(self, now: i64) -> bool:
        """Every publisher's next batch, as far as the window goes. Is there room for more?"""
        flow = self._flow
        lines = self.publishers
        count: i64 = len(lines)
        tried: i64 = 0
        more = False
        while tried < count:
            tried += 1
            line = lines[self._turn]
            size: i64 = min(flow.batch, self._goal - self.started)
            if size <= 0 or not self._reached(self.started + size - flow.window):
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
        """The messages that are due. Returns the ns until the next one is, a tick at most."""
        flow = self._flow
        due: i64 = self._due_at(began, interval)
        touched: list[BenchConnection] = []
        while due <= now and self.started < self._goal:
            line = self.publishers[self._turn]
            if line.blocked or not self._reached(self.started + 1 - flow.window):
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
        """When the message that is next is due."""
        return began + i64(float(self.started - self._base) * interval)

    def _start(self, line: BenchConnection, count: i64, at: i64) -> None:
        feed = line.feed
        assert feed is not None
        feed.start(count, at)
        self.started += count

    def _send(self, line: BenchConnection) -> None:
        blocked = line.blocked
        line.push()
        if line.blocked != blocked:
            self._poller.writable(line.fd, line.blocked)

    def _hear(self, wait: i64) -> None:
        """Wait at most so many ns, then read from whoever has something and send to whoever takes
        it.
        """
        events = self._poller.wait(wait)
        if not events:
            return
        now: i64 = time.perf_counter_ns()
        for fd, ready in events:
            line = self._lines[fd]
            if ready & _WRITE:
                line.blocked = False
                line.push()
                if not line.blocked:
                    self._poller.writable(fd, False)
            if ready & ~_WRITE:
                blocked = line.blocked
                line.hear(now)
                if line.blocked and not blocked:
                    self._poller.writable(fd, True)

    def _reached(self, wanted: i64) -> bool:
        """Have at least so many messages gone all the way?"""
        if self.done >= wanted:
            return True
        done: i64 = self.started
        if self._flow.everybody:
            # Most often the one that was slowest is still behind.
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

    def _owed(self) -> bool:
        """Is anything under way that is no message?"""
        for line in self._lines.values():
            if line.unsent() > 0 or line.reader.open():
                return True
        return False

    def _look(self, now: i64) -> None:
        """Tell the caller; has anything moved since the last look?"""
        self._next_tick = now + _TICK
        steps: i64 = self.started
        for line in self._lines.values():
            steps += line.reader.steps() - line.unsent()
        # Where messages leave at a slow rate, and all that left have arrived, nothing moves, and
        # rightly.
        resting = self._reached(self.started) and self.started < self._goal
        if steps != self._steps or resting:
            self._steps = steps
            self._moved_at = now
        elif now - self._moved_at > self._patience:
            raise BenchError(
                f"no progress for {float(self._patience) / 1e9:g} s: {self._missing()}"
            )
        self._tick(int(self.done - self._base))

    def _missing(self) -> str:
        """Who waits for what: what the broker was asked to do and did not."""
        for line in self.publishers + self.subscribers:
            if line.blocked:
                return f"{line.reader.where} waits for the broker to read ({line.unsent()} octets left)"
        behind = [line.reader for line in self.subscribers if line.reader.count() < self.started]
        if self._flow.everybody and behind:
            reader = behind[0]
            others = f", and {len(behind) - 1} others wait" if len(behind) > 1 else ""
            return f"{reader.where} waits for {self.started - reader.count()} of {self.started} messages{others}"
        received: i64 = sum(line.reader.count() for line in self.subscribers)
        if received < self.started and not self._flow.everybody:
            return f"{len(self.subscribers)} subscribers wait for {self.started - received} of {self.started} messages"
        for line in self.publishers:
            feed = line.feed
            if (
                self._flow.acknowledged
                and feed is not None
                and line.reader.count() < feed.published.count
            ):
                return f"{line.reader.where} waits for {feed.published.count - line.reader.count()} confirms"
        for line in self.publishers + self.subscribers:
            if line.reader.open():
                return f"{line.reader.where} waits for {line.reader.open()}"
        return "nothing is missing"
