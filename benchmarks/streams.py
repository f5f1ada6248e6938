"""Measures the costs of streams inside the broker, without sockets: segments in memory, or in
files.

    python benchmarks/streams.py [--messages 100000] [--rounds 5]

    capture      what a journal costs the event loop: the time of a publication that no queue
                 receives, with a journal minus without
    background   what a journal costs the writer thread: encoding rows and writing them to memory,
                 100 messages per store batch
    files        as background, but 2,500 messages per store batch, written to files
    queue        deliveries of a plain queue with acknowledgements
    stream       deliveries of a stream with acknowledgements
    serving      reading segments and sending them to a socket, as the gateway does, without HTTP
                 and without the receiver's cost

Run this program with the Python in which the broker is installed, from any directory: it prints
whether the measured code is compiled. All figures are per message: the thread's CPU time, medians
of interleaved rounds. Compare figures of one run only.
"""

from __future__ import annotations

import argparse
import socket
import statistics
import tempfile
import threading
import time
from pathlib import Path

from flow_brokers import Bench
from flow_clients import ACK_HEAD, ACKS, BATCH, BODY, frame, method, packet, short, text

import broker.queues.queue
from broker.store.disk import RealDisk
from broker.stream.queue import StreamQueue
from trellis.http.contract import FileRange
from trellis.http.gateway.app import FILE_CHUNK
from trellis.http.gateway.link import OpenFile

CONTENT = frame(2, 1, b"\x00\x3c\x00\x00" + len(BODY).to_bytes(8, "big") + b"\x10\x00\x01") + frame(
    3, 1, BODY
)
STREAM = short("x-queue-type") + b"S" + len(b"stream").to_bytes(4, "big") + b"stream"
Times = dict[str, list[float]]


def publication(exchange: str, key: str) -> bytes:
    """Return the bytes that publish a message over AMQP."""
    return method(1, 60, 40, b"\0\0" + short(exchange) + short(key) + b"\0") + CONTENT


def declare(name: str, arguments: bytes) -> bytes:
    """Return the bytes of queue.declare; the queue is durable if it has arguments."""
    return method(
        1,
        50,
        10,
        b"\0\0"
        + short(name)
        + (b"\x02" if arguments else b"\x00")
        + len(arguments).to_bytes(4, "big")
        + arguments,
    )


def loop_cost(
    messages: int, journal: bool, mqtt: bool, chunks: int = 1, root: str = ""
) -> tuple[float, float]:
    """Return two CPU times in seconds: of processing a publisher's input, and of writing the
    store's batches.

    If `journal`, a journal records the messages. If `mqtt`, the publisher uses MQTT, else AMQP.
    Each store batch has the messages of `chunks` received chunks. Segments are files below `root`,
    or in memory if `root` is "".
    """
    bench = Bench()
    if root:
        bench.broker.store.stream_disk, bench.broker.store.stream_root = (
            RealDisk(),
            f"{root}/streams",
        )
    if journal:
        bench.broker.vhosts["/"].declarations.journals.record_in("all")
    if mqtt:
        client = bench.mqtt("writer")
        chunk = b"".join(
            packet(0x30, text(f"room/{number % 16}/temp") + BODY) for number in range(BATCH)
        )
    else:
        client = bench.amqp()
        chunk = b"".join(
            publication("amq.topic", f"room.{number % 16}.temp") for number in range(BATCH)
        )
    client.receive_data(chunk)
    bench.drain(client)
    inline = background = 0.0
    for number in range(1, messages // BATCH + 1):
        began = time.thread_time()
        client.receive_data(chunk)
        between = time.thread_time()
        inline += between - began
        if number % chunks == 0:
            bench.broker.store.sync()
            background += time.thread_time() - between
        bench.broker.agenda.turn()
        bench.broker.agenda.advance(
            int(bench.broker.agenda.now) + 1, bench.broker.agenda.wall + 0.001
        )
    return inline, background


def delivery(messages: int, streaming: bool) -> float:
    """Return the CPU seconds of delivering messages and processing their acknowledgements.

    The messages are published before the measurement, to a stream if `streaming`, else to a plain
    queue.
    """
    bench = Bench()
    writer, reader = bench.amqp(), bench.amqp()
    writer.receive_data(declare("q", STREAM if streaming else b""))
    bench.drain(writer)
    chunk = publication("", "q") * BATCH
    for _ in range(messages // BATCH):
        writer.receive_data(chunk)
    bench.drain(writer)
    offset = (
        short("x-stream-offset") + b"S" + len(b"first").to_bytes(4, "big") + b"first"
        if streaming
        else b""
    )
    reader.receive_data(method(1, 60, 10, bytes(4) + BATCH.to_bytes(2, "big") + b"\0"))
    bench.drain(reader)
    began = time.thread_time()
    reader.receive_data(
        method(
            1,
            60,
            20,
            b"\0\0" + short("q") + short("t") + b"\0" + len(offset).to_bytes(4, "big") + offset,
        )
    )
    tag = count = 0
    while count < messages // BATCH * BATCH:
        out = bench.drain(reader)
        spent = time.thread_time()
        got = out.count(frame(3, 1, BODY))
        count += got
        acks = ACKS.pack(
            *[
                field
                for one in range(tag + 1, tag + BATCH + 1)
                for field in (ACK_HEAD, one, b"\0\xce")
            ]
        )
        tag += BATCH
        assert got == BATCH
        # The time of the client's work is not counted: the start moves forward by this time.
        began += time.thread_time() - spent
        reader.receive_data(acks)
    return time.thread_time() - began


def serving(messages: int) -> float:
    """Return the CPU seconds of the thread that sends a stream's segments to a socket."""
    bench = Bench()
    writer = bench.amqp()
    writer.receive_data(declare("q", STREAM))
    bench.drain(writer)
    for _ in range(messages // BATCH):
        writer.receive_data(publication("", "q") * BATCH)
        bench.drain(writer)
    queue = bench.broker.vhosts["/"].queues["q"]
    assert isinstance(queue, StreamQueue)
    with tempfile.TemporaryFile() as file:
        for segment in queue.local.segments:
            file.write(segment.file().read(0, segment.size))
        file.flush()
        listener = socket.create_server(("127.0.0.1", 0))
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()

        def read() -> None:
            while far.recv(1 << 20):
                pass

        reading = threading.Thread(target=read)
        reading.start()
        part = OpenFile(file.fileno(), FileRange(1, 0, file.tell(), 0))
        assert part.end > messages * len(BODY)
        began = time.thread_time()
        at = part.start
        while at < part.end:
            chunk = part.read(at, FILE_CHUNK)
            near.sendall(chunk)
            at += len(chunk)
        spent = time.thread_time() - began
        near.close()
        reading.join()
        far.close()
        listener.close()
    return spent


def main() -> None:
    """Parse the command line, run the measurements, and print the cost of each."""
    parser = argparse.ArgumentParser(description="Measure the costs of streams inside the broker.")
    parser.add_argument(
        "--messages",
        type=int,
        default=100_000,
        help="publications per round (default %(default)s)",
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=5,
        help="rounds, interleaved; the median counts (default %(default)s)",
    )
    options = parser.parse_args()
    compiled = not (broker.queues.queue.__file__ or "").endswith(".py")
    print(
        f"broker in {Path(broker.queues.queue.__file__ or '').parent}, "
        f"{'compiled' if compiled else 'NOT compiled'}; "
        f"{options.messages} publications of {len(BODY)} bytes, median of {options.rounds} rounds, "
        "ns per message"
    )
    times: Times = {}

    def note(name: str, seconds: float) -> None:
        times.setdefault(name, []).append(seconds / options.messages * 1e9)

    for _ in range(options.rounds):
        for protocol, mqtt in (("amqp", False), ("mqtt", True)):
            without, _ = loop_cost(options.messages, False, mqtt)
            recorded, background = loop_cost(options.messages, True, mqtt)
            note(f"{protocol} publication", without)
            note(f"{protocol} capture", recorded - without)
            note(f"{protocol} background", background)
            with tempfile.TemporaryDirectory() as root:
                note(f"{protocol} files", loop_cost(options.messages, True, mqtt, 25, root)[1])
        note("queue delivery", delivery(options.messages, False))
        note("stream delivery", delivery(options.messages, True))
        note("serving", serving(options.messages))
    for name, round_times in times.items():
        print(
            f"{name:18} {statistics.median(round_times):8.0f}   (rounds {min(round_times):.0f} to "
            f"{max(round_times):.0f})"
        )


if __name__ == "__main__":
    main()
