"""The clock, the network and the replicated log of a simulation, and the engine of steps.

Everything happens in the order of one queue of events, and one seed decides all delays and faults.
Between any two steps of a node, the node may be paused, and the node may crash.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from heapq import heappop, heappush
from typing import Any, TypeVar

from broker.replication.contract import (
    Append,
    Apply,
    LogTrimmed,
    LogUnreachable,
    OutcomeUnknown,
    Read,
    ReplicaFull,
    Sleep,
    Steps,
    Timing,
)
from broker.replication.memory import MemoryLog
from broker.replication.records import CLAIM

Option = TypeVar("Option")

#: Index of the byte with the kind of a record, after the magic number and the version.
KIND_AT = 5

#: Long delays of claims are LATE_CLAIMS times as frequent as long delays of other messages.
LATE_CLAIMS = 50
#: The fraction of fail points at which a computer is paused.
FAIL_POINTS = 0.002
#: A record that waits for the end of a cut is sent again after this time, in seconds. At each time,
#: this fraction of the writers learns that the outcome is unknown; the other writers wait.
CUT_SECONDS = 0.1
RESET = 0.1
#: The end of a cut or a pause whose duration is not known: a later event ends it.
FOREVER = 1e9


class World:
    """One simulation. `faulty` is the fraction of network messages that are delayed for long."""

    def __init__(self, seed: int, timing: Timing, faulty: float = 0.01) -> None:
        self.random = random.Random(seed)
        self._draw = self.random.getrandbits
        self.timing = timing
        self.faulty = faulty
        #: The fraction of fail points at which a computer is paused.
        self.fail_points = FAIL_POINTS if faulty else 0.0
        self.now = 0.0
        self.log = MemoryLog()
        #: Until this time, the log answers and commits nothing, because its leader changes.
        self.log_down_until = 0.0
        self.story: list[str] = []
        #: Events: time, number, action, the computer (None for the network) and the computer's
        #: life.
        self._events: list[tuple[float, int, Callable[[], None], Computer | None, int]] = []
        self._number = 0

    def at(
        self,
        time: float,
        event: Callable[[], None],
        computer: Computer | None = None,
        life: int = 0,
    ) -> None:
        """Schedule an event at a time.

        If `computer` is given, the event happens only if the computer has not crashed since its
        life number `life` began. A pause of the computer delays the event.
        """
        self._number += 1
        heappush(
            self._events,
            (time if time > self.now else self.now, self._number, event, computer, life),
        )

    def after(self, seconds: float, event: Callable[[], None]) -> None:
        """Schedule an event after some seconds."""
        self.at(self.now + seconds, event)

    def run(self, until: float) -> None:
        """Run the events in their order, up to a time."""
        events = self._events
        while events and events[0][0] <= until:
            self.now, _, event, computer, life = heappop(events)
            if computer is None:
                event()
            elif computer.life == life:
                if computer.paused_until == FOREVER:
                    computer.held.append((event, life))
                elif computer.paused_until > self.now:
                    rest = computer.paused_until - self.now
                    computer.local(rest + self.random.random() * 0.001, event)
                else:
                    event()
        self.now = until

    def choice(self, options: tuple[Option, ...]) -> Option:
        """Return a random option: the same one as `self.random.choice(options)`, but faster."""
        count = len(options)
        bits = count.bit_length()
        drawn = self._draw(bits)
        while drawn >= count:
            drawn = self._draw(bits)
        return options[drawn]

    def say(self, text: str) -> None:
        """Add a line to the log of events."""
        self.story.append(f"{self.now:9.4f} {text}")

    def delay(self, times: int = 1) -> float:
        """Return the random delay of a message in the network, in seconds: usually 0.001 to 0.005.

        Rare delays last up to twice the silence, the time without records after which a standby
        takes over. `times` multiplies the probability of these delays.
        """
        if self.random.random() < self.faulty * times:
            return self.random.uniform(0.05, 2 * self.timing.silence)
        return self.choice((0.001, 0.002, 0.005))

    @property
    def patience(self) -> float:
        """Seconds after which a writer gives up an append (delivery.timeout.ms)."""
        return 2 * self.timing.silence + 2


class Computer:
    """The computer of a node: it may be paused, and it may crash."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        #: Number of the current life: events of earlier lives are dropped.
        self.life = 0
        self.paused_until = 0.0
        #: Events that a pause until FOREVER delays, each with the life of the computer at its time.
        self.held: list[tuple[Callable[[], None], int]] = []
        #: The disk of this computer is full until this time.
        self.full_until = 0.0
        #: This computer is cut from the log until this time.
        self.cut_until = 0.0

    def local(self, seconds: float, act: Callable[[], None]) -> None:
        """Schedule a step of this computer after some seconds.

        A pause of the computer delays the step; a crash cancels the step.
        """
        self.world.at(self.world.now + seconds, act, self, self.life)

    def go_on(self) -> None:
        """End a pause without a fixed end (FOREVER), and schedule the events that it delayed."""
        self.paused_until = 0.0
        held, self.held = self.held, []
        for event, life in held:
            self.world.at(self.world.now, event, self, life)

    def check_disk(self) -> None:
        """Raise ReplicaFull if the disk is full. Called before each write."""
        if self.full_until > self.world.now:
            raise ReplicaFull

    def fail_point(self) -> None:
        """Pause this computer at random, between a decision and its effect."""
        if self.world.random.random() < self.world.fail_points:
            self.paused_until = self.world.now + self.world.choice((1.1, 1.5, 3.0))
            self.world.say(f"{self.name} is paused at a fail point until {self.paused_until:.3f}")

    def carry_out(
        self,
        flow: Steps[Any],
        apply: Callable[[Apply], Iterator[None]],
        done: Callable[[Any], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """Carry out the steps (append, read, sleep, apply) that `flow` yields, one after another.

        `apply` carries out an Apply, and yields after each single write to the directory. At the
        end, call `done` with the result of the flow, or `failed` with its error.
        """
        world, life = self.world, self.life

        def resume(value: Any, error: Exception | None = None) -> None:
            try:
                step = flow.throw(error) if error is not None else flow.send(value)
            except StopIteration as end:
                done(end.value)
                return
            except Exception as raised:  # noqa: BLE001  a node that cannot go on says why
                failed(raised)
                return
            if isinstance(step, Append) and _is_claim(step.data):
                self.fail_point()
            self.local(world.choice((0.0, 0.0005)), partial(begin, step))

        def answer(seconds: float, value: Any, error: Exception | None = None) -> None:
            if self.life == life:
                self.local(seconds, partial(resume, value, error))

        def begin(step: Any) -> None:
            if isinstance(step, Sleep):
                answer(step.seconds, None)
            elif isinstance(step, Append):
                self._append(step.data, answer)
            elif isinstance(step, Read):
                self._read(step.offset, answer)
            else:
                write(apply(step))

        def write(writes: Iterator[None]) -> None:
            try:
                self.check_disk()
                next(writes)
            except StopIteration:
                answer(0.0, None)
            except Exception as error:  # noqa: BLE001  the flow decides
                answer(0.0, None, error)
            else:
                self.local(world.choice((0.0005, 0.001, 0.003)), partial(write, writes))

        resume(None)

    def _append(self, data: bytes, answer: Callable[..., None]) -> None:
        """Send a record to the log, and call `answer` with the offset or with OutcomeUnknown.

        OutcomeUnknown means that no answer came in time, or that the connection was lost; the
        record may reach the log later nevertheless. While this computer is cut from the log, the
        record and the log's answer wait.
        """
        world, sent = self.world, self.world.now
        answered = [False]

        def tell(value: Any, error: Exception | None = None) -> None:
            if not answered[0]:
                answered[0] = True
                answer(0.0, value, error)

        def land() -> None:
            if world.log_down_until > world.now:
                world.at(world.log_down_until + world.random.random() * 0.01, land)
            elif self.cut_until > world.now:
                self._wait(land, tell)
            else:
                offset = world.log.append(data)
                world.after(world.delay(), lambda: arrive(offset))

        def arrive(offset: int) -> None:
            if self.cut_until > world.now:
                self._wait(lambda: arrive(offset), tell)
            else:
                tell(offset)

        # A claim that arrives late is the most dangerous record.
        times = LATE_CLAIMS if _is_claim(data) else 1
        world.after(world.delay(times), land)
        world.at(sent + world.patience, lambda: tell(None, OutcomeUnknown("no answer in time")))

    def _wait(self, go_on: Callable[[], None], tell: Callable[..., None]) -> None:
        """Call `go_on` after CUT_SECONDS: a record or its answer waits while the network is cut.

        At random, first call `tell` with OutcomeUnknown, as if the connection had been lost.
        """
        if self.world.random.random() < RESET:
            tell(None, OutcomeUnknown("the connection was lost"))
        self.world.after(CUT_SECONDS, go_on)

    def _read(self, offset: int, answer: Callable[..., None]) -> None:
        world = self.world

        def serve() -> None:
            if max(world.log_down_until, self.cut_until) > world.now:
                world.after(0.3, lambda: answer(0.0, None, LogUnreachable()))
                return
            tip = world.log.tip
            # The leader that answers this read does not know the latest records yet.
            if world.random.random() < 0.02:
                tip = max(world.log.low, tip - world.random.randrange(1, 5))
            try:
                span = world.log.read(offset, world.choice((1, 5, 500)), tip)
            except (LogTrimmed, LogUnreachable) as error:
                answer(world.delay(), None, error)
            else:
                answer(world.delay(), span)

        world.after(world.delay(), serve)


def _is_claim(data: bytes) -> bool:
    return data[KIND_AT] == CLAIM
