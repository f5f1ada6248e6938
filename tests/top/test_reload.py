"""Tests of a reload at SIGHUP: which settings are applied, and that clients stay connected."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import ssl
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final, cast

import pamqp.commands as spec
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from broker.messages.fates import DENIED
from tests.authority import Authority
from tests.broker import BrokerProcess
from tests.clients import connect_packet, packet, text
from tests.top.conftest import Start
from tests.top.running import KNOWN, PATIENCE, Mqtt0, Running, settings
from tests.top.test_operators import entered
from trellis.settings import Settings

#: A public key, in PEM.
PUBLIC: Final = (
    ec.generate_private_key(ec.SECP256R1())
    .public_key()
    .public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
)


def secure(authority: Authority, file: Path, **more: Any) -> dict[str, Any]:
    listener = {"enabled": True, "port": 0, "host": "127.0.0.1"}
    return {"mqtts": listener, "tls": {"certificate": str(file), "ca": str(authority.file)}} | more


async def code(running: Running, user: str) -> int:
    """Log in over MQTT, and return the return code of the CONNACK."""
    client = Mqtt0(await running.socket("mqtt"))
    answer = await client.connect("asks", user=user)
    client.socket.close()
    return answer


async def test_reload_reads_users_again_and_disconnects_removed_users(start: Start) -> None:
    running = await start()
    goes, stays = await running.mqtt("goes", user="known/known"), await running.mqtt("stays")
    leaves = await running.amqp()
    assert await code(running, "new/known") == 4
    await running.reload(settings(users=[KNOWN | {"name": "new"}]))
    assert await goes.socket.read() == b""
    close = await leaves.expect(spec.Connection.Close)
    assert (close.reply_code, close.reply_text) == (
        320,
        "CONNECTION_FORCED - user 'known' is deleted, or may not log in any more",
    )
    assert await code(running, "new/known") == 0
    assert await code(running, "known/known") == 4
    await stays.ping()
    await stays.leave()


async def test_a_removed_user_of_the_settings_leaves_a_virtual_host_with_stored_permissions(
    start: Start,
) -> None:
    running = await start(users=[KNOWN | {"name": "goes"}, KNOWN])
    users = running.node.broker.users
    running.node.broker.create_vhost("v")
    users.define("goes", "", [])
    users.set_permission("v", "goes", ".*", ".*", ".*")
    leaves, answer = await entered(running, "v", "goes")
    assert isinstance(answer, spec.Connection.OpenOk)
    await running.reload(settings(users=[KNOWN]))
    close = await leaves.expect(spec.Connection.Close)
    assert close.reply_code == 320
    # With a password, the stored user of the same name may log in, so its clients stay.
    await running.reload(settings(users=[KNOWN | {"name": "goes"}, KNOWN]))
    users.define("goes", KNOWN["password_hash"], [])
    stays, answer = await entered(running, "v", "goes")
    assert isinstance(answer, spec.Connection.OpenOk)
    await running.reload(settings(users=[KNOWN]))
    await stays.call(spec.Channel.Open(), spec.Channel.OpenOk)


async def test_reload_applies_access_rules_to_present_and_new_clients(
    start: Start,
) -> None:
    running = await start()
    before = await running.mqtt("before", user="known/known")
    await before.subscribe("t")
    await before.socket.send(b"\x30\x04\x00\x01tx")
    assert await before.packet() == (0x30, b"\x00\x01tx")
    await running.reload(settings(users=[KNOWN | {"write": "^$"}]))
    watcher = await running.mqtt("watcher", user="known/known")
    await watcher.subscribe("t")
    for client in (before, watcher):
        await client.socket.send(b"\x30\x04\x00\x01tx")
        await client.ping()
    assert running.node.broker.vhosts["/"].contexts.ingress_counters()["mqtt311"].fates[DENIED] == 2
    await before.leave()
    await watcher.leave()


async def test_anonymous_access_is_read_again(start: Start) -> None:
    running = await start()
    assert await code(running, "") == 0
    await running.reload(settings(mqtt={"port": 0, "anonymous": "false"}))
    assert await code(running, "") == 5


async def test_new_certificate_is_used_for_new_connections(
    start: Start, authority: Authority, tmp_path: Path
) -> None:
    file = authority.sign("localhost", file="server.pem")
    running = await start(**secure(authority, file))
    other = Authority(tmp_path / "other")
    before = Mqtt0(await running.tls("mqtts", authority.client()))
    assert await before.connect("before") == 0
    file.write_bytes(other.sign("localhost").read_bytes())
    await running.reload(running.chosen)
    with pytest.raises(ssl.SSLCertVerificationError):
        await running.tls("mqtts", authority.client())
    after = Mqtt0(await running.tls("mqtts", other.client()))
    assert await after.connect("after") == 0
    await before.ping()
    await before.leave()
    await after.leave()


async def test_wrong_setting_changes_nothing_and_is_reported(
    start: Start, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    file = authority.sign("localhost", file="server.pem")
    running = await start(**secure(authority, file))
    file.write_text("no certificate")
    await running.reload(settings(users=[], **secure(authority, file)))
    (error,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert error.getMessage().startswith('reload_refused error="tls.certificate: ')
    caplog.clear()
    assert await code(running, "known/known") == 0
    client = Mqtt0(await running.tls("mqtts", authority.client()))
    assert await client.connect("still") == 0
    await client.leave()


async def test_wrong_token_keys_leave_the_certificate_as_it_was(
    start: Start, authority: Authority, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    file = authority.sign("localhost", file="server.pem")
    keys = tmp_path / "keys.pem"
    keys.write_bytes(PUBLIC)
    jwt = {"jwt": {"keys": str(keys)}}
    running = await start(**secure(authority, file), **jwt)
    other = Authority(tmp_path / "other")
    file.write_bytes(other.sign("localhost").read_bytes())
    keys.write_text("no key")
    await running.reload(settings(users=[], **secure(authority, file), **jwt))
    (error,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert error.getMessage().startswith('reload_refused error="jwt.keys: ')
    caplog.clear()
    client = Mqtt0(await running.tls("mqtts", authority.client()))
    assert await client.connect("still", user="known/known") == 0
    await client.leave()


async def test_an_unexpected_error_is_logged_at_once_and_the_next_reload_works(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    running = await start()
    await running.reload(cast(Settings, None))
    (error,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert error.getMessage().startswith('reload_failed traceback="Traceback ')
    assert "AttributeError" in error.getMessage()
    caplog.clear()
    await running.reload(settings(users=[KNOWN | {"name": "new"}]))
    assert await code(running, "new/known") == 0


async def test_the_log_level_is_read_again(start: Start) -> None:
    running = await start()
    await running.reload(settings(log={"level": "debug"}))
    assert logging.getLogger().level == logging.DEBUG
    await running.reload(settings())
    assert logging.getLogger().level == logging.INFO


async def test_settings_that_need_a_restart_are_reported(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    running = await start()
    await running.reload(settings(limits={"message": 5}, amqp={"port": 0, "heartbeat": 7}))
    (line,) = [
        record.getMessage()
        for record in caplog.records
        if record.getMessage().startswith("reload_incomplete")
    ]
    assert "keys=amqp.heartbeat,limits.message " in line
    assert running.node.broker.limits.message != 5


async def test_token_keys_that_are_added_later_need_a_restart(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    running = await start()
    await running.reload(settings(jwt={"keys": "keys.json"}))
    assert "reload_incomplete" in caplog.text
    assert "keys=jwt.keys " in caplog.text


async def test_a_generated_password_outlives_a_reload(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    running = await start(users=[])
    (line,) = [
        record.getMessage()
        for record in caplog.records
        if record.getMessage().startswith("generated_password")
    ]
    password = line.partition("password=")[2].split()[0]
    await running.reload(running.chosen)
    assert await code(running, f"trellis/{password}") == 0


def test_sighup_reads_the_files_again_and_the_broker_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text("")
    broker = BrokerProcess("--config", str(file))
    try:
        for text, event in (
            (
                'log.level = "warning"\nmqtt.max_levels = 5',
                "reload_incomplete keys=mqtt.max_levels",
            ),
            (
                "mqtt.max_level = 5",
                (
                    f'reload_refused error="{file}: mqtt.max_level: unknown key; '
                    'the nearest is mqtt.max_levels"'
                ),
            ),
        ):
            file.write_text(text)
            os.kill(broker.process.pid, signal.SIGHUP)
            wait_for_log(broker, event)
        assert _connect(broker) == b"\x20\x02\x00\x00"
    finally:
        broker.kill()


def wait_for_log(broker: BrokerProcess, event: str) -> None:
    """Wait until the log of a broker has a text."""
    until = time.monotonic() + PATIENCE
    while event not in broker.log:
        assert broker.process.poll() is None, broker.log
        assert time.monotonic() < until, broker.log
        time.sleep(0.01)


def _connect(broker: BrokerProcess) -> bytes:
    with socket.create_connection(broker.mqtt, PATIENCE) as client:
        client.sendall(connect_packet("goes-on"))
        return client.recv(4)


async def test_clients_lose_nothing_while_right_and_wrong_settings_are_reloaded(
    start: Start, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    file = authority.sign("localhost", file="server.pem")
    valid = file.read_bytes()
    running = await start(**secure(authority, file))
    over = asyncio.Event()

    async def work(client: Mqtt0, topic: str) -> int:
        """Publish with QoS 1, and wait for each message and its PUBACK; return their number."""
        count = 0
        while not over.is_set():
            count += 1
            body = text(topic) + b"%d" % count
            await client.socket.send(packet(0x32, text(topic) + b"\0\1" + b"%d" % count))
            answers = [await client.packet(), await client.packet()]
            assert sorted(answers) == [(0x30, body), (0x40, b"\0\1")]
        return count

    clients = [await running.mqtt(f"c{number}", user="known/known") for number in range(20)]
    for number, client in enumerate(clients):
        await client.subscribe(f"t{number}")
    tasks = [
        asyncio.create_task(work(client, f"t{number}")) for number, client in enumerate(clients)
    ]
    descriptors = len(os.listdir("/proc/self/fd"))
    for number in range(50):
        file.write_bytes(b"no certificate" if number % 5 == 4 else valid)
        rules = [f"deny all other{number}", "allow all #"]
        await running.reload(settings(users=[KNOWN | {"rules": rules}], **secure(authority, file)))
    assert len(os.listdir("/proc/self/fd")) == descriptors
    over.set()
    assert min(await asyncio.gather(*tasks)) > 0
    events = Counter(
        record.getMessage().split()[0]
        for record in caplog.records
        if record.getMessage().startswith("reload")
    )
    assert events == {"reloaded": 40, "reload_refused": 10}
    assert not [record for record in caplog.records if "Traceback" in record.getMessage()]
    caplog.clear()
    for client in clients:
        await client.leave()
