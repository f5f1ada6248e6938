"""Tests with clients that send garbage, too little or too much, or are slow or silent.

Well-behaved clients that are connected at the same time must work as usual.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, Final, NamedTuple

import pamqp.commands as spec
import pytest
import pytest_asyncio

from protocols.amqp.connection.handshake import GREETING
from tests.clients import connect_packet, marshal, packet, start_ok, text, unmarshal
from tests.top.conftest import Start
from tests.top.running import Amqp0, Leaks, Mqtt0, Running, Socket

#: Seconds that clients have for their login.
HANDSHAKE: Final = 1.0
#: Random bytes, the same in every run.
NOISE: Final = random.Random(2).randbytes(300_000)
CLOSE: Final = b"\x00\x0a\x00\x32"
#: Seconds between two bytes of a client that sends slowly. The client never completes its login, so
#: it is disconnected at the handshake timeout.
DRIP: Final = 0.02

Talk = Callable[[Running], Coroutine[Any, Any, bytes]]


class Case(NamedTuple):
    """A misbehaving client, and what the broker must do.

    `answer` is the beginning of the broker's answer; b"" stands for a close without output. An
    AMQP answer is a list of method names, with the code of connection.close. `reason` is the reason
    that the broker counts. It is "" if two reasons are possible: after an invalid frame, the broker
    cannot recognize close-ok, and counts `protocol_error` or `lost`.
    """

    talk: Talk
    answer: bytes
    reason: str


def says(listener: str, data: bytes) -> Talk:
    """Return a Talk that sends data and reads to the end, and answers AMQP's connection.close."""

    async def talk(running: Running) -> bytes:
        client = await running.socket(listener)
        reading = asyncio.create_task(
            listen(client) if listener == "amqp" else client.read_to_end()
        )
        try:
            await client.send(data)
        except ConnectionError:
            pass  # The broker has closed the connection.
        return await reading

    return talk


async def listen(client: Socket) -> bytes:
    """Read until the broker closes the connection, and return its answer in short form.

    If the broker sends connection.close (AMQP), the client sends close-ok.
    """
    data, close_sent = b"", False
    while more := await client.read():
        data += more
        if CLOSE in data and not close_sent:
            close_sent = True
            await client.send(marshal(0, spec.Connection.CloseOk()))
            client.shut_down()
    client.close()
    return data if data.startswith(b"AMQP") else " ".join(map(short, unmarshal(data))).encode()


def short(frame: Any) -> str:
    name: str = frame.name.partition(".")[2]
    return name + (str(frame.reply_code) if isinstance(frame, spec.Connection.Close) else "")


def leaves(listener: str, data: bytes) -> Talk:
    """Return a Talk that sends data, half-closes the connection, and reads to the end."""

    async def talk(running: Running) -> bytes:
        client = await running.socket(listener)
        await client.send(data)
        client.shut_down()
        return await (listen(client) if listener == "amqp" else client.read_to_end())

    return talk


def drips(listener: str, data: bytes) -> Talk:
    """Return a Talk that sends data byte by byte, more slowly than the limits allow."""

    async def talk(running: Running) -> bytes:
        client = await running.socket(listener)
        reading = asyncio.create_task(
            listen(client) if listener == "amqp" else client.read_to_end()
        )
        for byte in data * 1000:
            try:
                await client.send(bytes([byte]))
            except OSError:
                break
            if (await asyncio.wait([reading], timeout=DRIP))[0]:
                break
        return await reading

    return talk


def after_amqp_login(data: bytes) -> Talk:
    async def talk(running: Running) -> bytes:
        client = await running.amqp()
        await client.socket.send(data)
        return await listen(client.socket)

    return talk


def after_mqtt_login(data: bytes) -> Talk:
    async def talk(running: Running) -> bytes:
        client = await running.mqtt(f"rude-{data[:9].hex()}")
        await client.socket.send(data)
        return await client.socket.read_to_end()

    return talk


AMQP: Final = {
    "http": Case(says("amqp", b"GET / HTTP/1.1\r\n\r\n"), GREETING, "protocol_error"),
    "noise": Case(says("amqp", NOISE), GREETING, "protocol_error"),
    "amqp 1.0": Case(says("amqp", b"AMQP\x00\x01\x00\x00"), GREETING, "protocol_error"),
    "noise after the greeting": Case(says("amqp", GREETING + NOISE), b"Start Close5", ""),
    "huge frame": Case(
        says("amqp", GREETING + b"\x01\x00\x00\x7f\xff\xff\xff\x00"), b"Start Close5", ""
    ),
    "negative frame": Case(
        says("amqp", GREETING + b"\x01\x00\x00\xff\xff\xff\xff\x00"), b"Start Close5", ""
    ),
    "undecodable start-ok": Case(
        says("amqp", GREETING + b"\x01\x00\x00\x00\x00\x00\x06\x00\x0a\x00\x0b\xff\xff\xce"),
        b"Start Close5",
        "protocol_error",
    ),
    "unknown mechanism": Case(
        says("amqp", GREETING + start_ok("known", "known", "EXTERNAL")),
        b"Start Close5",
        "protocol_error",
    ),
    "wrong password": Case(
        says("amqp", GREETING + start_ok("known", "wrong")), b"Start Close403", "login_refused"
    ),
    "silent": Case(says("amqp", b""), b"", "handshake_timeout"),
    "half a greeting": Case(says("amqp", b"AMQP"), b"", "handshake_timeout"),
    "silent after the greeting": Case(says("amqp", GREETING), b"Start", "handshake_timeout"),
    "half a start-ok": Case(
        says("amqp", GREETING + start_ok("known", "known")[:40]), b"Start", "handshake_timeout"
    ),
    "silent after start-ok": Case(
        says("amqp", GREETING + start_ok("known", "known")), b"Start Tune", "handshake_timeout"
    ),
    "drip": Case(
        drips("amqp", GREETING + start_ok("known", "known")), b"Start", "handshake_timeout"
    ),
    "gone at once": Case(leaves("amqp", b""), b"", "lost"),
    "gone in the greeting": Case(leaves("amqp", b"AMQP"), b"", "lost"),
    "gone in start-ok": Case(
        leaves("amqp", GREETING + start_ok("known", "known")[:40]), b"Start", "lost"
    ),
    "no frame end": Case(after_amqp_login(b"\x08\x00\x00\x00\x00\x00\x00\x00"), b"Close5", ""),
    "oversized frame": Case(after_amqp_login(b"\x01\x00\x01\x00\x02\x00\x01\x00"), b"Close5", ""),
    "unknown frame type": Case(
        after_amqp_login(b"\x07\x00\x00\x00\x00\x00\x00\xce"), b"Close5", "protocol_error"
    ),
    "half a method": Case(
        after_amqp_login(b"\x01\x00\x01\x00\x00\x00\x04\x00\x32\x00\x0a\xce"),
        b"Close5",
        "protocol_error",
    ),
    "content of nothing": Case(
        after_amqp_login(b"\x03\x00\x01\x00\x00\x00\x01a\xce"), b"Close5", "protocol_error"
    ),
    "noise after the login": Case(after_amqp_login(NOISE), b"Close5", ""),
}
CONNACK: Final = b"\x20\x02\x00"
MQTT: Final = {
    "http": Case(says("mqtt", b"GET / HTTP/1.1\r\n\r\n"), b"", "protocol_error"),
    "noise": Case(says("mqtt", NOISE), b"", "protocol_error"),
    "another protocol": Case(
        says("mqtt", packet(0x10, text("MOTT") + b"\x04\x02\x00\x00\x00\x00")),
        b"",
        "protocol_error",
    ),
    "level 6": Case(
        says("mqtt", packet(0x10, text("MQTT") + b"\x06\x02\x00\x00\x00\x00\x00")),
        b"\x20\x03\x00\x84\x00",
        "unacceptable_version",
    ),
    "reserved flag": Case(
        says("mqtt", packet(0x10, text("MQTT") + b"\x04\x03\x00\x00\x00\x00")),
        b"",
        "protocol_error",
    ),
    "no CONNECT": Case(says("mqtt", b"\xc0\x00"), b"", "protocol_error"),
    "endless length": Case(says("mqtt", b"\x10\xff\xff\xff\xff\xff"), b"", "protocol_error"),
    "oversized CONNECT": Case(says("mqtt", b"\x10\xff\xff\x07" + NOISE), b"", "too_large"),
    "name that is no UTF-8": Case(
        says("mqtt", packet(0x10, text("MQTT") + b"\x04\x02\x00\x00\x00\x01\xff")),
        b"",
        "protocol_error",
    ),
    "no name, persistent": Case(
        says("mqtt", connect_packet("", clean=False)), CONNACK + b"\x02", "identifier_rejected"
    ),
    "wrong password": Case(
        says("mqtt", connect_packet("w", user="known/wrong")), CONNACK + b"\x04", "login_refused"
    ),
    "silent": Case(says("mqtt", b""), b"", "handshake_timeout"),
    "half a CONNECT": Case(says("mqtt", connect_packet("half")[:9]), b"", "handshake_timeout"),
    "drip": Case(drips("mqtt", b"\x10\xff\x7f"), b"", "handshake_timeout"),
    "gone at once": Case(leaves("mqtt", b""), b"", "lost"),
    "gone in CONNECT": Case(leaves("mqtt", connect_packet("half")[:9]), b"", "lost"),
    "second CONNECT": Case(after_mqtt_login(connect_packet("again")), b"", "protocol_error"),
    "packet type 0": Case(after_mqtt_login(b"\x00\x00"), b"", "protocol_error"),
    "QoS 3": Case(after_mqtt_login(packet(0x36, text("t") + b"\x00\x01")), b"", "protocol_error"),
    "topic longer than its packet": Case(
        after_mqtt_login(b"\x30\x02\xff\xff"), b"", "protocol_error"
    ),
    "no topic filter": Case(after_mqtt_login(packet(0x82, b"\x00\x01")), b"", "protocol_error"),
    "too large a packet": Case(after_mqtt_login(b"\x30\x81\x80\x80\x08"), b"", "too_large"),
    "noise after the login": Case(after_mqtt_login(b"\xf1" + NOISE), b"", "protocol_error"),
}


def http_cases(listener: str) -> dict[str, Case]:
    return {
        "noise": Case(says(listener, NOISE), b"HTTP/1.1 4", "400"),
        "another protocol": Case(says(listener, GREETING + b"\r\n\r\n"), b"HTTP/1.1 400 ", "400"),
        "no host": Case(says(listener, b"GET / HTTP/1.1\r\n\r\n"), b"HTTP/1.1 400 ", "400"),
        "HTTP/2": Case(
            says(listener, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), b"HTTP/1.1 405 ", "405"
        ),
        "header without end": Case(
            says(listener, b"GET / HTTP/1.1\r\nHost: " + b"x" * 100_000), b"HTTP/1.1 431 ", "431"
        ),
        "endless line": Case(says(listener, b"x" * 100_000), b"HTTP/1.1 431 ", "431"),
        "another method with a body": Case(
            says(listener, b"BREW / HTTP/1.1\r\nHost: x\r\nContent-Length: 300000\r\n\r\n" + NOISE),
            b"HTTP/1.1 405 ",
            "405",
        ),
        "silent": Case(says(listener, b""), b"HTTP/1.1 408 ", "408"),
        "half a request": Case(
            says(listener, b"GET / HTTP/1.1\r\nHost: x\r\n"), b"HTTP/1.1 408 ", "408"
        ),
        "drip": Case(drips(listener, b"GET / HTTP/1.1\r\nHost: x\r\n"), b"HTTP/1.1 408 ", "408"),
        "gone at once": Case(leaves(listener, b""), b"", "lost"),
        "gone in the request": Case(leaves(listener, b"GET / HT"), b"HTTP/1.1 400 ", "400"),
    }


@pytest_asyncio.fixture
async def running(start: Start) -> Running:
    return await start(limits={"handshake": HANDSHAKE})


async def outcomes(running: Running, cases: dict[str, Case]) -> dict[str, bytes]:
    """Run all cases at once; return the broker's answer to each, by name.

    Each answer is cut to the length of the expected one.
    """
    answers = await asyncio.gather(*(case.talk(running) for case in cases.values()))
    return {
        name: answer[: len(case.answer)] if case.answer else answer
        for (name, case), answer in zip(cases.items(), answers, strict=True)
    }


async def test_amqp_clients_that_break_the_protocol_are_told_and_closed(running: Running) -> None:
    neighbour = await running.amqp()
    working = asyncio.create_task(_declare_and_delete(neighbour))
    leaks = await Leaks.watch(running)
    assert await outcomes(running, AMQP) == {name: case.answer for name, case in AMQP.items()}
    await leaks.check()
    expected = Counter(case.reason for case in AMQP.values())
    closed = Counter(running.node.amqp.closed)
    assert closed.total() == expected.total()
    assert {reason: closed[reason] for reason in ("handshake_timeout", "login_refused")} == {
        "handshake_timeout": expected["handshake_timeout"],
        "login_refused": expected["login_refused"],
    }
    page = await running.scrape()
    for reason, count in closed.items():
        assert count >= expected[reason]
        assert (
            page.value("trellis_connections_closed_total", protocol="amqp091", reason=reason)
            == count
        )
    working.cancel()
    await asyncio.wait([working])
    assert working.cancelled()
    await Amqp0(await running.socket("amqp")).log_in()


async def _declare_and_delete(client: Amqp0) -> None:
    while True:
        await client.queue("work")
        await client.call(spec.Queue.Delete(queue="work"), spec.Queue.DeleteOk)


@pytest.mark.long
async def test_amqp_clients_without_the_close_capability_are_disconnected_after_a_wrong_password(
    running: Running,
) -> None:
    answer = await says(
        "amqp", GREETING + start_ok("known", "wrong", authentication_failure_close=False)
    )(running)
    assert answer == b"Start"
    assert running.node.amqp.closed == {"login_refused": 1}


async def test_mqtt_clients_that_break_the_protocol_are_closed(running: Running) -> None:
    neighbour = await running.mqtt("neighbour")
    working = asyncio.create_task(_ping(neighbour))
    leaks = await Leaks.watch(running)
    assert await outcomes(running, MQTT) == {name: case.answer for name, case in MQTT.items()}
    await leaks.check()
    closed = Counter(case.reason for case in MQTT.values())
    assert running.node.mqtt.closed == closed
    page = await running.scrape()
    for reason, count in closed.items():
        assert (
            page.value("trellis_connections_closed_total", protocol="mqtt", reason=reason) == count
        )
    working.cancel()
    await asyncio.wait([working])
    assert working.cancelled()


async def _ping(client: Mqtt0) -> None:
    while True:
        await client.ping()


async def test_http_clients_that_break_the_protocol_are_told_and_closed(running: Running) -> None:
    listeners = ("metrics", "http")
    cases = {
        f"{listener}: {name}": case
        for listener in listeners
        for name, case in http_cases(listener).items()
    }
    # The first request starts the gateway.
    assert (await running.get("http", "/api/overview"))[0] == 401
    leaks = await Leaks.watch(running)
    enough = asyncio.Event()
    asking = asyncio.gather(*(_ask(running, listener, enough) for listener in listeners))
    assert await outcomes(running, cases) == {name: case.answer for name, case in cases.items()}
    enough.set()
    request_counts = await asking
    await leaks.check()
    page = await running.scrape()
    for listener, number in zip(listeners, request_counts, strict=True):
        reasons = Counter(case.reason for case in http_cases(listener).values())
        for status in ("400", "405", "408", "431"):
            assert (
                page.value("trellis_http_responses_total", listener=listener, status=status)
                == reasons[status]
            )
        assert page.value("trellis_http_responses_total", listener=listener, status="404") == number
        assert (
            page.value("trellis_http_closed_total", listener=listener, reason="lost")
            == reasons["lost"]
        )


async def _ask(running: Running, listener: str, enough: asyncio.Event) -> int:
    """Send correct requests to a listener until `enough` is set; return their number."""
    requests = 0
    while not enough.is_set():
        assert (await running.get(listener, "/nowhere"))[0] == 404
        requests += 1
    return requests
