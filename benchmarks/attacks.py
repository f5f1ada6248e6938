"""Replays attacks: permitted input from clients that costs the broker much work, memory or time.

    python benchmarks/attacks.py [ATTACK ...] [--json FILE]

Each attack runs against a new broker in a process of its own, with a clock in its event loop, as in
scale.py. During the attack, another client sends a request (basic.qos) every 5 ms. One line is
printed for each attack:

    held      the most CPU time in ms of the event loop's thread between two ticks of the clock,
              which ticks every millisecond; 0 if it is at most 2 ms. Times when the whole machine
              was slow (see control.py) are left out
    slow      the same figure for the times when the whole machine was slow
    answer    the longest time in ms that the other client waited for an answer
    memory    growth of the broker's resident memory in MB, some seconds after the attack
    recovery  for attacks of resource_attacks.py, the seconds from the end of the cause (such as the
              purge of a full queue) until clients are served again; for others, their duration
    before    the result of the attack before the broker bounded its work

`held` must be measured on a compiled broker and a machine without other load. The memory of a
broker under mixed traffic for 20 minutes is measured by mixed_churn.py.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Awaitable, Callable
from itertools import product
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import pamqp.commands as spec
import uvloop
from amqp_socket import PATIENCE, AmqpSocket, marshal, publication
from attack_clients import (
    BOUND,
    COMMITTED,
    DECLARED,
    DELETED,
    DELIVERED,
    EXCHANGE_BOUND,
    EXCHANGE_DECLARED,
    SELECTED,
    TX_SELECTED,
    Attack,
    MqttSocket,
    Prepared,
    answered,
)
from control import Control, longest
from loop_clock import TICKS
from resource_attacks import RESOURCE_ATTACKS
from scale import run_server

import trellis

#: Seconds between two requests of the client that measures `answer`.
ASKING: Final = 0.005


async def filters(attack: Attack) -> Prepared:
    """Prepare an attack: each of 20 clients subscribes to 1,024 filters, all combinations of `+`
    and `a` in ten levels; another client publishes to 1,000 topics.
    """
    readers: list[MqttSocket] = []
    for number in range(20):
        reader = await MqttSocket.connect(attack.ports["mqtt"], f"reader-{number}")
        names = (f"{number}/{'/'.join(words)}/#" for words in product("+a", repeat=10))
        refused = await reader.subscribe(names)
        assert not refused, f"the broker refused {refused} filters of client reader-{number}"
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
    """Prepare an attack: 3,200 queues have 99,200 bindings in total, each key with twelve `#`; a
    client publishes ten messages with routing keys of 61 words.
    """
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
        BOUND,
    )
    writer = await attack.amqp()
    keys = [".".join("ab" * 30) + f".{number}" for number in range(10)]

    async def publish() -> None:
        writer.write(marshal(1, spec.Confirm.Select()))
        await writer.wait_for(SELECTED, 1)
        for key in keys:
            writer.write(publication("amq.topic", key))
        await answered(writer)

    return publish


async def exchanges(attack: Attack) -> Prepared:
    """Prepare an attack: 150 exchanges are bound to each other and to themselves, each pair by ten
    bindings; a client publishes ten messages.
    """
    names = [f"e{number}" for number in range(150)]
    client = attack.client
    await client.ask(
        (marshal(1, spec.Exchange.Declare(exchange=name, exchange_type="topic")) for name in names),
        EXCHANGE_DECLARED,
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
        EXCHANGE_BOUND,
    )
    writer = await attack.amqp()

    async def publish() -> None:
        writer.write(b"".join(publication("e0", f"a.{number}") for number in range(10)))
        await answered(writer)

    return publish


async def copies(attack: Attack) -> Prepared:
    """Prepare an attack: a queue is bound with 5,000 patterns; a client publishes ten messages,
    each with 5,000 routing keys in the header CC.
    """
    await attack.declare(["q"])
    await attack.client.ask(
        (
            marshal(1, spec.Queue.Bind(queue="q", exchange="amq.topic", routing_key=f"*.{n}.#"))
            for n in range(5_000)
        ),
        BOUND,
    )
    writer = await attack.amqp()
    keys = [f"a.{number}" for number in range(5_000)]

    async def publish() -> None:
        writer.write(publication("amq.topic", "a.b", {"CC": keys}) * 10)
        await answered(writer)

    return publish


async def reject(attack: Attack) -> Prepared:
    """Prepare an attack: a client rejects 300,000 unacknowledged messages with one basic.nack,
    without requeue.
    """
    await attack.declare(["q"])
    await attack.fill("q", 300_000)
    reader = await attack.amqp()
    reader.write(marshal(1, spec.Basic.Consume(queue="q")))
    await reader.wait_for(DELIVERED, 300_000)

    async def nack() -> None:
        reader.write(marshal(1, spec.Basic.Cancel(consumer_tag="")))
        reader.write(marshal(1, spec.Basic.Nack(delivery_tag=0, multiple=True, requeue=False)))
        await answered(reader)

    return nack


async def commit(attack: Attack) -> Prepared:
    """Prepare an attack: a client commits five transactions of 19,000 messages each.

    The broker permits 20,000 messages in a transaction.
    """
    await attack.declare(["q"])
    writer = await attack.amqp()
    writer.write(marshal(1, spec.Tx.Select()))
    await writer.wait_for(TX_SELECTED, 1)

    async def transact() -> None:
        for _ in range(5):
            writer.write(publication("", "q") * 19_000 + marshal(1, spec.Tx.Commit()))
            await writer.wait_for(COMMITTED, 1)

    return transact


async def large_commit(attack: Attack) -> Prepared:
    """Prepare an attack: a client commits three transactions of 15,000 persistent messages of 15 KB
    to a durable queue.
    """
    await attack.client.ask([marshal(1, spec.Queue.Declare(queue="q", durable=True))], DECLARED)
    writer = await attack.amqp()
    writer.write(marshal(1, spec.Tx.Select()))
    await writer.wait_for(TX_SELECTED, 1)
    chunk = publication("", "q", None, 15_000, 2) * 500

    async def transact() -> None:
        for _ in range(3):
            for _ in range(30):
                writer.write(chunk)
            writer.write(marshal(1, spec.Tx.Commit()))
            await writer.wait_for(COMMITTED, 1)

    return transact


async def expire(attack: Attack) -> Prepared:
    """Prepare an attack: 200,000 messages expire together and become dead letters."""
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
    """Prepare an attack: a client deletes, and so purges, a queue with 500,000 messages."""
    await attack.declare(["q"])
    await attack.fill("q", 500_000)

    async def delete() -> None:
        attack.client.write(marshal(1, spec.Queue.Delete(queue="q")))
        await attack.client.wait_for(DELETED, 1)

    return delete


async def subscriptions(attack: Attack) -> Prepared:
    """Prepare an attack: a client deletes a queue with 100,000 bindings."""
    await attack.declare(["q"])
    await attack.client.ask(
        (
            marshal(1, spec.Queue.Bind(queue="q", exchange="amq.topic", routing_key=f"d.{n}.*"))
            for n in range(100_000)
        ),
        BOUND,
    )

    async def delete() -> None:
        attack.client.write(marshal(1, spec.Queue.Delete(queue="q")))
        await attack.client.wait_for(DELETED, 1)
        await answered(attack.client)

    return delete


async def metrics(attack: Attack) -> Prepared:
    """Prepare an attack: a client reads /metrics/per-object from a broker with 3,000 queues and
    1,000 MQTT clients.
    """
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


#: Name of an attack -> its result before the broker bounded its work: how long the event loop was
#: held, or the damage.
BEFORE: Final = {
    "filters": "128 s (one client, 65,536 filters)",
    "patterns": "63 s",
    "exchanges": "26.7 s",
    "copies": "1.3 s a message",
    "reject": "4.7 s (500,000 messages)",
    "commit": "3.3 s (one transaction of 400,000 messages)",
    "large_commit": "246 ms",
    "expire": "the messages of another queue waited 6.2 s",
    "metrics": "211 ms (5,000 connections)",
    "small_frames": "60,000 messages were lost; with 110,000, a segmentation fault",
    "cycle": "986,409 copies of one message, 1.8 GB",
    "memory": "the alarm never ended, the memory stayed at 1,065 MB",
    "disk": "the alarm never ended",
    "log": "the log had 4.8 GB after 68 s, and later still 1,234 MB",
    "descriptors": "durable confirms stopped for good",
    "pause": "the broker disconnected clients that had sent pings in time",
    "stop": "25 s; 17 s with the delayed messages",
}
#: Attack -> the settings of its broker: `limits`, `descriptors` and `parent`, as in `measure`.
ATTACKS: Final[dict[Callable[[Attack], Awaitable[Prepared]], dict[str, Any]]] = {
    filters: {},
    patterns: {},
    exchanges: {},
    copies: {},
    reject: {},
    commit: {},
    large_commit: {},
    expire: {},
    purge: {},
    subscriptions: {},
    metrics: {},
    **RESOURCE_ATTACKS,
}


async def _ask_always(client: AmqpSocket, waits: list[float]) -> None:
    """Send a request every ASKING seconds; append the seconds until its answer to `waits`."""
    while True:
        begun = time.perf_counter()
        await answered(client)
        waits.append(time.perf_counter() - begun)
        await asyncio.sleep(ASKING)


def _resident(pid: int) -> float:
    """Return the resident memory (RSS) of a process in MB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


async def replay(
    attacker: Callable[[Attack], Awaitable[Prepared]], attack: Attack, report: Connection
) -> dict[str, float]:
    """Run one attack, and return its figures."""
    attack.client = await attack.amqp()
    other = await attack.amqp()
    prepared = await attacker(attack)
    await asyncio.sleep(0.5)
    before = _resident(attack.pid)
    report.send(TICKS)
    report.recv()
    control = Control()
    waits: list[float] = []
    asking = asyncio.create_task(_ask_always(other, waits))
    begun = time.perf_counter()
    await prepared()
    took = time.perf_counter() - begun
    asking.cancel()
    report.send(TICKS)
    clock: dict[str, Any] = report.recv()
    held, slow = longest(clock["holds"], control.stop())
    await asyncio.sleep(attack.rest)
    return {
        "held_ms": held * 1000,
        "slow_ms": slow * 1000,
        "answer_ms": max(waits, default=0.0) * 1000,
        "memory_mb": _resident(attack.pid) - before,
        "seconds": took,
        "recovery": attack.recovery or took,
    }


def measure(
    attacker: Callable[[Attack], Awaitable[Prepared]],
    limits: dict[str, Any] | None = None,
    descriptors: int = 0,
    parent: str | None = None,
) -> tuple[dict[str, float], str]:
    """Run one attack against a new broker, and return the attack's figures and notes.

    `limits` are the broker's limits, `descriptors` is its hard limit of file descriptors (0:
    unchanged), and `parent` is the directory of its data directory.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    with tempfile.TemporaryDirectory(prefix="trellis-attack-", dir=parent) as directory:
        server = context.Process(target=run_server, args=(directory, theirs, limits, descriptors))
        server.start()
        theirs.close()
        try:
            ports = ours.recv()
            assert server.pid is not None
            attack = Attack(ports, server.pid, directory)
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                figures = runner.run(replay(attacker, attack, ours))
            begun = time.perf_counter()
            ours.send("")
            server.join(PATIENCE)
            if attack.measures_stop:
                figures["recovery"] = time.perf_counter() - begun
        finally:
            server.kill()
            server.join()
    return figures, attack.notes


def main() -> None:
    """Run the chosen attacks, and print a line for each."""
    names = {attack.__name__: attack for attack in ATTACKS}
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "attack", nargs="*", choices=[[], *names], help=f"attacks to run: {', '.join(names)} [all]"
    )
    parser.add_argument("--json", help="write the figures to this JSON file")
    chosen = parser.parse_args()
    print(
        f"compiled: {trellis.compiled()}, processors: {os.cpu_count()}, load average: "
        f"{os.getloadavg()[0]:.1f}"
    )
    results: dict[str, dict[str, float]] = {}
    for name in chosen.attack or names:
        figures, notes = measure(names[name], **ATTACKS[names[name]])
        results[name] = figures
        print(
            f"{name:14} held {figures['held_ms']:7.1f} ms   slow {figures['slow_ms']:7.1f} ms"
            f"   answer {figures['answer_ms']:7.1f} ms"
            f"   memory {figures['memory_mb']:+7.1f} MB   recovery {figures['recovery']:6.2f} s   "
            f"before: {BEFORE.get(name, 'not measured')}   {notes}",
            flush=True,
        )
    if chosen.json:
        Path(chosen.json).write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
