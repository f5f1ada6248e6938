"""The audit log: each change with its user and address, and files that cannot be written."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import subprocess
from pathlib import Path
from typing import Any

import pamqp.commands as spec
import pika
import pytest

from broker.broker import DELETIONS_PER_SLICE
from broker.store.audit import AuditTrail
from tests.broker import command, environment
from tests.clients import mqtt_publish, publication
from tests.top.api_client import api, users
from tests.top.conftest import Start
from tests.top.running import PATIENCE, Running
from trellis.server import audit_log
from trellis.server.audit_log import LINE_BYTES, WAITING_BYTES, AuditLog, append
from trellis.settings import SettingsError

Line = dict[str, Any]


def lines(path: Path) -> list[Line]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def without_time(line: Line) -> Line:
    return {name: value for name, value in line.items() if name not in ("time", "address")}


async def written(broker: Running, path: Path, count: int) -> list[Line]:
    """Return the lines of the audit log once it has at least `count`."""
    await broker.until(lambda: len(path.read_text().splitlines()) >= count)
    return lines(path)


@pytest.fixture
async def broker(start: Start, tmp_path: Path) -> Running:
    return await start(
        **users(),
        log={"audit": str(tmp_path / "audit.jsonl")},
        data={"dir": str(tmp_path / "data")},
    )


async def test_changes_over_http_name_the_user_and_the_address(
    broker: Running, tmp_path: Path
) -> None:
    shovel = {
        "src-uri": "amqp://u:secret@127.0.0.1:1",
        "src-queue": "q",
        "dest-uri": "amqp://",
        "dest-queue": "q",
    }
    requests: tuple[tuple[str, str, Any], ...] = (
        ("PUT", "vhosts/plant", {}),
        ("PUT", "users/eve", {"password": "secret", "tags": "management"}),
        ("PUT", "permissions/plant/eve", {"configure": "", "write": "", "read": ".*"}),
        ("PUT", "parameters/shovel/%2F/s", {"value": shovel}),
        ("PUT", "policies/%2F/p", {"pattern": "^q", "definition": {"max-length": 5}}),
        ("PUT", "queues/%2F/q", {"durable": True}),
        ("POST", "bindings/%2F/e/amq.topic/q/q", {"routing_key": "a.#"}),
        ("PUT", "queues/%2F/q", {"durable": True}),
        ("GET", "queues/%2F/q", None),
        ("DELETE", "queues/%2F/absent", None),
        ("DELETE", "queues/%2F/q", None),
    )
    statuses = [(await api(broker, method, path, body))[0] for method, path, body in requests]
    assert statuses == [201, 201, 201, 201, 201, 201, 201, 204, 200, 404, 204]
    log = await written(broker, tmp_path / "audit.jsonl", 8)
    assert {line.get("user") for line in log} == {"admin"}
    assert all(line["address"].startswith("127.0.0.1:") for line in log)
    assert all(line["time"].endswith("Z") for line in log)
    by_kind = {(line["action"], line["kind"]): without_time(line) for line in log}
    assert by_kind["set", "user"] == {
        "action": "set",
        "kind": "user",
        "name": "eve",
        "user": "admin",
        "protocol": "http",
        "definition": {"tags": ["management"]},
    }
    assert by_kind["set", "binding"]["definition"] == {
        "source": "amq.topic",
        "destination": "q",
        "destination_type": "queue",
        "routing_key": "a.#",
        "arguments": {},
        "grammar": "amqp",
        "assurance": 0,
    }
    assert by_kind["delete", "queue"]["name"] == "q"
    assert [line["kind"] for line in log].count("queue") == 2
    assert "secret" not in (tmp_path / "audit.jsonl").read_text()


async def test_changes_over_amqp_and_by_the_broker(broker: Running, tmp_path: Path) -> None:
    client = await broker.amqp("admin")
    await client.call(spec.Queue.Declare(queue="q", durable=True), spec.Queue.DeclareOk)
    await client.call(spec.Queue.Declare(queue="passing", exclusive=True), spec.Queue.DeclareOk)
    exchange = spec.Exchange.Declare(exchange="short", durable=True, auto_delete=True)
    await client.call(exchange, spec.Exchange.DeclareOk)
    await client.call(
        spec.Queue.Bind(queue="q", exchange="short", routing_key="k"), spec.Queue.BindOk
    )
    message = {"properties": {}, "routing_key": "q", "payload": "x", "payload_encoding": "string"}
    assert (await api(broker, "POST", "exchanges/%2F/amq.default/publish", message))[0] == 200
    await client.call(spec.Queue.Purge(queue="q"), spec.Queue.PurgeOk)
    await client.call(spec.Queue.Delete(queue="q"), spec.Queue.DeleteOk)
    log = await written(broker, tmp_path / "audit.jsonl", 6)
    assert [
        (line["action"], line["kind"], line.get("name"), line.get("user"), line["protocol"])
        for line in log
    ] == [
        ("set", "queue", "q", "admin", "amqp"),
        ("set", "exchange", "short", "admin", "amqp"),
        ("set", "binding", None, "admin", "amqp"),
        ("purge", "queue", "q", "admin", "amqp"),
        ("delete", "queue", "q", "admin", "amqp"),
        ("delete", "exchange", "short", "admin", "amqp"),
    ]
    assert log[3]["facts"] == {"messages": 1}
    assert log[0]["address"] == log[5]["address"] != ""


async def test_messages_that_a_request_removes_are_recorded(
    broker: Running, tmp_path: Path
) -> None:
    await api(broker, "PUT", "queues/%2F/q")
    client = await broker.amqp()
    await client.socket.send(publication("", "q", b"x") * 4)
    queue = broker.node.broker.vhosts["/"].queues["q"]
    await broker.until(lambda: queue.depth == 4)
    for mode, count in (
        ("ack_requeue_true", 4),
        ("reject_requeue_true", 4),
        ("ack_requeue_false", 3),
        ("reject_requeue_false", 5),
        ("ack_requeue_false", 1),  # The queue is empty: nothing is removed.
    ):
        body = {"count": count, "ackmode": mode}
        assert (await api(broker, "POST", "queues/%2F/q/get", body))[0] == 200
    await api(broker, "DELETE", "queues/%2F/q")
    log = await written(broker, tmp_path / "audit.jsonl", 4)
    assert [(line["action"], line["name"]) for line in log] == [
        *(("set", "q"), ("get", "q"), ("get", "q"), ("delete", "q"))
    ]
    assert log[1]["address"].startswith("127.0.0.1:")
    assert without_time(log[1]) == {
        "action": "get",
        "kind": "queue",
        "vhost": "/",
        "name": "q",
        "user": "admin",
        "protocol": "http",
        "facts": {"messages": 3, "ackmode": "ack_requeue_false"},
    }
    assert log[2]["facts"] == {"messages": 1, "ackmode": "reject_requeue_false"}


async def test_actions_over_http_are_recorded(broker: Running, tmp_path: Path) -> None:
    client = await broker.amqp()
    await broker.mqtt("device", user="known/known", clean=False)
    assert (await api(broker, "DELETE", "trellis/sessions/%2F/device"))[0] == 204
    assert (await api(broker, "DELETE", "connections/username/known"))[0] == 204
    log = await written(broker, tmp_path / "audit.jsonl", 2)
    assert [(line["action"], line["kind"], line["user"]) for line in log[:2]] == [
        ("delete", "session", "admin"),
        ("close", "connection", "admin"),
    ]
    assert log[0]["name"] == "device" and log[1]["facts"] == {"user": "known"}
    del client


async def test_the_deletion_of_a_large_vhost_names_the_user(
    broker: Running, tmp_path: Path
) -> None:
    vhost = broker.node.broker.create_vhost("plant")
    count = 3 * DELETIONS_PER_SLICE
    for number in range(count):
        vhost.declare_queue(f"q{number}", durable=True)
    assert (await api(broker, "DELETE", "vhosts/plant"))[0] == 204
    log = await written(broker, tmp_path / "audit.jsonl", 2 * count + 2)
    assert [line["action"] for line in log].count("delete") == count + 1
    assert (log[-1]["kind"], log[-1]["user"], log[-1]["protocol"]) == ("vhost", "admin", "http")


async def test_an_import_names_the_user_and_a_restart_records_nothing(
    start: Start, tmp_path: Path
) -> None:
    path = tmp_path / "audit.jsonl"
    document = tmp_path / "definitions.json"
    document.write_text(json.dumps({"queues": [{"name": "f", "vhost": "/", "durable": True}]}))
    chosen = {
        **users(),
        "log": {"audit": str(path)},
        "data": {"dir": str(tmp_path / "data")},
        "definitions": {"file": str(document)},
    }
    first = await start(**chosen)
    rows = [{"name": "q", "vhost": "/", "durable": True, "arguments": {}}]
    assert (await api(first, "POST", "definitions", {"queues": rows}))[0] == 200
    assert (
        await api(
            first,
            "POST",
            "definitions?dry_run=true",
            {"queues": [{"name": "tried", "vhost": "/", "durable": True, "arguments": {}}]},
        )
    )[0] == 200
    await first.stop()
    before = lines(path)
    assert [(line["name"], line.get("user"), line["protocol"]) for line in before] == [
        ("f", None, "settings"),
        ("q", "admin", "http"),
    ]
    await (await start(**chosen)).stop()
    assert lines(path) == before


async def test_a_file_that_cannot_be_created_ends_the_start(start: Start, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"log\.audit: cannot write to .*absent/audit"):
        await start(**users(), log={"audit": str(tmp_path / "absent" / "audit.jsonl")})


async def test_lines_wait_while_the_file_cannot_be_written(
    start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "log"
    directory.mkdir()
    path = directory / "audit.jsonl"
    broker = await start(**users(), log={"audit": str(path)})
    audit = broker.node.audit
    assert audit is not None
    path.unlink()
    directory.rmdir()
    assert (await api(broker, "PUT", "queues/%2F/a", {"durable": True}))[0] == 201
    await broker.until(lambda: "audit_failed" in caplog.text)
    trail = AuditTrail(audit.write)
    for number in range(WAITING_BYTES // 1_000):
        trail.acted("set", "queue", "/", f"q{number}", {"filler": "x" * 1_100})
    assert audit.lost > 0 and audit.waiting_bytes <= WAITING_BYTES
    kept = WAITING_BYTES // 1_000 - audit.lost + 1
    _, page = await broker.get("metrics", "/metrics")
    assert f"trellis_audit_lines_lost_total {audit.lost}".encode() in page
    directory.mkdir()
    await broker.until(lambda: audit.written == kept)
    assert audit.waiting_bytes == 0
    assert [line["name"] for line in lines(path)][:2] == ["a", "q0"]
    assert path.stat().st_mode & 0o777 == 0o600
    caplog.clear()


async def test_a_renamed_file_gets_no_further_lines(broker: Running, tmp_path: Path) -> None:
    path, older = tmp_path / "audit.jsonl", tmp_path / "audit.jsonl.1"
    assert (await api(broker, "PUT", "queues/%2F/a", {"durable": True}))[0] == 201
    await written(broker, path, 1)
    path.rename(older)
    assert (await api(broker, "PUT", "queues/%2F/b", {"durable": True}))[0] == 201
    await broker.until(path.exists)
    assert [line["name"] for line in await written(broker, path, 1)] == ["b"]
    assert [line["name"] for line in lines(older)] == ["a"]


async def test_a_long_definition_is_left_out(broker: Running, tmp_path: Path) -> None:
    arguments = {"x-note": "n" * LINE_BYTES}
    queue = {"durable": True, "arguments": arguments}
    assert (await api(broker, "PUT", "queues/%2F/long", queue))[0] == 201
    (line,) = await written(broker, tmp_path / "audit.jsonl", 1)
    assert line["name"] == "long" and line["left_out"] == "definition"


def test_a_failed_write_leaves_no_half_line(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    append(path, b"first\n")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            append(path, b"x" * 200 + b"\n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == b"first\n"


async def test_finish_writes_what_waits(tmp_path: Path) -> None:
    audit = AuditLog(tmp_path / "audit.jsonl", asyncio.get_running_loop())
    for number in range(100):
        audit.write({"action": "set", "kind": "queue", "name": str(number)})
    await audit.finish()
    assert [line["name"] for line in lines(tmp_path / "audit.jsonl")] == [
        str(number) for number in range(100)
    ]


@pytest.mark.parametrize("writable", [True, False])
async def test_no_write_begins_after_finish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writable: bool
) -> None:
    monkeypatch.setattr(audit_log, "RETRY_SECONDS", 0)
    errors: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: errors.append(context))
    path = tmp_path / "audit.jsonl"
    audit = AuditLog(path, loop)
    if not writable:
        path.unlink()
        path.mkdir()
    audit.write({"action": "set"})
    await audit.finish()
    audit.write({"action": "set"})
    for _ in range(10):
        await asyncio.sleep(0)
    assert not errors
    assert audit.written == (1 if writable else 0)


async def test_a_stop_does_not_wait_for_a_disk_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(audit_log, "FINISH_SECONDS", 0.05)
    path = tmp_path / "audit.jsonl"
    audit = AuditLog(path, asyncio.get_running_loop())
    path.unlink()
    os.mkfifo(path)  # To open a FIFO for writing blocks until a reader opens it.
    for name in ("a", "b"):
        audit.write({"action": "set", "kind": "queue", "name": name})
    try:
        async with asyncio.timeout(PATIENCE):
            await audit.finish()
    finally:  # `lines` opens the FIFO for reading, so that the write can end.
        late = await asyncio.to_thread(lines, path)
    assert "a write has not ended within 0.05 s" in caplog.text
    assert [line["name"] for line in late] == ["a"] and audit.lost == 1


async def test_lines_that_cannot_be_written_at_a_stop_are_counted_as_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "audit.jsonl"
    audit = AuditLog(path, asyncio.get_running_loop())
    path.unlink()
    path.mkdir()
    for name in ("a", "b"):
        audit.write({"action": "set", "kind": "queue", "name": name})
    await audit.finish()
    assert audit.lost == 2
    assert f"audit_failed file={path}" in caplog.text and "lost=2 uncertain=0" in caplog.text


async def test_the_lines_that_wait_after_a_failure_are_written_at_a_stop(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "audit.jsonl"
    audit = AuditLog(path, asyncio.get_running_loop())
    path.unlink()
    path.mkdir()
    for name in ("a", "b"):
        audit.write({"action": "set", "kind": "queue", "name": name})
    await audit._idle.wait()
    assert "audit_failed" in caplog.text
    path.rmdir()
    await audit.finish()
    assert [line["name"] for line in lines(path)] == ["a", "b"]
    assert audit.lost == 0 and "audit_recovered" in caplog.text


@pytest.mark.long
def test_a_process_whose_audit_log_hangs_ends_and_says_which_lines_are_lost(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    started = command("--data-dir", str(tmp_path / "data"), "--log-audit", str(path))
    with (tmp_path / "errors").open("w+") as errors:
        # The end of the interpreter is part of the test, so this process is not a fork.
        process = subprocess.Popen(
            started, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment()
        )
        try:
            assert process.stdout is not None
            words = dict(word.partition("=")[::2] for word in process.stdout.readline().split())
            path.unlink()
            os.mkfifo(path)  # To open a FIFO for writing blocks until a reader opens it.
            host, _, port = words["amqp"].rpartition(":")
            connection = pika.BlockingConnection(pika.ConnectionParameters(host, int(port)))
            for name in ("a", "b"):
                connection.channel().queue_declare(name, durable=True)
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()
            process.wait()
        log = (tmp_path / "errors").read_text()
    assert f"audit_failed file={path}" in log and "lost=1 uncertain=1" in log


async def test_the_actions_of_operators_are_recorded(broker: Running, tmp_path: Path) -> None:
    for name in ("q", "r"):
        await api(broker, "PUT", f"queues/%2F/{name}")
    client = await broker.amqp()
    await client.socket.send(publication("", "q", b"x", delivery_mode=2) * 3)
    sender = await broker.mqtt("sender", user="known/known")
    await sender.socket.send(mqtt_publish("home/door", b"open", flags=1))
    vhost = broker.node.broker.vhosts["/"]
    await broker.until(lambda: vhost.queues["q"].depth == 3 and len(vhost.retained) == 1)
    requests: tuple[tuple[str, str, Any], ...] = (
        ("PUT", "queues/%2F/q/pause", None),
        ("PUT", "queues/%2F/q/pause", None),
        ("DELETE", "queues/%2F/q/pause", None),
        ("POST", "queues/%2F/q/move", {"queue": "r", "dry_run": True}),
        ("POST", "queues/%2F/q/move", {"queue": "r", "rate": 1}),
        ("DELETE", "moves/1", None),
        ("DELETE", "retained/%2F?filter=home/%23&dry_run=true", None),
        ("DELETE", "retained/%2F?filter=home/%23", None),
    )
    for method, path, body in requests:
        assert (await api(broker, method, path, body))[0] in (200, 204), path
    log = [without_time(line) for line in await written(broker, tmp_path / "audit.jsonl", 7)]
    actor = {"vhost": "/", "user": "admin", "protocol": "http"}
    moved = {"move": 1, "destination": "queue 'r'", "messages": 3}
    assert log[2:] == [
        {"action": "pause", "kind": "queue", "name": "q"} | actor,
        {"action": "resume", "kind": "queue", "name": "q"} | actor,
        {"action": "move", "kind": "queue", "name": "q", "facts": moved} | actor,
        {"action": "cancel", "kind": "move", "name": "q", "facts": {"move": 1}} | actor,
        {"action": "clear", "kind": "retained messages", "name": "home/#", "facts": {"messages": 1}}
        | actor,
    ]
