"""Streams in a simulation: a model of their rows, producers, readers, and checks after a start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pamqp.commands as spec
from mypy_extensions import i64
from pamqp.header import ContentHeader

from broker.messages.message import Message
from broker.routing.topology_stream import TOPOLOGY
from broker.stream.arrow import SCHEMA_SIZE, view_batch
from broker.stream.queue import PendingRows, StreamQueue
from tests.clients import marshal, publication
from tests.store.simulated import SimulatedDisk
from tests.store.simulation.amqp import Amqp
from tests.store.simulation.clients import named
from tests.store.simulation.ledger import DISK, LOST, STRAY, Complain

if TYPE_CHECKING:
    from tests.store.simulation.schedule import Simulation

#: Streams that are never deleted: `few` has a size limit; the journal `all` records every message.
STREAMS: dict[str, dict[str, Any]] = {
    "ev": {"x-queue-type": "stream", "x-stream-max-segment-size-bytes": 8_000},
    "few": {
        "x-queue-type": "stream",
        "x-stream-max-segment-size-bytes": 5_000,
        "x-max-length-bytes": 20_000,
    },
    "all": {"x-queue-type": "stream", "x-stream-max-segment-size-bytes": 30_000, "x-journal": True},
}
#: A stream that operators declare and delete.
PASSING: dict[str, dict[str, Any]] = {
    "op-s": {"x-queue-type": "stream", "x-stream-max-segment-size-bytes": 4_096}
}
BINDINGS = (("fan", "ev", ""), ("fan", "few", ""))
#: Families of messages published to the exchange `fan`, each with its QoS.
FAN = {"ev": 1, "few": 1}


class Rows:
    """A model of all streams: for each stream number, the bodies of its rows from offset 0 on."""

    def __init__(self, complain: Complain) -> None:
        self._complain = complain
        self.by_stream: dict[int, list[bytes]] = {}

    def taken(self, intake: PendingRows) -> None:
        """Add the rows of a stream that a batch writes; check that they follow the rows before."""
        captured, rows = intake.captured, self.by_stream.setdefault(int(intake.number), [])
        if captured.base != len(rows):
            self._complain(
                DISK,
                f"stream {intake.number} goes on with offset {captured.base}, and has"
                f" {len(rows)} rows",
            )
        for item in captured.items:
            assert isinstance(item, Message)
            rows.append(item.body)

    def recovered(self, ends: dict[int, int]) -> None:
        """Check that a start has found no stream that is longer than in the model.

        `ends` has the number of rows that the start has found, by stream. Rows of the model that
        the start has not found are removed from the model.
        """
        for number, rows in self.by_stream.items():
            end = ends.get(number, 0)
            if end > len(rows):
                self._complain(
                    DISK,
                    f"the log says that stream {number} has {end} rows, and {len(rows)} were put",
                )
            del rows[end:]

    def check(self, disk: SimulatedDisk, queue: StreamQueue) -> list[bytes]:
        """Compare the rows of a stream after a start with the model; return their bodies."""
        local, rows = queue.local, self.by_stream.get(int(queue.number), [])
        stored, at = read_rows(disk, queue), int(local.first_offset)
        if local.end != len(rows):
            self._complain(
                DISK, f"stream {queue.name} ends with {local.end}, and should with {len(rows)}"
            )
        if at and queue.arguments.max_bytes < 0:
            self._complain(LOST, f"stream {queue.name} begins with {at}")
        if [offset for offset, _ in stored] != list(range(at, int(local.end))):
            self._complain(
                DISK,
                f"stream {queue.name} has offsets {[offset for offset, _ in stored]}, from {at}"
                f" to {local.end}",
            )
        elif [body for _, body in stored] != rows[at:]:
            self._complain(DISK, f"stream {queue.name} is not what was put, from {at} on")
        if local.rows != len(stored) or queue.depth != len(stored):
            self._complain(
                DISK,
                f"stream {queue.name} has {len(stored)} rows, and counts {local.rows},"
                f" {queue.depth}",
            )
        return [body for _, body in stored]


def read_rows(disk: SimulatedDisk, queue: StreamQueue) -> list[tuple[int, bytes]]:
    """Return (offset, body) of all rows on the disk."""
    rows: list[tuple[int, bytes]] = []
    for segment in queue.local.segments:
        data = bytes(disk.names[segment.path].now[: int(segment.size)])
        at: i64 = SCHEMA_SIZE
        while at < len(data):
            batch = view_batch(data, at)
            assert batch is not None and batch.is_intact(), f"{segment.path} at {at}"
            rows += [
                (int(batch.base) + row, batch.text("body", row)) for row in range(int(batch.rows))
            ]
            at = batch.end
    return rows


class Numbered(Amqp):
    """A producer with sequence numbers, which sends unconfirmed messages again."""

    set_up = marshal(1, spec.Confirm.Select())

    def __init__(self, world: Simulation, name: str) -> None:
        super().__init__(world, name)
        #: Sequence number -> message and body, of unconfirmed messages and some confirmed ones.
        self._open: dict[int, tuple[str, bytes]] = {}
        self._done: dict[int, tuple[str, bytes]] = {}
        self._next = 0

    def connect(self) -> None:
        super().connect()
        self._tags: list[int] = []
        again = [*self._done][-self.random.randrange(1, 4) :]
        self._send({**{one: self._done[one] for one in again}, **self._open})

    def _send(self, publications: dict[int, tuple[str, bytes]]) -> None:
        for sequence, (message, body) in publications.items():
            if sequence in self._open:
                self.world.ledger.sent(message, self._targets(), True)
            self._tags.append(sequence)
            self.tell(
                publication(
                    "fan",
                    "",
                    body,
                    delivery_mode=2,
                    headers={"x-trellis-producer": self.name, "x-trellis-sequence": sequence},
                )
            )

    def _targets(self) -> dict[str, int]:
        return self.world.place("fan")[2]

    def act(self) -> None:
        for _ in range(self.random.choice((1, 1, 3))):
            message = self.world.new_message(self.name)
            self._next += self.random.choice((1, 1, 5))
            self._open[self._next] = message, self.world.body(message)
            self._send({self._next: self._open[self._next]})

    def on_method(self, frame: Any) -> None:
        if isinstance(frame, spec.Basic.Ack):
            for at in (
                range(len(self._tags) if frame.delivery_tag is None else frame.delivery_tag)
                if frame.multiple
                else [(frame.delivery_tag or 0) - 1]
            ):
                sequence = self._tags[at]
                if sequence in self._open:
                    self._done[sequence] = self._open.pop(sequence)
                    self.world.ledger.confirmed(self._done[sequence][0])

    def finish(self) -> bool:
        return super().finish() and not self._open


class Reader(Amqp):
    """A reader that begins again and again, at its last offset or at the beginning of the stream.

    The reader checks that rows which it reads again have not changed.
    """

    def __init__(self, world: Simulation, name: str, queue: str) -> None:
        super().__init__(world, name)
        self.queue = queue
        #: Offset -> body of the row that the reader got there.
        self.known: dict[int, bytes] = {}
        self._next = 0
        self._offset = -1

    def connect(self) -> None:
        if self.random.random() < 0.3:
            self._next = 0
        self._held: list[int] = []
        self.set_up = marshal(
            1, spec.Basic.Qos(prefetch_count=self.random.choice((1, 3, 10)))
        ) + marshal(
            1,
            spec.Basic.Consume(
                queue=self.queue,
                consumer_tag="t",
                arguments={"x-stream-offset": self._next or "first"},
            ),
        )
        super().connect()

    def on_method(self, frame: Any) -> None:
        if isinstance(frame, ContentHeader):
            headers: Any = frame.properties.headers
            self._offset = headers["x-stream-offset"]
            if frame.body_size == 0:
                self.got(self._frame, b"")

    def refused(self, frame: Any) -> None:
        """Handle an error of the broker, and disconnect.

        The error is a violation unless retention has removed the row at the requested offset.
        """
        if self.queue != "few" or "is gone: retention" not in str(frame.reply_text):
            self.world.complain(LOST, f"{self.name} was told {frame.reply_text}")
        self._next = 0
        self.vanish()

    def got(self, frame: Any, body: bytes) -> None:
        offset = self._offset
        if self._next and offset != self._next:
            self.world.complain(
                STRAY,
                f"offset {offset} of {self.queue} came to {self.name} instead of {self._next}",
            )
        if self.known.setdefault(offset, body) != body:
            self.world.complain(
                STRAY,
                f"offset {offset} of {self.queue} was {named(self.known[offset])}, and is"
                f" {named(body)}",
            )
        self._next = offset + 1
        self._held.append(frame.delivery_tag)

    def act(self) -> None:
        if self._held:
            self.tell(marshal(1, spec.Basic.Ack(self._held[-1], True)))
            self._held.clear()

    def finish(self) -> bool:
        if not super().finish():
            return False
        self.act()
        queue = self.world.life.vhost.queues[self.queue]
        assert isinstance(queue, StreamQueue)
        return self._next >= queue.local.end


class Streams:
    """All streams of a simulation."""

    def __init__(self, world: Simulation) -> None:
        self.world = world
        self.rows = Rows(world.complain)
        self.clients: list[Amqp] = [
            Numbered(world, "n1"),
            Numbered(world, "n2"),
            Reader(world, "r1", "ev"),
            Reader(world, "r2", "few"),
            Reader(world, "r3", "all"),
        ]
        world.ledger.family("ev", endless=True)
        world.ledger.family("few", endless=True, lossy=True)

    def recovered(self) -> dict[str, list[str]]:
        """Check all streams after a start; return the messages in each stream, by its name."""
        life, complain = self.world.life, self.world.complain
        messages: dict[str, list[str]] = {}
        for finding in life.broker.streams.findings:
            if finding.kind != "cut":
                complain(DISK, str(finding))
        for queue in life.vhost.queues.values():
            if isinstance(queue, StreamQueue) and queue.name != TOPOLOGY:
                bodies = self.rows.check(life.disk, queue)
                messages[queue.name] = [
                    named(body) for body in bodies if body[:1] not in (b"", b"R")
                ]
        for client in self.clients:
            if isinstance(client, Reader) and client.queue in life.vhost.queues:
                rows = self.rows.by_stream.get(int(life.vhost.queues[client.queue].number), [])
                for offset, body in client.known.items():
                    if offset >= len(rows) or rows[offset] != body:
                        complain(
                            LOST, f"offset {offset} of {client.queue} was told to {client.name}"
                        )
        self._check_directories()
        return messages

    def check_journal(self, confirmed: set[str]) -> None:
        """Check that the journal has all confirmed messages."""
        queue = self.world.life.vhost.queues.get("all")
        if queue is not None:
            there = {
                named(body)
                for body in self.rows.by_stream.get(int(queue.number), [])
                if body[:1] not in (b"", b"R")
            }
            for message in sorted(confirmed - there):
                self.world.complain(LOST, f"{message} of the journal")

    def _check_directories(self) -> None:
        """Check that all files belong to existing streams."""
        life = self.world.life
        root = str(life.durable_store.stream_root)
        there = {
            path[len(root) + 1 :].split("/")[1]
            for path in life.disk.names
            if path.startswith(f"{root}/")
        }
        lost = there - {name.replace("$", "%24") for name in life.vhost.queues}
        if lost:
            self.world.complain(DISK, f"directories of streams that are gone: {sorted(lost)}")
