"""Replays attacks on the event loop: what one client may send that costs the broker much work.

    python benchmarks/attacks.py [ATTACK ...] [--json FILE]

Each attack runs against a new broker in a process of its own, with a clock in its event loop, as in
scale.py. Meanwhile another client asks for an answer every 5 ms (basic.qos). One line is printed
for each attack:

    held      the most CPU time in ms that the loop's thread used between two ticks of a millisecond
    answer    the longest time in ms that the other client waited for an answer
    memory    growth of the broker's resident memory in MB, some seconds after the attack
    seconds   the duration of the attack, until the broker has worked off all of it

`held` must be measured on a compiled broker and a machine without other load.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable
from itertools import islice, product
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import pamqp.commands as spec
import uvloop
from scale import PATIENCE, AmqpSocket, marshal, publication, run_server

import trellis

#: Seconds between two questions of the other client.
ASKING: Final = 0.005
#: Method identifiers of answers.
_DECLARED, _BOUND = b"\x00\x32\x00\x0b", b"\x00\x32\x00\x15"
_EXCHANGE_DECLARED, _EXCHANGE_BOUND = b"\x00\x28\x00\x0b", b"\x00\x28\x00\x1f"
_QOS_OK, _CONFIRMED, _SELECTED = b"\x00\x3c\x00\x0b", b"\x00\x3c\x00\x50", b"\x00\x55\x00\x0b"
_DELIVERED, _CONSUMING = b"\x00\x3c\x00\x3c", b"\x00\x3c\x00\x15"
_TX_SELECTED, _COMMITTED = b"\x00\x5a\x00\x0b", b"\x00\x5a\x00\x15"
_EMPTY, _DELETED = b"\x00\x3c\x00\x48", b"\x00\x32\x00\x29"


class MqttSocket:
    """An MQTT 3.1.1 client over a bare socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, port: int, name: str) -> MqttSocket:
        """Connect as the user guest."""
        client = cls(*await asyncio.open_connection("127.0.0.1", port))
        body = b"\x00\x04MQTT\x04\xc2\x00\x00" + _text(name) + _text("guest") + _text("guest")
        client.write(b"\x10" + bytes([len(body)]) + body)
        await client.packet()
        return client

    def write(self, data: bytes) -> None:
        """Write bytes."""
        self._writer.write(data)

    async def packet(self) -> bytes:
        """Return the next packet."""
        async with asyncio.timeout(PATIENCE):
            first = await self._reader.readexactly(1)
            size = shift = 0
            while True:
                digit = (await self._reader.readexactly(1))[0]
                size |= (digit & 127) << shift
                shift += 7
                if digit < 128:
                    return first + await self._reader.readexactly(size)

    async def subscribe(self, names: Iterable[str]) -> int:
        """Subscribe to the filters, 100 in a packet; return how many were refused."""
        left = iter(names)
        refused = 0
        while some := list(islice(left, 100)):
            body = b"\x00\x01" + b"".join(_text(name) + b"\x00" for name in some)
            self.write(b"\x82" + _length(len(body)) + body)
            refused += (await self.packet()).count(b"\x80")
        return refused

    async def publish(self, topics: Iterable[str]) -> None:
        """Publish a message with QoS 1 to each topic, and wait for all acknowledgements."""
        count = 0
        for count, topic in enumerate(topics, 1):
            body = _text(topic) + (count & 0x7FFF).to_bytes(2, "big") + b"x"
            self.write(b"\x32" + _length(len(body)) + body)
        while count:
            count -= (await self.packet())[0] == 0x40


def _text(value: str) -> bytes:
    return len(value.encode()).to_bytes(2, "big") + value.encode()


def _length(size: int) -> bytes:
    digits = b""
    while size > 127:
        digits += bytes([size & 127 | 128])
        size >>= 7
    return digits + bytes([size])


class Attack:
    """The clients of one attack."""

    def __init__(self, ports: dict[str, int]) -> None:
        self.ports = ports
        #: Prepares the attack; its time is not counted.
        self.client: AmqpSocket

    async def amqp(self, channels: int = 1) -> AmqpSocket:
        """Return a new AMQP client."""
        return await AmqpSocket.connect(self.ports["amqp"], channels)

    async def declare(self, names: Iterable[str], **arguments: Any) -> None:
        """Declare queues."""
        given = {name.replace("_", "-"): value for name, value in arguments.items()}
        await self.client.ask(
            (marshal(1, spec.Queue.Declare(queue=name, arguments=given)) for name in names),
            _DECLARED,
        )

    async def fill(self, queue: str, count: int) -> None:
        """Publish messages to a queue, and wait until all are confirmed."""
        client = await self.amqp()
        client.write(marshal(1, spec.Confirm.Select()))
        await client.wait_for(_SELECTED, 1)
        client.write(publication("", queue) * count)
        await self.depth(queue, count)
        client.abort()

    async def depth(self, queue: str, least: int, most: int = 1 << 60) -> None:
        """Wait until a queue holds at least and at most so many messages."""
        reader = await self.amqp()
        async with asyncio.timeout(PATIENCE):
            while True:
                declared = await _declare_ok(reader, queue)
                if least <= declared <= most:
                    break
                await asyncio.sleep(0.05)
        reader.abort()


async def _declare_ok(client: AmqpSocket, queue: str) -> int:
    """Return the number of ready messages of a queue."""
    client.write(marshal(1, spec.Queue.Declare(queue=queue, passive=True)))
    payload = await client.payload(_DECLARED)
    at = 5 + payload[4]
    return int.from_bytes(payload[at : at + 4], "big")


Prepared = Callable[[], Awaitable[None]]


async def filters(attack: Attack) -> Prepared:
    """20 clients subscribe to the combinations of `+` and `a`, one publishes to 1,000 topics."""
    readers: list[MqttSocket] = []
    for number in range(20):
        reader = await MqttSocket.connect(attack.ports["mqtt"], f"reader-{number}")
        names = (f"{number}/{'/'.join(words)}/#" for words in product("+a", repeat=10))
        refused = await reader.subscribe(names)
        assert not refused, "the filters must be just below the limit"
        readers.append(reader)
    writer = await MqttSocket.connect(attack.ports["mqtt"], "writer")
    topics = [f"{number % 20}{'/a' * 10}/{number}" for number in range(1_000)]

    async def publish() -> None:
        await writer.publish(topics)
        for reader in readers:
            for _ in range(50):
                assert (await reader.packet())[0] == 0x30

    return publish


async def patterns(attack: Attack) -> Prepared:
    """100,000 bindings full of `#` to 3,200 queues, and ten topics of 60 words."""
    queues = [f"q{number}" for number in range(3_200)]
    await attack.declare(queues)
    words = [".".join(f"#.{word}" for word in course) for course in product("ab", repeat=12)]
    await attack.client.ask(
        (
            marshal(
                1,
                spec.Queue.Bind(
                    queue=queue, exchange="amq.topic", routing_key=words[(31 * at + key) % 4096]
                ),
            )
            for at, queue in enumerate(queues)
            for key in range(31)
        ),
        _BOUND,
    )
    writer = await attack.amqp()
    keys = [".".join("ab" * 30) + f".{number}" for number in range(10)]

    async def publish() -> None:
        writer.write(marshal(1, spec.Confirm.Select()))
        await writer.wait_for(_SELECTED, 1)
        for key in keys:
            writer.write(publication("amq.topic", key))
        await _answered(writer)

    return publish


async def exchanges(attack: Attack) -> Prepared:
    """150 exchanges, each bound to all of them by ten keys, and ten messages."""
    names = [f"e{number}" for number in range(150)]
    client = attack.client
    await client.ask(
        (marshal(1, spec.Exchange.Declare(exchange=name, exchange_type="topic")) for name in names),
        _EXCHANGE_DECLARED,
    )
    await client.ask(
        (
            marshal(
                1, spec.Exchange.Bind(destination=to, source=name, routing_key=f"#{'.#' * key}")
            )
            for name in names
            for to in names
            for key in range(10)
        ),
        _EXCHANGE_BOUND,
    )
    writer = await attack.amqp()

    async def publish() -> None:
        writer.write(b"".join(publication("e0", f"a.{number}") for number in range(10)))
        await _answered(writer)

    return publish


async def copies(attack: Attack) -> Prepared:
    """5,000 patterns, and ten messages with 5,000 routing keys in the header CC."""
    await attack.declare(["q"])
    await attack.client.ask(
        (
            marshal(1, spec.Queue.Bind(queue="q", exchange="amq.topic", routing_key=f"*.{n}.#"))
            for n in range(5_000)
        ),
        _BOUND,
    )
    writer = await attack.amqp()
    keys = [f"a.{number}" for number in range(5_000)]

    async def publish() -> None:
        writer.write(publication("amq.topic", "a.b", {"CC": keys}) * 10)
        await _answered(writer)

    return publish


async def reject(attack: Attack) -> Prepared:
    """300,000 unacknowledged messages, returned to their queue with one basic.nack."""
    await attack.declare(["q"])
    await attack.fill("q", 300_000)
    reader = await attack.amqp()
    reader.write(marshal(1, spec.Basic.Consume(queue="q")))
    await reader.wait_for(_DELIVERED, 300_000)

    async def nack() -> None:
        reader.write(marshal(1, spec.Basic.Cancel(consumer_tag="")))
        reader.write(marshal(1, spec.Basic.Nack(delivery_tag=0, multiple=True, requeue=False)))
        await _answered(reader)

    return nack


async def commit(attack: Attack) -> Prepared:
    """Transactions of as many messages as fit (20,000 parts), committed five times."""
    await attack.declare(["q"])
    writer = await attack.amqp()
    writer.write(marshal(1, spec.Tx.Select()))
    await writer.wait_for(_TX_SELECTED, 1)

    async def transact() -> None:
        for _ in range(5):
            writer.write(publication("", "q") * 19_000 + marshal(1, spec.Tx.Commit()))
            await writer.wait_for(_COMMITTED, 1)

    return transact


async def expire(attack: Attack) -> Prepared:
    """200,000 messages that expire together, and become dead letters of another queue."""
    await attack.declare(
        ["dying"],
        x_message_ttl=8_000,
        x_dead_letter_exchange="",
        x_dead_letter_routing_key="dead",
    )
    await attack.declare(["dead"])
    await attack.fill("dying", 200_000)
    return lambda: attack.depth("dead", 200_000)


async def purge(attack: Attack) -> Prepared:
    """A queue with 500,000 messages is deleted."""
    await attack.declare(["q"])
    await attack.fill("q", 500_000)

    async def delete() -> None:
        attack.client.write(marshal(1, spec.Queue.Delete(queue="q")))
        await attack.client.wait_for(_DELETED, 1)

    return delete


async def subscriptions(attack: Attack) -> Prepared:
    """A queue with 100,000 bindings is deleted."""
    await attack.declare(["q"])
    await attack.client.ask(
        (
            marshal(1, spec.Queue.Bind(queue="q", exchange="amq.topic", routing_key=f"d.{n}.*"))
            for n in range(100_000)
        ),
        _BOUND,
    )

    async def delete() -> None:
        attack.client.write(marshal(1, spec.Queue.Delete(queue="q")))
        await attack.client.wait_for(_DELETED, 1)
        await _answered(attack.client)

    return delete


async def metrics(attack: Attack) -> Prepared:
    """A scrape of the metrics of 3,000 queues and 1,000 MQTT connections, one by one."""
    await attack.declare([f"q{number}" for number in range(3_000)])
    clients = [
        await MqttSocket.connect(attack.ports["mqtt"], f"device-{number}")
        for number in range(1_000)
    ]

    async def scrape() -> None:
        assert clients
        reader, writer = await asyncio.open_connection("127.0.0.1", attack.ports["metrics"])
        writer.write(b"GET /metrics/per-object HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        page = await asyncio.wait_for(reader.read(), PATIENCE)
        assert page.startswith(b"HTTP/1.1 200"), page[:200]
        writer.close()

    return scrape


ATTACKS: Final[list[Callable[[Attack], Awaitable[Prepared]]]] = [
    filters,
    patterns,
    exchanges,
    copies,
    reject,
    commit,
    expire,
    purge,
    subscriptions,
    metrics,
]


async def _answered(client: AmqpSocket) -> None:
    """Wait until the broker has handled all that this client has sent."""
    client.write(marshal(1, spec.Basic.Qos()))
    await client.wait_for(_QOS_OK, 1)


async def _ask_always(client: AmqpSocket, waits: list[float]) -> None:
    """Ask for an answer every ASKING seconds, and record how long each one took."""
    while True:
        begun = time.perf_counter()
        await _answered(client)
        waits.append(time.perf_counter() - begun)
        await asyncio.sleep(ASKING)


def _resident(pid: int) -> float:
    """Return the resident memory of a process in MB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


async def replay(
    attacker: Callable[[Attack], Awaitable[Prepared]],
    ports: dict[str, int],
    report: Connection,
    pid: int,
) -> dict[str, float]:
    """Run one attack, and return its figures."""
    attack = Attack(ports)
    attack.client = await attack.amqp()
    other = await attack.amqp()
    prepared = await attacker(attack)
    await asyncio.sleep(0.5)
    before = _resident(pid)
    report.send(True)
    report.recv()
    waits: list[float] = []
    asking = asyncio.create_task(_ask_always(other, waits))
    begun = time.perf_counter()
    await prepared()
    took = time.perf_counter() - begun
    asking.cancel()
    report.send(True)
    clock: dict[str, float] = report.recv()
    await asyncio.sleep(2)
    return {
        "held_ms": clock["held_ms"],
        "answer_ms": max(waits, default=0.0) * 1000,
        "memory_mb": _resident(pid) - before,
        "seconds": took,
    }


def measure(attacker: Callable[[Attack], Awaitable[Prepared]]) -> dict[str, float]:
    """Run one attack against a new broker, and return its figures."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    with tempfile.TemporaryDirectory(prefix="trellis-attack-") as directory:
        server = context.Process(target=run_server, args=(directory, theirs))
        server.start()
        theirs.close()
        try:
            ports = ours.recv()
            assert server.pid is not None
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                figures = runner.run(replay(attacker, ports, ours, server.pid))
            ours.send(False)
            server.join(PATIENCE)
        finally:
            server.kill()
            server.join()
    return figures


def main() -> None:
    """Run the chosen attacks, and print a line for each."""
    names = {attack.__name__: attack for attack in ATTACKS}
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "attack", nargs="*", choices=[[], *names], help=f"default: all of {', '.join(names)}"
    )
    parser.add_argument("--json", help="write the figures to this JSON file")
    chosen = parser.parse_args()
    print(
        f"compiled: {trellis.compiled()}, processors: {os.cpu_count()}, load: "
        f"{os.getloadavg()[0]:.1f}"
    )
    results: dict[str, dict[str, float]] = {}
    for name in chosen.attack or names:
        figures = results[name] = measure(names[name])
        print(
            f"{name:14} held {figures['held_ms']:7.1f} ms   answer {figures['answer_ms']:7.1f} ms"
            f"   memory {figures['memory_mb']:+7.1f} MB   {figures['seconds']:6.2f} s   "
            f"{(names[name].__doc__ or '').rstrip('.')}",
            flush=True,
        )
    if chosen.json:
        Path(chosen.json).write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
