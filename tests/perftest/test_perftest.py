"""Tests with RabbitMQ PerfTest (from Maven Central): the broker handles each message once.

A test runs PerfTest with the options of one mode, such as "auto-ack" or "polling". PerfTest sends
and receives a fixed number of messages, and ends. It prints rates, but no counts. So the test reads
the counts of messages from the broker, which serves only this one PerfTest.
"""

from __future__ import annotations

import base64
import http.client
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.broker import BrokerProcess
from tests.foreign import require
from tests.interop.test_toolchains import build

HERE = Path(__file__).parent
#: Seconds that PerfTest may take, JVM included.
PATIENCE: Final = 120


@pytest.fixture(scope="module")
def class_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Fetch PerfTest and its libraries; return their class path."""
    path = tmp_path_factory.mktemp("perftest") / "class-path"
    goal = ["dependency:build-classpath", f"-Dmdep.outputFile={path}"]
    build([require("mvn"), "-q", "-B", *goal], HERE)
    return path.read_text().strip()


@pytest.fixture
def fresh() -> Iterator[BrokerProcess]:
    """Start a broker that serves one PerfTest."""
    process = BrokerProcess()
    yield process
    process.stop()


def statistics(broker: BrokerProcess) -> dict[str, int]:
    """Return how many messages the broker received, confirmed, delivered and returned."""
    connection = http.client.HTTPConnection(*broker.addresses["http"], timeout=30)
    login = base64.b64encode(b"guest:guest").decode()
    connection.request("GET", "/api/overview", headers={"Authorization": f"Basic {login}"})
    message_stats: dict[str, Any] = json.loads(connection.getresponse().read())["message_stats"]
    connection.close()
    return {name: int(message_stats.get(name, 0)) for name in COUNTS}


#: Names of statistics. A statistic that a mode does not name must be 0.
COUNTS: Final = ("publish", "confirm", "deliver", "deliver_no_ack", "get", "get_no_ack", "ack")

#: Mode -> arguments of PerfTest, and the statistics of the broker afterwards. -C is the number of
#: messages that each producer sends, -D the number that each consumer receives.
MODES: Final[dict[str, tuple[str, dict[str, int]]]] = {
    "confirms": (
        "-C 3000 -D 3000 --confirm 100",
        {"publish": 3000, "confirm": 3000, "deliver": 3000, "ack": 3000},
    ),
    "producers and consumers": (
        "-x 3 -y 1 -C 1000 -D 3000 --confirm 10 --qos 20",
        {"publish": 3000, "confirm": 3000, "deliver": 3000, "ack": 3000},
    ),
    "multi-ack": (
        "-C 3000 -D 3000 --multi-ack-every 100",
        {"publish": 3000, "deliver": 3000, "ack": 3000},
    ),
    "auto-ack": ("-C 3000 -D 3000 --autoack", {"publish": 3000, "deliver_no_ack": 3000}),
    "persistent and mandatory": (
        "-C 2000 -D 2000 --confirm 50 --flag persistent --flag mandatory --auto-delete false",
        {"publish": 2000, "confirm": 2000, "deliver": 2000, "ack": 2000},
    ),
    "quorum queue": (
        "-C 2000 -D 2000 --confirm 50 --quorum-queue --queue quorum",
        {"publish": 2000, "confirm": 2000, "deliver": 2000, "ack": 2000},
    ),
    "stream queue": (
        "-C 2000 -D 2000 --confirm 50 --stream-queue --queue stream -sco first --qos 200",
        # Statistics count no acknowledgement of a stream's message, which only gives credit.
        {"publish": 2000, "confirm": 2000, "deliver": 2000},
    ),
    "rate": (
        "-C 200 -D 200 --rate 400 --confirm 10",
        {"publish": 200, "confirm": 200, "deliver": 200, "ack": 200},
    ),
    "variable size": (
        "-C 200 -D 200 --rate 200 --variable-size 1000:1 --variable-size 100000:1 --confirm 10",
        {"publish": 200, "confirm": 200, "deliver": 200, "ack": 200},
    ),
    "queue pattern": (
        (
            "-x 5 -y 5 -C 400 -D 400 --queue-pattern perf-%d --queue-pattern-from 1 "
            "--queue-pattern-to 5 --confirm 10"
        ),
        {"publish": 2000, "confirm": 2000, "deliver": 2000, "ack": 2000},
    ),
    "polling": (
        "-C 500 -D 500 --polling --queue polled",
        {"publish": 500, "get": 500, "ack": 500},
    ),
    "polling with auto-ack": (
        "-C 500 -D 500 --polling --autoack --queue polled",
        {"publish": 500, "get_no_ack": 500},
    ),
    "nack without requeue": (
        "-C 1000 -D 1000 --nack --requeue false --confirm 20",
        {"publish": 1000, "confirm": 1000, "deliver": 1000},
    ),
    "properties": (
        (
            "-C 1000 -D 1000 --message-properties priority=5,content_type=text/plain,x-odd=1 "
            "--queue-args x-max-priority=10"
        ),
        {"publish": 1000, "deliver": 1000, "ack": 1000},
    ),
    "queue arguments": (
        (
            "-C 1000 -D 1000 --confirm 20 "
            "--queue-args x-max-length=100000,x-message-ttl=600000,x-overflow=reject-publish"
        ),
        {"publish": 1000, "confirm": 1000, "deliver": 1000, "ack": 1000},
    ),
    "fanout": (
        (
            "-x 1 -y 3 -C 500 -D 500 --exchange out --type fanout --queue-pattern out-%d "
            "--queue-pattern-from 1 --queue-pattern-to 3 --confirm 10"
        ),
        {"publish": 500, "confirm": 500, "deliver": 1500, "ack": 1500},
    ),
    "topic": (
        "-C 1000 -D 1000 --exchange topics --type topic --routing-key a.b.c --confirm 10",
        {"publish": 1000, "confirm": 1000, "deliver": 1000, "ack": 1000},
    ),
    "default exchange": (
        (
            "-C 1000 -D 1000 --exchange amq.default --routing-key one --queue one --confirm 10 "
            "--predeclared"
        ),
        {"publish": 1000, "confirm": 1000, "deliver": 1000, "ack": 1000},
    ),
    "random routing keys": (
        "-C 1000 -D 1000 --exchange any --type fanout --random-routing-key",
        {"publish": 1000, "deliver": 1000, "ack": 1000},
    ),
    "consumer latency": (
        "-C 200 -D 200 --consumer-latency 1000 --qos 10 --consumer-args x-priority=3",
        {"publish": 200, "deliver": 200, "ack": 200},
    ),
    "json bodies": (
        "-C 500 -D 500 --json-body --size 4000 --body-count 5 --body-field-count 50 --confirm 10",
        {"publish": 500, "confirm": 500, "deliver": 500, "ack": 500},
    ),
    "large bodies": (
        "-C 20 -D 20 --size 4000000 --confirm 2 --qos 2",
        {"publish": 20, "confirm": 20, "deliver": 20, "ack": 20},
    ),
    "channels": (
        "-x 2 -X 5 -y 1 -Y 1 -C 200 -D 2000 --confirm 10 --global-qos 50",
        {"publish": 2000, "confirm": 2000, "deliver": 2000, "ack": 2000},
    ),
    "transactions": (
        "-C 1000 -D 1000 --ptxsize 10 --ctxsize 10",
        {"publish": 1000, "deliver": 1000, "ack": 1000},
    ),
    "small frames": (
        "-C 200 -D 200 --size 20000 --framemax 4096 --confirm 10",
        {"publish": 200, "confirm": 200, "deliver": 200, "ack": 200},
    ),
    "nio": (
        "-x 2 -y 1 -C 1000 -D 2000 --nio-threads 2 --confirm 10",
        {"publish": 2000, "confirm": 2000, "deliver": 2000, "ack": 2000},
    ),
}


def run(class_path: str, broker: BrokerProcess, arguments: str) -> str:
    """Run PerfTest, check that it succeeds, and return the reason that it prints for its end."""
    done = subprocess.run(
        [
            *(require("java"), "-cp", class_path, "com.rabbitmq.perf.PerfTest"),
            *("--uri", broker.amqp_url, *arguments.split()),
        ],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    assert not re.search(r"Exception|nacked: [1-9]|returned: [1-9]", output), output
    ended = re.search(r"^test stopped \((.*)\)$", done.stdout, re.MULTILINE)
    assert ended, output
    return ended[1]


@pytest.mark.long
@pytest.mark.parametrize("mode", MODES)
def test_perftest(class_path: str, fresh: BrokerProcess, mode: str) -> None:
    arguments, counts = MODES[mode]
    why = run(class_path, fresh, arguments)
    assert "Producer reached message limit" in why and "Consumer reached message limit" in why
    assert statistics(fresh) == dict.fromkeys(COUNTS, 0) | counts


@pytest.mark.long
def test_perftest_with_a_variable_rate(class_path: str, fresh: BrokerProcess) -> None:
    """Run PerfTest for 4 s: with a variable rate, it cannot stop after a number of messages."""
    why = run(
        class_path,
        fresh,
        "--variable-rate 400:1 --variable-rate 100:1 --time 4 --confirm 10 --autoack",
    )
    assert "limit" in why
    counts = statistics(fresh)
    assert counts["publish"] == counts["confirm"] == counts["deliver_no_ack"] > 0
