"""Measure what one publication costs inside the broker, without sockets: the program passes the
clients' bytes to the real front ends on the real core, and takes the bytes for clients from them.

    python benchmarks/flows.py [--messages 200000] [--rounds 5] [FLOW...]

Run this program with the Python that has the broker installed (`make run` makes .run), from any
directory: the first line of output says whether the measured broker is compiled. Times are medians
of rounds on one thread; compare times of one run only. Every flow checks the bytes for clients
before its time counts.

Two stores are used:

- The flows without `persistent` in their name run on the memory store.
- `amqp-persistent` and `mqtt-persistent` run on the durable store and on its store writer. Records,
  segments, batches, checksums and tickets are the product's own code. Four things are replaced:

  | in the product | here |
  |---|---|
  | files of the log, with pwrite and fdatasync | `BenchFile`: a list of the written parts |
  | the store's writer thread | its loop runs on the main thread, once per batch |
  | the event loop (`call_later`, `call_soon_threadsafe`) | `InlineLoop` |
  | the checkpoint thread | none |

  So no thread runs beside the measured one, and the same instructions are counted in every run. One
  batch holds BATCH messages and the BATCH settlements of the batch before. A message with its
  settlement takes 224 (MQTT) or 261 (AMQP) bytes of the log: a run of the guard stays far below the
  64 MiB of a segment, so no checkpoint would begin in the product either. A longer run keeps its
  full segments in memory until it ends. The catalog (SQLite) is a real file in a temporary
  directory; it is written while a flow is set up, and never per message.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import struct
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import broker.queues.queue
from broker.access.identity import Authenticator, Credentials, Identity, Verdict
from broker.access.rules import UserPermissions
from broker.broker import Broker
from broker.definitions.restore import restore_broker
from broker.store.contract import Store
from broker.store.disk import Disk, File
from broker.store.memory import MemoryStore
from broker.store.opening import open_store
from protocols.amqp.front import AmqpFront
from protocols.connection import Connection
from protocols.mqtt.front import MqttFront
from protocols.peer import Peer
from trellis.server.recovery import codecs
from trellis.server.store_writer import LOOK_SECONDS, DurableStoreWriter

BODY = bytes(range(100))
#: Publications in one received chunk.
BATCH = 100
#: Formats that pack all acknowledgements of a client for one chunk in one step, because the work of
#: the clients must stay small beside the work of the broker.
PUBACKS = struct.Struct(">" + "2sH" * BATCH)
ACKS = struct.Struct(">" + "11sQ2s" * BATCH)
ACK_HEAD = b"\x01\x00\x01\x00\x00\x00\x0d\x00\x3c\x00\x50"
#: The number of MQTT packet identifiers; and all identifiers in order, 2 bytes each, followed by
#: the first BATCH identifiers again, so that the identifiers of every chunk are one slice.
IDENTIFIERS = 65_535
PACKED_IDENTIFIERS = b"".join(
    (number % IDENTIFIERS + 1).to_bytes(2, "big") for number in range(IDENTIFIERS + BATCH)
)


#: Topic rules; the last rule allows every topic.
RULES = [*[f"deny all forbidden/+/{number}/#" for number in range(99)], "allow all #"]


class AcceptAll(Authenticator):
    """An authenticator that accepts every client; if `ruled`, RULES apply to the user's topics."""

    ruled = False

    def __init__(self) -> None:
        rights = UserPermissions("guest", "/", (".*", ".*", ".*"), RULES).identity("")
        self._identity = rights if self.ruled else Identity("guest")

    def authenticate(self, credentials: Credentials, answer: Callable[[Verdict], None]) -> None:
        answer(Verdict(self._identity))


#: Numbers of blocks that `prepare_memory` allocates in each size class: GAPS blocks fill all gaps.
#: BLOCKS further blocks are more than a batch needs; every HELD-th of them stays allocated.
GAPS, BLOCKS, HELD = 2_000, 2_000, 8
#: Batches of a flow before `prepare_memory` is called.
WARM_UP = 5

#: A function that publishes the given number of messages and yields the seconds of each batch.
Flow = Callable[[int], Iterator[float]]


class Bench:
    """A broker with its AMQP and MQTT front ends, driven by calls instead of sockets."""

    def __init__(self, store: Store | None = None) -> None:
        self.broker = Broker(store or MemoryStore(), AcceptAll(), lambda: "id")
        self.amqp_front, self.mqtt_front = AmqpFront(self.broker), MqttFront(self.broker)

    def mqtt(self, name: str, persistent: bool = False) -> Connection:
        """Connect an MQTT 3.1.1 client with this identifier, with or without a clean session."""
        connection = self.mqtt_front.connect(Peer())
        flags = b"\x00" if persistent else b"\x02"
        connection.receive_data(
            packet(0x10, text("MQTT") + b"\x04" + flags + b"\x00\x00" + text(name))
        )
        assert self.drain(connection) == b"\x20\x02\x00\x00"
        return connection

    def amqp(self) -> Connection:
        """Connect an AMQP client that has channel 1 open."""
        connection = self.amqp_front.connect(Peer())
        connection.receive_data(
            b"AMQP\0\0\x09\x01"
            + method(0, 10, 11, table() + short("PLAIN") + long(b"\0guest\0guest") + short("en_US"))
            + method(0, 10, 31, b"\x07\xff\x00\x02\x00\x00\x00\x00")
            + method(0, 10, 40, short("/") + b"\0\0")
            + method(1, 20, 10, b"\0")
        )
        assert b"\x00\x14\x00\x0b" in self.drain(connection)
        return connection

    def drain(self, *connections: Connection) -> bytes:
        """Run the work that the core has to do; return the bytes to send to these connections."""
        self.broker.agenda.turn()
        self.broker.store.sync()
        return b"".join(connection.data_to_send() for connection in connections)


class BenchFile(File):
    """A file of the log in memory: the written parts, in order, and how many bytes are synced."""

    def __init__(self, disk: BenchDisk) -> None:
        self.parts: list[bytes] = []
        self.written = 0
        self.synced = 0
        self._disk = disk

    def read(self, offset: int, count: int) -> bytes:
        return b"".join(self.parts)[offset : offset + count]

    def write(self, offset: int, data: bytes | memoryview) -> None:
        assert offset == self.written, "a segment is written from its beginning to its end"
        self.parts.append(cast(bytes, data))
        self.written += len(data)

    def sync(self) -> None:
        self._disk.on_sync()
        self.synced = self.written

    def truncate(self, size: int) -> None:
        raise AssertionError("a segment was truncated, although no write fails in this program")

    def size(self) -> int:
        return self.written

    def close(self) -> None:
        pass


class BenchDisk(Disk):
    """Files of the log by path, in memory; every directory exists."""

    def __init__(self) -> None:
        self.files: dict[str, BenchFile] = {}
        #: Called at the beginning of every sync of a file.
        self.on_sync: Callable[[], None] = _ignore

    def open(self, path: str, writable: bool) -> File:
        return self.files[path]

    def open_directory(self, path: str) -> File:
        return BenchFile(self)

    def create(self, path: str) -> File:
        file = self.files[path] = BenchFile(self)
        return file

    def list(self, directory: str) -> list[str]:
        return sorted(Path(path).name for path in self.files if path.startswith(directory + "/"))

    def make_directory(self, path: str) -> None:
        pass

    def rename(self, old: str, new: str) -> None:
        self.files[new] = self.files.pop(old)

    def remove(self, path: str) -> None:
        del self.files[path]

    def remove_directory(self, path: str) -> None:
        pass

    def sync_directory(self, path: str) -> None:
        pass

    def free(self, directory: str) -> int:
        return 1 << 60


class InlineTimer:
    """A timer that never runs on its own: `callback` is None once the timer is cancelled."""

    def __init__(self, callback: Callable[[], object]) -> None:
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        """Drop the callback, so that it never runs."""
        self.callback = None


class InlineLoop:
    """The part of an event loop that the store writer uses.

    Callbacks run only when `run_calls` or `run_timers` is called.
    """

    def __init__(self) -> None:
        self._calls: list[tuple[Callable[..., None], tuple[object, ...]]] = []
        self._timers: list[InlineTimer] = []

    def call_soon_threadsafe(self, callback: Callable[..., None], *arguments: object) -> None:
        """Store a callback for the next `run_calls`."""
        self._calls.append((callback, arguments))

    def call_later(self, delay: float, callback: Callable[[], object]) -> InlineTimer:
        """Return a timer that `run_timers` runs at its next call.

        The store writer's timer that looks for dead files of the log once a second never runs.
        """
        timer = InlineTimer(callback)
        if delay < LOOK_SECONDS:
            self._timers = [timer]  # The store writer has one such timer at most.
        return timer

    def run_calls(self) -> None:
        """Run the callbacks that were passed to `call_soon_threadsafe`."""
        calls, self._calls = self._calls, []
        for callback, arguments in calls:
            callback(*arguments)

    def run_timers(self) -> None:
        """Run every timer that is not cancelled."""
        timers, self._timers = self._timers, []
        for timer in timers:
            if timer.callback is not None:
                timer.callback()


class DurableBench(Bench):
    """A broker on the durable store, without threads.

    `turn` passes a batch of entries to the store writer; `write` does the writer thread's work.
    """

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory()
        self.disk = BenchDisk()
        opened = open_store(self.disk, self._directory.name, codecs(), 1, _fail, _ignore)
        super().__init__(opened.store)
        restore_broker(self.broker, opened, self.mqtt_front.sessions)
        self.log = opened.store.log
        self._loop = InlineLoop()
        self._writer = DurableStoreWriter(
            opened.store, cast(asyncio.AbstractEventLoop, self._loop), _fail
        )
        self._sync_due = False
        opened.store.request_batch = self._want_sync
        # The threads end at once; `write` does the work of the writer thread.
        self._writer._write_queue.put(None)
        self._writer._checkpoint_queue.put(None)
        for thread in self._writer._threads:
            thread.join()

    def _want_sync(self) -> None:
        self._sync_due = True

    def turn(self) -> None:
        """Run one loop turn: the agenda; then pass the appended entries to the store writer."""
        self.broker.agenda.turn()
        if self._sync_due:
            self._sync_due = False
            self._writer.sync()

    def write(self) -> None:
        """Write and sync the batch that the store writer holds, then settle its tickets."""
        self._writer._write_queue.put(None)  # End `_run_writes` after this batch.
        self._writer._run_writes()
        self._loop.run_calls()

    def write_rest(self) -> None:
        """Run the timer that writes entries for which no client waits, such as settlements."""
        self._loop.run_timers()
        self.write()

    def drain(self, *connections: Connection) -> bytes:
        self.turn()
        self.write()
        self.broker.agenda.turn()
        return b"".join(connection.data_to_send() for connection in connections)

    def watch_syncs(self, publisher: Connection) -> None:
        """Check at every later sync that no reply to the publisher was written before the sync.

        The check is an assertion that runs in the sync.
        """

        def check() -> None:
            assert len(publisher.out) == 0, "the publisher was answered before the sync"

        self.disk.on_sync = check

    def check_log(self, messages: int) -> None:
        """Fail unless the log has all messages and their settlements, and is synced to its end."""
        self.write_rest()
        kept = sum(file.copies for file in self.log.files)
        settled = sum(file.settled for file in self.log.files)
        assert (kept, settled) == (messages, messages)
        assert all(file.synced == file.written for file in self.disk.files.values())


class Stamped:
    """BATCH frames in one buffer that are equal except for one number in each."""

    def __init__(self, frames: bytes, at: int, width: int) -> None:
        """Set the frames; the number is at offset `at` of each frame and `width` bytes long."""
        self._frames = bytearray(frames)
        self._stride = len(frames) // BATCH
        self._places = [(at + place, place, width) for place in range(width)]

    def stamp(self, numbers: bytes) -> bytes:
        """Return the frames with new numbers. `numbers` holds them as big-endian bytes, joined."""
        for at, place, width in self._places:
            self._frames[at :: self._stride] = numbers[place::width]
        return bytes(self._frames)


def mqtt_flow(quality: int, readers: int) -> Flow:
    """Return a flow: messages with QoS `quality` to topics that `readers` wildcard subscriptions
    match. With QoS 1, the broker and the subscribers acknowledge each message."""

    def flow(messages: int) -> Iterator[float]:
        bench = Bench()
        writer = bench.mqtt("writer")
        listeners = [bench.mqtt(f"reader {number}") for number in range(readers)]
        for reader in listeners:
            reader.receive_data(packet(0x82, b"\x00\x01" + text("room/+/temp") + bytes([quality])))
            bench.drain(reader)
        one = [
            packet(
                0x30 | quality << 1,
                text(f"room/{number % 16}/temp") + (b"\x00\x07" if quality else b"") + BODY,
            )
            for number in range(BATCH)
        ]
        chunk = b"".join(one)
        for batch in range(messages // BATCH):
            numbers = range(batch * BATCH, (batch + 1) * BATCH)
            acks = (
                PUBACKS.pack(
                    *[field for number in numbers for field in (b"\x40\x02", number % 65_535 + 1)]
                )
                if quality
                else b""
            )
            began = time.perf_counter()
            writer.receive_data(chunk)
            out = bench.drain(*listeners)
            for reader in listeners:
                reader.receive_data(acks)
            confirmed = writer.data_to_send()
            spent = time.perf_counter() - began
            assert len(out) == len(chunk) * readers and (quality or out == chunk * readers)
            assert confirmed == b"\x40\x02\x00\x07" * (BATCH if quality else 0)
            yield spent

    return flow


def mqtt_persistent(messages: int) -> Iterator[float]:
    """Publish QoS 1 messages to one connected persistent session (clean_session 0), which
    acknowledges each; yield the seconds of each batch. PUBACKs wait for the sync."""
    bench = DurableBench()
    writer, reader = bench.mqtt("writer"), bench.mqtt("reader", persistent=True)
    reader.receive_data(packet(0x82, b"\x00\x01" + text("room/+/temp") + b"\x01"))
    assert bench.drain(reader) == b"\x90\x03\x00\x01\x01"
    chunk = b"".join(
        packet(0x32, text(f"room/{number % 16:02}/temp") + b"\x00\x07" + BODY)
        for number in range(BATCH)
    )
    delivered = Stamped(chunk, 16, 2)
    acknowledged = Stamped(b"\x40\x02\x00\x00" * BATCH, 2, 2)
    bench.watch_syncs(writer)
    for batch in range(messages // BATCH):
        first = 2 * (batch * BATCH % IDENTIFIERS)
        identifiers = PACKED_IDENTIFIERS[first : first + 2 * BATCH]
        acks = acknowledged.stamp(identifiers)
        began = time.perf_counter()
        writer.receive_data(chunk)
        bench.turn()
        out = reader.data_to_send()
        early = writer.data_to_send()
        bench.write()
        confirmed = writer.data_to_send()
        reader.receive_data(acks)
        bench.turn()
        spent = time.perf_counter() - began
        assert out == delivered.stamp(identifiers)
        assert early == b"" and confirmed == b"\x40\x02\x00\x07" * BATCH
        yield spent
    bench.check_log(messages // BATCH * BATCH)


def amqp_flow(readers: int, acks: bool, by_headers: bool = False) -> Flow:
    """Return a flow: messages to a topic exchange (a headers exchange if `by_headers`) to which
    `readers` queues are bound, each with a consumer. If `acks`, the consumers acknowledge, and the
    publisher uses confirms."""

    def flow(messages: int) -> Iterator[float]:
        exchange = "amq.headers" if by_headers else "amq.topic"
        kind = short("kind") + b"S" + long(b"temperature")
        wanted = long(short("x-match") + b"S" + long(b"all") + kind) if by_headers else table()
        headers = long(kind) if by_headers else b""
        bench = Bench()
        writer = bench.amqp()
        if acks:
            writer.receive_data(method(1, 85, 10, b"\0"))
        listeners = [bench.amqp() for _ in range(readers)]
        for number, reader in enumerate(listeners):
            consume(bench, reader, f"queue-{number}", exchange, wanted, not acks)
        properties = (b"\x30\x00" if by_headers else b"\x10\x00") + headers + b"\x01"
        content = content_of(properties)
        chunk = b"".join(
            method(1, 60, 40, b"\0\0" + short(exchange) + short(f"room.{number % 16}.temp") + b"\0")
            + content
            for number in range(BATCH)
        )
        bench.drain(writer)
        for batch in range(messages // BATCH):
            last = (batch + 1) * BATCH
            tags = range(batch * BATCH + 1, last + 1) if acks else range(0)
            settled = (
                ACKS.pack(*[field for tag in tags for field in (ACK_HEAD, tag, b"\0\xce")])
                if acks
                else b""
            )
            began = time.perf_counter()
            writer.receive_data(chunk)
            out = bench.drain(*listeners)
            for reader in listeners:
                reader.receive_data(settled)
            confirmed = writer.data_to_send()
            spent = time.perf_counter() - began
            assert out.count(content) == BATCH * readers
            assert confirmed[11:19] == (last.to_bytes(8, "big") if acks else b"")
            yield spent

    return flow


def amqp_persistent(messages: int) -> Iterator[float]:
    """Publish messages with delivery_mode 2 to a topic exchange with one durable queue, whose
    consumer acknowledges each; yield the seconds of each batch. Confirms wait for the sync."""
    bench = DurableBench()
    writer, reader = bench.amqp(), bench.amqp()
    writer.receive_data(method(1, 85, 10, b"\0"))
    assert bench.drain(writer) == method(1, 85, 11, b"")
    consume(bench, reader, "queue", "amq.topic", table(), False, durable=True)
    content = content_of(b"\x10\x00\x02")
    keys = [short(f"room.{number % 16:02}.temp") for number in range(BATCH)]
    topic = short("amq.topic")
    chunk = b"".join(method(1, 60, 40, b"\0\0" + topic + key + b"\0") + content for key in keys)
    deliver = short("tag") + bytes(9) + topic
    # Delivery tags have 8 bytes; the first 4 stay 0 here.
    delivered = Stamped(b"".join(method(1, 60, 60, deliver + key) + content for key in keys), 19, 4)
    acknowledged = Stamped(method(1, 60, 80, bytes(9)) * BATCH, 15, 4)
    bench.watch_syncs(writer)
    for batch in range(messages // BATCH):
        last = (batch + 1) * BATCH
        numbers = array("I", range(batch * BATCH + 1, last + 1))
        if sys.byteorder == "little":
            numbers.byteswap()
        tags = numbers.tobytes()
        acks = acknowledged.stamp(tags)
        began = time.perf_counter()
        writer.receive_data(chunk)
        bench.turn()
        out = reader.data_to_send()
        early = writer.data_to_send()
        bench.write()
        confirmed = writer.data_to_send()
        reader.receive_data(acks)
        bench.turn()
        spent = time.perf_counter() - began
        assert out == delivered.stamp(tags)
        assert early == b"" and confirmed == method(1, 60, 80, last.to_bytes(8, "big") + b"\x01")
        yield spent
    bench.check_log(messages // BATCH * BATCH)


def consume(
    bench: Bench,
    reader: Connection,
    queue: str,
    exchange: str,
    wanted: bytes,
    auto_ack: bool,
    durable: bool = False,
) -> None:
    """Declare a queue, bind it to the exchange, and start a consumer with the tag "tag".

    `wanted` is the encoded table of the binding's arguments.
    """
    name = short(queue)
    place = short(exchange) + short("room.*.temp")
    for request in (
        method(1, 50, 10, b"\0\0" + name + bytes([2 if durable else 0]) + table()),
        method(1, 50, 20, b"\0\0" + name + place + b"\0" + wanted),
        method(1, 60, 20, b"\0\0" + name + short("tag") + bytes([2 if auto_ack else 0]) + table()),
    ):
        reader.receive_data(request)
        answer = bench.drain(reader)  # A durable queue is declared, and bound, after a sync.
    assert answer == method(1, 60, 21, short("tag"))


FLOWS: dict[str, Flow] = {
    "mqtt-qos0-1-1": mqtt_flow(0, 1),
    "mqtt-qos0-1-10": mqtt_flow(0, 10),
    "mqtt-qos1-1-1": mqtt_flow(1, 1),
    "mqtt-persistent": mqtt_persistent,
    "amqp-auto-ack": amqp_flow(1, False),
    "amqp-ack-confirm": amqp_flow(1, True),
    "amqp-persistent": amqp_persistent,
    "amqp-1-10": amqp_flow(10, False),
    "amqp-headers": amqp_flow(1, False, by_headers=True),
}


def run(flow: Flow, messages: int) -> float:
    """Return the seconds that a flow takes for `messages` messages."""
    spent = 0.0
    held: list[object] = []
    for batch, seconds in enumerate(flow(messages)):
        spent += seconds
        if batch == WARM_UP:
            held = prepare_memory()
    del held
    return spent


def prepare_memory() -> list[object]:
    """Fill the gaps in Python's memory pools, make new pools, and return the objects that hold
    them.

    How many instructions an allocation takes depends on the gaps that earlier allocations left: if
    a pool has one free block, an allocation takes the pool out of its list, and freeing the block
    puts it back, 40 instructions in all. One additional import changed a count by up to 2 %.
    While the returned objects exist, the gaps of each size class (16 to 512 bytes, in steps of 16)
    are filled, and there are further pools with more free blocks than a flow ever uses.
    """
    empty = b"".__sizeof__()
    held: list[object] = []
    for size in range(16, 513, 16):
        blocks: list[object]
        if size == object().__sizeof__():
            blocks = [object() for _ in range(GAPS + BLOCKS)]
        elif size < empty:
            blocks = [1_000 + number for number in range(GAPS + BLOCKS)]
        else:
            blocks = [bytes(size - empty) for _ in range(GAPS + BLOCKS)]
        held += blocks[:GAPS]
        held += blocks[GAPS::HELD]
    return held


def _ignore(*_: object) -> None:
    pass


def _fail(reason: str) -> None:
    raise AssertionError(f"the store failed: {reason}")


def text(value: str) -> bytes:
    """Encode an MQTT string."""
    return len(value.encode()).to_bytes(2, "big") + value.encode()


def packet(first: int, body: bytes) -> bytes:
    """Encode an MQTT packet; `body` is the part after the remaining length."""
    size = len(body)
    assert size < 16_384
    length = bytes([size]) if size < 128 else bytes([size & 127 | 128, size >> 7])
    return bytes([first]) + length + body


def short(value: str) -> bytes:
    """Encode an AMQP short string."""
    return bytes([len(value)]) + value.encode()


def long(value: bytes) -> bytes:
    """Encode an AMQP long string, or a table whose encoded fields are `value`."""
    return len(value).to_bytes(4, "big") + value


def table() -> bytes:
    """Encode an empty AMQP table."""
    return b"\0\0\0\0"


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    """Encode an AMQP frame."""
    size = len(payload).to_bytes(4, "big")
    return bytes([kind]) + channel.to_bytes(2, "big") + size + payload + b"\xce"


def method(channel: int, kind: int, number: int, arguments: bytes) -> bytes:
    """Encode an AMQP method frame; `kind` and `number` are the class and method identifiers."""
    return frame(1, channel, kind.to_bytes(2, "big") + number.to_bytes(2, "big") + arguments)


def content_of(properties: bytes) -> bytes:
    """Encode BODY as an AMQP content on channel 1: a content header and a body frame.

    `properties` are the encoded property flags and properties.
    """
    size = len(BODY).to_bytes(8, "big")
    return frame(2, 1, b"\x00\x3c\x00\x00" + size + properties) + frame(3, 1, BODY)


def main() -> None:
    """Run the chosen flows, and print their costs."""
    parser = argparse.ArgumentParser(
        description="Measure what a publication costs inside the broker, without sockets."
    )
    parser.add_argument(
        "--messages", type=int, default=100_000, help="publications per round (%(default)s)"
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=5,
        help="rounds, interleaved; the median of their times is printed (%(default)s)",
    )
    parser.add_argument(
        "flow", nargs="*", help=f"flows to measure (default: all): {', '.join(FLOWS)}"
    )
    parser.add_argument("--rules", action="store_true", help="measure a user with 100 topic rules")
    options = parser.parse_args()
    AcceptAll.ruled = options.rules
    for name in options.flow:
        if name not in FLOWS:
            parser.error(f"unknown flow {name!r}; known are {', '.join(FLOWS)}")
    chosen = options.flow or list(FLOWS)
    compiled = not (broker.queues.queue.__file__ or "").endswith(".py")
    print(
        f"broker in {Path(broker.queues.queue.__file__ or '').parent}, "
        f"{'compiled' if compiled else 'NOT compiled'}; {options.messages} publications of "
        f"{len(BODY)} bytes, {BATCH} per chunk, median of {options.rounds} rounds"
    )
    times: dict[str, list[float]] = {name: [] for name in chosen}
    for _ in range(options.rounds):
        for name in chosen:
            times[name].append(run(FLOWS[name], options.messages) / options.messages * 1e9)
    for name, found in times.items():
        print(
            f"{name:18} {statistics.median(found):8.0f} ns per publication   "
            f"(rounds {min(found):.0f} to {max(found):.0f})"
        )


if __name__ == "__main__":
    main()
