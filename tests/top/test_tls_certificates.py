"""Tests of certificates: logins with a certificate, wrong files, expiry and revocation."""

from __future__ import annotations

import asyncio
import socket
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pamqp.commands as spec
import pytest
from cryptography.hazmat.primitives import serialization as form
from cryptography.hazmat.primitives.asymmetric import ec

from protocols.amqp.connection.handshake import GREETING
from tests.authority import Authority
from tests.broker import BrokerProcess
from tests.clients import connect_packet, start_ok
from tests.top.conftest import Start
from tests.top.running import KNOWN, Amqp0, Mqtt0, Running, settings
from tests.top.secured import failures, mutual, secure
from trellis.server.certificates import Certificates
from trellis.settings import SettingsError

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
    ("certificate_user", "named", "user"), [(True, "known", "known"), (False, "known", "")]
)
async def test_a_certificate_is_an_mqtt_user_only_when_that_is_set(
    start: Start, authority: Authority, certificate_user: bool, named: str, user: str
) -> None:
    running = await start(**mutual(authority, "required", certificate_user=certificate_user))
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
async def test_the_user_name_is_taken_from_the_field_that_the_setting_names(
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


@pytest.mark.parametrize("tag", [b"\x81", b"\x82", b"\x86"], ids=["email", "dns", "uri"])
@pytest.mark.parametrize("name_from", ["common_name", "dns"])
async def test_a_certificate_with_a_name_that_is_not_utf8_is_refused(
    start: Start, authority: Authority, tag: bytes, name_from: str
) -> None:
    chosen = mutual(authority, "required", certificate_user=True)
    chosen["tls"]["user_from"] = name_from
    running = await start(**chosen)
    certificate = authority.sign_names(b"\x30\x05" + tag + b"\x03a\xffb", "known")
    for listener in ("amqps", "mqtts"):
        client = await running.tls(listener, authority.client(certificate))
        assert await client.read() == b""
        assert failures(running, listener) == {"bad_certificate": 1}
    other = authority.client(authority.sign("known", common_name="known"))
    assert await Mqtt0(await running.tls("mqtts", other)).connect("c") == 0


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
            f"tls.key: the key in {other} does not belong to the certificate in {good}; give the",
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
    tls, error = wrong_files(authority)[case]
    chosen = settings(
        mqtts={"enabled": True, "client_certificate": "required"},
        tls={"ca": str(authority.file)} | tls,
    )
    with pytest.raises(SettingsError) as raised:
        Certificates(chosen)
    assert str(raised.value).startswith(error), raised.value
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


# -- revocation


async def _try(running: Running, authority: Authority, certificate: Path) -> bool:
    """True if a client with this certificate can log in."""
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


@pytest.mark.parametrize("newest", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_tls_session_is_not_resumed_with_a_revoked_certificate(
    start: Start, authority: Authority, newest: ssl.TLSVersion
) -> None:
    bad = authority.sign("bad@x", common_name="bad")
    chosen = mutual(authority, "required")
    chosen["tls"]["crl"] = str(authority.revoke())
    running = await start(**chosen)
    context = authority.client(bad, newest)

    def connect(session: ssl.SSLSession | None) -> tuple[ssl.SSLSession | None, bool | None]:
        with context.wrap_socket(
            socket.create_connection(("127.0.0.1", running.port("mqtts"))),
            server_hostname="localhost",
            session=session,
        ) as client:
            client.sendall(connect_packet("c", user="known/known"))
            assert client.recv(4) == b"\x20\x02\x00\x00"
            return client.session, client.session_reused

    session, _ = await asyncio.to_thread(connect, None)
    assert (await asyncio.to_thread(connect, session))[1]
    authority.revoke(bad)
    await running.reload(running.chosen)
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await asyncio.to_thread(connect, session)
    assert failures(running, "mqtts") == {"bad_certificate": 1}
    # Once the certificate is no longer revoked, the client can connect again, with a full
    # handshake instead of the former TLS session.
    authority.revoke()
    await running.reload(running.chosen)
    assert (await asyncio.to_thread(connect, session))[1] is False


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


def https(authority: Authority) -> dict[str, Any]:
    """Return the settings of `secure`, with an HTTP listener over TLS."""
    http = {"enabled": True, "port": 0, "host": "127.0.0.1", "tls": True}
    return secure(authority) | {"http": http}


@pytest.mark.parametrize("torn", [False, True])
def test_a_renewal_while_the_files_are_read_gives_all_listeners_the_new_certificate(
    authority: Authority, monkeypatch: pytest.MonkeyPatch, torn: bool
) -> None:
    """Renew the certificate while the broker reads its file.

    All listeners, the contents for the gateway, and the time of expiry must be from the new file.
    """
    given = settings(**https(authority))
    file = Path(given.tls.certificate)
    ends = datetime(2040, 1, 1, tzinfo=UTC)
    load = ssl.SSLContext.load_cert_chain
    loaded: list[bytes] = []

    def renewed(context: ssl.SSLContext, *arguments: Any) -> None:
        first = not loaded
        if first and torn:
            file.write_bytes(file.read_bytes()[:500])
        loaded.append(file.read_bytes())
        try:
            load(context, *arguments)
        finally:
            if first:
                authority.sign("localhost", "127.0.0.1", ends=ends)

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", renewed)
    certificates = Certificates(given)
    assert loaded[-3:] == [file.read_bytes()] * 3
    assert certificates.contents[str(file)] == file.read_bytes()
    assert certificates.expirations == {str(file): ends.timestamp()}


def test_files_that_change_again_and_again_are_refused(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = settings(**https(authority))
    load = ssl.SSLContext.load_cert_chain

    def renewed(context: ssl.SSLContext, *arguments: Any) -> None:
        load(context, *arguments)
        authority.sign("localhost", "127.0.0.1")

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", renewed)
    with pytest.raises(SettingsError, match=r"^tls: the files of certificates changed while"):
        Certificates(given)
