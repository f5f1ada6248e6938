"""Measures what an idle broker costs, and how long a restart takes with gigabytes in queues.

    python benchmarks/restart.py
        --trellis COMMAND      the broker [.run/bin/trellis]
        --gigabytes N,N,...    sizes of the messages in the queues before each restart [1,10]
        --body N               size of a message in bytes [1024]
        --idle N               seconds for which the idle broker is measured [60]
        --directory DIR        a directory on the disk to measure [the system's temporary directory]

An idle broker has no clients. Its memory is the resident memory (VmRSS) of its processes, and its
CPU time is divided by the time that has passed.

For each size, a client publishes persistent messages to ten durable queues and waits for all
confirms. Then the broker is killed (SIGKILL) and started again, twice: first with the log in the
page cache of the system, then, if this program runs as root, after the page cache was dropped, as
after a restart of the machine. The program prints the seconds from the start of the process until
the broker prints its line `ready`, the CPU time of its processes until then, the seconds until a
client has received the first message of a queue, and the resident memory. The queues must then have
all messages.

Linux only. 10 GB take some minutes, and twice as much room on the disk.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
# Add the root, where Python finds trellis.bench, the load tool with its protocol code.
sys.path.insert(1, str(ROOT))

from durability import client_of  # noqa: E402
from peers.brokers.trellis import TrellisPeer, parsed  # noqa: E402
from peers.machine import machine  # noqa: E402
from peers.peer import Running, Tools  # noqa: E402

from trellis.bench import amqp  # noqa: E402
from trellis.bench.client import AmqpClient  # noqa: E402
from trellis.bench.processes import Processes  # noqa: E402
from trellis.bench.target import parse  # noqa: E402

FRAME_MAX: Final = 131_072
QUEUES: Final = [f"restart-{number}" for number in range(10)]
#: Publications sent before their confirms are read.
BATCH: Final = 500
#: Seconds that a start may take.
PATIENCE: Final = 300
#: The file of Linux that drops the page cache.
DROP_CACHES: Final = Path("/proc/sys/vm/drop_caches")


def cpu_seconds(running: Running) -> float:
    """Return the CPU time of all processes of the broker so far, in seconds."""
    return sum(Processes(running.roots).cpu().threads.values()) / 1e9


def resident(running: Running) -> int:
    """Return the resident memory of all processes of the broker, in bytes."""
    return Processes(running.roots).memory().now


def idle(peer: TrellisPeer, directory: Path, seconds: int) -> str:
    """Measure a broker without clients for `seconds`, after 5 s; return a line with the figures.

    The figures are its resident memory and its share of one processor.
    """
    running = peer.start(directory)
    try:
        time.sleep(5)
        before, began = cpu_seconds(running), time.perf_counter()
        time.sleep(seconds)
        share = (cpu_seconds(running) - before) / (time.perf_counter() - began)
        return f"idle: {resident(running) / 1e6:.0f} MB resident, {100 * share:.2f} % of one core"
    finally:
        running.stop()


def fill(running: Running, count: int, body: int) -> None:
    """Publish `count` messages of `body` bytes to QUEUES in turn; return when all are confirmed."""
    client = client_of(running)
    for queue in QUEUES:
        client.ask(amqp.queue_declare(queue, durable=True), amqp.QUEUE_DECLARE_OK)
    packets = [amqp.publish("", queue, os.urandom(body), FRAME_MAX, True) for queue in QUEUES]
    for first in range(0, count, BATCH):
        last = min(first + BATCH, count)
        client.send(b"".join(packets[number % len(QUEUES)] for number in range(first, last)))
        confirmed = first
        while confirmed < last:
            confirmed = int.from_bytes(client.answer((60, 80))[:8], "big")
    client.disconnect()


def restart(peer: TrellisPeer, directory: Path, count: int) -> str:
    """Start the broker on a directory with `count` messages, and return a line with the times.

    Exit with an error if the queues do not have all messages.
    """
    began = time.perf_counter()
    running = peer.start(directory)
    try:
        ready, cpu = time.perf_counter() - began, cpu_seconds(running)
        client = AmqpClient(parse("amqp", running.amqp_url), "client")
        waiting = sum(client.depth(queue) for queue in QUEUES)
        if waiting != count:
            sys.exit(f"restart: {waiting} of {count} messages are in the queues after the restart")
        client.ask(amqp.qos(1), amqp.QOS_OK)
        client.ask(amqp.consume(QUEUES[0], False), amqp.CONSUME_OK)
        client.delivery()
        first = time.perf_counter() - began
        client.disconnect()
        memory = resident(running) / 1e6
    finally:
        os.kill(running.roots[0], signal.SIGKILL)
        running.stop()
    return (
        f"ready after {ready:.2f} s, CPU {cpu:.2f} s, first message after {first:.2f} s, "
        f"{memory:,.0f} MB resident"
    )


def measure(peer: TrellisPeer, directory: Path, gigabytes: float, body: int) -> None:
    """Fill the queues, kill and restart the broker, and print the times.

    The messages have `body` bytes each, and `gigabytes` GB in total.
    """
    count = int(gigabytes * 1e9 / body)
    running = peer.start(directory)
    try:
        began = time.perf_counter()
        fill(running, count, body)
        took = time.perf_counter() - began
    finally:
        os.kill(running.roots[0], signal.SIGKILL)
        running.stop()
    print(f"{gigabytes:g} GB, {count:,} messages of {body} bytes, published in {took:.0f} s")
    print(f"    cached    {restart(peer, directory, count)}", flush=True)
    if os.access(DROP_CACHES, os.W_OK):
        os.sync()
        DROP_CACHES.write_text("3")
        print(f"    uncached  {restart(peer, directory, count)}", flush=True)


def main() -> int:
    """Parse the arguments, run the measurements, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--gigabytes", type=parsed_sizes, default=[1.0, 10.0])
    parser.add_argument("--body", type=int, default=1024)
    parser.add_argument("--idle", type=int, default=60)
    parser.add_argument("--directory", type=Path)
    chosen = parsed(parser)
    peer = TrellisPeer(Tools(trellis=chosen.trellis))
    peer.patience = PATIENCE
    print(f"{peer.version()}; " + "; ".join(f"{name} {value}" for name, value in machine().items()))
    with tempfile.TemporaryDirectory(prefix="trellis-restart-", dir=chosen.directory) as name:
        (Path(name) / "idle").mkdir()
        print(idle(peer, Path(name) / "idle", chosen.idle), flush=True)
        for gigabytes in chosen.gigabytes:
            with tempfile.TemporaryDirectory(dir=name) as directory:
                measure(peer, Path(directory), gigabytes, chosen.body)
    return 0


def parsed_sizes(text: str) -> list[float]:
    """Parse sizes in gigabytes, separated by commas."""
    return [float(word) for word in text.split(",")]


if __name__ == "__main__":
    sys.exit(main())
