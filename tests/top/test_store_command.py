"""Tests of `trellis store` on the data directory of a broker that has run."""

from __future__ import annotations

import json
import os
import pwd
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pika
import pytest

from broker.store.catalog import Catalog
from broker.store.opening import CATALOG, LOG
from tests.broker import BrokerProcess, run_command

COUNT = 20


def store(*arguments: object) -> tuple[int, str, str]:
    """Return exit code, output and errors of `trellis store`."""
    done = run_command("store", *map(str, arguments))
    return done.returncode, done.stdout, done.stderr


@contextmanager
def broker_on(directory: Path) -> Iterator[BrokerProcess]:
    broker = BrokerProcess("--data-dir", str(directory))
    try:
        yield broker
        broker.stop()
    finally:
        broker.process.kill()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the data directory of a broker that has run; `copy` beside it is a backup."""
    directory = tmp_path_factory.mktemp("store") / "home"
    with (
        broker_on(directory) as broker,
        pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection,
    ):
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("q", durable=True)
        channel.queue_declare("events", durable=True, arguments={"x-queue-type": "stream"})
        for serial in range(COUNT):
            channel.basic_publish(
                "", "q", f"body {serial}".encode(), pika.BasicProperties(delivery_mode=2)
            )
            channel.basic_publish("", "events", f"row {serial}".encode())
        code, output, errors = store("backup", directory.parent / "copy", "--data-dir", directory)
        assert (
            code == 0
            and output.endswith(f"bytes copied to {directory.parent / 'copy'}\n")
            and errors == ""
        )
        code, output, errors = store("verify", "--data-dir", directory)
        assert (code, output) == (1, "")
        assert errors == (
            f"trellis: the data directory '{directory}' is in use by process {broker.process.pid}; "
            "stop that process, or choose another data directory\n"
        )
    return directory


def test_verify_accepts_the_files_of_a_broker_and_of_a_backup(home: Path) -> None:
    for directory in (home, home.parent / "copy"):
        code, output, errors = store("verify", "--data-dir", directory)
        assert (
            (code, errors) == (0, "")
            and output.startswith(f"fine: {directory / CATALOG}: 3 definitions\n")
            and "no damage found" in output
        )
        assert (
            f"fine: streams/%2F/events: 1 segments, {COUNT} rows up to offset {COUNT}, " in output
        )


def test_a_dump_shows_definitions_and_records_and_bodies_when_asked(home: Path) -> None:
    code, output, errors = store("dump", "--data-dir", home)
    assert (
        (code, errors) == (0, "")
        and " queue vhost=/ name='q' " in output
        and output.count(" kept ") == COUNT
        and "body 7" not in output
    )
    assert f" extended stream=2 end={COUNT}\n" in output
    assert store("dump", "--contents", "--data-dir", home)[1].count("body ") == COUNT


def test_a_broker_starts_on_a_backup(home: Path) -> None:
    with (
        broker_on(home.parent / "copy") as broker,
        pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection,
    ):
        channel = connection.channel()
        assert [channel.basic_get("q", auto_ack=True)[2] for _ in range(COUNT)] == [
            f"body {serial}".encode() for serial in range(COUNT)
        ]


def test_damage_is_found_and_repaired(home: Path) -> None:
    (segment,) = (home / LOG).glob("*.log")
    data = bytearray(segment.read_bytes())
    data[data.index(b"body 7")] ^= 0xFF
    segment.write_bytes(bytes(data))
    code, output, errors = store("verify", "--data-dir", home)
    assert (code, errors) == (1, "") and "quarantined: " in output and "damaged parts: 1;" in output
    code, output, errors = store("verify", "--data-dir", home, "--json")
    answer = json.loads(output)
    assert (code, errors, answer["damaged"]) == (1, "", 1)
    assert {finding["kind"] for finding in answer["findings"]} == {"fine", "quarantined"}
    audit = home.parent / "audit.jsonl"
    words = ("repair", "--data-dir", home, "--log-audit", audit)
    audit.with_name("audit-offline.jsonl").symlink_to(home.parent / "elsewhere")
    code, output, errors = store(*words)
    assert (code, output) == (2, "") and "nothing was changed" in errors
    assert not (home.parent / "elsewhere").exists()
    assert store("verify", "--data-dir", home)[0] == 1
    audit.with_name("audit-offline.jsonl").unlink()
    code, output, errors = store(*words)
    lines = [json.loads(line) for line in audit.with_name("audit-offline.jsonl").open()]
    assert [line["facts"]["kind"] for line in lines] == ["quarantined", "repaired"]
    for line in lines:
        assert line.pop("time").endswith("Z") and line.pop("facts")["directory"] == str(home)
        assert line == {
            "action": "repair",
            "kind": "file",
            "name": segment.name,
            "user": pwd.getpwuid(os.getuid()).pw_name,
            "protocol": "command",
            "command": "trellis store repair",
        }
    assert not audit.exists()
    assert (
        (code, errors) == (0, "")
        and "rewritten without the damage" in output
        and (home / LOG / "quarantine").is_dir()
    )
    assert store("verify", "--data-dir", home)[0] == 0
    assert store("dump", "--data-dir", home)[1].count(" kept ") == COUNT - 1


def test_damage_in_a_stream_is_found_and_repaired(home: Path) -> None:
    [segment] = (home / "streams" / "%2F" / "events").glob("*.arrow")
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 0xFF
    segment.write_bytes(bytes(data))
    code, output, errors = store("verify", "--data-dir", home)
    assert (
        (code, errors) == (1, "")
        and f"quarantined: streams/%2F/events/{segment.name} at " in output
        and "damaged parts: 1;" in output
    )
    code, output, errors = store("repair", "--data-dir", home)
    assert (code, errors) == (
        0,
        "",
    ) and f"copied to {segment.parent}/quarantine/{segment.name}-" in output
    assert json.loads(store("repair", "--data-dir", home, "--json")[1])["findings"]
    code, output, errors = store("verify", "--data-dir", home)
    assert (code, errors) == (0, "") and "fine: streams/%2F/events: " in output


def test_errors_name_missing_files(tmp_path: Path) -> None:
    assert store() == (
        2,
        "",
        (
            "trellis: `trellis store` needs a tool: verify, dump, repair or backup (see `trellis "
            "store --help`)\n"
        ),
    )
    assert store("verify", "--data-dir", tmp_path) == (
        1,
        "",
        f"trellis: there is no store in {tmp_path}; give the data directory with --data-dir\n",
    )
    assert store("verify", "--data-dir", tmp_path / "no") == (
        2,
        "",
        (
            f"trellis: data.dir: there is no directory {tmp_path / 'no'}; "
            "give the data directory with --data-dir\n"
        ),
    )
    assert store("dump", "--data-dir", ":memory:") == (
        2,
        "",
        (
            "trellis: data.dir is :memory:, which keeps nothing on disk; "
            "give a directory with --data-dir\n"
        ),
    )
    assert store("backup", tmp_path, "--data-dir", tmp_path) == (
        1,
        "",
        f"trellis: there is no store in {tmp_path}: give a data directory of a broker\n",
    )


def test_a_directory_of_a_cluster_is_not_repaired(tmp_path: Path) -> None:
    catalog = Catalog(str(tmp_path / CATALOG))
    catalog.write([], 0, b"state")
    catalog.close()
    code, output, errors = store("repair", "--data-dir", tmp_path)
    assert (code, output) == (1, "")
    assert "belongs to a node of a cluster" in errors
