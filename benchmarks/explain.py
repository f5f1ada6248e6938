"""Measures `GET /api/route` on a broker with 100,000 bindings for each exchange type.

    python benchmarks/explain.py [--trellis .run/bin/trellis] [--bindings N] [--calls N]

The broker is a separate process with 10,000 queues and one exchange of each type with N bindings
(the fanout exchange has 10,000). The program prints a line for each question: the median time of a
call, and the median CPU time per call of the broker and of its gateway. The smallest times of the
call and of the broker are in parentheses. The message in the question matches no binding of the
topic, direct and headers exchanges. So the broker searches all bindings for near misses (bindings
that almost match). The second question about the headers exchange has no near miss. The first
question about the fanout exchange has the limit of `trellis route`, the second has none.

Linux only.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any, Final
from urllib.parse import quote

sys.path.append(str(Path(__file__).parent))  # `python -P` leaves out this directory.

from gateway import LOGIN, MeasuredProcess

QUEUES: Final = 10_000
#: Bindings that one request imports.
PART: Final = 20_000
KINDS: Final = ("topic", "direct", "headers", "fanout", "x-consistent-hash")
#: The query of each call. If one word or header of a message were different, most messages would
#: match a binding.
ASKED: Final = {
    "topic": "exchange=topic&key=Plant.7.line.77.temp",
    "direct": "exchange=direct&key=Plant.7.line.77.temp",
    "headers": f"exchange=headers&header={quote('type=report')}%0Atenant=78%0Aregion=%22r7%22",
    "headers, none": f"exchange=headers&header={quote('type=Report')}%0Aregion=%22R7%22",
    "fanout": "exchange=fanout&key=k&limit=1000",
    "fanout, all": "exchange=fanout&key=k",
    "x-consistent-hash": "exchange=x-consistent-hash&key=k",
    "default": "exchange=&key=Q77",
}


def bindings(count: int) -> Iterator[dict[str, Any]]:
    """Yield the bindings of all exchanges, `count` for each exchange, as rows of a definitions
    document.
    """
    for number in range(count):
        plant, line = number % 100, number // 100
        queue = {
            "vhost": "/",
            "destination_type": "queue",
            "destination": f"q{number % QUEUES}",
            "arguments": {},
        }
        key = f"plant.{plant}.line.{line}.temp"
        pattern = (key, f"plant.{plant}.line.{line}.*", f"plant.{plant}.#.{line}")[number % 3]
        yield {**queue, "source": "topic", "routing_key": pattern}
        yield {**queue, "source": "direct", "routing_key": key}
        criteria = {"type": "report", "tenant": number, "region": f"r{plant}"}
        yield {**queue, "source": "headers", "routing_key": "", "arguments": criteria}
        yield {**queue, "source": "x-consistent-hash", "routing_key": "1"}
    for number in range(min(count, QUEUES)):
        yield {
            "vhost": "/",
            "destination_type": "queue",
            "destination": f"q{number}",
            "arguments": {},
            "source": "fanout",
            "routing_key": "",
        }


def documents(count: int) -> Iterator[bytes]:
    """Yield definitions documents as JSON: all exchanges and queues, then the bindings.

    Each document has at most PART bindings.
    """
    parts: dict[str, Any] = {
        "exchanges": [{"name": kind, "vhost": "/", "type": kind} for kind in KINDS],
        "queues": [{"name": f"q{n}", "vhost": "/", "durable": True} for n in range(QUEUES)],
    }
    rows = bindings(count)
    while part := list(islice(rows, PART)):
        yield json.dumps({**parts, "bindings": part}).encode()
        parts = {}


class RouteCaller:
    """A client that keeps one connection to the HTTP port."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def call(self, method: str, path: str, body: bytes = b"") -> bytes:
        """Send a request, and return the body of the answer, whose status must be 200."""
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic {LOGIN}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        self._writer.write(head.encode() + body)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        assert b" 200 " in answer.split(b"\r\n")[0], answer
        if b"chunked" not in answer:
            size = int(answer.lower().split(b"content-length:")[1].split(b"\r\n")[0])
            return await self._reader.readexactly(size)
        parts: list[bytes] = []
        while size := int(await self._reader.readline(), 16):
            parts.append((await self._reader.readexactly(size + 2))[:-2])
        await self._reader.readexactly(2)
        return b"".join(parts)


def processor_ms(pid: int) -> float:
    """Return the CPU time of a process and its threads in milliseconds."""
    files = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(file.read_text().split()[0]) for file in files) / 1e6


async def measure(arguments: argparse.Namespace) -> None:
    """Start a broker, import the bindings, and print a line of figures for each question."""
    broker = MeasuredProcess(arguments.trellis)
    try:
        port = broker.ports["http"]
        caller = RouteCaller(*await asyncio.open_connection("127.0.0.1", port))
        began = time.monotonic()
        for document in documents(arguments.bindings):
            await caller.call("POST", "/api/definitions", document)
        print(
            f"imported {arguments.bindings:,} bindings of each kind in "
            f"{time.monotonic() - began:.0f} s"
        )
        gateway = broker.children()[0]
        for kind, query in ASKED.items():
            took: list[float] = []
            busy: list[float] = []
            apart: list[float] = []
            for _ in range(arguments.calls):
                first = processor_ms(broker.process.pid), processor_ms(gateway)
                began = time.perf_counter()
                answer = json.loads(await caller.call("GET", f"/api/route?{query}"))
                took.append((time.perf_counter() - began) * 1000)
                last = processor_ms(broker.process.pid), processor_ms(gateway)
                busy.append(last[0] - first[0])
                apart.append(last[1] - first[1])
            print(
                f"{kind:17} call {median(took):6.1f} (smallest {min(took):5.1f}) ms; CPU: broker "
                f"{median(busy):5.1f} ({min(busy):5.1f}), gateway {median(apart):5.1f} ms; "
                f"{answer['examined']:,} examined, {len(answer['bindings']):,} matched, "
                f"{len(answer['near_misses'])} near misses"
            )
    finally:
        broker.stop()


def main() -> None:
    """Parse the arguments, and run the measurement."""
    parser = argparse.ArgumentParser(description="Measure GET /api/route with many bindings.")
    parser.add_argument("--trellis", default=".run/bin/trellis")
    parser.add_argument("--bindings", type=int, default=100_000)
    parser.add_argument("--calls", type=int, default=20)
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
