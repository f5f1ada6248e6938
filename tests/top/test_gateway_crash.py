"""A crash at every step of the store's transactions while a change over HTTP becomes durable."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from broker.store.durable import DurableStore
from tests.store.homes import Home
from tests.top.conftest import Start
from tests.top.test_api import ADMIN, api

#: All permissions in a virtual host, which its creator gets.
ALL = (".*", ".*", ".*")


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_a_crash_leaves_no_vhost_without_the_permissions_of_its_creator(
    start: Start, tmp_path: Path
) -> None:
    directory = tmp_path / "data"
    broker = await start(users=[ADMIN], data={"dir": str(directory)})
    maker = {"password": "known", "tags": "administrator"}
    assert (await api(broker, "PUT", "users/maker", maker))[0] == 201
    store = broker.node.broker.store
    assert isinstance(store, DurableStore)
    copies: list[Path] = []

    def copy(statement: str) -> None:
        """Keep the files as a crash before this SQL statement leaves them."""
        copies.append(tmp_path / f"crash{len(copies)}")
        shutil.copytree(directory, copies[-1])

    store.catalog._db.set_trace_callback(copy)
    assert (await api(broker, "PUT", "vhosts/made", user="maker"))[0] == 201
    copy("")
    store.catalog._db.set_trace_callback(None)
    found = set()
    for path in copies:
        home = Home(path)
        permissions = home.broker.users.by_name["maker"].permissions
        found.add(("made" in home.broker.vhosts, permissions.get("made")))
        home.crash()
    assert len(copies) > 5
    assert found == {(False, None), (True, ALL)}
