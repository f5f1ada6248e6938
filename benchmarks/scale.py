"""Measures pauses of the event loop in a broker with 10,000 queues, 100,000 bindings, and 1,000
connections with 10 channels each.

    python -P benchmarks/scale.py [--queues N] [--bindings N] [--connections N] [--channels N]
                                  [--memory] [--json FILE]

The broker is a separate process with a clock in its event loop: a timer that fires every
millisecond. `held` is the most CPU time that the loop's thread used between two timer events: the
broker's own work. `late` is the most wall-clock time by which a timer event was late, which
includes other activity of the machine. Each phase prints one line with `held` and `late`, the
longest loop iteration in wall-clock time (`turn`), and the longest garbage collection in CPU time
with its generation. A further line for each hold above 10 ms shows how its CPU time was spent: user
and system time, garbage collection, page faults, how often another thread or process took the
processor, and how much time the host took away from this machine (`steal`, of all processors).

Linux only.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import resource
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import pamqp.commands as spec
import uvloop

# Add this directory to the path, because `python -P` leaves it out.
sys.path.append(str(Path(__file__).parent))

from amqp_socket import PATIENCE, AmqpSocket, marshal, publication
from loop_clock import TICKS, LoopClock

import trellis
from trellis.app import App
from trellis.settings import Amqp, Auth, Data, Http, Limits, Metrics, Mqtt, Settings, Shutdown

#: Connections that declare queues and bindings at the same time.
DECLARERS: Final = 50


async def serve(directory: str, report: Connection, limits: dict[str, Any]) -> None:
    """Run the broker with these limits, and send its measurements over the pipe `report`.

    First send the ports. Then read values from the pipe. If a value is a mode of LoopClock, send
    the measurements since the previous report, such as the times for which the event loop was held,
    and reset the clock in this mode. If a value is an empty text, stop the broker.
    """
    host = "127.0.0.1"
    settings = Settings(
        amqp=Amqp(port=0, host=host),
        mqtt=Mqtt(port=0, host=host),
        metrics=Metrics(port=0, host=host),
        http=Http(port=0, host=host),
        data=Data(dir=directory),
        auth=Auth(guest=True),
        shutdown=Shutdown(grace=0.1),
        limits=Limits(**limits),
    )
    app = App(settings)
    serving = asyncio.create_task(app.serve())
    await app.started.wait()
    assert app.node is not None
    node = app.node
    loop = asyncio.get_running_loop()
    clock = LoopClock(loop)
    report.send({name: int(address.rpartition(":")[2]) for name, address in app.addresses.items()})
    while mode := await loop.run_in_executor(None, report.recv):
        report.send(
            {
                "held_ms": clock.held * 1000,
                "late_ms": clock.late * 1000,
                "turn_ms": node.turn.longest_seconds * 1000,
                "collection_ms": clock.collected * 1000,
                "generation": clock.generation,
                "long": clock.long,
                "holds": clock.holds,
            }
        )
        node.turn.longest_seconds = 0.0
        clock.begin(mode)
    app.stop()
    await serving


def run_server(
    directory: str,
    report: Connection,
    limits: dict[str, Any] | None = None,
    descriptors: int = 0,
) -> None:
    """Run the broker in this process until `report` receives an empty text (see `serve`).

    `limits` are the broker's limits, and `descriptors` is its hard limit of file descriptors; 0
    leaves this limit unchanged.
    """
    sys.stdout = sys.stderr
    if descriptors:
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(directory, report, limits or {"connections": 20_000}))


class Scale:
    """The phases of the measurement, each of which checks that its requests were carried out."""

    def __init__(
        self, chosen: argparse.Namespace, ports: dict[str, int], report: Connection
    ) -> None:
        self._chosen = chosen
        self._ports = ports
        self._report = report
        self.results: dict[str, dict[str, Any]] = {}
        self._clients: list[AmqpSocket] = []

    async def phase(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Run one phase, and print for how long the broker's event loop was held meanwhile."""
        await asyncio.sleep(0.05)
        self._ask()
        began = time.perf_counter()
        await work()
        took = time.perf_counter() - began
        await asyncio.sleep(0.2)
        result = self._ask() | {"seconds": took}
        self.results[name] = result
        print(
            f"{name:34} {took:7.2f} s   held {result['held_ms']:6.1f} ms   late "
            f"{result['late_ms']:6.1f} ms   turn "
            f"{result['turn_ms']:6.1f} ms   collection {result['collection_ms']:5.1f} ms "
            f"(generation {result['generation']})",
            flush=True,
        )
        for line in result["long"]:
            print(f"    held {line}", flush=True)

    def _ask(self) -> dict[str, Any]:
        self._report.send(TICKS)
        answer: dict[str, Any] = self._report.recv()
        return answer

    async def run(self) -> None:
        """Run all phases in order, and print a line for each."""
        chosen = self._chosen
        self._declarers = [
            await AmqpSocket.connect(self._ports["amqp"], 1) for _ in range(DECLARERS)
        ]
        durable = not chosen.memory
        names = [f"queue-{number}" for number in range(chosen.queues)]
        each = chosen.bindings // chosen.queues
        await self.phase(
            "declare queues",
            lambda: self._declare(
                [marshal(1, spec.Queue.Declare(queue=name, durable=durable)) for name in names],
                b"\x00\x32\x00\x0b",
            ),
        )
        await self.phase(
            "bind: topic, direct, fanout, headers",
            lambda: self._declare(
                [
                    marshal(1, self._binding(name, number, which))
                    for number, name in enumerate(names)
                    for which in range(each)
                ],
                b"\x00\x32\x00\x15",
            ),
        )
        await self.phase("connect", self._connect)
        await self.phase("consume", self._consume)
        await self.phase(
            "publish by topic",
            lambda: self._publish(
                [
                    publication("amq.topic", f"sensor.{number % chosen.queues}.{number % 7}")
                    for number in range(20_000)
                ]
            ),
        )
        await self.phase(
            "publish to the default exchange",
            lambda: self._publish(
                [publication("", names[number % len(names)]) for number in range(20_000)]
            ),
        )
        await self.phase(
            "publish by headers",
            lambda: self._publish(
                [
                    publication("amq.headers", "", {"queue": number % chosen.queues, "x": 1})
                    for number in range(5_000)
                ]
            ),
        )
        await self.phase(
            "publish to all queues",
            lambda: self._publish([publication("amq.fanout", "") for _ in range(3)]),
        )
        await self.phase("acknowledge", self._acknowledge)
        await self.phase("scrape", lambda: self._get("metrics", "/metrics"))
        await self.phase("scrape per object", lambda: self._get("metrics", "/metrics/per-object"))
        await self.phase(
            "redeclare all",
            lambda: self._declare(
                [marshal(1, spec.Queue.Declare(queue=name, durable=durable)) for name in names],
                b"\x00\x32\x00\x0b",
            ),
        )
        await self.phase("close all connections at once", self._abort)
        await self.phase("connect again", self._connect)
        await self.phase("exclusive queues", self._exclusive)
        await self.phase("close connections with queues", self._abort)
        await self.phase(
            "delete half of the queues",
            lambda: self._declare(
                [marshal(1, spec.Queue.Delete(queue=name)) for name in names[: len(names) // 2]],
                b"\x00\x32\x00\x29",
            ),
        )
        await self.phase(
            "an exchange with many bindings", lambda: self._wide(names[len(names) // 2 :], durable)
        )
        await self.phase(
            "delete this exchange",
            lambda: self._declare(
                [marshal(1, spec.Exchange.Delete(exchange="wide"))], b"\x00\x28\x00\x15"
            ),
        )
        await self.phase(
            "one connection's exclusive queues", lambda: self._many_exclusive(chosen.queues)
        )
        await self.phase("close this connection", self._abort)

    def _binding(self, name: str, number: int, which: int) -> spec.Queue.Bind:
        if which == 0:
            return spec.Queue.Bind(queue=name, exchange="amq.fanout")
        if which == 1:
            return spec.Queue.Bind(
                queue=name, exchange="amq.headers", arguments={"x-match": "all", "queue": number}
            )
        if which < 5:
            return spec.Queue.Bind(
                queue=name, exchange="amq.direct", routing_key=f"direct.{number}.{which}"
            )
        if which == 5:
            return spec.Queue.Bind(
                queue=name, exchange="amq.topic", routing_key=f"sensor.{number}.*"
            )
        return spec.Queue.Bind(
            queue=name,
            exchange="amq.topic",
            routing_key=f"topic.*.{number}.{which}.#" if which % 2 else f"plant.{number}.{which}",
        )

    async def _declare(self, requests: list[bytes], answer: bytes) -> None:
        await asyncio.gather(
            *(
                client.ask(requests[at::DECLARERS], answer)
                for at, client in enumerate(self._declarers)
            )
        )

    async def _connect(self) -> None:
        chosen = self._chosen
        for _ in range(0, chosen.connections, 250):
            self._clients += await asyncio.gather(
                *(AmqpSocket.connect(self._ports["amqp"], chosen.channels) for _ in range(250))
            )

    async def _consume(self) -> None:
        chosen = self._chosen

        async def consume(client: AmqpSocket, at: int) -> None:
            for channel in range(1, chosen.channels + 1):
                name = f"queue-{(at * chosen.channels + channel - 1) % chosen.queues}"
                client.write(
                    marshal(channel, spec.Basic.Qos(prefetch_count=100))
                    + marshal(channel, spec.Basic.Consume(queue=name))
                )
            await client.wait_for(b"\x00\x3c\x00\x15", chosen.channels)

        for at in range(0, len(self._clients), 250):
            await asyncio.gather(
                *(
                    consume(client, at + number)
                    for number, client in enumerate(self._clients[at : at + 250])
                )
            )

    async def _publish(self, publications: list[bytes]) -> None:
        client = self._declarers[0]
        for at in range(0, len(publications), 500):
            client.write(b"".join(publications[at : at + 500]))
            client.write(marshal(1, spec.Basic.Qos()))
            await client.wait_for(b"\x00\x3c\x00\x0b", 1)

    async def _acknowledge(self) -> None:
        """Acknowledge all deliveries with one basic.ack per channel (flag `multiple`)."""
        chosen = self._chosen
        for client in self._clients:
            for channel in range(1, chosen.channels + 1):
                client.write(marshal(channel, spec.Basic.Qos(prefetch_count=100)))
            await client.wait_for(b"\x00\x3c\x00\x0b", chosen.channels)
            client.write(
                b"".join(
                    marshal(channel, spec.Basic.Ack(tag, True))
                    for channel, tag in client.last.items()
                )
            )

    async def _get(self, listener: str, path: str) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._ports[listener])
        writer.write(f"GET {path} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n".encode())
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 200"), answer[:100]
        writer.close()

    async def _abort(self) -> None:
        """Close the sockets of all clients at once without a handshake; wait until the broker is
        idle.
        """
        for client in self._clients:
            client.abort()
        self._clients.clear()
        await self._quiet()

    async def _quiet(self) -> None:
        """Wait until the broker is idle: it has answered 50 requests, sent 10 ms apart."""
        for _ in range(50):
            self._declarers[0].write(marshal(1, spec.Basic.Qos()))
            await self._declarers[0].wait_for(b"\x00\x3c\x00\x0b", 1)
            await asyncio.sleep(0.01)

    async def _exclusive(self) -> None:
        async def declare(client: AmqpSocket) -> None:
            await client.ask(
                [marshal(1, spec.Queue.Declare(queue="", exclusive=True)) for _ in range(5)],
                b"\x00\x32\x00\x0b",
            )
            await client.ask(
                [
                    marshal(
                        1, spec.Queue.Bind(queue="", exchange="amq.topic", routing_key=f"a.{at}.#")
                    )
                    for at in range(5)
                ],
                b"\x00\x32\x00\x15",
            )

        for at in range(0, len(self._clients), 250):
            await asyncio.gather(*(declare(client) for client in self._clients[at : at + 250]))

    async def _wide(self, names: list[str], durable: bool) -> None:
        declare = spec.Exchange.Declare(exchange="wide", exchange_type="topic", durable=durable)
        await self._declare([marshal(1, declare)], b"\x00\x28\x00\x0b")
        await self._declare(
            [
                marshal(
                    1, spec.Queue.Bind(queue=name, exchange="wide", routing_key=f"{at}.{name}.#")
                )
                for name in names
                for at in range(self._chosen.bindings // len(names))
            ],
            b"\x00\x32\x00\x15",
        )

    async def _many_exclusive(self, count: int) -> None:
        client = await AmqpSocket.connect(self._ports["amqp"], 1)
        self._clients.append(client)
        await client.ask(
            [marshal(1, spec.Queue.Declare(queue="", exclusive=True)) for _ in range(count)],
            b"\x00\x32\x00\x0b",
        )


def measure(chosen: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Run all phases against a new broker; return the clock's records of each phase, by name."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    with tempfile.TemporaryDirectory(prefix="trellis-scale-") as directory:
        server = context.Process(
            target=run_server, args=(":memory:" if chosen.memory else directory, theirs)
        )
        server.start()
        theirs.close()
        try:
            scale = Scale(chosen, ours.recv(), ours)
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(scale.run())
            ours.send("")
            server.join(PATIENCE)
        finally:
            server.kill()
            server.join()
    return scale.results


def options(arguments: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line; return the sizes and the options of the measurement."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--queues", type=int, default=10_000)
    parser.add_argument("--bindings", type=int, default=100_000)
    parser.add_argument("--connections", type=int, default=1_000)
    parser.add_argument("--channels", type=int, default=10)
    parser.add_argument(
        "--memory",
        action="store_true",
        help="measure without persistence: transient queues, no data directory",
    )
    parser.add_argument("--json", help="write the figures to this JSON file")
    return parser.parse_args(arguments)


def main() -> None:
    """Parse the command line, run the measurement, and print the longest hold of all phases."""
    chosen = options()
    print(
        f"compiled: {trellis.compiled()}, processors: {os.cpu_count()}, load: "
        f"{os.getloadavg()[0]:.1f}"
    )
    results = measure(chosen)
    worst = max(results, key=lambda name: results[name]["held_ms"])
    print(f"the longest hold of the event loop: {results[worst]['held_ms']:.1f} ms ({worst})")
    if chosen.json:
        with open(chosen.json, "w") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
