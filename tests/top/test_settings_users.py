"""Errors about users that the settings define: where to change a user, how to apply the change."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any, Final

import pytest

from tests.broker import BrokerProcess, run_command
from tests.top.api_client import ADMIN, api
from tests.top.conftest import Start
from tests.top.running import KNOWN
from tests.top.test_reload import wait_for_log
from trellis.server.settings_in_force import SettingsInForce
from trellis.settings import Loaded

#: The request for a reload. PID stands for the test's own process, in which the broker runs.
RELOAD: Final = "then run `kill -HUP PID` where the broker runs"
ADDS: Final = "for a user with other permissions, run `trellis users add NAME`; "
REFUSES: Final = "to refuse guest, write `auth.guest = false` in "
CREATED: Final = f"{Path('broker.toml').absolute()} (create the file if it does not exist)"
RESTART: Final = "to change this user, start the broker with another value of the"


@pytest.mark.parametrize(
    ("user", "sources", "files", "advice"),
    [
        (
            "known",
            {"users": "plant.toml"},
            ("base.toml", "plant.toml"),
            f"change the user's table [[users]] in {Path('plant.toml').absolute()}, {RELOAD}",
        ),
        (
            "guest",
            {},
            (),
            f"{ADDS}{REFUSES}{CREATED}, {RELOAD}",
        ),
        (
            "guest",
            {"users": "/etc/base.toml"},
            ("/etc/base.toml", "/etc/plant.toml"),
            f"{ADDS}{REFUSES}/etc/plant.toml, {RELOAD}",
        ),
        (
            "guest",
            {"auth.guest": "TRELLIS_AUTH_GUEST"},
            (),
            f"{ADDS}{RESTART} environment variable TRELLIS_AUTH_GUEST",
        ),
        (
            "boss",
            {"user": "--user", "password": "/run/secret"},
            ("/etc/plant.toml",),
            f"{ADDS}{RESTART} flag --user",
        ),
        (
            "boss",
            {"user": "/etc/plant.toml"},
            ("/etc/plant.toml",),
            f"{ADDS}write `user` and `password` in /etc/plant.toml, {RELOAD}",
        ),
    ],
)
async def test_the_error_names_the_place_that_defines_the_user_and_the_process(
    start: Start, user: str, sources: dict[str, str], files: tuple[str, ...], advice: str
) -> None:
    advice = advice.replace("PID", str(os.getpid()))
    running = await start(users=[KNOWN, ADMIN], user="boss", password="known", auth={"guest": True})
    loaded = Loaded(running.node.settings, sources)
    running.node.settings_in_force = SettingsInForce(loaded, files)
    everything: dict[str, Any] = dict.fromkeys(("configure", "write", "read"), ".*")
    for method, path, body, subject in (
        ("PUT", f"users/{user}", {"password": "x", "tags": ""}, f"user '{user}' is"),
        ("DELETE", f"users/{user}", None, f"user '{user}' is"),
        (
            "PUT",
            f"permissions/%2F/{user}",
            everything,
            f"the permissions of user '{user}' in vhost '/' are",
        ),
    ):
        status, answer = await api(running, method, path, body)
        assert status == 400
        assert answer["reason"] == f"{subject} defined in the settings: {advice}"


async def test_a_reload_changes_the_place_that_the_error_names(start: Start) -> None:
    running = await start(users=[KNOWN, ADMIN])
    running.sources = {"users": "/etc/new.toml"}
    await running.reload(running.chosen)
    _, answer = await api(running, "DELETE", "users/known")
    assert " table [[users]] in /etc/new.toml, then run " in answer["reason"]


def test_an_operator_who_follows_the_error_refuses_guest(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text("")
    broker = BrokerProcess("--config", str(file))
    try:
        http = broker.addresses["http"]
        words = ("permissions", "set", "guest", "", "", "")
        error = run_command(*words, URL=f"http://{http.host}:{http.port}").stderr
        change = re.search(r"write `(.+?)` in (\S+), then run `kill -HUP (\d+)`", error)
        assert change is not None and change[2] == str(file), error
        assert int(change[3]) == broker.process.pid
        file.write_text(change[1])
        os.kill(int(change[3]), signal.SIGHUP)
        wait_for_log(broker, "reloaded users=changed")
        refused = run_command(*words, URL=f"http://{http.host}:{http.port}").stderr
        assert "refused user guest" in refused
    finally:
        broker.kill()
