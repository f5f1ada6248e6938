"""Tests that plugins are found, configured, started and closed, with errors of one line."""

from __future__ import annotations

import asyncio
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from amqtt.plugins.base import BaseAuthPlugin, BaseTopicPlugin

from tests.top.amqtt_plugins.house import ACCEPTED, Build, connect, packet, publish, subscribe
from tests.top.amqtt_plugins.plugins import ACL, ANONYMOUS, FILE, TABOO, Lives, here
from trellis.app import App
from trellis.auth import amqtt_loading
from trellis.auth.amqtt_plugins import PluginAuthenticator
from trellis.auth.authenticate import Accounts
from trellis.server.node import BrokerNode
from trellis.settings import Settings, SettingsError, load

pytestmark = pytest.mark.filterwarnings("ignore:The 'acl' option is deprecated:DeprecationWarning")


class Picky(BaseTopicPlugin):  # type: ignore[misc]
    @dataclass
    class Config:
        needed: int
        some_words: list[str] = field(default_factory=list)


class Receives(BaseTopicPlugin):  # type: ignore[misc]
    @dataclass
    class Config:
        receive_claim: str


class NoTable(BaseTopicPlugin):  # type: ignore[misc]
    class Config:
        pass


class Checks(BaseTopicPlugin):  # type: ignore[misc]
    @dataclass
    class Config:
        def __post_init__(self) -> None:
            raise ValueError("two lines\nof text")


class Unborn(BaseTopicPlugin):  # type: ignore[misc]
    def __init__(self, context: Any) -> None:
        raise OSError("no database")


class NoStart(BaseTopicPlugin):  # type: ignore[misc]
    async def on_broker_pre_start(self) -> None:
        raise OSError("no schema")


class NotAsync(BaseAuthPlugin):  # type: ignore[misc]
    def authenticate(self, *, session: Any) -> bool:
        return True


def _key(kind: type | str, option: str = "") -> str:
    path = kind if isinstance(kind, str) else here(kind)
    return f'amqtt.plugins."{path}"' + (f".{option}" if option else "")


@pytest.mark.parametrize(
    ("path", "options", "problem"),
    [
        ("Plugin", {}, f"{_key('Plugin')}: the plugin must be a class, written module.Class"),
        (
            "no_such.Plugin",
            {},
            (
                f"{_key('no_such.Plugin')}: the import of no_such failed: ModuleNotFoundError: "
                "No module named 'no_such'"
            ),
        ),
        (
            "amqtt.errors.PluginEror",
            {},
            f"{_key('amqtt.errors.PluginEror')}: there is no class PluginEror in amqtt.errors",
        ),
        (
            FILE[:-1],
            {},
            (
                f"{_key(FILE[:-1])}: there is no class FileAuthPlugi in "
                "amqtt.plugins.authentication; the nearest is FileAuthPlugin"
            ),
        ),
        (
            "json.JSONDecoder",
            {},
            (
                f"{_key('json.JSONDecoder')}: the class must be an authentication plugin "
                "(BaseAuthPlugin) or a topic plugin (BaseTopicPlugin)"
            ),
        ),
        (
            "amqtt.plugins.logging_amqtt.EventLoggerPlugin",
            {},
            (
                f"{_key('amqtt.plugins.logging_amqtt.EventLoggerPlugin')}: the class must be an "
                "authentication plugin (BaseAuthPlugin) or a topic plugin (BaseTopicPlugin)"
            ),
        ),
        (
            FILE,
            {"pasword-file": "x"},
            f"{_key(FILE, 'pasword-file')}: unknown option; the nearest is password_file",
        ),
        (
            TABOO,
            {"taboo": []},
            f"{_key(TABOO, 'taboo')}: unknown option; no option is known",
        ),
        (
            FILE,
            {"password-file": "x", "password_file": "y"},
            (
                f"{_key(FILE, 'password_file')}: the option is given twice, with - and with _; "
                "remove one"
            ),
        ),
        (FILE, {"password_file": 7}, f"{_key(FILE, 'password_file')}: must be str | Path | None"),
        (
            ANONYMOUS,
            {"allow_anonymous": "yes"},
            f"{_key(ANONYMOUS, 'allow_anonymous')}: must be bool",
        ),
        (ACL, {"acl": ["ann"]}, f"{_key(ACL, 'acl')}: must be dict[str, list[str]]"),
        (
            ACL,
            {"receive-acl": {}},
            (
                f"{_key(ACL, 'receive-acl')}: the option would have no effect, because plugins are "
                "called at publish and subscribe, not at each delivery: remove the option"
            ),
        ),
        (here(Picky), {}, f"{_key(Picky, 'needed')}: the plugin requires this option: set it"),
        (here(NoTable), {}, f"{_key(NoTable)}: the plugin's Config must be a dataclass"),
        (
            here(Checks),
            {},
            f"{_key(Checks)}: the plugin refuses its options: ValueError: two lines of text",
        ),
        (
            FILE,
            {"password_file": "/no/such/file"},
            (
                f"{_key(FILE)}: the plugin's constructor failed: PasswordFileError: "
                "Password file '/no/such/file' "
                "not found"
            ),
        ),
        (
            here(Unborn),
            {},
            f"{_key(Unborn)}: the plugin's constructor failed: OSError: no database",
        ),
        (
            here(NoStart),
            {},
            f"{_key(NoStart)}: the plugin's on_broker_pre_start failed: OSError: no schema",
        ),
        (
            here(NotAsync),
            {},
            f"{_key(NotAsync)}: the plugin's authenticate must be an async function",
        ),
    ],
)
async def test_plugin_that_cannot_be_loaded_is_reported_in_one_line(
    accounts: Accounts, path: str, options: dict[str, object], problem: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        PluginAuthenticator({path: options}, accounts)
    assert str(caught.value) == problem


async def test_options_that_a_plugin_demands_for_deliveries_are_told_to_be_unused(
    build: Build, caplog: pytest.LogCaptureFixture
) -> None:
    build({here(Receives): {"receive-claim": "r"}})
    assert f"amqtt_option_unused plugin={here(Receives)} option=receive_claim" in caplog.text


async def test_plugins_that_do_not_load_in_time_are_told(
    accounts: Accounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(amqtt_loading, "LOADING_SECONDS", 0.01)
    hold = threading.Event()
    monkeypatch.setattr(amqtt_loading, "load", lambda path, options: hold.wait(5))
    with pytest.raises(
        SettingsError, match=r"amqtt\.plugins: the plugins did not load within 0\.01 s"
    ):
        PluginAuthenticator({"a.B": {}}, accounts)
    hold.set()


async def test_without_amqtt_the_error_names_the_extra(
    accounts: Accounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "trellis.auth.amqtt_plugins")
    monkeypatch.setitem(sys.modules, "amqtt.contexts", None)
    settings = Settings(amqtt=type(Settings().amqtt)(plugins={ANONYMOUS: {}}))
    with pytest.raises(
        SettingsError,
        match=r"^amqtt\.plugins: cannot import amqtt \(.*\): pip install "
        r"'trellis-broker\[amqtt\]'$",
    ):
        BrokerNode(settings, accounts, None, print)


async def test_plugins_are_started_and_closed_on_their_own_loop(build: Build) -> None:
    house = build({here(Lives): {}})
    assert Lives.life == ["start"]
    house.authenticator.close()
    assert Lives.life == ["start", "shutdown", "close"]
    house.authenticator.close()  # A second call of close() does nothing.


@pytest.fixture
def settings(tmp_path: Path, passwords: str) -> Settings:
    path = tmp_path / "broker.toml"
    path.write_text(f"""
data.dir = ":memory:"
amqp.port = 0
mqtt.port = 0
metrics.enabled = false
http.enabled = false

[amqtt.plugins."{FILE}"]
password-file = "{passwords}"

[amqtt.plugins."{ACL}"]
publish-acl = {{ bob = ["bob/#"] }}
acl = {{ bob = ["#"] }}
""")
    return load([path], {})


async def test_a_settings_file_with_plugins_is_served(settings: Settings) -> None:
    app = App(settings)
    serving = asyncio.create_task(app.serve())
    started = asyncio.create_task(app.started.wait())
    await asyncio.wait([serving, started], timeout=30, return_when=asyncio.FIRST_COMPLETED)
    assert not serving.done(), serving.result()
    host, _, port = app.addresses["mqtt"].rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        connect("bob", "bobs", "b1") + subscribe("#") + publish("ann/1") + publish("bob/1")
    )
    heard = packet(0x20, bytes([0, ACCEPTED])) + packet(0x90, b"\x00\x01\x00") + publish("bob/1")
    assert await reader.readexactly(len(heard)) == heard
    writer.close()
    app.stop()
    await serving
    assert app.node is not None
    assert isinstance(app.node.broker.authenticator, PluginAuthenticator)
    app.node.broker.authenticator.close()
