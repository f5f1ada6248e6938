"""Measures the cost of durability on a real broker and disk: the time of a single confirm, a long
queue, and a restart after kill -9.

    python benchmarks/durability.py
        --trellis COMMAND      the broker [.run/bin/trellis]
        --messages N           messages of 256 bytes in the queue when the broker is killed
                               [1,000,000]
        --output FILE          results as JSON [benchmarks/results/DATE-durability.json]
        --into FILE            the document whose marked part gets the table [docs/performance.md]

A single confirm is timed from the first byte of the publication to the last byte of basic.ack, with
no other message in flight. After each confirm, a write and fdatasync of that many bytes is timed on
the same disk. A start is measured as the CPU time of the broker's process until it is ready; then
the queue's messages are counted and consumed. CPU time per message under load is measured by
`trellis bench load amqp-durable`, and in comparison with RabbitMQ by `python benchmarks/peers run
--workloads amqp-durable`.

Linux only. Takes about half a minute.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
# Add the root, where Python finds trellis.bench, the load tool with its protocol code.
sys.path.insert(1, str(ROOT))

from peers.brokers.trellis import TrellisPeer, parsed  # noqa: E402  (needs the new path)
from peers.machine import machine  # noqa: E402
from peers.peer import Running, Tools  # noqa: E402
from peers.report import between  # noqa: E402

from trellis.bench import amqp  # noqa: E402
from trellis.bench.client import AmqpClient  # noqa: E402
from trellis.bench.processes import Processes  # noqa: E402
from trellis.bench.target import parse  # noqa: E402

BODY: Final = 256
FRAME_MAX: Final = 131_072
#: The number of timed single confirms.
LONE: Final = 1_000
#: Publications sent before their confirms are read.
RUN: Final = 2_000
QUEUE: Final = "kept"


def client_of(running: Running) -> AmqpClient:
    """Connect a client with publisher confirms, declare the durable queue, return the client."""
    client = AmqpClient(parse("amqp", running.amqp_url), "client")
    client.ask(amqp.confirm_select(), amqp.SELECT_OK)
    client.ask(amqp.queue_declare(QUEUE, durable=True), amqp.QUEUE_DECLARE_OK)
    return client


def publication(number: int) -> bytes:
    """Return the bytes that publish a persistent message, whose body repeats `number`."""
    return amqp.publish("", QUEUE, number.to_bytes(8, "big") * (BODY // 8), FRAME_MAX, True)


def lone_confirms(running: Running, directory: Path) -> dict[str, list[float]]:
    """Time LONE single confirms and LONE syncs; return the seconds of each, as "confirm" and
    "fdatasync".
    """
    client, packet = client_of(running), publication(0)
    times: dict[str, list[float]] = {"confirm": [], "fdatasync": []}
    descriptor = os.open(directory / "beside", os.O_CREAT | os.O_RDWR, 0o600)
    try:
        for number in range(LONE):
            began = time.perf_counter()
            client.send(packet)
            client.answer((60, 80))
            times["confirm"].append(time.perf_counter() - began)
            began = time.perf_counter()
            os.pwrite(descriptor, packet, number * len(packet))
            os.fdatasync(descriptor)
            times["fdatasync"].append(time.perf_counter() - began)
    finally:
        os.close(descriptor)
    client.ask(amqp.queue_delete(QUEUE), amqp.QUEUE_DELETE_OK)
    client.disconnect()
    return times


def fill(running: Running, count: int) -> None:
    """Publish `count` messages; return when the broker has confirmed all."""
    client = client_of(running)
    for at in range(0, count, RUN):
        last = min(at + RUN, count)
        client.send(b"".join(publication(number) for number in range(at, last)))
        confirmed = at
        while confirmed < last:
            arguments = client.answer((60, 80))
            confirmed = int.from_bytes(arguments[:8], "big")
    client.disconnect()


def drain(running: Running, count: int) -> None:
    """Consume `count` messages; exit with an error unless each arrives once, in order."""
    client = AmqpClient(parse("amqp", running.amqp_url), "client")
    waiting = client.depth(QUEUE)
    if waiting != count:
        sys.exit(f"durability: {waiting} of {count} messages are in the queue after the restart")
    client.ask(amqp.consume(QUEUE, True), amqp.CONSUME_OK)
    for number in range(count):
        for kind in (1, 2):
            head = client.read(7, "a frame")
            payload = client.read(int.from_bytes(head[3:]) + 1, "a frame")
            if head[0] != kind:
                sys.exit(f"durability: unexpected frame of type {head[0]}: {payload[:40]!r}")
        body = client.read(7 + BODY + 1, "a body")
        if body[7:15] != number.to_bytes(8, "big"):
            sys.exit(
                f"durability: received message {int.from_bytes(body[7:15])} instead of {number}"
            )
    client.disconnect()


def measure(trellis: Path, count: int) -> dict[str, Any]:
    """Measure confirms, fill the queue, kill and restart the broker, and return all figures.

    Figures are in microseconds if their names end in `_us`, in bytes if the names end in `_bytes`,
    and in seconds if the names begin with `start_cpu`.
    """
    peer = TrellisPeer(Tools(trellis=trellis))
    with tempfile.TemporaryDirectory(prefix="trellis-durability-") as name:
        directory = Path(name)
        running = peer.start(directory)
        try:
            lone = lone_confirms(running, directory)
            before = Processes(running.roots).memory().now
            fill(running, count)
            grown = Processes(running.roots).memory().now - before
        finally:
            os.kill(running.roots[0], signal.SIGKILL)
            running.stop()
        log = sum(file.stat().st_size for file in (directory / "data" / "log").iterdir())
        running = peer.start(directory)
        try:
            spent = Processes(running.roots).cpu()
            started = sum(spent.threads.values()) / 1e9
            memory = Processes(running.roots).memory().now
            drain(running, count)
        finally:
            running.stop()
        (directory / "empty").mkdir()
        running = peer.start(directory / "empty")
        try:
            empty = sum(Processes(running.roots).cpu().threads.values()) / 1e9
            nothing = Processes(running.roots).memory().now
        finally:
            running.stop()
    return {
        "messages": count,
        "confirm_us": [1e6 * quantile(lone["confirm"], q) for q in (0.5, 0.99)],
        "fdatasync_us": [1e6 * quantile(lone["fdatasync"], q) for q in (0.5, 0.99)],
        "difference_us": 1e6
        * median(a - b for a, b in zip(lone["confirm"], lone["fdatasync"], strict=True)),
        "queued_bytes": grown / count,
        "log_bytes": log,
        "start_cpu": started,
        "start_cpu_empty": empty,
        "restored_bytes": (memory - nothing) / count,
    }


def quantile(values: list[float], share: float) -> float:
    """Return the value below which the fraction `share` of the values lies."""
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]


def table(results: dict[str, Any]) -> str:
    """Return the results as Markdown tables, for the page that --into names."""
    figures, facts = (
        results["figures"],
        "; ".join(f"{name} {value}" for name, value in results["machine"].items()),
    )
    recovery = figures["start_cpu"] - figures["start_cpu_empty"]
    rows = [
        (
            "time of a single confirm, p50 (p99)",
            f"{figures['confirm_us'][0]:,.0f} µs ({figures['confirm_us'][1]:,.0f})",
            "",
        ),
        (
            "time of a write and fdatasync of the same number of bytes, p50 (p99)",
            f"{figures['fdatasync_us'][0]:,.0f} µs ({figures['fdatasync_us'][1]:,.0f})",
            "",
        ),
        (
            "the time of the confirm minus the time of the write and fdatasync, median",
            f"{figures['difference_us']:,.0f} µs",
            "1,000 µs",
        ),
        (
            (
                f"CPU time of a start with {figures['messages']:,} messages of {BODY} bytes after "
                "kill -9, minus the CPU time of a start without messages"
            ),
            f"{recovery:.2f} s",
            f"{3 * figures['messages'] / 1e6:.2f} s",
        ),
        (
            "memory per message in the queue, after publishing",
            f"{figures['queued_bytes']:.0f} bytes",
            "50 bytes",
        ),
        (
            "memory per message in the queue, after the start",
            f"{figures['restored_bytes']:.0f} bytes",
            "50 bytes",
        ),
    ]
    return "\n".join(
        (
            (
                f"Measured on {results['date']} with `{results['command']}`, Trellis "
                f"{results['version']}."
            ),
            f"Machine: {facts}.",
            "",
            "| | measured | allowed |",
            "|---|---:|---:|",
            *(f"| {what} | {value} | {allowed} |" for what, value, allowed in rows),
            "",
            (
                f"The log took {figures['log_bytes'] / 1e6:,.0f} MB. Every message was recovered "
                "once, "
                "in order."
            ),
        )
    )


def main() -> int:
    """Measure confirms, backlog and restart, write results and tables; return the exit code."""
    today = datetime.date.today().isoformat()
    parser = argparse.ArgumentParser(description="Measure the cost of durability.")
    parser.add_argument(
        "--messages",
        type=int,
        default=1_000_000,
        help="messages in the queue when the broker is killed [1,000,000]",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=ROOT / "benchmarks" / "results" / f"{today}-durability.json",
        help="write the figures to this JSON file [benchmarks/results/DATE-durability.json]",
    )
    parser.add_argument(
        "--into",
        type=Path,
        default=ROOT / "docs" / "performance.md",
        help="write the table into the marked part of this document [docs/performance.md]",
    )
    options = parsed(parser)
    results = {
        "date": today,
        "command": "python benchmarks/durability.py",
        "version": TrellisPeer(Tools(trellis=options.trellis)).version(),
        "machine": machine(),
        "figures": measure(options.trellis.absolute(), options.messages),
    }
    options.output.write_text(json.dumps(results, indent=1) + "\n")
    words = table(results)
    print(words)
    options.into.write_text(
        between(options.into.read_text(), words, options.into.name, "durability")
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
