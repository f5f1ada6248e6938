"""Measures what one publication costs inside the broker, without sockets: the program passes the
clients' bytes to the real front ends on the real core, and takes the bytes for clients from them.

    python benchmarks/flows.py [--messages 100000] [--rounds 5] [FLOW...]

Run this program with the Python that has the broker installed (`make run` makes .run), from any
directory: the first line of output says whether the measured broker is compiled. Times are medians
of rounds on one thread; compare times of one run only. Every flow checks the bytes for clients
before its time counts.

Two stores are used:

- The flows without `persistent` in their name run on the memory store.
- With `--on-disk` they run on the durable store, too, and with `--owned` in a broker that owns the
  replicated log of a cluster: the difference of these two is the price of a cluster.
- The flows with `persistent` in their name run on the durable store and on its store writer.
  Records, segments, batches, checksums and tickets are the product's own code. Four things are
  replaced:

  | in the product | here |
  |---|---|
  | files of the log, with pwrite and fdatasync | `BenchFile`: a list of the written parts |
  | the store's writer thread | its loop runs on the main thread, once per batch |
  | the event loop (`call_later`, `call_soon_threadsafe`) | `InlineLoop` |
  | the checkpoint thread | none |

  So no thread runs beside the measured one, and the same instructions are counted in every run. One
  batch holds BATCH messages and the BATCH settlements of the batch before. A message with its
  settlement takes 206 (MQTT) or 243 (AMQP) bytes of the log: a run of the guard stays far below the
  64 MiB of a segment, so no checkpoint would begin in the product either. A longer run keeps its
  full segments in memory until it ends. The catalog (SQLite) is a real file in a temporary
  directory; it is written while a flow is set up, and never per message.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path

# Add this directory to the path, because `python -P` leaves it out.
sys.path.append(str(Path(__file__).parent))

from flow_brokers import AcceptAll, Bench, ClusterBench, DurableBench
from flow_clients import (
    ACK_HEAD,
    ACKS,
    BATCH,
    BODY,
    IDENTIFIERS,
    PACKED_IDENTIFIERS,
    PUBACKS,
    content_of,
    long,
    method,
    packet,
    short,
    table,
    text,
)

import broker.queues.queue
from protocols.connection import Connection

#: Numbers of blocks that `prepare_memory` allocates in each size class: GAPS blocks fill all gaps.
#: BLOCKS further blocks are more than a batch needs; every HELD-th of them stays allocated.
GAPS, BLOCKS, HELD = 2_000, 2_000, 8
#: Batches of a flow before `prepare_memory` is called.
WARM_UP = 5

#: A function that publishes the given number of messages and yields the seconds of each batch.
Flow = Callable[[int], Iterator[float]]


class Stamped:
    """BATCH frames in one buffer that are equal except for one number in each."""

    def __init__(self, frames: bytes, at: int, width: int) -> None:
        """Store the frames, each of which has a number of `width` bytes at its offset `at`."""
        self._frames = bytearray(frames)
        self._stride = len(frames) // BATCH
        self._places = [(at + place, place, width) for place in range(width)]

    def stamp(self, numbers: bytes) -> bytes:
        """Return the frames with new numbers.

        `numbers` has one big-endian integer of `width` bytes (see `__init__`) for each frame.
        """
        for at, place, width in self._places:
            self._frames[at :: self._stride] = numbers[place::width]
        return bytes(self._frames)


def new_bench() -> Bench:
    """Return a new broker; its store is in memory, or durable if the flows run `--on-disk`."""
    return ClusterBench() if Bench.on_disk else Bench()


def mqtt_flow(quality: int, readers: int) -> Flow:
    """Return a flow: messages with QoS `quality` to topics that `readers` wildcard subscriptions
    match. With QoS 1, the broker and the subscribers acknowledge each message."""

    def flow(messages: int) -> Iterator[float]:
        bench = new_bench()
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


def publications(quality: int) -> bytes:
    """Return BATCH packets with QoS `quality` (1 or 2) and the packet identifier 7."""
    return b"".join(
        packet(0x30 | quality << 1, text(f"room/{number % 16:02}/temp") + b"\x00\x07" + BODY)
        for number in range(BATCH)
    )


def mqtt_persistent(messages: int) -> Iterator[float]:
    """Publish QoS 1 messages to one connected persistent session (clean_session 0), which
    acknowledges each; yield the seconds of each batch. PUBACKs wait for the sync."""
    bench = DurableBench()
    writer, reader = bench.mqtt("writer"), bench.mqtt("reader", persistent=True)
    reader.receive_data(packet(0x82, b"\x00\x01" + text("room/+/temp") + b"\x01"))
    assert bench.drain(reader) == b"\x90\x03\x00\x01\x01"
    chunk = publications(1)
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


def mqtt_exactly_once(messages: int) -> Iterator[float]:
    """Publish QoS 2 messages to one connected persistent session (clean_session 0); yield the
    seconds of each batch. A PUBREC to the publisher, a delivery and a PUBREL wait for a sync."""
    bench = DurableBench()
    writer, reader = bench.mqtt("writer"), bench.mqtt("reader", persistent=True)
    reader.receive_data(packet(0x82, b"\x00\x01" + text("room/+/temp") + b"\x02"))
    assert bench.drain(reader) == b"\x90\x03\x00\x01\x02"
    answers = [bytes([first, 2, 0, 0]) * BATCH for first in (0x50, 0x62, 0x70)]
    kinds = [Stamped(publications(2), 16, 2), *[Stamped(answer, 2, 2) for answer in answers]]
    bench.watch_syncs(writer)
    for batch in range(messages // BATCH):
        first = 2 * (batch * BATCH % IDENTIFIERS)
        identifiers = PACKED_IDENTIFIERS[first : first + 2 * BATCH]
        packets = [kind.stamp(identifiers) for kind in kinds]
        began = time.perf_counter()
        writer.receive_data(packets[0])
        bench.turn()
        early = writer.data_to_send() + reader.data_to_send()
        bench.write()
        received = writer.data_to_send()
        bench.turn()
        delivered = reader.data_to_send()
        writer.receive_data(packets[2])
        reader.receive_data(packets[1])
        bench.turn()
        completed = writer.data_to_send()
        early += reader.data_to_send()
        bench.write()
        released = reader.data_to_send()
        reader.receive_data(packets[3])
        bench.turn()
        spent = time.perf_counter() - began
        assert early == b"" and [delivered, received, released, completed] == packets
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
        bench = new_bench()
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
    "mqtt-qos2-persistent": mqtt_exactly_once,
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
    """Prepare Python's memory pools, so that a flow takes the same number of instructions in each
    run.

    Return objects that must be kept during the run. They fill the free blocks that earlier
    allocations left in the pools of each size class (16 to 512 bytes, in steps of 16). Further
    pools get more free blocks than a flow ever uses. Without this preparation, an additional import
    changed a count by up to 2 %: an allocation costs more instructions if it takes the last free
    block of a pool.
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
    parser.add_argument(
        "--traced",
        action="store_true",
        help="measure while a trace runs whose condition no message meets",
    )
    parser.add_argument(
        "--sampled",
        action="store_true",
        help="measure in a broker that samples messages with a traceparent (the measured "
        "messages have none)",
    )
    parser.add_argument(
        "--on-disk", action="store_true", help="measure all flows on the durable store"
    )
    parser.add_argument(
        "--owned",
        action="store_true",
        help="measure all flows on the durable store of a broker that owns the log of a cluster",
    )
    options = parser.parse_args()
    AcceptAll.ruled = options.rules
    Bench.on_disk = options.on_disk or options.owned
    ClusterBench.owned = options.owned
    Bench.traced = options.traced
    Bench.sampled = options.sampled
    for name in options.flow:
        if name not in FLOWS:
            parser.error(f"unknown flow {name!r}; the flows are {', '.join(FLOWS)}")
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
    for name, round_times in times.items():
        print(
            f"{name:20} {statistics.median(round_times):8.0f} ns per publication   "
            f"(rounds {min(round_times):.0f} to {max(round_times):.0f})"
        )


if __name__ == "__main__":
    main()
