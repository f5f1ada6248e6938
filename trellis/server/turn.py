"""One turn of the event loop: input -> broker -> one write for each link with output.

    data_received ... data_received     (of many links; the first sets the broker's clock)
    turn: leftover input, the login queue, agenda, store, then flush the links with output

A turn has INPUT_SECONDS for input, and the same time for the agenda. Further input and agenda
entries wait for the next turn, in order of arrival. So a thousand clients that declare queues or
disconnect at once delay the other clients no longer than a single client would.

Input from clients that have not logged in waits in the login queue, which gets LOGIN_SECONDS of a
turn: every step of a login is slow, and a thousand clients that connect at once are handled
together.

Backpressure: while the disk is slower than the publishers (`backlogged`), their links do not read,
and resume when the disk has caught up.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from mypy_extensions import i64

from broker.broker import Broker
from protocols.connection import Connection
from trellis import logs
from trellis.server.link_deadlines import SLICE_LINKS, LinkDeadlines
from trellis.server.store_writer import StoreWriter
from trellis.server.turn_link import TurnLink

#: Seconds of one turn for handling input; the agenda gets the same time.
INPUT_SECONDS: Final = 0.002
#: Size in bytes up to which a chunk skips the clock check, except every UNCHECKED_MAX-th chunk.
SMALL_CHUNK: Final = 1_024
#: Number of small chunks after which the clock is checked.
UNCHECKED_MAX: Final = 8
#: Number of links flushed in one turn. The number is limited because each flush costs a system
#: call, while input of other links waits.
MAX_FLUSHES: Final = 200
#: Seconds of one turn for the input of clients that have not logged in.
LOGIN_SECONDS: Final = 0.0005
#: Seconds between two checks of the deadlines of links.
DEADLINE_INTERVAL: Final = 0.5
#: A check of deadlines that runs this many seconds late follows a pause: the process was stopped
#: (SIGSTOP, a suspended machine), or a turn took long. The broker read no input during the pause.
PAUSE_SECONDS: Final = 0.1
#: Duration in seconds from which a turn counts as long.
LONG_SECONDS: Final = 0.01
#: Duration in seconds from which a turn is logged, and shortest time in seconds between two such
#: log lines.
LOGGED_SECONDS: Final = 0.1
LOG_INTERVAL: Final = 10.0
#: Shortest time in seconds between two readings of the thread's CPU clock: a reading costs a system
#: call. So the CPU time of a long turn may be too large by up to this number of seconds.
CPU_SAMPLE_SECONDS: Final = 0.001
#: Seconds between two turns in which a frozen broker checks whether it may act again.
FROZEN_SECONDS: Final = 0.02
#: Number of turns between the end of a pause and the check of deadlines. The first of these turns
#: reads the input in the sockets, and the others handle leftover input.
READ_TURNS: Final = 3


class LoopTurn:
    """The work that the broker does once per turn of the event loop, after the turn's input."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, broker: Broker, store_writer: StoreWriter
    ) -> None:
        self._loop = loop
        self._agenda = broker.agenda
        self._store_writer = store_writer
        #: Links of publishers that wait until the disk has caught up.
        self._backlogged: list[TurnLink] = []
        #: Links with output to flush at the end of the turn.
        self._dirty: list[TurnLink] = []
        #: Links with leftover input, which an earlier turn had no time for.
        self._leftover: list[TurnLink] = []
        #: Links with input from a client that has not logged in.
        self._login_queue: list[TurnLink] = []
        #: Number of links that were in the login queue at the end of the last turn.
        self._held_logins = 0
        #: Connections whose transports are closed, and whose `on_closed` has not been called.
        self._closed: list[Connection] = []
        #: True when this turn's time for input is used up.
        self._input_full = False
        #: Small chunks since the last clock check.
        self._unchecked = 0
        self._scheduled = False
        self._scheduled_at = 0.0
        self._sync_due = False
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = 0
        #: Returns True if the broker owns the log of its cluster now. A broker without a lease is
        #: frozen: it reads, delivers, expires and answers nothing. None without a cluster.
        self.may_act: Callable[[], bool] | None = None
        #: True while the broker is frozen, and the timer that checks whether the broker is still
        #: frozen.
        self.frozen = False
        self._thaw: asyncio.TimerHandle | None = None
        #: Returns the wall clock, as Unix time in seconds. A ClockFloor replaces this function for
        #: a time after a takeover.
        self.wall_clock: Callable[[], float] = time.time
        #: All open links. `deadlines` has the links that have a deadline.
        self.links: dict[TurnLink, None] = {}
        self.deadlines = LinkDeadlines()
        #: Number of turns so far.
        self.turns = 0
        #: Duration of the longest turn in seconds, from the turn's first call of `schedule`. The
        #: turn blocked the event loop for this time.
        self.longest_seconds = 0.0
        #: The most CPU time that the loop's thread used in one long turn, in seconds; 0 if no turn
        #: was long.
        self.longest_cpu_seconds = 0.0
        #: Number of long turns that used at least LONG_SECONDS of CPU time, for the broker's own
        #: work.
        self.long_turns_working = 0
        #: Number of other long turns: the machine did not run the thread, or a system call blocked.
        self.long_turns_waiting = 0
        #: Duration and CPU time, in seconds, of the longest turn since a turn was last logged.
        self._unlogged_seconds = 0.0
        self._unlogged_cpu = 0.0
        self._logged_at = -LOG_INTERVAL
        #: The last reading of the thread's CPU clock, and the time of the reading.
        self._cpu_sample = 0.0
        self._cpu_sample_at = 0.0
        broker.agenda.wake = self.schedule
        broker.agenda.clock = time.perf_counter
        broker.agenda.share = INPUT_SECONDS
        broker.store.request_batch = self.request_sync
        store_writer.wake = self.schedule
        self.set_clocks()

    def schedule(self) -> None:
        """Schedule a turn.

        The first call of a turn sets the broker's clock, so links call this before handling input.
        """
        if not self._scheduled:
            self._scheduled = True
            self._input_full = self.frozen
            now = time.perf_counter()
            self._scheduled_at = now
            if now - self._cpu_sample_at > CPU_SAMPLE_SECONDS:
                self._cpu_sample_at = now
                self._cpu_sample = time.thread_time()
            self.update_clock()
            self._loop.call_soon(self.run)

    def begin_counting(self) -> None:
        """Begin now to measure the duration of the scheduled turn.

        Called when the broker is ready. The start of the broker schedules a turn, and then keeps
        the event loop busy. Without this call, the time of the start would count as a long turn.
        """
        self._scheduled_at = self._cpu_sample_at = time.perf_counter()
        self._cpu_sample = time.thread_time()

    def has_no_input_time(self, size: int) -> bool:
        """True if this turn's time for input is used up, so a chunk of `size` bytes must wait.

        Hot path, once per chunk.
        """
        if size <= SMALL_CHUNK and self._unchecked < UNCHECKED_MAX:
            self._unchecked += 1
            return self._input_full
        self._unchecked = 0
        if not self._input_full:
            self._input_full = time.perf_counter() - self._scheduled_at > INPUT_SECONDS
        return self._input_full

    def add_link(self, link: TurnLink, deadline: i64) -> None:
        """Add an open link, whose first deadline is at `deadline` ms; 0 for no deadline."""
        self.links[link] = None
        if deadline > 0:
            self.deadlines.enter(link, deadline)

    def remove_link(self, link: TurnLink) -> None:
        """Remove a link that is closed, or that will be added again."""
        self.links.pop(link, None)
        self.deadlines.leave(link)

    def add_dirty(self, link: TurnLink) -> None:
        """Schedule a flush of the link at the end of this turn."""
        self._dirty.append(link)
        self.schedule()

    def add_leftover(self, link: TurnLink) -> None:
        """Schedule the link's leftover input for the next turn."""
        self._leftover.append(link)
        self.schedule()

    def on_closed(self, connection: Connection) -> None:
        """Schedule the connection's `on_closed` for the next turn: its transport is closed."""
        self._closed.append(connection)
        self.schedule()

    def report_closed(self) -> None:
        """Call `on_closed` of all connections that wait for this call, because the broker ends."""
        closed, self._closed = self._closed, []
        for connection in closed:
            connection.on_closed()

    def add_to_login_queue(self, link: TurnLink) -> None:
        """Schedule the link's unread input for a turn that has time for logins."""
        self._login_queue.append(link)
        self.schedule()

    @property
    def journaling(self) -> bool:
        """True if the broker has a journal: a stream of all messages of a virtual host."""
        return self._store_writer.store.journaling

    @property
    def backlogged(self) -> bool:
        """True if so many bytes wait for the disk that input of publishers must not be read."""
        return self._store_writer.backlogged

    def add_backlogged(self, link: TurnLink) -> None:
        """Schedule the link to resume when the disk has caught up."""
        self._backlogged.append(link)

    def request_sync(self) -> None:
        """Request that the appended entries of the store be written at the end of this turn."""
        self._sync_due = True
        self.schedule()

    def run(self) -> None:
        """Do the work of one turn. Hot path, once per turn."""
        self._scheduled = False
        leased = self.may_act is not None
        if leased and self._is_frozen():
            return
        requested_at = self._scheduled_at
        cpu_before = self._cpu_sample
        self.turns += 1
        agenda = self._agenda
        if self._backlogged and not self._store_writer.backlogged:
            self._leftover += self._backlogged
            self._backlogged = []
        if self._leftover or self._closed:
            self._handle_leftover()
        if self._login_queue:
            self._read_login_queue()
        try:
            agenda.turn()
        except Exception as error:  # noqa: BLE001  the output of other tasks must be sent
            self._log_failure("a deferred task", error)
        if self._sync_due:
            self._sync_due = False
            self._store_writer.sync()
        dirty = self._dirty
        if len(dirty) <= MAX_FLUSHES:
            self._dirty = []
        else:
            self._dirty = dirty[MAX_FLUSHES:]
            dirty = dirty[:MAX_FLUSHES]
            self.schedule()
        for link in dirty:
            if leased and self._is_frozen():
                self._dirty.append(link)
                continue
            try:
                link.flush()
            except Exception as error:  # noqa: BLE001  the output of other links must be sent
                self._log_failure(f"sending to {link.label}", error)
                link.abort()
        if agenda.deadline and (self._alarm is None or agenda.deadline < self._alarm_at):
            self._set_alarm(agenda.deadline)
        seconds = time.perf_counter() - requested_at
        if seconds > self.longest_seconds:
            self.longest_seconds = seconds
        if seconds > LONG_SECONDS:
            self._count_long_turn(seconds, time.thread_time() - cpu_before)

    def flush(self) -> None:
        """Flush all links with output, before this node hands its cluster's log to a standby.

        The broker is frozen during the handover. The output may be sent, because it was made before
        the broker was frozen.
        """
        dirty, self._dirty = self._dirty, []
        for link in dirty:
            link.flush()

    @property
    def leased(self) -> bool:
        """True if this node's lease in its cluster lasts; always True without a cluster.

        Without a lease, the broker must not deliver, expire or answer anything.
        """
        return self.may_act is None or self.may_act()

    def _is_frozen(self) -> bool:
        """True if the broker must not act now, because its lease in the cluster is over.

        The turn calls this method before each of its parts. If the result is True, another turn
        follows soon.
        """
        assert self.may_act is not None
        self.frozen = not self.may_act()
        if self.frozen and self._thaw is None:
            self._thaw = self._loop.call_later(FROZEN_SECONDS, self._check_lease)
        return self.frozen

    def _check_lease(self) -> None:
        self._thaw = None
        self.schedule()

    def _count_long_turn(self, seconds: float, cpu_seconds: float) -> None:
        """Count a long turn, which took `seconds`.

        `cpu_seconds` is the CPU time of the turn, too large by up to CPU_SAMPLE_SECONDS.
        """
        cpu_seconds = min(seconds, cpu_seconds)
        self.longest_cpu_seconds = max(self.longest_cpu_seconds, cpu_seconds)
        if cpu_seconds > LONG_SECONDS:
            self.long_turns_working += 1
        else:
            self.long_turns_waiting += 1
        if seconds > self._unlogged_seconds:
            self._unlogged_seconds, self._unlogged_cpu = seconds, cpu_seconds

    def _log_long_turn(self) -> None:
        """Log the longest turn since the last such line, if that turn took LOGGED_SECONDS."""
        now = self._loop.time()
        if self._unlogged_seconds < LOGGED_SECONDS or now - self._logged_at < LOG_INTERVAL:
            return
        self._logged_at = now
        logs.warning(
            "long_turn",
            ms=int(self._unlogged_seconds * 1000),
            cpu_ms=int(self._unlogged_cpu * 1000),
            note="one turn blocked the event loop; if cpu_ms is much less than ms, the machine "
            "did not run the broker, or a call waited",
        )
        self._unlogged_seconds = self._unlogged_cpu = 0.0

    def _handle_leftover(self) -> None:
        """Finish closed connections, then resume links with leftover input.

        Both tasks together get INPUT_SECONDS of this turn. The remaining connections and links are
        handled in the next turn.
        """
        end = time.perf_counter() + INPUT_SECONDS
        closed, leftover = self._closed, self._leftover
        self._closed, self._leftover = [], []
        done = 0
        while done < len(closed) + len(leftover):
            if done < len(closed):
                try:
                    closed[done].on_closed()
                except Exception as error:  # noqa: BLE001  the other links must get their turn
                    self._log_failure("the end of a connection", error)
            else:
                leftover[done - len(closed)].resume()
            done += 1
            if time.perf_counter() > end:
                break
        self._closed[:0] = closed[done:]
        self._leftover[:0] = leftover[max(0, done - len(closed)) :]
        if self._closed or self._leftover:
            self.schedule()

    def _log_failure(self, work: str, error: Exception) -> None:
        """Log an unexpected exception in `work`, a part of a turn; the turn then goes on."""
        self._loop.call_exception_handler(
            {"message": f"unexpected exception in {work}; other work goes on", "exception": error}
        )

    def _read_login_queue(self) -> None:
        """Handle input of the login queue in order of arrival, for LOGIN_SECONDS; hold the rest."""
        end = time.perf_counter() + LOGIN_SECONDS
        handled = 0
        for link in self._login_queue:
            handled += 1
            link.handle_unread_input()
            if time.perf_counter() > end:
                break
        del self._login_queue[:handled]
        if self._login_queue:
            for link in self._login_queue[max(0, self._held_logins - handled) :]:
                link.hold_input()  # Not before: to stop and start reading costs system calls.
            self.schedule()
        self._held_logins = len(self._login_queue)

    def now(self) -> int:
        """Return the time of the broker's clock, in ms."""
        return int(self._agenda.now)

    def update_clock(self) -> None:
        """Set the clocks of the broker's agenda: monotonic time in ms, and UTC in seconds."""
        self._agenda.advance(int(self._loop.time() * 1000), self.wall_clock())

    def set_clocks(self) -> None:
        """Set the clocks of the broker's agenda, and the clocks of the store."""
        self.update_clock()
        self._store_writer.set_clocks(int(self._agenda.now), self._agenda.wall)

    def _set_alarm(self, deadline: int) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_at = deadline
        self._alarm = self._loop.call_at(deadline / 1000, self._on_alarm)

    def _on_alarm(self) -> None:
        self._alarm = None
        self.schedule()

    async def check_deadlines(self) -> None:
        """Check the deadlines of links every DEADLINE_INTERVAL seconds, until cancelled.

        A check examines only links whose deadlines may have passed. After a pause of the event
        loop, the deadlines of all links move later by the length of the pause, and input that came
        meanwhile is read before the check. So no client that sent input in time is disconnected.
        """
        due = 0.0
        while True:
            due = due or self._loop.time() + DEADLINE_INTERVAL
            await asyncio.sleep(DEADLINE_INTERVAL)
            self._log_long_turn()
            begun = False
            # A frozen broker reads nothing. The first check after the freeze moves the deadlines.
            while not (self.may_act is not None and self._is_frozen()):
                pause = self._loop.time() - due
                if pause > PAUSE_SECONDS:
                    await self._excuse(int(pause * 1000) + 1)
                self.set_clocks()
                if not begun:
                    self.deadlines.begin_check(self._agenda.now)
                    begun = True
                more = self.deadlines.advance(self._agenda.now)
                due = self._loop.time()
                await asyncio.sleep(0)
                if not more:
                    due = 0.0
                    break

    async def _excuse(self, pause: int) -> None:
        """Move the deadlines of all links `pause` ms later, then let the loop read their input."""
        self.update_clock()
        links = list(self.links)
        for at in range(0, len(links), SLICE_LINKS):
            for link in links[at : at + SLICE_LINKS]:
                link.excuse(pause)
            await asyncio.sleep(0)
        for _ in range(READ_TURNS):
            await asyncio.sleep(0)
