"""A stream keeps every row that was confirmed or read, once, whenever its broker is killed.

The test repeats: start the broker, publish numbered messages from the first unconfirmed message on,
read the stream, kill -9. At the end it checks all rows.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
from pathlib import Path
from random import Random
from typing import Any

import pamqp.commands as spec
import pamqp.frame
import pytest
from pamqp.body import ContentBody
from pamqp.header import ContentHeader

from protocols.amqp.codec.contents import frames_of
from tests.broker import command, environment
from tests.store.homes import Home
from tests.streams.tables import rows_of, stream
from tests.streams.test_template import content
from trellis.cli.parsing import CommandError
from trellis.cli.replay_publisher import ReplayPublisher
from trellis.parent_process import end_with_parent

FRAMES = frames_of(1, 131_072)
ARGUMENTS: Any = {"x-queue-type": "stream", "x-stream-max-segment-size-bytes": 100_000}


def header_of(sequence: int) -> bytes:
    headers = {"x-trellis-producer": "p", "x-trellis-sequence": sequence}
    return FRAMES.whole_header(content(b"x" * (sequence % 300), headers=headers, delivery_mode=2))


class Broker:
    """A broker process on a data directory, which the test kills."""

    def __init__(self, directory: Path) -> None:
        self.process = subprocess.Popen(
            [*command("--data-dir", str(directory), "--store-segment", "65536")],
            preexec_fn=end_with_parent,
            env=environment(),
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        words = dict(word.split("=") for word in self.process.stdout.readline().split()[1:])
        host, _, port = words["amqp"].partition(",")[0].rpartition(":")
        self.host, self.port = host.strip("[]"), int(port)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


class Reading(threading.Thread):
    """A client that reads the stream from the start until the broker ends, and keeps the rows."""

    def __init__(self, broker: Broker, received: dict[int, Any]) -> None:
        super().__init__(daemon=True)
        self._socket = socket.create_connection((broker.host, broker.port))
        self._received = received
        self.wrong: list[str] = []
        methods: list[tuple[int, Any]] = [
            (0, spec.Connection.StartOk({}, "PLAIN", "\0guest\0guest", "en_US")),
            (0, spec.Connection.TuneOk(2047, 131_072, 0)),
            (0, spec.Connection.Open("/")),
            (1, spec.Channel.Open()),
            (1, spec.Basic.Qos(0, 50)),
            (1, spec.Basic.Consume(queue="s", arguments={"x-stream-offset": "first"})),
        ]
        self._socket.sendall(
            b"AMQP\x00\x00\x09\x01"
            + b"".join(pamqp.frame.marshal(method, channel) for channel, method in methods)
        )

    def run(self) -> None:
        data, offset, tag = b"", -1, 0
        while True:
            try:
                more = self._socket.recv(65_536)
            except OSError:
                return
            if not more:
                return
            data += more
            while len(data) >= 7 and len(data) >= 8 + int.from_bytes(data[3:7], "big"):
                size, _, frame = pamqp.frame.unmarshal(data)
                data = data[size:]
                if isinstance(frame, spec.Basic.Deliver):
                    tag = frame.delivery_tag or 0
                elif isinstance(frame, ContentHeader):
                    headers: Any = frame.properties.headers
                    offset, sequence = headers["x-stream-offset"], headers["x-trellis-sequence"]
                    known = self._received.setdefault(offset, sequence)
                    if known != sequence:
                        self.wrong.append(f"offset {offset} was {known}, and is {sequence}")
                    try:
                        self._socket.sendall(pamqp.frame.marshal(spec.Basic.Ack(tag), 1))
                    except OSError:
                        return
                elif isinstance(frame, (spec.Channel.Close, spec.Basic.Cancel)):
                    self.wrong.append(str(dict(frame)))
                assert not isinstance(frame, ContentBody) or offset >= 0


def lives(directory: Path, kills: int, seed: int) -> None:
    random = Random(seed)
    received: dict[int, Any] = {}
    published = 0
    for life in range(kills + 1):
        broker = Broker(directory)
        if life == 0:
            with ReplayPublisher(broker.host, broker.port, "guest", "guest", "/") as declaring:
                declaring._send_method(
                    1, spec.Queue.Declare(queue="s", durable=True, arguments=ARGUMENTS)
                )
                declaring._expect(spec.Queue.DeclareOk)
        reading = Reading(broker, received)
        reading.start()
        publisher = ReplayPublisher(broker.host, broker.port, "guest", "guest", "/")
        timer = threading.Timer(random.uniform(0.05, 0.8), broker.kill)
        first = published
        if life < kills:
            timer.start()
        try:
            while life < kills or publisher.published < 200:
                sequence = first + publisher.published
                publisher.publish(b"", b"s", header_of(sequence), b"x" * (sequence % 300))
            publisher.wait_for_confirms()
        except CommandError:
            assert life < kills
        published = first + publisher.confirmed
        if life < kills:
            timer.join()
        else:
            broker.kill()
        reading.join(20)
        assert reading.wrong == []
    home = Home(directory)
    rows = rows_of(stream(home.broker, "s"))
    assert not home.broker.streams.findings or all(
        finding.kind == "cut" for finding in home.broker.streams.findings
    )
    sequences = [header_sequence(row["headers"]) for row in rows]
    assert sequences == list(range(len(rows))) and len(rows) >= published, (
        "each confirmed message is in the stream exactly once"
    )
    assert [row["offset"] for row in rows] == list(range(len(rows)))
    assert {offset: sequences[offset] for offset in received} == received, (
        "the stream has each row that a reader received"
    )
    assert len(received) > 50 and published > 50
    home.crash()


def header_sequence(headers: str) -> int:
    return int(
        headers.partition('"x-trellis-sequence":')[2].strip(" }").partition(",")[0].strip(" }")
    )


@pytest.mark.long
def test_a_stream_whose_broker_is_killed_twice(tmp_path: Path) -> None:
    seed = int(os.environ.get("TRELLIS_CRASH_SEED") or Random().randrange(1 << 32))
    try:
        lives(tmp_path / "d", 2, seed)
    except Exception as error:
        error.add_note(f"TRELLIS_CRASH_SEED={seed} has it again")
        raise


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2))
def test_a_stream_whose_broker_is_killed_twenty_times(tmp_path: Path, seed: int) -> None:
    lives(tmp_path / "d", 20, seed)
