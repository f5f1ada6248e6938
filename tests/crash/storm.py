"""A storm: clients work while a broker is started and killed again and again, with the same data.

start -> check definitions -> clients work -> kill -9 -> start -> ... -> kill -9 -> start -> clients
finish -> read all queues -> compare with the ledgers of the clients
"""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from random import Random
from typing import Any, Final

import pamqp.commands as spec

from tests.broker import command, environment
from tests.crash.changes import Changing, Declaring, Retaining, Subscribing
from tests.crash.client import Client, Ports
from tests.crash.ledger import by_feed, read_body
from tests.crash.publishers import AtLeastOnce, Confirming, ExactlyOnce
from tests.crash.sessions import Subscriber
from tests.crash.streams import Following, Numbering, Recorded, Row, read_stream
from tests.crash.wire import PATIENCE, Amqp, Delivered, Mqtt, listing, read_publish, until
from tests.crash.workers import Acking, Rejecting, Transacting
from tests.streams.test_inspect import look
from trellis.parent_process import end_with_parent

#: Flags of the broker: segments are small and queues mostly on disk, so that the broker is doing
#: work of every kind at any moment.
FLAGS: Final = (
    "--store-segment",
    "65536",
    "--store-window",
    "100",
    "--mqtt-receive-maximum",
    "30",
    "--shutdown-grace",
    "1",
)
#: Events that a broker with shortages may log as errors.
SHORTAGES: Final = ("store_blocked", "checkpoint_failed")
#: The maximum number of messages that are confirmed between a start and the next kill.
WORK: Final = 1_000
#: Kinds of kills: while the broker works, while it writes a checkpoint, while it recovers.
AT_WORK, IN_CHECKPOINT, IN_RECOVERY = "at work", "in checkpoint", "in recovery"
#: Queues and the arguments with which they are declared.
QUEUES: Final[dict[str, dict[str, Any]]] = {
    "keep": {},
    "also": {},
    "work": {},
    "receipts": {},
    "deals": {},
    "out.a": {},
    "out.b": {},
    "one": {},
    "two": {},
    "cross": {},
    "dead": {},
    "numbered": {},
    "reject": {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"},
    "expire": {
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "dead",
        "x-message-ttl": 40,
    },
}
#: Streams and their arguments. The journal records every published message.
STREAMS: Final[dict[str, dict[str, Any]]] = {
    "events": {"x-queue-type": "stream", "x-stream-max-segment-size-bytes": 30_000},
    "journal": {
        "x-queue-type": "stream",
        "x-stream-max-segment-size-bytes": 1_000_000,
        "x-journal": True,
    },
}
#: Keys of the exchange `crash`, and the queues to which they are routed.
KEYS: Final = (
    ("keep.", ("keep",)),
    ("keep.also", ("keep", "also")),
    ("all", ("keep", "also", "work")),
    ("work", ("work",)),
)


class Broker:
    """A broker process that the test will kill."""

    def __init__(
        self, process: asyncio.subprocess.Process, log: Path, expected: tuple[str, ...]
    ) -> None:
        self.process = process
        self._log = log
        #: Events that may be logged as errors.
        self._expected = expected

    @classmethod
    async def start(cls, directory: Path, log: Path, scarce: int = 0) -> Broker:
        """Start a broker. `scarce` is the seed of random shortages of descriptors; 0 for none."""
        line = command("--data-dir", str(directory), *FLAGS)
        if scarce:
            # Replace `-m trellis serve` in the command (words 1 to 3) by the broker with shortages.
            line = [line[0], "-m", "tests.crash.scarce", str(scarce), *line[4:]]
        stderr = os.open(log, os.O_WRONLY | os.O_CREAT)
        try:
            return cls(
                await asyncio.create_subprocess_exec(
                    *line,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=stderr,
                    env=environment(),
                    preexec_fn=end_with_parent,
                ),
                log,
                SHORTAGES if scarce else (),
            )
        finally:
            os.close(stderr)

    async def ready(self) -> Ports:
        assert self.process.stdout is not None
        words = (await self.process.stdout.readline()).decode().split()
        assert words[:1] == ["ready"], f"the broker did not start:\n{self.log}"
        ports = {
            name: int(address.rpartition(":")[2])
            for name, _, address in (word.partition("=") for word in words[1:])
        }
        return Ports(ports["amqp"], ports["mqtt"], ports["http"])

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def kill(self) -> None:
        if self.process.returncode is None:
            self.process.kill()

    async def end(self) -> None:
        """Check the log lines of the killed broker.

        The broker may report only expected errors. It may report only one kind of damage: that the
        last batch before an earlier kill is incomplete.
        """
        await self.process.wait()
        for line in self.log.splitlines():
            word = line.split()[1:2]
            expected = word == ["error"] and line.split()[2] in self._expected
            assert "Traceback" not in line and (word != ["error"] or expected), self.log
            assert (
                "recovery_finding" not in line
                and "stream_finding" not in line
                or 'what="cut: ' in line
            ), self.log


class Storm:
    """A data directory on which a broker is started and killed again and again, and its clients."""

    def __init__(self, directory: Path, seed: int, least: int) -> None:
        self.random = Random(seed)
        #: The first kill waits until each kind of work has happened more often than this number.
        self._least = least
        self.directory = directory / "data"
        self.directory.mkdir()
        self.kills: list[str] = []
        self._logs = directory
        self._lives = 0
        self.feeders = [Confirming(f"feeder{one}", seed, "crash", KEYS) for one in range(2)]
        #: This publisher sends large messages that are consumed soon, so that the broker makes
        #: checkpoints.
        self.bulk = Confirming("bulk", seed, "crash", [("work", ("work",))], (4_000, 12_000))
        self.dealer = Confirming("dealer", seed, "crash", [("deals", ("deals",))])
        self.mourner = Confirming(
            "mourner", seed, "crash", [("reject", ("reject",)), ("expire", ("expire",))]
        )
        self.crossing = Confirming(
            "crossing", seed, "amq.topic", [("crash.cross", ("cross", "subscriber"))]
        )
        self.events = Confirming("events", seed, "crash", [("events", ("events",))])
        self.numbering = Numbering("numbering", seed, "crash", "numbered", ("events", "numbered"))
        self.following = Following("following", seed, "events")
        self.one = AtLeastOnce("one", seed, "crash/one", ("one", "subscriber"))
        self.two = ExactlyOnce("two", seed, "crash/two", ("two", "subscriber"))
        self.publishers: list[Confirming | AtLeastOnce | ExactlyOnce | Numbering] = [
            *self.feeders,
            self.bulk,
            self.dealer,
            self.mourner,
            self.crossing,
            self.events,
            self.numbering,
            self.one,
            self.two,
        ]
        self.worker = Acking("worker", seed, "work", "receipts")
        self.bulk.backlogged = self._backlogged
        self.deals = Transacting("deal", seed, "deals", ("out.a", "out.b"))
        self.subscriber = Subscriber("subscriber", seed, "crash/+")
        self.subscriber.sent_again["one"] = self.one.feed.again
        self.changing: list[Changing] = [
            Declaring("declared", seed),
            Subscribing("subscribed", seed),
            Retaining("retained", seed),
        ]
        self.clients: list[Client] = [
            *self.publishers,
            self.worker,
            self.deals,
            Rejecting("rejecting", seed, "reject"),
            self.subscriber,
            self.following,
            *self.changing,
        ]

    # -- starts and kills

    async def start(self, last: bool = False) -> Broker:
        self._lives += 1
        # Every second broker process has shortages. The last one has none, because its clean stop
        # must write everything.
        scarce = self._lives if self._lives % 2 == 0 and not last else 0
        return await Broker.start(self.directory, self._logs / f"life-{self._lives}.log", scarce)

    async def live(self, kind: str) -> None:
        """Start the broker, let the clients work, and kill it at a moment of this kind."""
        broker = await self.start()
        try:
            if kind == IN_RECOVERY:
                await self._has_locked(broker)
                await asyncio.sleep(self.random.uniform(0, 0.12))
            else:
                await self._work(broker, kind)
            broker.kill()
            await broker.end()
        finally:
            broker.kill()
        self.kills.append(kind)

    async def _work(self, broker: Broker, kind: str) -> None:
        ports = await broker.ready()
        if self._lives == 1:
            await self._declare(ports)
        for changing in self.changing:
            await changing.check(ports)
        tasks = [
            asyncio.create_task(client.run(ports), name=client.name) for client in self.clients
        ]
        try:
            await self._moment(kind, tasks)
            ports.killed = True
            broker.kill()
            async with asyncio.timeout(PATIENCE):
                await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _has_locked(self, broker: Broker) -> None:
        """Wait until this broker has locked the data directory."""
        lock, ours = self.directory / "lock", str(broker.process.pid)
        await until(lambda: lock.exists() and lock.read_text() == ours)

    async def _moment(self, kind: str, tasks: list[asyncio.Task[None]]) -> None:
        """Wait for the moment of a kill.

        First, enough messages must be confirmed. Before the first kill, each kind of work must also
        have happened often enough, however slow the machine is. For other kinds than AT_WORK, the
        broker must also be writing a checkpoint. Return early if a client fails.
        """
        enough = self.confirmed + self.random.randrange(1, WORK)
        log = self.directory / "log"
        await until(
            lambda: (
                any(task.done() for task in tasks)
                or self.confirmed >= enough
                and (self._lives > 1 or not self.missing_work(self._least))
                and (kind == AT_WORK or any(name.endswith(".tmp") for name in os.listdir(log)))
            ),
            3 * PATIENCE,
        )
        await asyncio.sleep(self.random.choice((0, 0, 0.002, 0.005, 0.02)))

    def missing_work(self, least: int) -> list[str]:
        """Return the names of the kinds of work that have not happened more than `least` times.

        If `least` is below 0, the result is empty.
        """
        times = {client.name: len(client.feed.confirmed) for client in self.publishers}
        times |= {changing.name: changing.changes for changing in self.changing}
        times["receipts"] = len(self.worker.receipts.confirmed)
        times["settled"] = len(self.worker.settled)
        times["following"] = len(self.following.received)
        missing = [name for name, count in times.items() if count <= least]
        if least >= 0 and not any(deal.committed for deal in self.deals.deals):
            missing.append("committed deals")
        return missing

    def _backlogged(self) -> bool:
        """True if more than 50 confirmed messages wait for the worker."""
        return (
            len(self.bulk.feed.confirmed) > sum(name == "bulk" for name, _ in self.worker.seen) + 50
        )

    @property
    def confirmed(self) -> int:
        """Return the number of messages that the broker has confirmed, over all publishers."""
        return sum(len(client.feed.confirmed) for client in self.publishers)

    async def _declare(self, ports: Ports) -> None:
        client = await Amqp.connect(ports.amqp)
        await client.call(
            spec.Exchange.Declare(exchange="crash", exchange_type="topic", durable=True), (40, 11)
        )
        for queue, arguments in (QUEUES | STREAMS).items():
            await client.call(
                spec.Queue.Declare(queue=queue, durable=True, arguments=dict(arguments)), (50, 11)
            )
        bindings = [
            ("crash", "keep.#", "keep"),
            ("crash", "keep.also", "also"),
            ("crash", "work", "work"),
            *(("crash", "all", queue) for queue in ("keep", "also", "work")),
            *(
                ("crash", queue, queue)
                for queue in ("deals", "reject", "expire", "events", "numbered")
            ),
            ("crash", "numbered", "events"),
            *(("amq.topic", f"crash.{queue}", queue) for queue in ("one", "two", "cross")),
        ]
        for exchange, key, queue in bindings:
            await client.call(
                spec.Queue.Bind(queue=queue, exchange=exchange, routing_key=key), (50, 21)
            )
        await client.leave()
        await self.subscriber.begin(ports)

    # -- the end

    async def judge(self) -> None:
        """Start once more, let all clients finish, and compare the broker with the ledgers."""
        broker = await self.start(last=True)
        try:
            ports = await broker.ready()
            for changing in self.changing:
                await changing.check(ports)
            await self._finish(ports)
            messages = {
                queue: await self._drain(ports, queue)
                for queue in QUEUES
                if queue not in ("expire", "reject")
            }
            rows = {queue: await self._read(ports, queue) for queue in STREAMS}
            ports.killed = True
            broker.process.send_signal(signal.SIGTERM)
            assert await broker.process.wait() == 0, broker.log
            await broker.end()
        finally:
            broker.kill()
        self._judge_amqp(messages)
        self._judge_mqtt(messages)
        self._judge_streams(rows, by_feed(messages["numbered"]))
        assert look(self.directory) == [], "the store has no damage"

    async def _finish(self, ports: Ports) -> None:
        """Let all clients finish.

        QoS 2 handshakes are completed, dead letters arrive, the subscriber reads all its messages,
        and numbered messages are confirmed.
        """
        self.two.closing = self.subscriber.closing = self.numbering.closing = True
        rejecting = Rejecting("rejecting", 0, "reject")
        tasks = [asyncio.create_task(client.run(ports)) for client in (self.subscriber, rejecting)]
        try:
            async with asyncio.timeout(PATIENCE):
                await self.two.run(ports)
                await self.numbering.run(ports)
                while True:
                    queues = {row["name"]: row for row in await listing(ports.http, "queues")}
                    sessions = await listing(ports.http, "sessions")
                    inbox = {row["client_id"]: row for row in sessions}[self.subscriber.name]
                    waiting = [inbox["queued"], inbox["in_flight"]]
                    for name in ("expire", "reject"):
                        row = queues[name]
                        waiting += [row["messages_ready"], row["messages_unacknowledged"]]
                    if not any(waiting):
                        break
                    for task in tasks:
                        if task.done():
                            task.result()
                    await asyncio.sleep(0.02)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        client = await Mqtt.connect(ports.mqtt, "looks", True)
        await client.subscribe(("crash/two", 0))
        if self.two.retained:
            assert read_publish(*await client.packet()).body == self.two.retained
        await client.leave()

    async def _drain(self, ports: Ports, queue: str) -> list[bytes]:
        client = await Amqp.connect(ports.amqp)
        bodies: list[bytes] = []
        left = await client.depth(queue)
        await client.consume(queue, no_ack=True)
        async with asyncio.timeout(PATIENCE):
            while len(bodies) < left:
                event = await client.event()
                assert isinstance(event, Delivered), event
                bodies.append(event.body)
        assert await client.depth(queue) == 0
        await client.leave()
        return bodies

    async def _read(self, ports: Ports, queue: str) -> list[Row]:
        """Return all rows of a stream."""
        client = await Amqp.connect(ports.amqp)
        async with asyncio.timeout(PATIENCE):
            rows = await read_stream(client, queue, 0, await client.depth(queue))
        await client.leave()
        return rows

    def _judge_streams(self, rows: dict[str, list[Row]], numbered: dict[str, list[int]]) -> None:
        events = by_feed([row.body for row in rows["events"]])
        assert [row.offset for row in rows["events"]] == list(
            range(len(rows["events"]))
        ) and events.keys() <= {"events", "numbering"}
        self.events.feed.judge_kept({"events": events.get("events", [])})
        self.numbering.feed.judge_everything("events", events.get("numbering", []))
        self.numbering.feed.judge_everything("numbered", numbered.get("numbering", []))
        for offset, row in enumerate(rows["events"][: len(self.following.received)]):
            self.following.take(row, offset)
        assert len(self.following.received) <= len(rows["events"]), (
            "a reader received more rows than there are"
        )
        recorded = Recorded(rows["journal"])
        for feed in [*(client.feed for client in self.publishers), self.worker.receipts]:
            recorded.judge(feed)
        for deal in self.deals.deals:
            for body in [body for bodies in deal.outputs.values() for body in bodies]:
                count = recorded.bodies[body]
                assert (
                    count == 1 if deal.committed else count == 0 if deal.rolled_back else count <= 1
                ), f"{body[:40]!r}: {count} times"

    def _judge_amqp(self, messages: dict[str, list[bytes]]) -> None:
        kept = {queue: by_feed(messages[queue]) for queue in ("keep", "also")}
        for body in messages["work"]:
            self.worker.take(read_body(body))
        for feeder in [*self.feeders, self.bulk]:
            feeder.feed.judge_kept({queue: kept[queue].pop(feeder.name, []) for queue in kept})
            mine = [number for name, number in self.worker.seen if name == feeder.name]
            feeder.feed.judge_seen("work", mine, False)
        assert not any(kept.values()), "a message of another publisher"
        self.deals.judge(
            [read_body(body) for body in messages["deals"]],
            {queue: messages[queue] for queue in self.deals.targets},
            self.dealer.feed,
        )
        dead = by_feed(messages["dead"]).get("mourner", [])
        self.mourner.feed.judge_kept(
            {"reject": [], "expire": []}
            | {
                queue: sorted(
                    number for number in dead if queue in self.mourner.feed.queues[number]
                )
                for queue in ("reject", "expire")
            }
        )
        self.worker.receipts.judge_kept(
            {"receipts": by_feed(messages["receipts"]).get("worker", [])}
        )

    def _judge_mqtt(self, bodies: dict[str, list[bytes]]) -> None:
        heard: dict[int, dict[str, list[int]]] = {1: {}, 2: {}}
        for qos, messages in self.subscriber.handed.items():
            for name, number in messages:
                heard[qos].setdefault(name, []).append(number)
        assert set(heard[2]) <= {"two"} and set(heard[1]) <= {"one", "crossing"}
        self.one.feed.judge_at_least_once("one", by_feed(bodies["one"]).get("one", []))
        self.one.feed.judge_seen("subscriber", heard[1].get("one", []), False)
        self.crossing.feed.judge_kept({"cross": by_feed(bodies["cross"]).get("crossing", [])})
        self.crossing.feed.judge_seen("subscriber", heard[1].get("crossing", []), False)
        self.two.feed.judge_everything("two", by_feed(bodies["two"]).get("two", []))
        self.two.feed.judge_everything("subscriber", heard[2].get("two", []))


async def storm(directory: Path, seed: int, kills: list[str], least: int = -1) -> Storm:
    """Kill a broker on one data directory again and again under load.

    Then check that the broker has kept everything that it confirmed. `kills` has the kind of each
    kill. If `least` is 0 or more, each kind of work happens more than `least` times before the
    first kill; the kind of the first kill must then be AT_WORK.
    """
    storm_run = Storm(directory, seed, least)
    for kind in kills:
        await storm_run.live(kind)
    await storm_run.judge()
    return storm_run
