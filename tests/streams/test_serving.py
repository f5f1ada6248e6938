"""Streams over real sockets: HTTP, the command line, and other projects' clients."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aio_pika
import argon2
import pika
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from broker.stream.arrow import SCHEMA_SIZE
from tests import forks
from tests.broker import run_command
from tests.streams.tables import rows_in
from trellis.cli import parser
from trellis.cli.stream_source import StreamSource

ARGUMENTS = {"x-queue-type": "stream", "x-stream-max-segment-size-bytes": 16_384}


class Served:
    """A broker process."""

    def __init__(self, directory: Path) -> None:
        config = directory / "broker.toml"
        self.data = directory / "data"
        password_hash = argon2.PasswordHasher(1, 8, 1).hash("blind")
        config.write_text(
            'stream.journals = ["/=all"]\n[[users]]\nname = "blind"\nread = "^other$"\n'
            f'password_hash = "{password_hash}"\n'
        )
        flags = {
            "config": str(config),
            "data-dir": str(self.data),
            **{f"{listener}-port": "0" for listener in ("amqp", "mqtt", "http", "metrics")},
            **{f"{listener}-host": "127.0.0.1" for listener in ("amqp", "http")},
        }
        words = [word for name, value in flags.items() for word in (f"--{name}", value)]
        self.process = forks.start("trellis", "serve", *words)
        assert self.process.stdout is not None
        ready = dict(word.split("=") for word in self.process.stdout.readline().split()[1:])
        self.amqp, self.http = (int(ready[name].rpartition(":")[2]) for name in ("amqp", "http"))

    def trellis(self, *arguments: str, limit: int = 0) -> subprocess.CompletedProcess[str]:
        """Run a command of `trellis`. `limit` is the most bytes of a file; 0 means no limit."""
        url = f"http://127.0.0.1:{self.http}"
        return run_command(
            *arguments, "--url", url, limits={resource.RLIMIT_FSIZE: limit} if limit else None
        )

    def pika(self) -> Any:
        return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", self.amqp))

    async def get(self, path: str, user: str = "guest:guest") -> tuple[int, dict[str, str], bytes]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.http)
        token = base64.b64encode(user.encode()).decode()
        writer.write(
            f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            f"Authorization: Basic {token}\r\n\r\n".encode()
        )
        answer = await reader.read(-1)
        writer.close()
        head, _, body = answer.partition(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        return (
            int(lines[0].split()[1]),
            dict(line.lower().split(": ", 1) for line in lines[1:]),
            body,
        )


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    one = Served(tmp_path_factory.mktemp("served"))
    connection = one.pika()
    channel = connection.channel()
    channel.queue_declare("s", durable=True, arguments=ARGUMENTS)
    channel.queue_declare("plain")
    channel.confirm_delivery()
    for number in range(40):
        channel.basic_publish(
            "",
            "s",
            b"%d" % number,
            pika.BasicProperties(
                message_id=str(number), headers={"n": number}, timestamp=1_700_000_000
            ),
        )
    connection.close()
    yield one
    one.process.terminate()
    one.process.wait(20)


def test_pika_reads_a_stream_from_an_offset(served: Served) -> None:
    connection = served.pika()
    channel = connection.channel()
    channel.basic_qos(prefetch_count=5)
    received = []
    for method, properties, body in channel.consume(
        "s", arguments={"x-stream-offset": 10}, inactivity_timeout=10
    ):
        assert method is not None
        received.append((properties.headers["x-stream-offset"], properties.headers["n"], body))
        channel.basic_ack(method.delivery_tag)
        if len(received) == 30:
            break
    assert received == [(number, number, b"%d" % number) for number in range(10, 40)]
    connection.close()


async def test_aio_pika_reads_a_stream_from_the_first_and_waits_for_more(served: Served) -> None:
    connection = await aio_pika.connect(f"amqp://guest:guest@127.0.0.1:{served.amqp}/")
    async with connection:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=100)
        queue = await channel.declare_queue("t", durable=True, arguments={"x-queue-type": "stream"})
        await channel.default_exchange.publish(aio_pika.Message(b"one"), "t")
        async with queue.iterator(arguments={"x-stream-offset": "first"}) as messages:
            bodies = []
            async for message in messages:
                async with message.process():
                    bodies.append((message.body, message.headers["x-stream-offset"]))
                if len(bodies) == 2:
                    break
                await channel.default_exchange.publish(aio_pika.Message(b"two"), "t")
    assert bodies == [(b"one", 0), (b"two", 1)]


async def test_segments_are_served_as_they_stand(served: Served) -> None:
    status, _, body = await served.get("/api/streams")
    by_name = {row["name"]: row for row in json.loads(body)}
    assert (
        status == 200
        and by_name["s"]["durable"] == 40
        and by_name["all"]["journal"]
        and "$topology" in by_name
    )
    _, _, body = await served.get("/api/streams/segments?vhost=/&queue=s")
    segments = json.loads(body)
    assert len(segments) > 2 and segments[-1]["end"] == 40
    rows = []
    for segment in segments:
        status, headers, data = await served.get(
            f"/api/streams/segment?queue=s&segment={segment['name']}"
        )
        assert (
            status == 200 and len(data) == segment["bytes"] and headers["x-trellis-durable"] == "40"
        )
        rows += rows_in(data)
    assert [row["body"] for row in rows] == [b"%d" % number for number in range(40)]
    status, _, part = await served.get(
        f"/api/streams/segment?queue=s&segment={segment['name']}&start=100&end=110"
    )
    assert part == data[100:110]


@pytest.mark.parametrize(
    ("path", "user", "status", "text"),
    [
        (
            "/api/streams/segments?queue=s",
            "blind:blind",
            403,
            "read access to queue 's' in vhost '/' refused for user 'blind'",
        ),
        ("/api/streams/segments?queue=s", "guest:wrong", 401, ""),
        ("/api/streams/segments?queue=none", "guest:guest", 404, "no stream 'none'"),
        (
            "/api/streams/segment?queue=s&segment=0000000009-00000000000000000000.arrow",
            "guest:guest",
            410,
            "the stream begins at offset 0",
        ),
        ("/api/streams/segments?queue=s&offset=x", "guest:guest", 400, "must be a number"),
        ("/api/streams/segments", "guest:guest", 400, "queue=NAME is missing"),
        (
            "/api/streams/segments?queue=s&ofset=7",
            "guest:guest",
            400,
            "unknown parameter 'ofset'; known are vhost, queue, offset",
        ),
        (
            "/api/streams/segments?queue=s&vhost=none",
            "guest:guest",
            404,
            "there is no vhost 'none'",
        ),
        (
            "/api/streams/segments?queue=plain",
            "guest:guest",
            404,
            "there is no stream 'plain' in vhost '/': the queue 'plain' is not a stream",
        ),
        ("/api/streams/segment?queue=s", "guest:guest", 400, "segment=NAME is missing"),
        (
            (
                "/api/streams/segment?queue=s"
                "&segment=0000000001-00000000000000000000.arrow&start=9&end=4"
            ),
            "guest:guest",
            416,
            "start=9 is greater",
        ),
        (
            (
                "/api/streams/segment?queue=s"
                "&segment=0000000001-00000000000000000000.arrow&end=99999999"
            ),
            "guest:guest",
            416,
            "are durable",
        ),
    ],
)
async def test_invalid_requests_for_streams_are_refused(
    served: Served, path: str, user: str, status: int, text: str
) -> None:
    answered, _, body = await served.get(path, user)
    assert answered == status and text in body.decode()


async def test_user_without_read_permission_sees_no_streams(served: Served) -> None:
    assert (await served.get("/api/streams", "blind:blind"))[2] == b"[]"


def test_the_command_lists_and_shows_rows(served: Served) -> None:
    listed = served.trellis("stream", "list")
    assert listed.returncode == 0 and "durable" in listed.stdout and "$topology" in listed.stdout
    head = served.trellis("stream", "head", "s", "--from", "7", "--count", "3")
    rows = [json.loads(line) for line in head.stdout.splitlines()]
    assert [(row["offset"], row["body"], row["headers"], row["timestamp"]) for row in rows] == [
        (n, str(n), {"n": n}, "2023-11-14T22:13:20Z") for n in (7, 8, 9)
    ]
    assert all(
        datetime.now(UTC) - datetime.fromisoformat(row["published_at"]) < timedelta(hours=1)
        for row in rows
    )
    assert served.trellis("stream", "head", "s", "--from", "40").returncode == 0


def test_the_command_shows_rows_since_a_time(served: Served) -> None:
    everything = served.trellis("stream", "head", "s", "--count", "40").stdout.splitlines()
    times = [json.loads(line)["published_at"] for line in everything]
    later = [line for line, at in zip(everything, times, strict=True) if at >= times[25]]
    assert 0 < len(later) < 40
    since = served.trellis("stream", "head", "s", "--since", times[25], "--count", "40")
    assert since.stdout.splitlines() == later
    assert served.trellis("stream", "head", "s", "--since", "2999-01-01").stdout == ""


def test_the_command_follows_a_stream(served: Served) -> None:
    connection = served.pika()
    channel = connection.channel()
    channel.queue_declare("followed", durable=True, arguments=ARGUMENTS)
    words = ("stream", "head", "followed", "--follow", "--url", f"http://127.0.0.1:{served.http}")
    with subprocess.Popen(
        [sys.executable, "-m", "trellis", *words], stdout=subprocess.PIPE, text=True
    ) as command:
        assert command.stdout is not None
        for number in range(3):  # Each row is published after the command has printed the last one.
            channel.basic_publish("", "followed", b"%d" % number)
            row = json.loads(command.stdout.readline())
            assert (row["offset"], row["body"]) == (number, str(number))
        command.send_signal(signal.SIGINT)
        assert command.wait(20) == 130
    connection.close()
    ended = served.trellis("stream", "head", "followed", "--follow", "--to", "2")
    assert [json.loads(row)["offset"] for row in ended.stdout.splitlines()] == [0, 1]


def test_rows_that_follow_are_fetched_without_the_earlier_ones(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["stream", "head", "grows", "--url", f"http://127.0.0.1:{served.http}"]
    arguments = parser("stream").parse(words)
    connection = served.pika()
    channel = connection.channel()
    channel.queue_declare("grows", durable=True, arguments={"x-queue-type": "stream"})
    channel.confirm_delivery()
    source = StreamSource(arguments)
    queries: list[dict[str, object]] = []
    fetch = source._segment

    def fetched(query: dict[str, object]) -> bytes:
        queries.append(query)
        return fetch(query)

    monkeypatch.setattr(source, "_segment", fetched)
    for number in range(3):
        channel.basic_publish("", "grows", bytes(10_000))
        (portion,) = source.batches()
        schema, batch, first, end = portion
        assert (int(batch.base) + first, end - first, len(schema)) == (number, 1, int(SCHEMA_SIZE))
        arguments.first = number + 1
    assert [query.get("start", 0) != 0 for query in queries] == [False, True, True]
    assert list(source.batches()) == []
    connection.close()


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["stream", "head", "none"], 1, "trellis: there is no stream 'none' in vhost '/'"),
        (["stream", "head", "s", "--vhost", "none"], 1, "trellis: there is no vhost 'none'"),
        (
            ["stream", "head", "s", "--from", "41"],
            1,
            "41 of stream 's' in vhost '/' is not written yet: begin with --from 40 or lower",
        ),
        (
            ["stream", "head", "s", "--from", "3", "--to", "2"],
            2,
            "trellis: --to 2 is before --from 3",
        ),
        (
            ["stream", "head", "s", "--from", "3", "--since", "1h"],
            2,
            "trellis: --from N and --since TIME both set the first row: give only one of them",
        ),
        (
            ["stream", "head", "s", "--from", "-1"],
            2,
            'argument --from: must be a whole number of at least 0, got "-1"',
        ),
        (
            ["stream", "head", "s", "--count", "0"],
            2,
            'argument --count: must be a whole number of at least 1, got "0"',
        ),
        (
            ["stream", "head", "s", "--password", "wrong"],
            1,
            "refused user guest (unknown user or wrong password); give --user and --password",
        ),
        (["stream", "list", "--user", "blind"], 2, "no password for user blind"),
        (["stream", "export", "none", "{here}/x.arrow"], 1, "no stream 'none' in vhost '/'"),
        (
            ["stream", "export", "s", "{here}/x.arrow", "--from", "41"],
            1,
            "is not written yet: begin with --from 40 or lower",
        ),
        (
            ["stream", "export", "s", "{here}/x.arrow", "--from", "40"],
            1,
            "trellis: stream 's' in vhost '/' has no row that the arguments select; no file",
        ),
        (
            ["stream", "export", "s", "{here}/x.parquet", "--from", "40"],
            1,
            "trellis: stream 's' in vhost '/' has no row that the arguments select; no file",
        ),
        (
            ["stream", "export", "s", "{here}/none/x.parquet"],
            1,
            "none/x.parquet: No such file or directory",
        ),
        (
            ["replay", "s", "--amqp", "{amqp}", "--from", "41"],
            1,
            "trellis: offset 41 of stream 's' in vhost '/' is not written yet",
        ),
        (["replay", "s", "--amqp", "{amqp}", "--vhost", "none"], 1, "vhost none not found"),
        (
            ["replay", "s", "--amqp", "{amqp}", "--exchange", "none"],
            1,
            "no exchange 'none' in vhost '/'; the broker has confirmed 0 messages",
        ),
        (
            ["replay", "s", "--amqp", ":1"],
            2,
            "trellis: --amqp must be HOST:PORT, such as 127.0.0.1:5672, got ':1'",
        ),
        (
            ["replay", "s", "--rate", "nan"],
            2,
            'argument --rate: must be a number of at least 0, got "nan"',
        ),
    ],
)
def test_error_of_a_replay_is_one_line(
    served: Served, tmp_path: Path, arguments: list[str], code: int, text: str
) -> None:
    done = served.trellis(
        *(word.format(here=tmp_path, amqp=f"127.0.0.1:{served.amqp}") for word in arguments)
    )
    *progress, error = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (code, "") and text in error, done.stderr
    # A replay that lasts longer than a second prints its progress.
    assert all(re.match(r"offset \d+: \d+ published, ", line) for line in progress), done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["arrow", "arrows", "parquet"])
def test_half_an_export_does_not_stay(served: Served, tmp_path: Path, kind: str) -> None:
    """Check that an export that fails leaves no file.

    The export fails here because files are limited to 4 KiB, as on a full disk.
    """
    path = tmp_path / f"s.{kind}"
    done = served.trellis("stream", "export", "s", str(path), limit=4_096)
    assert done.returncode == 1 and done.stderr == f"trellis: cannot write {path}: File too large\n"
    assert list(tmp_path.iterdir()) == []


def test_a_policy_of_streams_is_set_from_the_command_line(served: Served) -> None:
    outcome = served.trellis(
        "policies", "set", "short", "^s$", '{"max-age": "7D"}', "--apply-to", "streams"
    )
    assert outcome.returncode == 0, outcome.stderr
    wrong = served.trellis(
        "policies", "set", "wrong", "^s$", '{"max-age": "7x"}', "--apply-to", "streams"
    )
    assert (
        wrong.returncode == 1
        and "must be an age such as '7D' (a number and Y, M, D, h, m or s), not '7x'"
        in wrong.stderr
    )
    assert served.trellis("policies", "clear", "short", "--yes").returncode == 0


def test_replay_reports_a_wrong_password(served: Served) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "trellis",
            "replay",
            "s",
            "--amqp",
            f"127.0.0.1:{served.amqp}",
            "--password",
            "wrong",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (
        done.returncode == 1
        and "403 ACCESS_REFUSED" in done.stderr
        and "(give --user and --password)" in done.stderr
    )


def test_stopped_replay_prints_the_offset_to_continue_at(served: Served) -> None:
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "trellis",
            "replay",
            "s",
            "--rate",
            "4",
            "--exchange",
            "amq.fanout",
            "--amqp",
            f"127.0.0.1:{served.amqp}",
            "--url",
            f"http://127.0.0.1:{served.http}",
        ],
        stderr=subprocess.PIPE,
        text=True,
        # A process in the background of a shell ignores SIGINT.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stderr is not None
    assert process.stderr.readline().startswith("offset ")
    process.send_signal(signal.SIGINT)
    stderr = process.stderr.read()
    confirmed = re.fullmatch(
        r"trellis: replay stopped; the broker has confirmed (\d+) messages; "
        r"continue with --from (\d+)\n",
        stderr,
    )
    assert process.wait(20) == 130 and confirmed is not None and confirmed[1] == confirmed[2], (
        stderr
    )


def test_rows_are_exported(served: Served, tmp_path: Path) -> None:
    """Exports over HTTP and from the files of the running broker have equal rows."""
    for suffix, read in (
        ("parquet", pq.read_table),
        ("arrow", lambda path: pa.ipc.open_file(path).read_all()),
        ("arrows", lambda path: pa.ipc.open_stream(path.read_bytes()).read_all()),
    ):
        path = tmp_path / f"s.{suffix}"
        done = served.trellis("stream", "export", "s", str(path), "--from", "5", "--to", "35")
        assert done.returncode == 0, done.stderr
        assert re.fullmatch(
            rf"30 rows in 1 (row group|batch), \d.* written to {path}\n", done.stdout
        )
        table = read(path)
        assert table.column("offset").to_pylist() == list(range(5, 35))
        assert table.column("headers").to_pylist() == [f'{{"n":{n}}}' for n in range(5, 35)]
        again = run_command(
            *("stream", "export", "s", str(tmp_path / f"files.{suffix}"), "--from", "5"),
            *("--until", "35", "--directory", str(served.data), "--json"),
        )
        assert again.returncode == 0, again.stderr
        assert json.loads(again.stdout)["last_offset"] == 34
        assert read(tmp_path / f"files.{suffix}").equals(table)
    again = served.trellis("stream", "export", "s", str(path))
    assert again.returncode == 1 and "exists already" in again.stderr
    assert served.trellis("stream", "export", "s", "s.csv").returncode == 2


def test_a_stream_is_published_again(served: Served) -> None:
    connection = served.pika()
    channel = connection.channel()
    channel.exchange_declare("again", "fanout")
    channel.queue_declare("copy")
    channel.queue_bind("copy", "again")
    done = served.trellis(
        "replay",
        "s",
        "--from",
        "10",
        "--to",
        "20",
        "--exchange",
        "again",
        "--amqp",
        f"127.0.0.1:{served.amqp}",
    )
    assert done.returncode == 0 and "10 messages published again and confirmed" in done.stdout, (
        done.stderr
    )
    copies = [channel.basic_get("copy", auto_ack=True) for _ in range(10)]
    assert [(properties.message_id, body) for _, properties, body in copies] == [
        (str(n), b"%d" % n) for n in range(10, 20)
    ]
    connection.close()
    nowhere = served.trellis("replay", "none", "--amqp", f"127.0.0.1:{served.amqp}")
    assert nowhere.returncode == 1 and "no stream 'none'" in nowhere.stderr


def test_an_export_without_pyarrow_names_the_extra(served: Served, tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['pyarrow'] = None; "
        "from trellis.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            code,
            "stream",
            "export",
            "s",
            str(tmp_path / "x.parquet"),
            "--url",
            f"http://127.0.0.1:{served.http}",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2 and "pip install 'trellis-broker[arrow]'" in done.stderr
