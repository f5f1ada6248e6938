"""One turn of the loop: input -> core -> one write per touched connection.

    data_received ... data_received            (many links; the first of them tells the time)
    turn: leftover input, the lobby, agenda, store, then flush the dirty links

A turn has SHARE seconds for input, and as much for the agenda: what else came waits for the next
one, first come, first served. So a thousand clients that declare, or leave, at once hold nobody for
longer than one of them does.

What clients say before they have logged in waits in the lobby, and is heard for at most LOBBY
seconds a turn: each step of a login is slow, and a thousand clients that come at once take theirs
together.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from broker.broker import Broker
from protocols.connection import Connection
from trellis.server.store_writer import StoreWriter

#: Seconds of one turn for input, and for the agenda.
SHARE: Final = 0.002
#: Chunks of so many octets are heard without a look at the clock, but for one in so many.
SMALL: Final = 1_024
UNTIMED: Final = 8
#: Links flushed in one turn: each costs a system call, and others have input meanwhile.
FLUSHES: Final = 200
#: Seconds of one turn that go to those who have not logged in yet.
LOGIN_SHARE: Final = 0.0005
#: Seconds between two looks at the deadlines of all connections, and connections looked at in one
#: turn.
SWEEP: Final = 0.5
SWEPT: Final = 2_000


class TurnLink:
    """A link as the turn sees it. A base class, for the compiled turn calls it cheaply."""

    def read_waiting(self) -> None:
        """Handle the input of a client that has not logged in."""
        raise NotImplementedError

    def resume(self) -> None:
        """Handle the input that an earlier turn left over."""
        raise NotImplementedError

    def flush(self) -> None:
        """Write the collected output to the transport."""
        raise NotImplementedError

    def advance(self, now: int) -> None:
        """Handle deadlines that have passed at time `now`, in ms."""
        raise NotImplementedError

    def shut_down(self) -> None:
        """Close the connection, because the broker stops."""
        raise NotImplementedError

    def abort(self) -> None:
        """Close the transport at once; unsent output is lost."""
        raise NotImplementedError


class LoopTurn:
    """Runs after the input of a loop turn, whenever something asked for it."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, broker: Broker, storing: StoreWriter
    ) -> None:
        self._loop = loop
        self._agenda = broker.agenda
        self._storing = storing
        #: Publishers that wait for the disk.
        self._backlogged: list[TurnLink] = []
        self._dirty: list[TurnLink] = []
        self._behind: list[TurnLink] = []
        self._login_queue: list[TurnLink] = []
        #: Connections whose transports are gone.
        self._leaving: list[Connection] = []
        self._full = False
        self._untimed = 0
        self._scheduled = False
        self._scheduled_at = 0.0
        self._sync_due = False
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = 0
        self.links: dict[TurnLink, None] = {}
        #: Turns so far, and seconds from asking for the longest one until it was done: how long the
        #: loop was held.
        self.turns = 0
        self.longest = 0.0
        broker.agenda.wake = self.schedule
        broker.agenda.clock = time.perf_counter
        broker.agenda.share = SHARE
        broker.store.request_batch = self.sync
        storing.wake = self.schedule
        self.tell_time()
        storing.tell_time(int(self._agenda.now), self._agenda.wall)

    def schedule(self) -> None:
        """Have a turn, soon.

        The first who asks for it tells the time: whatever is input calls this before it is heard.
        """
        if not self._scheduled:
            self._scheduled = True
            self._full = False
            self._scheduled_at = time.perf_counter()
            self.tell_time()
            self._loop.call_soon(self.run)

    def full(self, octets: int) -> bool:
        """Whether the input of this turn has had its time, and a chunk of so many octets must wait.

        Hot path, once per chunk.
        """
        if octets <= SMALL and self._untimed < UNTIMED:
            self._untimed += 1
            return self._full
        self._untimed = 0
        if not self._full:
            self._full = time.perf_counter() - self._scheduled_at > SHARE
        return self._full

    def dirty(self, link: TurnLink) -> None:
        """The link has something to send."""
        self._dirty.append(link)
        self.schedule()

    def behind(self, link: TurnLink) -> None:
        """The link has input left over."""
        self._behind.append(link)
        self.schedule()

    def on_closed(self, connection: Connection) -> None:
        """The connection's transport is gone, and it will be told soon."""
        self._leaving.append(connection)
        self.schedule()

    def report_closed(self) -> None:
        """Tell all that left: nothing comes after this."""
        leaving, self._leaving = self._leaving, []
        for connection in leaving:
            connection.on_closed()

    def wait(self, link: TurnLink) -> None:
        """The link has input from a client that has not logged in."""
        self._login_queue.append(link)
        self.schedule()

    @property
    def recording(self) -> bool:
        """Whether something is written of whatever is published."""
        return self._storing.store.journaling

    @property
    def backlogged(self) -> bool:
        """Whether publishers should wait for the disk."""
        return self._storing.backlogged

    def crowd(self, link: TurnLink) -> None:
        """The link waits until the disk has caught up."""
        self._backlogged.append(link)

    def sync(self) -> None:
        """Something was appended to the store."""
        self._sync_due = True
        self.schedule()

    def run(self) -> None:
        """Hot path, once per turn."""
        self._scheduled = False
        asked_at = self._scheduled_at
        self.turns += 1
        agenda = self._agenda
        if self._backlogged and not self._storing.backlogged:
            crowded, self._backlogged = self._backlogged, []
            self._behind += crowded
        if self._behind or self._leaving:
            self._catch_up()
        if self._login_queue:
            self._read_login_queue()
        agenda.turn()
        if self._sync_due:
            self._sync_due = False
            self._storing.sync()
        dirty = self._dirty
        if len(dirty) <= FLUSHES:
            self._dirty = []
        else:
            self._dirty = dirty[FLUSHES:]
            dirty = dirty[:FLUSHES]
            self.schedule()
        for link in dirty:
            link.flush()
        if agenda.deadline and (self._alarm is None or agenda.deadline < self._alarm_at):
            self._set_alarm(agenda.deadline)
        held = time.perf_counter() - asked_at
        if held > self.longest:
            self.longest = held

    def _catch_up(self) -> None:
        """Go on with what had to wait, those who leave first: they say nothing more."""
        end = time.perf_counter() + SHARE
        leaving, behind = self._leaving, self._behind
        self._leaving, self._behind = [], []
        done = 0
        while done < len(leaving) + len(behind):
            if done < len(leaving):
                leaving[done].on_closed()
            else:
                behind[done - len(leaving)].resume()
            done += 1
            if time.perf_counter() > end:
                break
        self._leaving[:0] = leaving[done:]
        self._behind[:0] = behind[max(0, done - len(leaving)) :]
        if self._leaving or self._behind:
            self.schedule()

    def _read_login_queue(self) -> None:
        """First come, first served."""
        end = time.perf_counter() + LOGIN_SHARE
        heard = 0
        for link in self._login_queue:
            heard += 1
            link.read_waiting()
            if time.perf_counter() > end:
                break
        del self._login_queue[:heard]
        if self._login_queue:
            self.schedule()

    def now(self) -> int:
        """The broker's clock, in ms."""
        return int(self._agenda.now)

    def tell_time(self) -> None:
        """Nothing else reads a clock."""
        self._agenda.advance(int(self._loop.time() * 1000), time.time())

    def _set_alarm(self, deadline: int) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_at = deadline
        self._alarm = self._loop.call_at(deadline / 1000, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        self.schedule()

    async def sweep(self) -> None:
        """Tell the time to every connection whose deadline has come."""
        while True:
            await asyncio.sleep(SWEEP)
            links = list(self.links)
            for at in range(0, len(links), SWEPT):
                self._tell(links[at : at + SWEPT])
                await asyncio.sleep(0)
            del links  # Those who have gone should not wait for the next look.

    def _tell(self, links: list[TurnLink]) -> None:
        self.tell_time()
        self._storing.tell_time(self._agenda.now, self._agenda.wall)
        now = int(self._agenda.now)
        for link in links:
            link.advance(now)
