"""Tests of TLS: which clients are accepted or refused, and how links with TLS behave."""

from __future__ import annotations

import asyncio
import socket
import ssl
import warnings
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pamqp.commands as spec
import pytest
from cryptography.hazmat.primitives import serialization as form
from cryptography.hazmat.primitives.asymmetric import ec

from protocols.amqp.connection.handshake import GREETING
from tests.authority import Authority
from tests.broker import BrokerProcess
from tests.clients import connect_packet, marshal, mqtt_publish, start_ok
from tests.top.conftest import Start
from tests.top.running import KNOWN, Amqp0, Leaks, Mqtt0, Running, Socket, settings
from trellis.server.certificates import Certificates
from trellis.server.tls import RECORD
from trellis.settings import SettingsError

MIB: Final = 1 << 20
#: First byte of TLS alerts.
ALERT: Final = 21


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "certificates")


def secure(authority: Authority, **tls: Any) -> dict[str, Any]:
    """Return settings with both protocols over TLS, and a certificate for this host."""
    listener = {"enabled": True, "port": 0, "host": "127.0.0.1"}
    certificate = str(authority.sign("localhost", "127.0.0.1"))
    return {
        "amqps": listener,
        "mqtts": listener,
        "tls": {"certificate": certificate, "ca": str(authority.file)} | tls,
    }


def mutual(authority: Authority, need: str, **mqtts: Any) -> dict[str, Any]:
    """Return settings that also request certificates of clients."""
    chosen = secure(authority)
    for listener in ("amqps", "mqtts"):
        chosen[listener] = (
            chosen[listener] | {"client_certificate": need} | (mqtts if listener == "mqtts" else {})
        )
    return chosen


async def over_tls(running: Running, context: ssl.SSLContext, user: str = "known/known") -> Mqtt0:
    client = Mqtt0(await running.tls("mqtts", context))
    assert await client.connect("over-tls", user=user) == 0
    return client


def failures(running: Running, listener: str) -> dict[str, int]:
    """Return the number of failed connections by reason."""
    return {
        reason: count
        for reason, count in running.node.listener_contexts[listener].tls.failures.items()
        if count
    }


# -- the way in


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


async def test_what_one_turn_says_is_one_record(start: Start, authority: Authority) -> None:
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


async def test_what_came_before_close_notify_is_heard(start: Start, authority: Authority) -> None:
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


# -- certificates of clients


async def test_a_certificate_is_a_login_for_an_amqp_client_that_says_external(
    start: Start, authority: Authority
) -> None:
    running = await start(**mutual(authority, "optional"))
    client = Amqp0(
        await running.tls("amqps", authority.client(authority.sign("x", common_name="known")))
    )
    await client.log_in(mechanism="EXTERNAL")
    assert client.mechanisms == "PLAIN AMQPLAIN EXTERNAL"
    (connection,) = running.node.amqp.connections
    assert (connection.describe()["user"], connection.describe()["listener"]) == ("known", "amqps")
    await client.leave()


async def test_without_a_certificate_there_is_no_external(
    start: Start, authority: Authority
) -> None:
    running = await start(**mutual(authority, "optional"))
    client = Amqp0(await running.tls("amqps", authority.client()))
    await client.log_in()
    assert client.mechanisms == "PLAIN AMQPLAIN"
    await client.leave()
    liar = Amqp0(await running.tls("amqps", authority.client()))
    await liar.socket.send(GREETING + start_ok("known", "known", "EXTERNAL"))
    await liar.expect(spec.Connection.Start)
    assert (await liar.expect(spec.Connection.Close)).reply_text.startswith(
        "COMMAND_INVALID - unknown authentication mechanism 'EXTERNAL'"
    )
    liar.socket.close()


async def test_a_certificate_that_names_no_user_is_no_login(
    start: Start, authority: Authority
) -> None:
    running = await start(**mutual(authority, "required", certificate_user=True))
    context = authority.client(authority.sign("x", common_name="unknown"))
    client = Amqp0(await running.tls("amqps", context))
    await client.socket.send(GREETING + start_ok("known", "known", "EXTERNAL"))
    await client.expect(spec.Connection.Start)
    assert (await client.expect(spec.Connection.Close)).reply_code == 403
    client.socket.close()
    mqtt = Mqtt0(await running.tls("mqtts", context))
    assert await mqtt.connect("unknown") == 4
    mqtt.socket.close()
    assert (await running.scrape()).value(
        "trellis_logins_total", protocol="mqtt", outcome="refused"
    ) == 1


@pytest.mark.parametrize(
    ("asked", "named", "user"), [(True, "known", "known"), (False, "known", "")]
)
async def test_a_certificate_is_an_mqtt_user_only_when_that_is_set(
    start: Start, authority: Authority, asked: bool, named: str, user: str
) -> None:
    running = await start(**mutual(authority, "required", certificate_user=asked))
    client = Mqtt0(
        await running.tls("mqtts", authority.client(authority.sign("x", common_name=named)))
    )
    assert await client.connect("with-certificate") == 0
    (connection,) = running.node.mqtt.connections
    assert connection.describe()["user"] == user
    await client.leave()


async def test_a_user_name_and_its_password_go_before_the_certificate(
    start: Start, authority: Authority
) -> None:
    other = KNOWN | {"name": "other"}
    running = await start(
        users=[KNOWN, other], **mutual(authority, "required", certificate_user=True)
    )
    client = Mqtt0(
        await running.tls("mqtts", authority.client(authority.sign("x", common_name="other")))
    )
    assert await client.connect("two-names", user="known/known") == 0
    (connection,) = running.node.mqtt.connections
    assert connection.describe()["user"] == "known"
    await client.leave()


@pytest.mark.parametrize(
    ("name_from", "name"),
    [("dns", "device.example"), ("email", "device@example.org"), ("common_name", "device")],
)
async def test_the_user_name_is_taken_from_where_it_is_said_to_be(
    start: Start, authority: Authority, name_from: str, name: str
) -> None:
    chosen = mutual(authority, "required", certificate_user=True)
    chosen["tls"]["user_from"] = name_from
    running = await start(users=[KNOWN | {"name": name}], **chosen)
    certificate = authority.sign("device.example", "device@example.org", common_name="device")
    client = Mqtt0(await running.tls("mqtts", authority.client(certificate)))
    assert await client.connect("device") == 0
    (connection,) = running.node.mqtt.connections
    assert connection.describe()["user"] == name
    await client.leave()


# -- who does not get in


async def refused(running: Running, context: ssl.SSLContext) -> None:
    """Expect a failed handshake, or with TLS 1.3 a failed read after it."""

    def ask() -> bytes:
        with context.wrap_socket(
            socket.create_connection(("127.0.0.1", running.port("mqtts"))),
            server_hostname="localhost",
        ) as client:
            client.sendall(connect_packet("refused"))
            return client.recv(1)

    with pytest.raises((ssl.SSLError, ConnectionError)):
        await asyncio.to_thread(ask)


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


@pytest.mark.parametrize("name", FAULTS)
async def test_what_is_no_handshake_is_let_go_and_counted(
    start: Start, authority: Authority, name: str
) -> None:
    data, reason = FAULTS[name]
    running = await start(**secure(authority), limits={"handshake": 1.0})
    leaks = await Leaks.watch(running)
    client = await running.socket("amqps")
    await client.send(data)
    answer = await client.read_to_end()
    assert answer[:1] == b"" or answer[0] == ALERT
    await leaks.check()
    assert (await running.scrape()).value(
        "trellis_tls_failures_total", listener="amqps", reason=reason
    ) == 1


async def test_a_failure_is_a_line_for_who_looks_closely(
    start: Start, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    running = await start(**secure(authority))
    caplog.set_level("DEBUG")
    client = await running.socket("mqtts")
    await client.send(connect_packet("plain"))
    await client.read_to_end()
    (said,) = [
        record.getMessage()
        for record in caplog.records
        if record.getMessage().startswith("tls_failed")
    ]
    assert said.startswith("tls_failed listener=mqtts peer=127.0.0.1:")
    assert " reason=not_tls error=" in said


async def test_one_who_is_turned_away_is_no_failure(start: Start, authority: Authority) -> None:
    running = await start(**secure(authority), limits={"connections": 1})
    client = await running.mqtt("only", user="known/known")
    refused = await running.socket("mqtts")
    assert await refused.read_to_end() == b""
    await client.ping()
    assert running.node.admission.refused["connections"] == 1
    assert failures(running, "mqtts") == {}
    await client.leave()


async def test_one_who_leaves_in_the_handshake_is_counted(
    start: Start, authority: Authority
) -> None:
    running = await start(**secure(authority))
    client = await running.socket("amqps")
    await client.send(HELLO)
    client.close()
    await running.until(lambda: failures(running, "amqps") == {"lost": 1})
    await running.until(lambda: not running.node.turn.links)


async def test_forged_records_end_the_connection(start: Start, authority: Authority) -> None:
    running = await start(**secure(authority))
    client = await over_tls(running, authority.client())
    (link,) = running.links
    link.data_received(b"\x17\x03\x03\x00\x20" + bytes(32))
    await running.until(lambda: running.node.mqtt.closed == {"tls": 1})
    assert await client.socket.read() == b""
    client.socket.close()
    assert failures(running, "mqtts") == {"malformed": 1}


# -- files


def encrypted(authority: Authority) -> str:
    path = authority.file.parent / "encrypted.pem"
    key = ec.generate_private_key(ec.SECP256R1())
    path.write_bytes(
        key.private_bytes(
            form.Encoding.PEM, form.PrivateFormat.PKCS8, form.BestAvailableEncryption(b"secret")
        )
    )
    return str(path)


def wrong_files(authority: Authority) -> dict[str, tuple[dict[str, Any], str]]:
    directory = authority.file.parent
    good, other = str(authority.sign("localhost")), str(authority.sign("other"))
    empty = directory / "empty.pem"
    empty.write_text("")
    gone, bare = str(directory / "gone.pem"), str(authority.file)
    return {
        "no file": (
            {"certificate": gone},
            (
                f"tls.certificate: {gone} cannot be read (No such file or directory); give a PEM "
                "file that"
            ),
        ),
        "a directory": (
            {"certificate": str(directory)},
            f"tls.certificate: {directory} cannot be read (Is a directory); give a PEM",
        ),
        "no certificate": (
            {"certificate": str(empty)},
            f"tls.certificate: {empty} holds no certificate that can be read (no PEM block",
        ),
        "no key": (
            {"certificate": bare},
            f"tls.certificate: {bare} holds no private key that can be read (",
        ),
        "key gone": (
            {"certificate": bare, "key": gone},
            f"tls.key: {gone} cannot be read (No such file or directory)",
        ),
        "another's key": (
            {"certificate": good, "key": other},
            f"tls.key: {other} does not belong to the certificate",
        ),
        "encrypted": ({"certificate": good, "key": encrypted(authority)}, "tls.key: the key in"),
        "no authority": (
            {"certificate": good, "ca": str(empty)},
            f"tls.ca: {empty} holds no certificate that can be read",
        ),
        "name gone": (
            {"certificate": good, "names": {"a.b": {"certificate": gone}}},
            f'tls.names."a.b".certificate: {gone} cannot be',
        ),
    }


@pytest.mark.parametrize(
    "case",
    [
        "no file",
        "a directory",
        "no certificate",
        "no key",
        "key gone",
        "another's key",
        "encrypted",
        "no authority",
        "name gone",
    ],
)
def test_wrong_files_are_told_in_one_line(authority: Authority, case: str) -> None:
    tls, said = wrong_files(authority)[case]
    chosen = settings(
        mqtts={"enabled": True, "client_certificate": "required"},
        tls={"ca": str(authority.file)} | tls,
    )
    with pytest.raises(SettingsError) as raised:
        Certificates(chosen)
    assert str(raised.value).startswith(said), raised.value
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("days", "event"), [(-1, "certificate_expired"), (5, "certificate_expires_soon"), (300, "")]
)
def test_an_expired_certificate_is_a_warning(
    authority: Authority, days: int, event: str, caplog: pytest.LogCaptureFixture
) -> None:
    ends = datetime.now(UTC) + timedelta(days=days)
    file = str(authority.sign("localhost", ends=ends))
    certificates = Certificates(settings(mqtts={"enabled": True}, tls={"certificate": file}))
    assert certificates.expirations[file] == pytest.approx(ends.timestamp(), abs=1)
    warned = [record.getMessage() for record in caplog.records]
    assert [line.split()[0] for line in warned] == ([event] if event else [])
    assert all(file in line and f"{ends:%Y-%m-%d}" in line for line in warned)


def test_the_broker_does_not_start_without_its_certificate(tmp_path: Path) -> None:
    with pytest.raises(
        AssertionError, match=r"trellis: tls\.certificate: .*gone\.pem cannot be read"
    ) as raised:
        BrokerProcess(
            "--mqtts-enabled",
            "true",
            "--mqtts-port",
            "0",
            "--tls-certificate",
            str(tmp_path / "gone.pem"),
        )
    assert "exit code 2" in str(raised.value)


async def test_a_plain_socket_to_the_plain_port_is_served_beside_it(
    start: Start, authority: Authority
) -> None:
    running = await start(**secure(authority))
    plain, secured = await running.mqtt("plain"), await over_tls(running, authority.client())
    await plain.ping()
    await secured.ping()
    assert isinstance(plain.socket, Socket)
    await plain.leave()
    await secured.leave()


# -- revocation


async def _try(running: Running, authority: Authority, certificate: Path) -> bool:
    """Return True if a client with this certificate can log in."""
    client = Mqtt0(await running.tls("mqtts", authority.client(certificate)))
    await client.socket.send(connect_packet("c", user="known/known"))
    return await client.socket.read() == b"\x20\x02\x00\x00"


async def test_a_revoked_certificate_is_refused_after_a_reload(
    start: Start, authority: Authority
) -> None:
    good, bad = (authority.sign(f"{name}@x", common_name=name) for name in ("good", "bad"))
    authority.revoke()
    chosen = mutual(authority, "required")
    chosen["tls"]["crl"] = str(authority.revoke())
    running = await start(**chosen)
    assert await _try(running, authority, good) and await _try(running, authority, bad)
    authority.revoke(bad)
    await running.reload(running.chosen)
    assert await _try(running, authority, good)
    assert not await _try(running, authority, bad)
    assert failures(running, "mqtts") == {"bad_certificate": 1}
    authority.revoke()
    await running.reload(running.chosen)
    assert await _try(running, authority, bad)


def test_an_expired_revocation_list_is_a_warning(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    chosen = mutual(authority, "required")
    chosen["tls"]["crl"] = str(authority.revoke(days=-1))
    Certificates(settings(**chosen))
    assert "revocation_list_expired" in caplog.text


@pytest.mark.parametrize(
    "text", [None, "", "-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----"]
)
def test_a_wrong_revocation_list_is_told_in_one_line(
    authority: Authority, text: str | None
) -> None:
    file = authority.file.with_name("wrong.pem")
    if text is not None:
        file.write_text(text)
    chosen = mutual(authority, "required")
    chosen["tls"]["crl"] = str(file)
    with pytest.raises(SettingsError, match=r"^tls\.crl: .*wrong\.pem") as refused:
        Certificates(settings(**chosen))
    assert "\n" not in str(refused.value)


def test_a_file_with_text_around_its_certificate_is_read(authority: Authority) -> None:
    chosen = secure(authority)
    file = Path(chosen["tls"]["certificate"])
    file.write_bytes(b"Bag Attributes\n    friendlyName: x\n" + file.read_bytes())
    (ends,) = Certificates(settings(**chosen)).expirations.values()
    assert ends > datetime.now(UTC).timestamp()
