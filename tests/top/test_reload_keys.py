"""Tests a change of every setting at SIGHUP.

Either the new value is in effect, or the log says that the setting needs a restart.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any, Final, get_origin

import msgspec
import pytest
from joserfc.jwk import KeySet

from tests.authority import Authority
from tests.top.conftest import Start
from tests.top.running import KNOWN, Running, settings
from tests.top.test_profile import profile, topics
from tests.top.test_tokens import CURVE, KEY
from trellis.settings import Settings
from trellis.settings.bridge import BridgeSettings
from trellis.settings.options import OPTIONS, Option

BRIDGE: Final = BridgeSettings(name="other", remote="mqtt://127.0.0.1:1", topics=("both #",))


def other_value(option: Option, value: Any) -> Any:
    """Return a value of the option's type that differs from `value`."""
    if option.type is bool:
        return not value
    if option.type is int or option.type is float:
        low, high = option.meta.ge, option.meta.le
        candidates = [value + 1, value - 1, value / 2 if option.type is float else value // 2]
        return next(
            each
            for each in candidates
            if (low is None or each >= low) and (high is None or each <= high)
        )
    if option.key == "bridge":
        return () if value else (BRIDGE,)
    if get_origin(option.type) is tuple:
        words = option.choices or ("other",)
        return () if value else words[:1]
    if get_origin(option.type) is dict:
        return {} if value else {"other": {"certificate": "other"}}
    return next((word for word in option.choices if word != value), f"{value}x")


def changed(base: Settings, key: str, value: Any) -> Settings:
    """Return a copy of the settings in which one key has another value."""
    section, _, name = key.rpartition(".")
    if not section:
        return msgspec.structs.replace(base, **{name: value})
    inner = msgspec.structs.replace(getattr(base, section), **{name: value})
    return msgspec.structs.replace(base, **{section: inner})


def in_effect(running: Running, key: str) -> object:
    """Return the object of the running broker that is made from the current value of `key`."""
    node = running.node
    if key.startswith("tls."):
        return [each.context for each in node.certificates.contexts.values()]
    if key.startswith("jwt."):
        return None if node.tokens is None else node.tokens.tokens
    if key == "log.level":
        return logging.getLogger().level
    if key == "matcher.profile":
        return topics(running).algorithm
    if key.startswith("mqtt.anonymous"):
        return node.accounts.anonymous_identity, node.accounts._anonymous_remote
    return list(node.accounts.settings_accounts.values())


async def check_every_key(
    running: Running, given: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> set[str]:
    """Change one setting at a time; return the keys whose new value is in effect."""
    base, effective = running.chosen, set()
    for key, option in OPTIONS.items():
        value = given.get(key, other_value(option, option.value_in(base)))
        before = in_effect(running, key)
        caplog.clear()
        await running.reload(changed(base, key, value))
        events = [record.getMessage() for record in caplog.records]
        assert not [event for event in events if event.startswith(("reload_r", "reload_f"))], key
        [*named] = [event for event in events if event.startswith("reload_incomplete")]
        row = next(one for one in running.node.settings_in_force if one.name == key)
        assert bool(row.after_restart) is bool(named), f"`trellis list settings` differs for {key}"
        if named:
            assert f"keys={key} " in named[0]
        else:
            assert in_effect(running, key) != before, f"{key} is neither in effect nor named"
            effective.add(key)
        await running.reload(base)
    return effective


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_each_key_is_in_effect_or_named(
    start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    running = await start(settings(user="root", password="known"))
    given = {
        "users": (),
        "mqtt.anonymous_rules": ("allow all #",),
        "matcher.profile": profile(tmp_path / "p")["matcher"]["profile"],
    }
    assert await check_every_key(running, given, caplog) == {
        "users",
        "user",
        "password",
        "password_file",
        "auth.guest",
        "mqtt.anonymous",
        "mqtt.anonymous_rules",
        "log.level",
        "matcher.profile",
    }


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_keys_of_tls_and_tokens_are_in_effect_where_these_are_used(
    start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path / "certificates")
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps(KeySet([KEY]).as_dict(private=False)))
    other_keys = tmp_path / "other-keys.json"
    other_keys.write_text(json.dumps(KeySet([CURVE]).as_dict(private=False)))
    file = str(authority.sign("localhost", file="server.pem"))
    running = await start(
        settings(
            mqtts={"enabled": True, "port": 0, "host": "127.0.0.1"},
            tls={"certificate": file, "ca": str(authority.file)},
            jwt={"keys": str(keys)},
            users=[KNOWN],
        )
    )
    other = str(authority.sign("localhost", file="other.pem"))
    given = {
        "tls.certificate": other,
        "tls.key": file,
        "tls.ca": "",
        "tls.crl": str(authority.revoke(authority.sign("client", file="client.pem"))),
        "tls.names": {"localhost": {"certificate": other}},
        "jwt.keys": str(other_keys),
        "matcher.profile": profile(tmp_path / "p")["matcher"]["profile"],
    }
    effective = await check_every_key(running, given, caplog)
    assert {key for key in effective if key.startswith("tls.")} == {
        "tls.certificate",
        "tls.key",
        "tls.ca",
        "tls.crl",
        "tls.minimum",
        "tls.names",
    }
    tokens = {key for key in OPTIONS if key.startswith("jwt.")}
    assert tokens <= effective
