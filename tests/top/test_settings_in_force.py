"""`trellis list settings`: values in force, their sources, and values that need a restart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.top.api_client import api, users
from tests.top.conftest import Start
from tests.top.running import KNOWN, Running
from tests.top.test_people import trellis
from tests.top.test_reload_keys import changed
from trellis.server.settings_in_force import SettingsInForce
from trellis.settings import load_with_sources
from trellis.settings.options import OPTIONS
from trellis.settings.rendering import toml


async def listed(running: Running) -> dict[str, dict[str, Any]]:
    status, rows = await api(running, "GET", "trellis/settings")
    assert status == 200
    return {row["name"]: row for row in rows}


async def test_every_setting_is_listed_with_its_value(start: Start) -> None:
    running = await start(**users(), mqtt={"receive_maximum": 77})
    rows = await listed(running)
    assert list(rows) == list(OPTIONS)
    assert rows["mqtt.receive_maximum"] == {
        "name": "mqtt.receive_maximum",
        "value": "77",
        "source": "default",
        "after_restart": "",
    }
    for key, row in rows.items():
        secret = ("users", "password", "cluster.options", "amqtt.plugins", "shovels.password")
        if not key.startswith(secret):
            assert row["value"] == toml(OPTIONS[key].value_in(running.chosen)), key


async def test_secrets_are_masked(start: Start) -> None:
    running = await start(**users(), user="boss", password="s3cret")
    rows = await listed(running)
    assert rows["password"]["value"] == '"********"'
    assert "s3cret" not in json.dumps(rows)
    assert "argon2" not in json.dumps(rows)
    assert KNOWN["name"] in rows["users"]["value"]


async def test_a_reload_changes_the_source_of_what_it_applied(start: Start) -> None:
    running = await start(**users())
    before = await listed(running)
    running.sources = {"log.level": "/etc/trellis.toml", "amqp.heartbeat": "TRELLIS_AMQP_HEARTBEAT"}
    await running.reload(
        changed(changed(running.chosen, "log.level", "debug"), "amqp.heartbeat", 61)
    )
    rows = await listed(running)
    assert rows["log.level"]["value"] == '"debug"'
    assert rows["log.level"]["source"] == "/etc/trellis.toml"
    assert rows["log.level"]["after_restart"] == ""
    assert rows["amqp.heartbeat"] == before["amqp.heartbeat"] | {"after_restart": "61"}


async def test_the_list_is_for_administrators(
    start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    running = await start(**users())
    status, answer = await api(running, "GET", "trellis/settings", user=KNOWN["name"])
    assert status in (401, 403) and "administrator" in answer["reason"]
    code, out, err = await trellis(running, capsys, "list", "settings", "--filter", "name=amqp.*")
    assert (code, err) == (0, "")
    assert out.splitlines()[0].split() == ["name", "value", "source", "after_restart"]
    assert any(line.split()[:3] == ["amqp.heartbeat", "60", "default"] for line in out.splitlines())


def test_the_sources_of_the_start_are_listed(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text("[amqp]\nheartbeat = 33\n")
    loaded = load_with_sources([file], {"TRELLIS_AMQP_PORT": "5673"}, {"log.level": "error"})
    rows = {row.name: row for row in SettingsInForce(loaded)}
    assert (rows["amqp.heartbeat"].value, rows["amqp.heartbeat"].source) == ("33", str(file))
    assert rows["log.level"].source == "--log-level"
    assert rows["amqp.port"].source == "TRELLIS_AMQP_PORT"
