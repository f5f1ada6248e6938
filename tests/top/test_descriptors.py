"""Brokers with few file descriptors: durable messages are confirmed, with any number of clients."""

from __future__ import annotations

import errno
import os
import resource
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pamqp.body
import pamqp.commands as spec
import pytest

from broker.store.disk import RealDisk
from tests.broker import BrokerProcess, environment
from tests.clients import marshal, publication
from tests.top.conftest import Start
from tests.top.disks import HandledDisk
from tests.top.running import Amqp0, Socket
from tests.top.test_storing import at, confirmed, confirming, of, publish
from trellis.server import durable_store_writer as storing
from trellis.server.descriptors import DescriptorShares
from trellis.settings import SettingsError


async def _client(broker: BrokerProcess) -> Amqp0:
    client = Amqp0(await Socket.connect(broker.addresses["amqp"].port))
    await client.log_in("guest", "guest")
    return client


async def _client_once_accepted(broker: BrokerProcess) -> Amqp0:
    """Repeat the login until it succeeds, and return the client.

    A login fails until the broker has noticed that other clients have disconnected.
    """
    for _ in range(1_000):
        client = Amqp0(await Socket.connect(broker.addresses["amqp"].port))
        try:
            await client.log_in("guest", "guest")
        except (AssertionError, ConnectionError):
            continue
        return client
    raise AssertionError("the broker accepted none of 1,000 connections")


async def _confirm(client: Amqp0, names: list[str], published: int) -> int:
    """Publish a message of 20 kB to each queue; wait for the confirms and return the last tag."""
    await client.socket.send(
        b"".join(publication("", name, bytes(20_000), delivery_mode=2) for name in names)
    )
    await confirmed(client, published + len(names))
    return published + len(names)


@pytest.mark.parametrize(
    ("limit", "streams"),
    [
        (64, 0),
        (256, 40),
        pytest.param(1_024, 1_000, marks=pytest.mark.long),
    ],
)
async def test_clients_that_take_all_descriptors_leave_the_store_its_own(
    limit: int, streams: int, tmp_path: Path
) -> None:
    flags = ("--data-dir", str(tmp_path), "--store-segment", "65536", "--shutdown-grace", "0.1")
    broker = BrokerProcess(*flags, descriptors=limit)
    try:
        client = await _client(broker)
        await client.call(spec.Confirm.Select(), spec.Confirm.SelectOk)
        names = ["q"] * 20
        await client.queue("q", durable=True)
        for number in range(streams):
            names.append(f"s{number}")
            await client.queue(names[-1], durable=True, arguments={"x-queue-type": "stream"})
        published = 0
        for _ in range(0, len(names), 20):
            part = names[published : published + 20]
            published = await _confirm(client, part, published)
        others = []
        for listener in ("amqp", "mqtt", "metrics", "http"):
            for _ in range(limit // 2):
                other = socket.socket()
                other.setblocking(False)
                other.connect_ex(("127.0.0.1", broker.addresses[listener].port))
                others.append(other)
        # The declaration shows that the catalog can still be written.
        await client.queue("late", durable=True)
        for _ in range(5):  # Each round fills several segments of the log.
            published = await _confirm(client, names[:40], published)
        for other in others:
            other.close()
        # The broker accepts connections again, also on the metrics port.
        reader = await _client_once_accepted(broker)
        await reader.call(
            spec.Basic.Consume(queue="q", consumer_tag="q", no_ack=True), spec.Basic.ConsumeOk
        )
        bodies = 0
        while bodies < names.count("q"):
            bodies += isinstance(await reader.frame(), pamqp.body.ContentBody)
        assert len(os.listdir(f"/proc/{broker.process.pid}/fd")) < limit
        client.socket.close()
        reader.socket.close()
        assert broker.log.count("\n") < 20
        broker.stop()  # The broker has logged no error.
    finally:
        broker.kill()
    again = BrokerProcess(*flags, descriptors=limit)
    again.stop()
    again.kill()


def test_a_limit_that_is_too_low_is_refused_with_a_remedy() -> None:
    shares = DescriptorShares(40)
    shares.open = 24
    with pytest.raises(SettingsError, match=r"limit of file descriptors is 40, .* `ulimit -n`"):
        _ = shares.clients


@pytest.mark.parametrize("limit", [64, 256, 1_024, 65_536, 1 << 20])
def test_the_shares_fit_into_the_limit_and_leave_most_to_clients(limit: int) -> None:
    shares = DescriptorShares(limit)
    shares.open = 24
    assert shares.spares >= 4
    assert shares.clients + shares.log_files + 2 * shares.stream_files + shares.http < limit
    assert shares.clients > (0.7 * limit if limit > 1_000 else 4)


def test_spare_descriptors_open_files_when_none_is_left(tmp_path: Path) -> None:
    disk = RealDisk(3)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    held: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, hard))
    try:
        while len(held) <= highest:
            try:
                held.append(os.open(os.devnull, os.O_RDONLY))
            except OSError:
                break
        assert 0 < len(held) <= highest
        one = disk.create(f"{tmp_path}/one")
        one.write(0, b"durable")
        disk.sync_directory(str(tmp_path))
        assert disk.list(str(tmp_path)) == ["one"]
        two = disk.open(f"{tmp_path}/one", False)
        with pytest.raises(OSError):
            held.append(os.open(os.devnull, os.O_RDONLY))
        three = disk.open(f"{tmp_path}/one", False)
        with pytest.raises(OSError):
            disk.open(f"{tmp_path}/one", False)
        for file in (one, two, three):
            file.close()
        disk.keep_spares()
        with pytest.raises(OSError):
            held.append(os.open(os.devnull, os.O_RDONLY))
        assert two is not three
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in held:
            os.close(descriptor)
        disk.close_spares()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
@pytest.mark.parametrize(
    ("kind", "operation"), [("classic", "create"), ("stream", "create"), ("stream", "opendir")]
)
async def test_a_store_without_descriptors_waits_and_goes_on(
    kind: str,
    operation: str,
    number: int,
    start: Start,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(storing, "RETRY_SECONDS", 0.005)
    disk = HandledDisk()
    running = await start(disk=disk, **at(tmp_path, segment=65_536))
    client = await confirming(running, "other")
    await client.queue(
        "q",
        durable=True,
        arguments={"x-queue-type": kind, "x-stream-max-segment-size-bytes": 1_000_000}
        if kind == "stream"
        else {},
    )
    body = bytes(70_000)  # Each message fills a segment of the log.
    await publish(client, body)
    await confirmed(client, 1)
    disk.refuse = lambda attempt, path: number if attempt == operation else 0
    await publish(client, *[body] * 20)
    await publish(client, body, queue="other")
    await running.until(lambda: of(running).full_disk_failures > 3)
    assert of(running).blocked_reason
    disk.refuse = lambda attempt, path: 0
    await confirmed(client, 22)
    assert of(running).blocked_reason == ""
    await client.socket.send(marshal(1, spec.Queue.Declare(queue="q", passive=True)))
    assert (await client.expect(spec.Queue.DeclareOk)).message_count == 21
    caplog.clear()  # The blocked store was logged as an error.
    await running.stop()
    again = await start(**at(tmp_path))
    reader = await again.amqp()
    await reader.socket.send(marshal(1, spec.Queue.Declare(queue="q", passive=True)))
    assert (await reader.expect(spec.Queue.DeclareOk)).message_count == 21


async def test_more_connections_than_descriptors_are_not_allowed(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    running = await start(limits={"connections": 1 << 30})
    assert running.node.admission.connections == running.node.descriptors.clients
    assert any("connections_limited" in record.getMessage() for record in caplog.records)
    few = await start(limits={"connections": 7})
    assert few.node.admission.connections == 7


def test_no_module_is_imported_after_the_start() -> None:
    """The broker must import all its modules at the start, except those of the HTTP API.

    An import opens a file, so it would fail when the process has run out of file descriptors. The
    modules of the API are imported before its process starts for the first time, which needs file
    descriptors, too; later requests import nothing.
    """
    script = textwrap.dedent("""
        import asyncio, sys
        from tests.top.api_client import ADMIN, api
        from tests.top.running import KNOWN, Running, settings
        from tests.clients import mqtt_publish
        import tempfile, pamqp.commands as spec
        async def main(directory):
            chosen = settings(data={"dir": directory}, users=[KNOWN, ADMIN])
            await use(Running(chosen), False)
            await use(Running(chosen), True)
        async def use(running, watch):
            await running.start()
            before = set(sys.modules)
            client = await running.amqp()
            await client.queue("q", "amq.topic", "q", durable=True)
            await client.call(spec.Confirm.Select(), spec.Confirm.SelectOk)
            sensor = await running.mqtt("sensor")
            await sensor.subscribe("#", 1)
            await sensor.socket.send(mqtt_publish("q", b"x", 1, 1))
            await sensor.packet()
            refused = await running.socket("amqp")
            await refused.send(b"GET / HTTP/1.1")
            for path in ("/metrics", "/metrics/per-object", "/readyz", "/nothing"):
                await running.get("metrics", path)
            print(" ".join(sorted(set(sys.modules) - before)))
            assert (await api(running, "GET", "overview"))[0] == 200
            before = set(sys.modules)
            for path in ("connections", "queues", "bindings", "definitions", "exchanges", "users"):
                assert (await api(running, "GET", path))[0] == 200
            print(" ".join(sorted(set(sys.modules) - before)))
            for socket in (client.socket, sensor.socket, refused):
                socket.close()
            await running.stop()
        with tempfile.TemporaryDirectory() as directory:
            asyncio.run(main(directory))
    """)
    completed = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env=environment(),
        check=True,
        timeout=60,
    )
    lines = [line for line in completed.stdout.splitlines() if not line.startswith("ready")]
    assert lines[:2] == ["", ""], lines
