"""Attacks on memory, the disk, file descriptors and time, which attacks.py replays.

Each attack measures `Attack.recovery`: the time from the end of the attack's cause (for example,
from the purge of a full queue) until the broker serves its clients again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import pamqp.commands as spec
from amqp_socket import PATIENCE, AmqpSocket, marshal, publication
from attack_clients import (
    BOUND,
    CONSUMING,
    DECLARED,
    EXCHANGE_DECLARED,
    PURGED,
    Attack,
    MqttSocket,
    Prepared,
    answered,
    ready_messages,
)

#: The directory of the attack on disk space: a file system that nothing else fills meanwhile.
SHARED_MEMORY: Final = "/dev/shm"
_MB: Final = 1_000_000
#: Free disk space in the attack on disk space, in bytes: the disk reserve, plus the space for the
#: queue.
_DISK_ROOM: Final = 150 * _MB + 300 * _MB
#: Attack `descriptors`: the broker's hard limit of file descriptors, and the number of connections
#: that a client tries to open.
_DESCRIPTORS: Final = 256
_CONNECTIONS: Final = 400
#: Seconds for which the broker's process is stopped, and the keep-alive in seconds of a client that
#: continues to send.
_STOPPED: Final = 30
_KEEP_ALIVE: Final = 5
#: Seconds of publishing at full speed.
_FULL_SPEED: Final = 30


async def small_frames(attack: Attack) -> Prepared:
    """Prepare an attack: clients with a frame limit of 4 KiB poll a queue of 60,000 messages, each
    with headers larger than 4 KiB.
    """
    await attack.declare(["q"])
    writer = await attack.amqp()
    for _ in range(60):
        writer.write(publication("", "q", {"x": "y" * 4_500}, 10) * 1_000)
        await answered(writer)

    async def poll() -> None:
        for _ in range(20):
            client = await AmqpSocket.connect(attack.ports["amqp"], 1, 4_096)
            client.write(marshal(1, spec.Basic.Get(queue="q")))
            # The broker closes the channel with 406, because the message does not fit into the
            # client's frames.
            with contextlib.suppress(SystemExit):
                await client.wait_for(b"\x00\x3c\x00\x47", 1)
                raise AssertionError("the broker delivered a message larger than the frame limit")
            client.abort()
        begun = time.perf_counter()
        assert await ready_messages(attack.client, "q") == 60_000
        attack.recovery = time.perf_counter() - begun

    return poll


async def cycle(attack: Attack) -> Prepared:
    """Prepare an attack: nine queues with TTL 0 dead-letter to a fanout exchange that is bound to
    all of them.
    """
    await attack.client.ask(
        [marshal(1, spec.Exchange.Declare(exchange="f", exchange_type="fanout"))], EXCHANGE_DECLARED
    )
    names = [f"q{number}" for number in range(9)]
    await attack.declare(names, x_message_ttl=0, x_dead_letter_exchange="f")
    await attack.client.ask(
        [marshal(1, spec.Queue.Bind(queue=name, exchange="f")) for name in names], BOUND
    )
    writer = await attack.amqp()

    async def publish() -> None:
        writer.write(publication("f", "") * 100)
        await answered(writer)
        begun = time.perf_counter()
        for name in names:
            await attack.depth(name, 0, 0)
        attack.recovery = time.perf_counter() - begun

    return publish


async def _outgrow(attack: Attack, one: bytes, count: int) -> None:
    """Publish more messages than the broker has room for; purge the queue whenever it is full.

    The encoded message `one` is published `count` times. The queue is full when it stops growing.
    The recovery is the longest time from a purge until the queue grows again.
    """
    writer = await attack.amqp()
    writer.write(one * count)
    gone = depth = rounds = 0
    purged = 0.0
    async with asyncio.timeout(PATIENCE):
        while gone < count:
            before = depth
            await asyncio.sleep(0.4)
            depth = await ready_messages(attack.client, "q")
            if purged and depth:
                attack.recovery = max(attack.recovery, time.perf_counter() - purged)
                purged = 0.0
            if depth and depth == before:
                attack.client.write(marshal(1, spec.Queue.Purge(queue="q")))
                payload = await attack.client.payload(PURGED)
                gone += int.from_bytes(payload[4:8], "big")
                purged, depth = time.perf_counter(), 0
                rounds += 1
    assert rounds > 1, "the memory alarm never began"


async def memory(attack: Attack) -> Prepared:
    """Prepare an attack: a queue grows to the memory limit (300 MB) and is purged, repeatedly,
    until 1.2 GB have been published.
    """
    await attack.declare(["q"])
    attack.rest = 12.0  # The broker gives freed memory back to the system once in 10 s.
    return lambda: _outgrow(attack, publication("", "q", None, 10_000), 120_000)


async def disk(attack: Attack) -> Prepared:
    """Prepare an attack: a durable queue grows until 300 MB of disk are used and is purged,
    repeatedly, until 1.2 GB have been published.
    """
    await attack.client.ask([marshal(1, spec.Queue.Declare(queue="q", durable=True))], DECLARED)
    return lambda: _outgrow(attack, publication("", "q", None, 10_000, 2), 120_000)


def _log_size(directory: str) -> int:
    size = 0
    for path in Path(directory, "log").iterdir():
        with contextlib.suppress(FileNotFoundError):
            size += path.stat().st_size
    return size


async def log(attack: Attack) -> Prepared:
    """Prepare an attack: a client publishes persistent messages of 4 KB at full speed for 30 s,
    while another client consumes them.
    """
    await attack.client.ask([marshal(1, spec.Queue.Declare(queue="q", durable=True))], DECLARED)
    writer, reader = await attack.amqp(), await attack.amqp()
    reader.write(marshal(1, spec.Basic.Consume(queue="q", no_ack=True)))
    await reader.wait_for(CONSUMING, 1)
    chunk = publication("", "q", None, 4_000, 2) * 1_000

    async def publish() -> None:
        reading = asyncio.create_task(reader.wait_for(b"\x00\x00\x00\x00", 1))
        begun = time.perf_counter()
        written = excess = 0
        while time.perf_counter() < begun + _FULL_SPEED:
            writer.write(chunk)
            await answered(writer)
            written += len(chunk)
            if written // len(chunk) % 20 == 0 and time.perf_counter() > begun + 10:
                live = 4_200 * await ready_messages(attack.client, "q")
                excess = max(excess, _log_size(attack.directory) - 3 * live)
        await attack.depth("q", 0, 0)
        empty = time.perf_counter()
        while _log_size(attack.directory) > 64 * _MB:
            assert time.perf_counter() < empty + PATIENCE, (
                "the log of the empty queue is still larger than 64 MB"
            )
            await asyncio.sleep(0.1)
        attack.recovery = time.perf_counter() - empty
        reading.cancel()
        attack.notes = (
            f"{written / _MB:.0f} MB written; the log exceeded three times its live records by at "
            f"most {excess / _MB:.0f} MB; its size was {_log_size(attack.directory) / _MB:.0f} MB "
            "at the end"
        )

    return publish


async def descriptors(attack: Attack) -> Prepared:
    """Prepare an attack: a client opens 400 connections to a broker with 256 file descriptors,
    while another client publishes to a durable queue.
    """
    await attack.client.ask([marshal(1, spec.Queue.Declare(queue="q", durable=True))], DECLARED)
    await attack.client.ask(
        [marshal(1, spec.Queue.Bind(queue="q", exchange="amq.topic", routing_key="#"))], BOUND
    )
    writer = await MqttSocket.connect(attack.ports["mqtt"], "writer")

    async def connect() -> None:
        loop = asyncio.get_running_loop()
        opening = [
            asyncio.create_task(asyncio.open_connection("127.0.0.1", attack.ports[name]))
            for name in ("amqp", "mqtt", "metrics", "http")
            for _ in range(_CONNECTIONS // 4)
        ]
        await asyncio.wait(opening, timeout=3)
        await writer.publish(f"t/{number}" for number in range(20_000))
        await attack.declare(["late"])
        assert await ready_messages(attack.client, "q") == 20_000
        for task in opening:
            if task.done() and task.exception() is None:
                task.result()[1].transport.abort()
            task.cancel()
        begun = loop.time()
        while True:
            try:
                client = await asyncio.wait_for(attack.amqp(), 1)
                break
            except (OSError, EOFError, TimeoutError):
                await asyncio.sleep(0.02)
        await answered(client)
        attack.recovery = loop.time() - begun

    return connect


async def pause(attack: Attack) -> Prepared:
    """Prepare an attack: pause the broker's process for 30 s, while a client with a keep-alive of 5
    s sends pings.
    """
    client = await MqttSocket.connect(attack.ports["mqtt"], "alive", _KEEP_ALIVE)

    async def stop() -> None:
        os.kill(attack.pid, signal.SIGSTOP)
        for _ in range(_STOPPED):
            client.write(b"\xc0\x00")
            await asyncio.sleep(1)
        os.kill(attack.pid, signal.SIGCONT)
        begun = time.perf_counter()
        for at in range(_STOPPED):
            assert (await client.packet())[0] == 0xD0, "the broker did not answer a ping"
            if at == 0:
                attack.recovery = time.perf_counter() - begun
        await asyncio.sleep(2)
        client.write(b"\xc0\x00")
        assert (await client.packet())[0] == 0xD0, "the broker did not answer a ping"

    return stop


async def stop(attack: Attack) -> Prepared:
    """Prepare an attack: stop a broker that holds 1,000,000 dead-lettered and 300,000 delayed
    messages.
    """
    await attack.declare(["dead"])
    await attack.declare(
        ["dying"], x_message_ttl=1, x_dead_letter_exchange="", x_dead_letter_routing_key="dead"
    )
    await attack.client.ask(
        [
            marshal(
                1,
                spec.Exchange.Declare(
                    exchange="later",
                    exchange_type="x-delayed-message",
                    arguments={"x-delayed-type": "direct"},
                ),
            )
        ],
        EXCHANGE_DECLARED,
    )
    writer = await attack.amqp()
    for key, headers, exchange, chunks in (
        ("dying", None, "", 100),
        ("dead", {"x-delay": 3_600_000}, "later", 30),
    ):
        chunk = publication(exchange, key, headers) * 10_000
        for _ in range(chunks):
            writer.write(chunk)
            await answered(writer)
    await attack.depth("dead", 1_000_000)
    attack.measures_stop = True
    return lambda: answered(attack.client)


#: Each attack, and the settings of its broker: `limits`, `descriptors`, `parent` (a directory).
RESOURCE_ATTACKS: Final[dict[Callable[[Attack], Awaitable[Prepared]], dict[str, Any]]] = {
    small_frames: {},
    cycle: {},
    memory: {
        "limits": {"memory": 300 * _MB / (os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))}
    },
    disk: {
        "limits": {"disk_free": shutil.disk_usage(SHARED_MEMORY).free - _DISK_ROOM},
        "parent": SHARED_MEMORY,
    }
    if os.path.isdir(SHARED_MEMORY)
    else {},
    log: {},
    descriptors: {"limits": {}, "descriptors": _DESCRIPTORS},
    pause: {},
    stop: {},
}
