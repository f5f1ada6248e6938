"""Tests of TLS: which clients are accepted or refused, and how links with TLS behave."""

from __future__ import annotations

import asyncio
import socket
import ssl
import warnings
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pamqp.commands as spec
import pytest

from tests.authority import Authority
from tests.clients import connect_packet, marshal, mqtt_publish
from tests.top.conftest import Start
from tests.top.running import Amqp0, Leaks, Mqtt0, Running, Socket
from tests.top.secured import failures, mutual, refused, secure
from trellis.server.tls import RECORD

MIB: Final = 1 << 20

#: First byte of a TLS record with an alert.
ALERT: Final = 21


async def over_tls(running: Running, context: ssl.SSLContext, user: str = "known/known") -> Mqtt0:
    client = Mqtt0(await running.tls("mqtts", context))
    assert await client.connect("over-tls", user=user) == 0
    return client


# -- clients that are accepted


@pytest.mark.parametrize("newest", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_both_protocols_work_over_tls_with_messages_of_any_size(
    start: Start, authority: Authority, newest: ssl.TLSVersion
) -> None:
    running = await start(**secure(authority))
    context = authority.client(newest=newest)
    amqp = Amqp0(await running.tls("amqps", context))
    await amqp.log_in()
    await amqp.queue("q", "amq.topic", "t")
    await amqp.socket.send(marshal(1, spec.Basic.Consume(queue="q", no_ack=True, consumer_tag="c")))
    await amqp.expect(spec.Basic.ConsumeOk)
    mqtt = await over_tls(running, context)
    for size in (0, 1, RECORD - 20, RECORD, 5 * RECORD + 1, 2 * MIB):
        body = bytes(range(256)) * (size // 256) + bytes(size % 256)
        await mqtt.socket.send(mqtt_publish("t", body))
        await amqp.expect(spec.Basic.Deliver)
        header = await amqp.frame()
        got = b""
        while len(got) < header.body_size:
            got += (await amqp.frame()).value
        assert got == body
    await mqtt.leave()
    await amqp.leave()
    page = await running.scrape()
    version = newest.name.replace("_", ".", 1).replace("_", ".")
    for listener in ("amqps", "mqtts"):
        assert page.value("trellis_tls_handshakes_total", listener=listener, version=version) == 1


class Tapped:
    """A transport whose writes are recorded."""

    def __init__(self, transport: asyncio.Transport, written: list[bytes]) -> None:
        self._transport = transport
        self._written = written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        self._written.append(data)
        self._transport.write(data)


async def test_output_of_one_turn_is_one_record(start: Start, authority: Authority) -> None:
    running = await start(**secure(authority))
    client = await over_tls(running, authority.client())
    (link,) = running.links
    written: list[bytes] = []
    transport = link._transport
    assert transport is not None
    link._transport = Tapped(transport, written)  # type: ignore[assignment]
    await client.socket.send(b"\xc0\x00" * 500)
    assert await client.socket.exactly(1_000) == b"\xd0\x00" * 500
    assert len(written) == 1
    assert int.from_bytes(written[0][3:5], "big") == len(written[0]) - 5
    link._transport = transport
    await client.leave()


async def test_the_end_is_authenticated(start: Start, authority: Authority) -> None:
    running = await start(**secure(authority))
    client = await over_tls(running, authority.client())
    await client.socket.send(b"\xe0\x00")
    assert await client.socket.read() == b""  # Without the TLS close, read() would raise.
    client.socket.close()
    await running.until(lambda: not running.node.turn.links)
    assert running.node.mqtt.closed == {"client": 1}


async def test_input_before_close_notify_is_handled(start: Start, authority: Authority) -> None:
    running = await start(**secure(authority))
    watcher = await running.mqtt("watcher", user="known/known")
    await watcher.subscribe("t")
    client = await over_tls(running, authority.client())
    await client.socket.send(mqtt_publish("t", b"last words"))
    client.socket.close()
    assert await watcher.packet() == (0x30, b"\x00\x01tlast words")
    await running.until(lambda: running.node.mqtt.closed == {"lost": 1})


async def test_a_session_is_resumed(start: Start, authority: Authority) -> None:
    running = await start(**mutual(authority, "required"))
    context = authority.client(authority.sign("x", common_name="known"))

    def connect(session: ssl.SSLSession | None) -> ssl.SSLSession | None:
        with context.wrap_socket(
            socket.create_connection(("127.0.0.1", running.port("mqtts"))),
            server_hostname="localhost",
            session=session,
        ) as client:
            client.sendall(connect_packet("again", user="known/known"))
            assert client.recv(4)[3] == 0
            return client.session

    session = await asyncio.to_thread(connect, None)
    await asyncio.to_thread(connect, session)
    assert (await running.scrape()).value("trellis_tls_resumed_total", listener="mqtts") == 1


async def test_certificates_are_chosen_by_the_name_that_is_asked_for(
    start: Start, authority: Authority
) -> None:
    names = {
        name: {"certificate": str(authority.sign(name, file=f"{number}.pem"))}
        for number, name in enumerate(("one.example", "*.two.example"))
    }
    running = await start(**secure(authority, names=names))
    for name in ("localhost", "one.example", "ONE.example", "any.two.example"):
        client = Mqtt0(await running.tls("mqtts", authority.client(), name))
        assert await client.connect("by-name", user="known/known") == 0
        await client.leave()
    for name in ("three.example", "very.any.two.example"):
        with pytest.raises(ssl.SSLCertVerificationError):
            await running.tls("mqtts", authority.client(), name)


# -- clients that are refused


async def test_a_host_name_that_is_not_ascii_is_refused_without_a_traceback(
    start: Start, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[object] = []
    monkeypatch.setattr("sys.unraisablehook", lambda unraisable: reported.append(unraisable.object))
    names = {"one.example": {"certificate": str(authority.sign("one.example"))}}
    running = await start(**secure(authority, names=names))
    hello = ssl.MemoryBIO()
    client = authority.client().wrap_bio(ssl.MemoryBIO(), hello, False, "one.example")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    sock = await running.socket("mqtts")
    await sock.send(hello.read().replace(b"one.example", b"\xffne.example"))
    assert (await sock.read_to_end())[0] == ALERT
    await running.until(lambda: failures(running, "mqtts") == {"malformed": 1})
    assert reported == []


def legacy() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_ciphers("ALL:@SECLEVEL=0")
    return context


def with_version(authority: Authority, stranger: Authority) -> ssl.SSLContext:
    context = legacy()
    with warnings.catch_warnings(action="ignore"):
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    return context


def with_ciphers(authority: Authority, stranger: Authority) -> ssl.SSLContext:
    context = authority.client(newest=ssl.TLSVersion.TLSv1_2)
    context.set_ciphers("ECDHE+AES256+SHA384:AES128-SHA:@SECLEVEL=0")
    return context


def without_certificate(authority: Authority, stranger: Authority) -> ssl.SSLContext:
    return authority.client()


def with_a_strange_certificate(authority: Authority, stranger: Authority) -> ssl.SSLContext:
    return authority.client(stranger.sign("x", common_name="known"))


def with_an_old_certificate(authority: Authority, stranger: Authority) -> ssl.SSLContext:
    return authority.client(
        authority.sign("x", common_name="known", ends=datetime.now(UTC) - timedelta(days=1))
    )


def without_trust(authority: Authority, stranger: Authority) -> ssl.SSLContext:
    return stranger.client()


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (with_version, "version"),
        (with_ciphers, "no_shared_cipher"),
        (without_certificate, "no_certificate"),
        (with_a_strange_certificate, "bad_certificate"),
        (with_an_old_certificate, "bad_certificate"),
        (without_trust, "refused_by_client"),
    ],
)
async def test_a_handshake_that_fails_is_counted_by_its_reason(
    start: Start,
    authority: Authority,
    tmp_path: Path,
    make: Callable[[Authority, Authority], ssl.SSLContext],
    reason: str,
) -> None:
    running = await start(**mutual(authority, "required"))
    neighbour = await running.mqtt("neighbour")
    await refused(running, make(authority, Authority(tmp_path / "stranger")))
    await running.until(lambda: len(running.node.turn.links) == 1)
    page = await running.scrape()
    assert page.value("trellis_tls_failures_total", listener="mqtts", reason=reason) == 1
    assert sum(failures(running, "mqtts").values()) == 1
    assert running.node.mqtt.closed == {"tls": 1}
    await neighbour.ping()


HELLO: Final = b"\x16\x03\x01"

FAULTS: Final = {
    "http": (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "not_tls"),
    "plain MQTT": (connect_packet("plain"), "not_tls"),
    "plain AMQP": (b"AMQP\x00\x00\x09\x01", "not_tls"),
    "record too long": (HELLO + b"\xff\xff" + bytes(70_000), "not_tls"),
    "message too long": (
        HELLO + b"\x40\x00" + b"\x01\xff\xff\xff" + bytes(RECORD - 4),
        "too_large",
    ),
    "broken hello": (HELLO + b"\x00\x08" + b"\x01\x00\x00\x04\x03\x03\x00\x00", "malformed"),
    "half a hello": (HELLO + b"\x02\x00" + bytes(100), "timeout"),
    "silent": (b"", "timeout"),
}


async def test_input_that_is_no_handshake_is_refused_and_counted(
    start: Start, authority: Authority
) -> None:
    running = await start(**secure(authority), limits={"handshake": 1.0})
    leaks = await Leaks.watch(running)
    for name, (data, reason) in FAULTS.items():
        before = failures(running, "amqps").get(reason, 0)
        client = await running.socket("amqps")
        await client.send(data)
        answer = await client.read_to_end()
        assert answer[:1] == b"" or answer[0] == ALERT, name
        assert failures(running, "amqps").get(reason, 0) == before + 1, name
    await leaks.check()
    page = await running.scrape()
    for reason, times in Counter(reason for _, reason in FAULTS.values()).items():
        assert page.value("trellis_tls_failures_total", listener="amqps", reason=reason) == times


async def test_tls_failures_are_logged_as_refused_connections(
    start: Start, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    running = await start(**mutual(authority, "required"))
    caplog.set_level("INFO")
    await refused(running, authority.client())
    for _ in range(2):
        client = await running.socket("amqps")
        await client.send(connect_packet("plain"))
        await client.read_to_end()
    without, plain = [text for text in caplog.messages if text.startswith("connection_")]
    note = 'note="the TLS connection to listener'
    assert without.startswith(
        f"connection_refused protocol=mqtt address=127.0.0.1 {note} mqtts failed (no_certificate): "
    )
    assert plain.startswith(
        f"connection_refused protocol=amqp091 address=127.0.0.1 {note} amqps failed (not_tls): "
    )
    assert running.node.refusals.counts == {"connection_refused": 3}


async def test_refused_client_is_no_tls_failure(start: Start, authority: Authority) -> None:
    running = await start(**secure(authority), limits={"connections": 1})
    client = await running.mqtt("only", user="known/known")
    refused = await running.socket("mqtts")
    assert await refused.read_to_end() == b""
    await client.ping()
    assert running.node.admission.refused["connections"] == 1
    assert failures(running, "mqtts") == {}
    await client.leave()


async def test_client_that_disconnects_in_the_handshake_is_counted(
    start: Start, authority: Authority
) -> None:
    running = await start(**secure(authority))
    client = await running.socket("amqps")
    await client.send(HELLO)
    client.close()
    await running.until(lambda: failures(running, "amqps") == {"lost": 1})
    await running.until(lambda: not running.node.turn.links)


async def test_forged_records_end_the_connection(
    start: Start, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    running = await start(**secure(authority))
    client = await over_tls(running, authority.client())
    (link,) = running.links
    link.data_received(b"\x17\x03\x03\x00\x20" + bytes(32))
    await running.until(lambda: running.node.mqtt.closed == {"tls": 1})
    assert await client.socket.read() == b""
    client.socket.close()
    assert failures(running, "mqtts") == {"malformed": 1}
    [end] = [text for text in caplog.messages if text.startswith("connection_closed")]
    assert " client=over-tls " in end and " failed (malformed): " in end


async def test_a_client_without_tls_is_served_on_the_plain_port_beside_the_tls_port(
    start: Start, authority: Authority
) -> None:
    running = await start(**secure(authority))
    plain, secured = await running.mqtt("plain"), await over_tls(running, authority.client())
    await plain.ping()
    await secured.ping()
    assert isinstance(plain.socket, Socket)
    await plain.leave()
    await secured.leave()
