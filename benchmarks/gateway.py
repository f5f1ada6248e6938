"""Measures how much HTTP requests delay messages, on a real broker.

    python benchmarks/gateway.py [--trellis .run/bin/trellis] [--seconds 20] [--rounds 3]

One AMQP connection publishes 1,000 messages a second to one consumer, which records how long each
message takes. The program repeats three measurements in turn:

    quiet     no HTTP requests
    beside    HTTP requests to another broker on the same processors
    loaded    the same HTTP requests to the measured broker

The requests list 10,000 queues, 20 times a second, while one client uploads 50 MB of definitions
again and again. The difference between `loaded` and `beside` is the cost of HTTP inside the broker.
The program also prints the time of the first request and of later ones, and the memory of broker
and gateway.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import aio_pika

QUEUES = 10_000
RATE = 1_000
REQUESTS = 20
DOCUMENT = 50_000_000
LOGIN = base64.b64encode(b"guest:guest").decode()


class MeasuredProcess:
    """A broker without a data directory, on free ports."""

    def __init__(self, trellis: str) -> None:
        began = time.monotonic()
        flags = [f"--{name}-port=0" for name in ("amqp", "mqtt", "metrics", "http")]
        self.process = subprocess.Popen(
            [trellis, "serve", "--data-dir", ":memory:", "--config", "/dev/null", *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self.process.stdout is not None
        words = self.process.stdout.readline().split()
        self.start_seconds = time.monotonic() - began
        self.ports = {
            name: int(address.rpartition(":")[2])
            for name, _, address in (word.partition("=") for word in words[1:])
        }

    def children(self) -> list[int]:
        """Return the process ids of the broker's child processes, which belong to its gateway."""
        threads = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        return [int(child) for file in threads for child in file.read_text().split()]

    def memory(self) -> tuple[float, float]:
        """Return the resident memory of the broker, and of its gateway, in MB."""
        every = [Path(f"/proc/{child}/statm") for child in self.children()]
        own = Path(f"/proc/{self.process.pid}/statm")
        return _resident(own), sum(_resident(file) for file in every)

    def stop(self) -> None:
        """Stop the broker, and with it its gateway."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)


def _resident(statm: Path) -> float:
    return int(statm.read_text().split()[1]) * 4096 / 1e6


def definitions(size: int) -> bytes:
    """Return a definitions document of about `size` bytes, which lists every queue repeatedly."""
    rows = [{"name": f"q{number}", "vhost": "/", "durable": True} for number in range(QUEUES)]
    text = ",".join(json.dumps(row) for row in rows)
    return ('{"queues":[' + ",".join([text] * max(1, size // len(text))) + "]}").encode()


async def request(port: int, method: str, path: str, body: bytes = b"") -> tuple[int, float]:
    """Send a request on a new connection; return the status and the duration in seconds."""
    began = time.monotonic()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic {LOGIN}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    writer.write(head.encode())
    for at in range(0, len(body), 1 << 20):
        writer.write(body[at : at + (1 << 20)])
        await writer.drain()
    answer = b""
    while data := await reader.read(1 << 20):
        answer = answer or data
    writer.close()
    return int(answer.split(b" ", 2)[1]), time.monotonic() - began


async def messages(port: int, seconds: float) -> list[float]:
    """Publish RATE messages a second; return the latency of each in milliseconds."""
    connection = await aio_pika.connect(f"amqp://guest:guest@127.0.0.1:{port}/")
    async with connection:
        channel = await connection.channel(publisher_confirms=False)
        queue = await channel.declare_queue("measured", auto_delete=True)
        took: list[float] = []

        async def received(message: aio_pika.abc.AbstractIncomingMessage) -> None:
            took.append((time.perf_counter() - float(message.body)) * 1000)

        await queue.consume(received, no_ack=True)
        began = time.perf_counter()
        for number in range(int(seconds * RATE)):
            wait = began + number / RATE - time.perf_counter()
            if wait > 0:
                await asyncio.sleep(wait)
            await channel.default_exchange.publish(
                aio_pika.Message(str(time.perf_counter()).encode()), "measured"
            )
        await asyncio.sleep(1)
        return took


def load(port: int, seconds: float) -> None:
    """Make requests to the HTTP port for `seconds`; print their number and median times in s.

    A separate process runs this function.
    """

    async def main() -> None:
        ends = time.monotonic() + seconds
        document = definitions(DOCUMENT)
        listed: list[tuple[int, float]] = []
        uploaded: list[tuple[int, float]] = []

        async def upload() -> None:
            while time.monotonic() < ends:
                uploaded.append(await request(port, "POST", "/api/definitions", document))

        async def one() -> None:
            with contextlib.suppress(OSError, IndexError):
                listed.append(await request(port, "GET", "/api/queues"))

        async with asyncio.TaskGroup() as group:
            group.create_task(upload())
            while time.monotonic() < ends:
                group.create_task(one())
                await asyncio.sleep(1 / REQUESTS)
        good = [took for status, took in listed if status == 200]
        print(
            f"  {len(listed)} listings, {len(good)} answered with 200, median "
            f"{median(good or [0]):.2f} s; {len(uploaded)} uploads of "
            f"{len(document) / 1e6:.0f} MB, statuses {sorted({status for status, _ in uploaded})}, "
            f"median {median([took for _, took in uploaded]):.2f} s"
        )

    asyncio.run(main())


def shown(name: str, took: list[float]) -> float:
    """Print percentiles of the latencies `took` (in ms), and return the 99.9th percentile."""
    took.sort()
    parts = [took[min(len(took) - 1, int(len(took) * share))] for share in (0.5, 0.99, 0.999)]
    print(
        f"  {name:6} {len(took)} messages: p50 {parts[0]:.2f}  p99 {parts[1]:.2f}  p99.9 "
        f"{parts[2]:.2f} ms"
    )
    return parts[2]


async def loaded(name: str, measured: MeasuredProcess, target: MeasuredProcess, s: float) -> float:
    """Measure the latency of messages for `s` seconds; return the 99.9th percentile in ms.

    Messages go through the broker `measured`, while another process makes HTTP requests to the
    broker `target`.
    """
    seconds = str(s + 2)
    loading = await asyncio.create_subprocess_exec(
        "nice", sys.executable, __file__, "--load", str(target.ports["http"]), seconds
    )
    await asyncio.sleep(1.5)
    latency = shown(name, await messages(measured.ports["amqp"], s))
    await loading.wait()
    return latency


async def measure(arguments: argparse.Namespace) -> None:
    """Start the brokers, measure the latencies of all rounds, and print the figures."""
    broker = MeasuredProcess(arguments.trellis)
    other = MeasuredProcess(arguments.trellis)
    try:
        port = broker.ports["http"]
        print(
            f"start of the broker {broker.start_seconds:.2f} s; memory {broker.memory()[0]:.1f} MB"
        )
        _, first = await request(port, "GET", "/api/whoami")
        later = [(await request(port, "GET", "/api/whoami"))[1] for _ in range(20)]
        print(f"first request {first:.2f} s, later requests {median(later) * 1000:.1f} ms")
        print("memory of broker and gateway: {:.1f} and {:.1f} MB".format(*broker.memory()))
        for each in (broker, other):
            status, _ = await request(
                each.ports["http"], "POST", "/api/definitions", definitions(0)
            )
            assert status == 200
        quiet, beside, busy = [], [], []
        for _ in range(arguments.rounds):
            quiet.append(shown("quiet", await messages(broker.ports["amqp"], arguments.seconds)))
            beside.append(await loaded("beside", broker, other, arguments.seconds))
            busy.append(await loaded("loaded", broker, broker, arguments.seconds))
        print(
            f"p99.9: quiet {median(quiet):.2f}, load on another broker {median(beside):.2f}, "
            f"load on this broker {median(busy):.2f} ms"
        )
        print("memory of broker and gateway: {:.1f} and {:.1f} MB".format(*broker.memory()))
    finally:
        broker.stop()
        other.stop()


def main() -> None:
    """Parse the arguments, and run the measurement."""
    parser = argparse.ArgumentParser(description="Measure how much HTTP delays messages.")
    parser.add_argument("--trellis", default=".run/bin/trellis")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--load", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.load:
        load(int(arguments.load[0]), float(arguments.load[1]))
    else:
        asyncio.run(measure(arguments))


if __name__ == "__main__":
    main()
