"""The steps that follow from a seed: the lives of one broker, and the actions of its clients."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from random import Random
from typing import Any

import pamqp.commands as spec

from broker.queues.queue import Queue
from broker.store.contract import MARK_PATIENCE
from broker.store.dropping import drop_dead_files
from broker.store.findings import CUT
from broker.store.opening import OpenedStore
from tests.store.simulated import SimulatedDisk
from tests.store.simulation.amqp import Mover, Operator, Publisher, TxPublisher, Worker
from tests.store.simulation.clients import Client, named
from tests.store.simulation.definitions import Definitions
from tests.store.simulation.journal import Journal, WatchedStore
from tests.store.simulation.ledger import DAMAGE, FATES, LOST, OLD, Ledger
from tests.store.simulation.life import Crash, Design, Drop, Faults, Life, checkpoint
from tests.store.simulation.mqtt import MqttPublisher, Subscriber
from tests.store.simulation.streams import BINDINGS as STREAM_BINDINGS
from tests.store.simulation.streams import FAN, PASSING, STREAMS, Streams

#: Durable queues with their arguments, and the families they form.
QUEUES: dict[str, dict[str, Any]] = {
    "plain": {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "plain.dead"},
    "short": {
        "x-max-length": 4,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "short.dead",
    },
    "brief": {
        "x-message-ttl": 1_500,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "brief.dead",
    },
    "full": {"x-max-length": 3, "x-overflow": "reject-publish"},
    "drop": {"x-max-length": 4},
    "fan1": {"x-max-priority": 2},
    "fan2": {"x-queue-type": "quorum", "x-delivery-limit": -1},
    "bridge": {},
    "moved": {},
    "plain.dead": {},
    "short.dead": {},
    "brief.dead": {},
}
BINDINGS = (("fan", "fan1", ""), ("fan", "fan2", ""), ("amq.topic", "bridge", "t.#"))
#: Topic filter -> the published topics that it matches.
MATCHES = {
    "t/a/#": ("t/a", "t/a/b"),
    "t/+/b": ("t/a/b", "t/x/b"),
    "t/#": ("t/a", "t/a/b", "t/x/b"),
    "t/a": ("t/a",),
    "r/#": (),
}


#: A time limit in ms that is longer than any simulation.
FOREVER = 1 << 40


class Simulation:
    """The simulation of one seed: its clients, its broker, and the checks.

    With `streams`, the simulation also uses streams, so the same seed gives other steps. Tests of
    the checks set `kind`, `design`, `drop` or `hasty` to a design that is wrong on purpose.
    """

    def __init__(
        self,
        seed: int,
        kind: type[WatchedStore] = WatchedStore,
        design: Design = checkpoint,
        hasty: bool = False,
        steps: int = 400,
        loud: bool = False,
        streams: bool = False,
        drop: Drop = drop_dead_files,
    ) -> None:
        self.seed = seed
        self.random = random = Random(seed)
        self.complaints: Counter[str] = Counter()
        self.story: list[str] = []
        self.lives = 0
        self._loud = loud
        self._kind, self._hasty, self._steps = kind, hasty, steps
        self._design, self._drop = design, drop
        #: Total size of the dropped files in bytes.
        self.dropped = 0
        self._disk = SimulatedDisk()
        self._now, self._wall = 1_000, 1_700_000_000.0
        self._number = 0
        self._segment = random.choice((600, 1_500, 4_000))
        self._window = random.choice((4, 8, 30))
        self._marking = random.choice(((1, 2), (3, 20), (10, 500)))
        #: If the seed is even, deliveries wait for their mark however slow the disk is. If the seed
        #: is odd, a delivery waits for MARK_PATIENCE at most, so a crash may forget it.
        self._patience = MARK_PATIENCE if seed % 2 else FOREVER
        #: The open store of a standby that takes over at the next start; None: a start.
        self._taken_over: OpenedStore | None = None
        self.ledger = Ledger(self.complain, forgets=seed % 2 == 1)
        self.journal = Journal(self.complain)
        self.definitions = Definitions(random, self.complain, lambda: self._number)
        for name in ("short", "brief"):
            self.ledger.family(name, f"{name}.dead")
        self.ledger.family("plain", "plain.dead", "moved")
        self.ledger.family("drop", lossy=True)
        for name in ("full", "fan1", "fan2", "bridge"):
            self.ledger.family(name)
        #: Exchanges and keys to which publishers publish.
        self.places = random.choice(
            (
                ["plain"],
                ["plain", "fan", "topic"],
                ["short", "brief", "full", "drop"],
                ["plain", "short", "brief", "fan", "topic", "full", "drop"],
            )
        )
        #: True if the power often fails in the middle of a batch.
        self._torn = random.random() < 0.2
        self._workers: list[Client] = [Worker(self, f"w-{queue}", queue) for queue in QUEUES]
        self._operators = [Operator(self, "o1"), Operator(self, "o2")]
        others: list[Client] = [
            Publisher(self, "p1"),
            Publisher(self, "p2"),
            TxPublisher(self, "tx"),
            Mover(self, "mover"),
            *self._operators,
            MqttPublisher(self, "q1", 1),
            MqttPublisher(self, "q2", 2),
            Subscriber(self, "s1"),
            Subscriber(self, "s2"),
        ]
        self.streams: Streams | None = None
        if streams:
            self.streams = Streams(self)
            others += self.streams.clients
            self.journal.taken, self.journal.extended = (
                self.streams.rows.taken,
                self.streams.rows.recovered,
            )
            self.definitions.queues.update(PASSING)
            self.places = [*self.places, "fan", *PASSING]
        self._all = [*self._workers, *others]
        for name in ("s1", "s2"):
            self.ledger.family(f"session {name}")
        self._active = random.sample(others, random.randrange(4, len(others) + 1)) + random.sample(
            self._workers, random.randrange(1, 5)
        )
        #: Clients that soon notice that the broker is back.
        self._coming: list[Client] = []
        #: Queue -> its messages when the broker started.
        self._held: dict[str, list[str]] = {}
        #: The last position of the log when the broker started.
        self._last = 0
        self.life: Life

    def complain(self, kind: str, what: str) -> None:
        self.complaints[kind] += 1
        self.tell(f"!! {kind}: {what}")

    def tell(self, what: str) -> None:
        self.story.append(what)
        if self._loud:
            print(what)

    # -- for the clients

    def new_message(self, publisher: str) -> str:
        self._number += 1
        return f"{publisher}-{self._number}"

    def body(self, message: str) -> bytes:
        return message.encode() + b"|" + b"x" * self.random.choice((0, 5, 60, 300))

    def place(self, name: str) -> tuple[str, str, dict[str, int]]:
        """Return (exchange, routing key, receivers) of the publications with this target.

        `receivers` maps the name of each family (a group of queues, see ledger.py) that gets a copy
        to the QoS of this copy.
        """
        if name == "fan":
            return "fan", "", {"fan1": 1, "fan2": 1} | (FAN if self.streams is not None else {})
        if name == "topic":
            return "amq.topic", "t.a.b", self.subscribers("t/a/b", 1)
        if name in PASSING:
            return "", name, {}
        return "", name, {name: 1}

    def subscribers(self, topic: str, quality: int) -> dict[str, int]:
        """Return family -> QoS of its copy, for a message that is published to a topic.

        Families are groups of queues (see ledger.py); only families that get a copy are included.
        """
        families = {"bridge": quality}
        for name, subscriptions in self.definitions.now.sessions.items():
            granted = max(
                (most for one, most in subscriptions.items() if topic in MATCHES[one]), default=0
            )
            if min(granted, quality):
                families[f"session {name}"] = min(granted, quality)
        return families

    # -- the history

    def run(self) -> Counter[str]:
        """Run all steps, and return the violations found, by kind."""
        # In a directory in memory, the syncs of the catalog take no time.
        shared = "/dev/shm"
        with tempfile.TemporaryDirectory(
            dir=shared if os.path.isdir(shared) else None
        ) as directory:
            self._directory = directory
            self._begin(Faults(self.random))
            self._define()
            self._plan()
            for _ in range(self._steps):
                try:
                    self._step()
                except Crash:
                    self._restart(True)
            self._restart(self.random.random() < 0.5, calm=True)
            self._finish()
            self.life.durable_store.catalog.close()
        return self.complaints

    def _begin(self, faults: Faults) -> None:
        self.lives += 1
        self.life = Life(
            self._disk,
            self._directory,
            self.journal,
            faults,
            (self._now, self._wall),
            self._look,
            self._kind,
            self._design,
            self._hasty,
            self._drop,
            self._segment,
            self._window,
            self._marking,
            self._patience,
            self._taken_over,
        )
        if self.streams is not None:
            self._held |= self.streams.recovered()
            self.ledger.recovered(self._held, self._last)
            self.streams.check_journal(self.ledger.promised)
        self.definitions.recovered(self.life)
        self._check_ages(self._held)
        retained = self.life.vhost.retained
        held = {f"r/{at}": retained.get(f"r.{at}") for at in range(3)}
        self.ledger.check_retained(
            {topic: message.body for topic, message in held.items() if message is not None}
        )
        for line in self.life.unreadable:
            self.complain(LOST, line)
        self._check_fates()

    def _look(self, opened: OpenedStore) -> None:
        """Check the opened store, before it is used."""
        recovery, store = opened.recovery, opened.store
        self.tell(
            f"-- life {self.lives}: log to {recovery.last}, next {store.position + 1}, "
            + "; ".join(str(finding) for finding in recovery.findings)
        )
        for finding in recovery.findings:
            if finding.kind != CUT:
                self.complain(DAMAGE, str(finding))
        self.journal.recovered(opened)
        names = {
            number: entry.name if entry.kind == "queue" else f"session {entry.name}"
            for number, entry in opened.definitions
            if entry.kind in ("queue", "session")
        }
        held: dict[str, list[str]] = {}
        for number, positions in opened.survivors.copies.by_queue().items():
            messages = store.fetch(number, list(positions))
            held[names[number]] = [
                named(message.body)
                for message in messages
                if message is not None and message.body[:1] not in (b"", b"R")
            ]  # Messages with other bodies are retained messages.
        self._held, self._last = held, int(recovery.last)
        if self.streams is None:
            self.ledger.recovered(held, self._last)

    def _check_ages(self, held: dict[str, list[str]]) -> None:
        """Check that no queue has a message that was published before the queue was declared."""
        for name, born in self.definitions.now.queues.items():
            for message in held.get(name, []) if name not in QUEUES and name not in STREAMS else []:
                if int(message.rpartition("-")[2]) <= born and message[:2] in (
                    "p1",
                    "p2",
                    "q1",
                ):  # The other publishers number their messages long before they publish them.
                    self.complain(
                        OLD, f"{message} in {name}, which was declared only after message {born}"
                    )

    def _define(self) -> None:
        """Declare the queues and exchanges that last for the whole simulation."""
        operator = self._operators[0]
        operator.connect()
        operator.ask(
            "fan",
            spec.Exchange.Declare(exchange="fan", exchange_type="fanout", durable=True),
            lambda: self.definitions.now.exchanges.add("fan"),
        )
        for name, arguments in {**QUEUES, **(STREAMS if self.streams is not None else {})}.items():
            self._round()
            self.definitions.declare(operator, name, arguments)
        for source, queue, key in (
            *BINDINGS,
            *(STREAM_BINDINGS if self.streams is not None else ()),
        ):
            self._round()
            self.definitions.bind(operator, source, queue, key)
        self._round()

    def _round(self) -> None:
        """Make all work of the broker durable, and deliver the replies to all clients."""
        self.life.sync()
        for client in self._all:
            client.flush()
            if client.connection is not None:
                client.listen()

    def _plan(self) -> None:
        """Draw the faults of the next life of the broker."""
        faults, random = self.life.faults, self.random
        faults.left = random.choice((-1, -1, random.randrange(100), random.randrange(1_000)))
        faults.syncs = (
            random.randrange(12) if self._torn else random.choice((-1, random.randrange(30)))
        )
        faults.full, faults.rotten = random.random() < 0.15, random.random() < 0.1

    def _step(self) -> None:
        life, random = self.life, self.random
        choice = random.random()
        if self._coming and choice < 0.5:
            self._coming.pop().step()
        elif choice < 0.6:
            random.choice(self._active).step()
        elif choice < 0.7:
            life.work()
            self._flush()
        elif choice < 0.77:
            life.take()
        elif choice < 0.85:
            life.write()
        elif choice < 0.93:
            life.written()
            self._flush()
        elif choice < 0.97:
            for _ in range(random.choice((1, 1, 3, 10))):
                life.compact(random)
        elif choice < 0.992:
            self._pass(random.choice((1, 100, 800, 3_000)))
        else:
            self._restart(random.random() < 0.8)

    def _flush(self) -> None:
        for client in self._all:
            client.flush()

    def _pass(self, milliseconds: int) -> None:
        self._now += milliseconds
        self._wall += milliseconds / 1000
        self.life.tell_time(self._now, self._wall)

    def _restart(self, crash: bool, calm: bool = False) -> None:
        """Stop or crash the broker, and start it again.

        Unless `calm`, perhaps crash the broker during the start, and draw faults of its next life.
        """
        life, random = self.life, self.random
        self.dropped += life.dropped
        if not crash:
            life.faults.full = life.faults.rotten = False
            try:
                life.stop()
            except Crash:
                crash = True
        self.tell(
            f"-- {'crash' if crash else 'stop'} at {life.position}, durable"
            f" {self.journal.durable}, begun {self.journal.begun}"
        )
        chances = (0.5,) if self._torn else (1.0, 1.0, 0.0, 0.5, 0.5, 0.9)
        self._disk = life.crash(random, chances) if crash else SimulatedDisk(life.disk.contents())
        for client in self._all:
            client.crashed()
        while True:
            self._pass(random.choice((1, 500)))
            faults = Faults(random)
            if not calm and random.random() < 0.25:
                faults.left = random.randrange(60)
            try:
                self._begin(faults)
            except Crash:
                self.tell("-- crash in the start")
                self._disk = self._disk.crashed(random, random.choice((1.0, 0.0, 0.5)))
                continue
            break
        if not calm:
            self._plan()
            self._coming = random.sample(self._active, random.randrange(len(self._active) + 1))

    def _finish(self) -> None:
        """Let all clients read everything; check that the queues are empty, also after another
        start.
        """
        for _ in range(600):
            done = [client.finish() for client in self._all]
            self.life.sync()
            self._flush()
            if all(done) and self._empty() and not any(client.pipe for client in self._all):
                break
        else:
            late = [client.name for client, ready in zip(self._all, done, strict=True) if not ready]
            self.complain(
                LOST,
                f"messages are left at the end: {late}, "
                f"{[queue.name for queue in self._queues() if queue.depth + queue.unacked]}",
            )
        self._check_fates()
        self.ledger.finished()
        self.life.stop()
        self._disk = SimulatedDisk(self.life.disk.contents())
        self._begin(Faults(self.random))

    def _queues(self) -> list[Queue]:
        vhost = self.life.vhost
        return [*(vhost.queues[name] for name in QUEUES), *vhost.inboxes.values()]

    def _empty(self) -> bool:
        return not any(queue.depth or queue.unacked for queue in self._queues())

    def _check_fates(self) -> None:
        try:
            self.life.fates()
        except AssertionError:
            self.complain(FATES, "")
