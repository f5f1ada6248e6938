"""Tests of the store writer: clients that wait for the disk, stops of the broker, failed disks."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from pathlib import Path
from typing import Any

import pamqp.body
import pamqp.commands as spec
import pytest

import trellis
from broker.store.checkpoint import Checkpointing
from broker.store.disk import DirectoryLocked
from tests.clients import marshal, mqtt_publish, publication
from tests.top.conftest import Start
from tests.top.disks import PATIENCE, HandledDisk
from tests.top.running import Amqp0, Running
from trellis.server import durable_store_writer as storing
from trellis.server.durable_store_writer import DurableStoreWriter

#: The smallest segments that settings allow.
SMALL = {"segment": 65_536}


def at(directory: Path, **store: int) -> dict[str, Any]:
    """Return settings with a data directory."""
    return {"data": {"dir": str(directory)}, "store": store}


def of(running: Running) -> DurableStoreWriter:
    writer = running.node.store_writer
    assert isinstance(writer, DurableStoreWriter)
    return writer


async def confirming(running: Running, queue: str = "q") -> Amqp0:
    client = await running.amqp()
    await client.queue(queue, durable=True)
    await client.call(spec.Confirm.Select(), spec.Confirm.SelectOk)
    return client


async def publish(client: Amqp0, *bodies: bytes, queue: str = "q", delivery_mode: int = 2) -> None:
    await client.socket.send(
        b"".join(publication("", queue, body, delivery_mode=delivery_mode) for body in bodies)
    )


async def heard(client: Amqp0) -> None:
    """Wait until the broker has handled all data that the client has sent before.

    This does not wait for the disk.
    """
    await client.call(spec.Channel.Flow(True), spec.Channel.FlowOk)


async def confirmed(client: Amqp0, number: int) -> None:
    """Wait until the broker has confirmed the message with the delivery tag `number`."""
    while (await client.expect(spec.Basic.Ack)).delivery_tag < number:
        pass


async def bodies(client: Amqp0, queue: str, count: int) -> list[bytes]:
    """Read and acknowledge a number of messages of a queue."""
    await client.socket.send(marshal(1, spec.Basic.Consume(queue=queue, consumer_tag=queue)))
    received: list[bytes] = []
    while len(received) < count:
        frame = await client.frame()
        if isinstance(frame, pamqp.body.ContentBody):
            received.append(frame.value)
    await client.socket.send(marshal(1, spec.Basic.Ack(count, True)))
    return received


async def test_a_slow_disk_holds_back_confirms_and_nothing_else(
    start: Start, tmp_path: Path
) -> None:
    disk = HandledDisk()
    running = await start(disk=disk, **at(tmp_path))
    client, other, sensor = (
        await confirming(running),
        await confirming(running),
        await running.mqtt("sensor"),
    )
    disk.open_for_syncs.clear()
    await publish(client, b"waits")
    await heard(client)
    await sensor.socket.send(mqtt_publish("a", b"to no queue", 1, 1))
    assert await sensor.packet() == (0x40, b"\x00\x01")
    await publish(other, b"is not kept", delivery_mode=1)
    await confirmed(other, 1)
    # The reader need not wait: a delivery does not imply that a message is durable.
    reader = await running.amqp()
    assert await bodies(reader, "q", 2) == [b"waits", b"is not kept"]
    await heard(client)
    disk.open_for_syncs.set()
    await confirmed(client, 1)


async def test_one_sync_confirms_all_publishers_that_waited_for_the_busy_disk(
    start: Start, tmp_path: Path
) -> None:
    disk = HandledDisk()
    running = await start(disk=disk, **at(tmp_path))
    clients = [await confirming(running) for _ in range(5)]
    await publish(clients[0], b"first")
    await confirmed(clients[0], 1)
    disk.open_for_syncs.clear()
    before = disk.syncs
    for client in clients:
        await publish(client, b"one")
        await heard(client)
    disk.open_for_syncs.set()
    for client in clients:
        await confirmed(client, 2 if client is clients[0] else 1)
    assert disk.syncs - before <= 2


@pytest.mark.parametrize("protocol", ["amqp", "mqtt"])
async def test_publishers_above_the_backlog_of_the_disk_wait_and_continue(
    protocol: str, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storing, "BACKLOG_BYTES", 100_000)
    disk = HandledDisk()
    running = await start(disk=disk, **at(tmp_path))
    bystander = await running.amqp()
    await bystander.queue("q", "amq.topic", "q", durable=True)
    disk.open_for_syncs.clear()
    body, count = bytes(4_000), 1_000
    if protocol == "amqp":
        client = await running.amqp()
        await client.call(spec.Confirm.Select(), spec.Confirm.SelectOk)
        data = publication("amq.topic", "q", body, delivery_mode=2) * count
        sock = client.socket
    else:
        sensor = await running.mqtt("sensor")
        data = b"".join(mqtt_publish("q", body, 1, packet_id) for packet_id in range(1, count + 1))
        sock = sensor.socket
    sending = asyncio.create_task(sock.send(data))
    await running.until(lambda: of(running).backlogged)
    for _ in range(20):
        await heard(bystander)  # The broker still reads from other clients.
    held = of(running).durable.unwritten_bytes
    # The broker stops reading from the sensor after the chunk that exceeds the limit.
    assert held < 100_000 + 2 * (256 << 10)
    for _ in range(20):
        await heard(bystander)
    assert of(running).durable.unwritten_bytes == held
    disk.open_for_syncs.set()
    if protocol == "amqp":
        await confirmed(client, count)
    else:
        for packet_id in range(1, count + 1):
            assert await sensor.packet() == (0x40, packet_id.to_bytes(2, "big"))
    await sending
    assert not of(running).backlogged
    assert running.node.broker.vhosts["/"].queues["q"].depth == count


@pytest.mark.skipif(trellis.compiled(), reason="compiled modules keep constants")
async def test_input_that_waited_for_its_turn_ends_the_reading_above_the_backlog(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storing, "BACKLOG_BYTES", 0)
    disk = HandledDisk()
    running = await start(disk=disk, **at(tmp_path))
    bystander, sensor = await running.amqp(), await running.mqtt("sensor")
    await bystander.queue("q", "amq.topic", "q", durable=True)
    # Each chunk waits for its turn.
    monkeypatch.setattr("trellis.server.turn.INPUT_SECONDS", -1.0)
    disk.open_for_syncs.clear()
    (connection,) = running.node.mqtt.connections
    (link,) = (one for one in running.links if one._connection is connection)
    await sensor.socket.send(mqtt_publish("q", bytes(8_000), 1, 1))
    await running.until(lambda: of(running).backlogged)
    await sensor.socket.send(mqtt_publish("q", bytes(8_000), 1, 2))
    for _ in range(20):
        await heard(bystander)
    assert not link._reading and link._unread_input is None
    disk.open_for_syncs.set()
    for packet_id in (1, 2):
        assert await sensor.packet() == (0x40, packet_id.to_bytes(2, "big"))


async def test_clean_stop_writes_the_remaining_entries(start: Start, tmp_path: Path) -> None:
    disk = HandledDisk()
    running = await start(disk=disk, **at(tmp_path))
    client = await confirming(running)
    disk.open_for_syncs.clear()
    for body in (b"1", b"2", b"3"):  # The first message is being written, the others wait.
        await publish(client, body)
        await heard(client)
    stopping = asyncio.create_task(running.stop())
    await client.expect(spec.Connection.Close)
    await running.until(lambda: of(running)._closing)
    await asyncio.sleep(0.01)
    assert not stopping.done()
    disk.open_for_syncs.set()
    await stopping
    client.socket.close()

    assert not [name for name in os.listdir(tmp_path) if name.startswith("catalog.sqlite-")]
    again = await start(**at(tmp_path))
    assert await bodies(await again.amqp(), "q", 3) == [b"1", b"2", b"3"]


async def test_checkpoints_give_space_back_while_messages_flow(
    start: Start, tmp_path: Path
) -> None:
    running = await start(**at(tmp_path, segment=1 << 20))
    client, reader = await confirming(running), await running.amqp()
    await client.queue("stays", durable=True)
    await client.call(spec.Basic.Qos(0, 0), spec.Basic.QosOk)
    await reader.call(
        spec.Basic.Consume(queue="q", consumer_tag="q", no_ack=True), spec.Basic.ConsumeOk
    )
    written, number = 0, 0
    body = bytes(8_000)
    while of(running).checkpoints < 5:
        await publish(client, *[body] * 20)
        await publish(client, b"%d" % number, queue="stays")
        number += 1
        written += 20 * len(body)
        await confirmed(client, 21 * number)
        read = 0
        while read < 20:
            read += isinstance(await reader.frame(), pamqp.body.ContentBody)
        assert written < 100 << 20, "there are no checkpoints"
    await running.until(lambda: of(running)._work is None)
    assert of(running).durable.log.size < written / 2
    await running.stop()
    files = os.listdir(tmp_path / "log")
    assert sum(name.startswith("checkpoint") for name in files) == 1 and not [
        name for name in files if name.endswith(".tmp")
    ]

    again = await start(**at(tmp_path, **SMALL))
    assert await bodies(await again.amqp(), "stays", number) == [
        b"%d" % one for one in range(number)
    ]


@pytest.mark.alone
async def test_a_stop_does_not_wait_for_a_checkpoint(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A pause between its steps makes the checkpoint take long.
    monkeypatch.setattr(storing, "CHECKPOINT_PAUSE", 0.2)
    running = await start(**at(tmp_path, **SMALL))
    client = await confirming(running)
    reader = await running.amqp()
    await reader.queue("stays", durable=True)
    number = 0
    while not isinstance(of(running)._work, Checkpointing):
        await publish(client, *[bytes(8_000)] * 20)
        await publish(client, b"live", queue="stays")
        number += 21
        await confirmed(client, number)
        await reader.call(spec.Queue.Purge(queue="q"), spec.Queue.PurgeOk)
    await publish(client, b"last")
    await confirmed(client, number + 1)
    began = asyncio.get_running_loop().time()
    await running.stop()
    assert asyncio.get_running_loop().time() - began < 1.5
    assert not [name for name in os.listdir(tmp_path / "log") if name.endswith(".tmp")]
    again = await start(**at(tmp_path, **SMALL))
    assert await bodies(await again.amqp(), "q", 1) == [b"last"]


async def test_an_idle_broker_gives_space_back_and_after_a_restart_too(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storing, "LOOK_SECONDS", 0.01)
    running = await start(**at(tmp_path, **SMALL))
    client = await confirming(running)
    await publish(client, *[bytes(8_000)] * 200)
    await confirmed(client, 200)
    log = of(running).durable.log
    assert log.size > 1_600_000
    await client.call(spec.Queue.Purge(queue="q"), spec.Queue.PurgeOk)
    await running.until(lambda: of(running).dropped_bytes > 1_000_000)
    await running.until(lambda: log.size < 2 * SMALL["segment"])
    await publish(client, *[bytes(8_000)] * 200)
    await confirmed(client, 400)
    await client.call(spec.Queue.Purge(queue="q"), spec.Queue.PurgeOk)
    await running.stop()
    again = await start(**at(tmp_path, **SMALL))
    await again.until(lambda: of(again).durable.log.size < 500)
    assert await (await again.amqp()).call(
        spec.Queue.Declare(queue="q", passive=True), spec.Queue.DeclareOk
    )


async def test_a_log_is_not_read_again_and_again_while_the_disk_is_short(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a checkpoint would free too little space, the broker must not read the log again."""
    monkeypatch.setattr(storing, "LOOK_SECONDS", 1_000_000.0)
    disk = HandledDisk()
    running = await start(disk=disk, **at(tmp_path, **SMALL))
    client = await confirming(running, "small")
    for name in ("large", "stays"):
        await client.queue(name, durable=True)
    for number in range(30):
        await publish(client, *[b"s"] * 20, queue="small")
        await publish(client, bytes(8_000), queue="large")
        await publish(client, bytes(2_000), queue="stays")
        await confirmed(client, 22 * (number + 1))
    await client.call(spec.Queue.Purge(queue="small"), spec.Queue.PurgeOk)
    reads = 0

    def count(operation: str, path: str) -> int:
        nonlocal reads
        reads += operation == "read"
        return 0

    disk.refuse = count
    writer = of(running)
    log = writer.durable.log
    await running.until(lambda: sum(file.reclaimable for file in log.sealed()) > log.size // 2)

    async def look() -> None:
        writer.on_free_space(1 << 40, True)
        await running.until(lambda: writer._work is None and not writer._busy)

    await look()
    assert reads > 0 and writer.checkpoints == 0
    before = reads
    for _ in range(10):
        await look()
    assert reads == before, "no message was settled"
    await client.call(spec.Queue.Purge(queue="large"), spec.Queue.PurgeOk)
    await running.until(lambda: not writer.durable.unbatched and not writer._busy)
    for _ in range(3):
        await look()
    assert writer.checkpoints == 1 and log.size < 30 * 4_000


async def test_files_that_could_not_be_removed_are_removed_by_an_idle_broker(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(storing, "LOOK_SECONDS", 0.01)
    disk = HandledDisk()
    removals = 0

    def refuse(operation: str, path: str) -> int:
        nonlocal removals
        removals += operation == "remove"
        return errno.EPERM if operation == "remove" and path.endswith(".log") else 0

    running = await start(disk=disk, **at(tmp_path, **SMALL))
    disk.refuse = refuse
    client = await confirming(running)
    await publish(client, *[bytes(8_000)] * 200)
    await confirmed(client, 200)
    await client.call(spec.Queue.Purge(queue="q"), spec.Queue.PurgeOk)
    log = of(running).durable.log
    await running.until(lambda: log.size < 2 * SMALL["segment"] and len(log.leftover) > 0)
    before = removals
    await running.until(lambda: removals > before + 20)
    lines = [record.getMessage() for record in caplog.records]
    assert sum("cannot remove" in line for line in lines) < 10, "not a line for each attempt"
    disk.refuse = lambda operation, path: 0
    await running.until(lambda: not log.leftover)
    assert {file.name for file in log.files} == set(os.listdir(tmp_path / "log"))


async def test_publishers_wait_for_a_checkpoint_of_a_log_that_is_too_large_and_go_on(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storing, "LOG_SLACK", 0)
    disk, go_on = HandledDisk(), threading.Event()

    def refuse(operation: str, path: str) -> int:
        if operation == "create" and path.endswith(".tmp"):
            assert go_on.wait(PATIENCE), "the test did not let the checkpoint go on"
        return 0

    disk.refuse = refuse
    running = await start(disk=disk, **at(tmp_path, **SMALL))
    client, reader = await confirming(running), await running.amqp()
    await reader.queue("stays", durable=True)
    queues = running.node.broker.vhosts["/"].queues
    number = 0
    while not of(running).log_throttled:
        await publish(client, *[bytes(8_000)] * 20)
        await publish(client, b"live", queue="stays")
        number += 21
        await running.until(lambda: of(running).log_throttled or queues["q"].depth == 20)
        await reader.call(spec.Queue.Purge(queue="q"), spec.Queue.PurgeOk)
    assert of(running).backlogged
    await publish(client, *[b"waits"] * 100)
    for _ in range(20):
        await heard(reader)  # The broker handles input of other clients meanwhile.
    go_on.set()
    await confirmed(client, number + 100)
    await running.until(lambda: not of(running).log_throttled)
    assert not of(running).backlogged
    # Instead of a checkpoint, the store may have dropped dead files, if that frees more space.
    await running.until(lambda: of(running).checkpoints + of(running).dropped_bytes > 0)


async def test_a_full_disk_holds_back_confirms_until_there_is_room(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(storing, "RETRY_SECONDS", 0.005)
    caplog.set_level("INFO")
    disk = HandledDisk()
    running = await start(disk=disk, **at(tmp_path))
    client = await confirming(running)
    await publish(client, b"before")
    await confirmed(client, 1)
    disk.refuse = lambda operation, path: errno.ENOSPC if operation == "write" else 0
    await publish(client, b"waits")
    await running.until(lambda: of(running).full_disk_failures > 3)
    await heard(client)
    # Messages can still be delivered and acknowledged.
    assert await bodies(await running.amqp(), "q", 2) == [b"before", b"waits"]
    await publish(client, b"waits too")
    await heard(client)
    disk.refuse = lambda operation, path: 0
    await confirmed(client, 3)
    assert of(running).blocked_reason == ""
    lines = [record.getMessage() for record in caplog.records]
    assert (
        sum("store_blocked" in line for line in lines)
        == sum("store_unblocked" in line for line in lines)
        == 1
    )
    assert "No space left on device" in next(line for line in lines if "store_blocked" in line)
    caplog.clear()
    await running.stop()
    again = await start(**at(tmp_path))
    assert await bodies(await again.amqp(), "q", 1) == [b"waits too"]


async def test_stop_on_a_full_disk_ends_and_reports_unwritten_entries(
    start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = HandledDisk()
    running = await start(disk=disk, **at(tmp_path))
    client = await confirming(running)
    await publish(client, b"before")
    await confirmed(client, 1)
    disk.refuse = lambda operation, path: errno.ENOSPC if operation == "write" else 0
    await publish(client, b"never confirmed")
    await running.until(lambda: of(running).full_disk_failures > 0)
    await running.stop()
    assert any("store_blocked" in record.getMessage() for record in caplog.records)
    caplog.clear()
    again = await start(**at(tmp_path))
    assert await bodies(await again.amqp(), "q", 1) == [b"before"]


async def test_a_stop_ends_although_a_write_never_ends(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(storing, "CLOSE_SECONDS", 0.2)
    disk = HandledDisk()
    running = await start(disk=disk, **at(tmp_path))
    client = await confirming(running)
    await publish(client, b"before")
    await confirmed(client, 1)
    disk.open_for_syncs.clear()
    await publish(client, b"never confirmed")
    await heard(client)
    await running.until(lambda: not of(running).idle)
    try:
        await running.stop()
        assert "did not answer within 0.2 s" in running.app.failure
        assert any("store_failed" in record.getMessage() for record in caplog.records)
        # The write may still end, so another broker must wait for the end of this process.
        with pytest.raises(DirectoryLocked):
            await start(**at(tmp_path))
    finally:
        disk.open_for_syncs.set()


@pytest.mark.parametrize("operation", ["write", "sync"])
async def test_a_disk_that_fails_ends_the_broker_and_nothing_is_confirmed_any_more(
    operation: str, start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = HandledDisk()
    running = await start(disk=disk, **at(tmp_path))
    client = await confirming(running)
    await publish(client, b"before")
    await confirmed(client, 1)
    disk.refuse = lambda attempt, path: errno.EIO if attempt == operation else 0
    await publish(client, b"lost", b"lost too")
    close = await client.expect(spec.Connection.Close)  # No confirm comes before connection.close.
    assert close.reply_code == 320
    assert await client.socket.read_to_end() == b""
    await running.stop()
    assert "Input/output error" in running.app.failure
    caplog.clear()
    again = await start(**at(tmp_path))
    reader = await again.amqp()
    assert (await bodies(reader, "q", 1))[0] == b"before"
