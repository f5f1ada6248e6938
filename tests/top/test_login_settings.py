"""Tests of logins at a running broker: full login queue, anonymous clients, the generated user."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.top.conftest import Start
from tests.top.running import PATIENCE, Mqtt0, Running, settings
from trellis.auth.settings_users import GENERATED_USER_FILE, authenticator_from_settings
from trellis.settings import SettingsError, load


async def test_full_queues_are_told_in_the_words_of_the_protocol(start: Start) -> None:
    running = await start(auth={"threads": 1, "queue": 1})
    # The only hashing thread waits for this event, so it hashes no password before.
    release = threading.Event()
    running.node.accounts._pool.submit(release.wait, PATIENCE)
    first = Mqtt0(await running.socket("mqtt"))
    asking = asyncio.create_task(first.connect("first", user="known/known"))
    await running.until(lambda: running.node.accounts.waiting == 1)
    assert (await running.scrape()).value("trellis_logins_waiting") == 1
    # return code 3: server unavailable
    assert await Mqtt0(await running.socket("mqtt")).connect("second", user="known/wrong") == 3
    status, _ = await running.get(
        "http", "/api/trellis/queues", "Authorization: Basic a25vd246d3Jvbmc=\r\n"
    )
    assert status == 503
    release.set()
    assert await asking == 0
    page = await running.scrape()
    for outcome, count in (("accepted", 1), ("refused", 0), ("busy", 1)):
        assert page.value("trellis_logins_total", protocol="mqtt", outcome=outcome) == count
    assert page.value("rabbitmq_auth_attempts_failed_total", protocol="mqtt") == 1
    assert page.value("trellis_passwords_hashed_total") == 1


@pytest.mark.parametrize(("anonymous", "code"), [("loopback", 0), ("true", 0), ("false", 5)])
async def test_anonymous_clients_of_mqtt(start: Start, anonymous: str, code: int) -> None:
    running = await start(mqtt={"anonymous": anonymous})
    assert await Mqtt0(await running.socket("mqtt")).connect("unknown") == code


async def test_rules_restrict_anonymous_clients_and_are_read_again(start: Start) -> None:
    rules = ["allow all own/{client_id}/#", "allow subscribe news"]
    running = await start(mqtt={"port": 0, "anonymous_rules": rules})
    watcher = await running.mqtt("watcher", user="known/known")
    await watcher.subscribe("#")
    client = await running.mqtt("dev1")
    for topic, good in (("own/dev1/x", True), ("own/dev2/x", False), ("news", False)):
        name = topic.encode()
        await client.socket.send(bytes([0x30, len(name) + 2, 0, len(name)]) + name)
        await client.ping()
        if good:
            assert (await watcher.packet())[1][2:] == name
        await watcher.ping()
    await client.subscribe("news")
    await running.reload(settings(mqtt={"port": 0, "anonymous_rules": ["deny all #"]}))
    await running.until(lambda: len(running.links) == 1)


def test_too_many_rules_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text(f"mqtt.anonymous_rules = {json.dumps(['allow all #'] * 201)}")
    with pytest.raises(SettingsError, match=r"mqtt.anonymous_rules: has 201 rules; the limit is"):
        load([file], {})


async def test_a_generated_user_is_told_once_and_kept(
    start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    chosen: dict[str, Any] = {"data": {"dir": str(tmp_path)}, "users": []}
    with caplog.at_level(logging.WARNING):
        running = await start(**chosen)
    (line,) = [
        record.getMessage()
        for record in caplog.records
        if "generated_password" in record.getMessage()
    ]
    password = re.search(r"user=trellis password=(\S+) ", line)
    assert password is not None
    file = tmp_path / GENERATED_USER_FILE
    assert file.stat().st_mode & 0o777 == 0o600
    assert [name for name in os.listdir(tmp_path) if name.startswith("generated")] == [
        GENERATED_USER_FILE
    ]
    assert password[1] not in file.read_text()
    assert await log_in(running, password[1]) == 0
    assert await log_in(running, "wrong") == 4
    await running.stop()

    caplog.clear()
    again = await start(**chosen)
    assert "generated_password" not in caplog.text
    assert await log_in(again, password[1]) == 0


async def log_in(running: Running, password: str) -> int:
    client = Mqtt0(await running.socket("mqtt"))
    code = await client.connect("generated", user=f"trellis/{password}")
    client.socket.close()
    return code


def test_a_kept_hash_of_another_name_is_replaced(tmp_path: Path) -> None:
    for name in ("one", "two"):
        authenticator_from_settings(settings(user=name), tmp_path).close()
        assert json.loads((tmp_path / GENERATED_USER_FILE).read_text())["name"] == name
