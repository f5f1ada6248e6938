"""Tests that each error of the load generator is one line.

The line names the connection and the problem, and the expected value or the remedy.
"""

from __future__ import annotations

import re
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from tests.bench.faulty import FaultyBroker
from tests.bench.runs import held, ran, small, small_options, targets
from tests.broker import BrokerProcess
from trellis.bench.errors import BenchError, Unreachable
from trellis.bench.target import DEFAULTS, BrokerTarget, parse

AGAIN = (
    "wrong answer at subscriber 0: a message came again or late: "
    "expected message 20 of publisher 0, got message 19"
)
LOST = (
    "wrong answer at subscriber 0: a message was lost or overtaken: "
    "expected message 19 of publisher 0, got message 20"
)


@pytest.mark.parametrize(
    ("fault", "name", "error"),
    [
        (
            "silent",
            "mqtt-qos0",
            "no progress for 0.2 s: subscriber 0 waits for 256 of 256 messages",
        ),
        ("greedy", "mqtt-qos1", "no progress for 0.2 s: publisher 0 waits for 256 confirms"),
        ("stutter", "mqtt-qos0", AGAIN),
        ("forgetful", "mqtt-qos0", LOST),
        (
            "forgetful",
            "mqtt-pingpong",
            "no progress for 0.2 s: subscriber 0 waits for 1 of 20 messages",
        ),
        ("stutter", "mqtt-pingpong", AGAIN),
        (
            "garbled",
            "mqtt-qos0",
            (
                "wrong answer at subscriber 0: byte 99 of the body of message 19 of publisher 0 "
                "is wrong: expected 0x7c, got 0x21"
            ),
        ),
    ],
)
def test_faults_of_a_broker_are_reported(fault: str, name: str, error: str) -> None:
    with FaultyBroker(fault) as broker:
        result = ran(
            small(name), {"mqtt": broker.target}, small_options(messages=2_000, patience=0.2)
        )
    assert result.error == error
    assert result.median is None


def test_broker_without_fault_passes() -> None:
    with FaultyBroker() as broker:
        for name in ("mqtt-qos0", "mqtt-qos1", "mqtt-pingpong"):
            assert ran(small(name), {"mqtt": broker.target}).error is None


def test_broker_that_closes_connections_is_reported() -> None:
    with FaultyBroker("leaving") as broker:
        result = ran(small("mqtt-qos0"), {"mqtt": broker.target})
    assert result.error is not None and ": the broker closed the connection" in result.error


def test_broker_that_does_not_read_is_reported() -> None:
    # 8 MB in flight are more than the sockets' buffers hold, so the publisher is blocked.
    with FaultyBroker("deaf") as broker:
        result = ran(
            small("mqtt-qos1"),
            {"mqtt": broker.target},
            small_options(messages=100, size=1 << 20, patience=0.2),
        )
    assert result.error is not None
    assert re.match(
        r"no progress for 0.2 s: publisher 0 waits for the broker to read \d+ more bytes",
        result.error,
    )


def test_missing_broker() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(Unreachable) as caught:
        ran(small("mqtt-qos0"), {"mqtt": BrokerTarget("mqtt", "127.0.0.1", port, None, None)})
    assert str(caught.value) == (
        f"cannot connect to mqtt://127.0.0.1:{port} (Connection refused); start the broker there, "
        "or give --mqtt mqtt://USER:PASSWORD@HOST:PORT"
    )


@pytest.mark.parametrize(
    ("name", "refusal"),
    [("amqp-auto", "403 ACCESS_REFUSED"), ("mqtt-qos0", "bad user name or password")],
)
def test_refused_login(broker: BrokerProcess, name: str, refusal: str) -> None:
    where = {
        protocol: target._replace(user="guest", password="wrong")
        for protocol, target in targets(broker).items()
    }
    with pytest.raises(
        Unreachable, match=rf"refused user guest \(.*{refusal}.*\); give --(amqp|mqtt) "
    ) as caught:
        ran(small(name), where)
    assert "\n" not in str(caught.value)


def test_reason_of_a_closed_channel_is_reported(broker: BrokerProcess) -> None:
    where = {"amqp": targets(broker)["amqp"]._replace(vhost="nowhere")}
    result = ran(small("amqp-auto"), where)
    assert result.error is not None
    assert (
        result.error.startswith("control connection: the broker closed the connection: ")
        and "nowhere" in result.error
    )


def test_failure_leaves_nothing_behind(broker: BrokerProcess) -> None:
    where = targets(broker) | {"mqtt": BrokerTarget("mqtt", "127.0.0.1", 1, None, None)}
    with pytest.raises(Unreachable):
        ran(replace(small("amqp-fan10"), publish="mqtt"), where)
    assert not held(broker, "queues") and not held(broker, "exchanges")


@pytest.mark.parametrize(
    ("answer", "name", "error"),
    [
        (
            b"HTTP/1.1 400 Bad Request\r\n\r\n",
            "mqtt-qos0",
            "answered CONNECT with 48 54 54 50, which is not MQTT; give an MQTT listener",
        ),
        (b"\x20\x02\x00\x03", "mqtt-qos0", "refused CONNECT: server unavailable"),
        (
            b"\x20\x02\x00\x05",
            "mqtt-qos0",
            r"refused an anonymous client \(not authorised\); give --mqtt",
        ),
        (
            b"HTTP/1.1 400 Bad Request\r\n\r\n",
            "amqp-auto",
            "answered the protocol header with 48, which is not AMQP; give an AMQP listener",
        ),
        (b"AMQP\x03\x01\x00\x00", "amqp-auto", "does not speak AMQP 0-9-1"),
        (
            b"\x01\x00\x00\x00\x00\x00\x04\x00\x0a\x00\x0a\x00",
            "amqp-auto",
            "sent a frame without a frame end",
        ),
        (b"\x03\x00\x00\x00\x00\x00\x04\x00\x0a\x00\x0a\xce", "amqp-auto", "is not AMQP"),
    ],
)
def test_wrong_kind_of_server(answer: bytes, name: str, error: str) -> None:
    with answering(answer) as target:
        try:
            result = ran(
                small(name),
                {"mqtt": target, "amqp": target._replace(user="guest", password="guest")},
            )
        except Unreachable as caught:
            assert_matches(error, str(caught))
        else:
            assert_matches(error, result.error or "")


def test_server_that_closes_at_once() -> None:
    with answering() as target:
        result = ran(small("mqtt-qos0"), {"mqtt": target})
    assert (
        result.error is not None
        and "closed the connection" in result.error
        and "waited for CONNACK" in result.error
    )


def test_subscription_that_is_not_granted() -> None:
    with answering(b"\x20\x02\x00\x00", b"\x90\x03\x00\x01\x01") as target:
        result = ran(small("mqtt-qos2"), {"mqtt": target})
    assert result.error is not None
    assert result.error.startswith("subscriber 0: cannot subscribe to '")
    assert result.error.endswith(f"': {target} granted QoS 1 instead of 2")


def test_too_many_connections_for_the_limit_of_files(broker: BrokerProcess) -> None:
    workload = replace(small("mqtt-qos0"), subscribers=1 << 40)
    result = ran(workload, targets(broker))
    assert result.error is not None
    assert "open files" in result.error and "raise it with ulimit -n" in result.error


@pytest.mark.parametrize(
    ("url", "target"),
    [
        (
            "amqp://ann:se%40cret@host:1234/a%2Fb",
            BrokerTarget("amqp", "host", 1234, "ann", "se@cret", "a/b"),
        ),
        ("amqp://host", BrokerTarget("amqp", "host", 5672, "guest", "guest", "/")),
        ("amqp://host/", BrokerTarget("amqp", "host", 5672, "guest", "guest", "/")),
        ("amqp://host/%2F", BrokerTarget("amqp", "host", 5672, "guest", "guest", "/")),
        ("amqp://[::1]:99/v", BrokerTarget("amqp", "::1", 99, "guest", "guest", "v")),
        ("mqtt://host", BrokerTarget("mqtt", "host", 1883, None, None)),
        ("mqtt://ann:x@host:9/", BrokerTarget("mqtt", "host", 9, "ann", "x")),
    ],
)
def test_targets(url: str, target: BrokerTarget) -> None:
    assert parse(target.protocol, url) == target


@pytest.mark.parametrize(
    "url",
    [
        "host",
        "mqtt://host:99999",
        "mqtt://host/path",
        "amqp://host",
        "mqtt://",
        "mqtt://host?x=1",
        "mqtt://[::1",
    ],
)
def test_urls_that_name_no_target(url: str) -> None:
    with pytest.raises(ValueError, match=r"must be|Invalid"):
        parse("mqtt", url)
    assert str(DEFAULTS["mqtt"]) == "mqtt://127.0.0.1:1883"


def assert_matches(pattern: str, text: str) -> None:
    with pytest.raises(BenchError, match=pattern):
        raise BenchError(text)


@contextmanager
def answering(*answers: bytes) -> Iterator[BrokerTarget]:
    """Start a server that answers each chunk that it receives with the next one of `answers`.

    After the last answer, the server reads nothing and keeps the connection open. Without answers,
    the server closes each connection as soon as it has accepted it.
    """
    done = threading.Event()

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            for answer in answers:
                if self.request.recv(65_536):
                    self.request.sendall(answer)
            if answers:
                done.wait()

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield BrokerTarget("mqtt", "127.0.0.1", server.server_address[1], None, None)
        finally:
            done.set()
            server.shutdown()
            thread.join()
