"""A crash at every step of the store's transactions while a change over HTTP becomes durable."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from broker.store.durable import DurableStore
from tests.store.homes import Home
from tests.top.api_client import ADMIN, api
from tests.top.conftest import Start
from tests.top.running import Running

#: The permissions of a virtual host's creator: all names, for each of the three permissions.
ALL = (".*", ".*", ".*")


@asynccontextmanager
async def crashes(broker: Running, directory: Path) -> AsyncIterator[list[Path]]:
    """Copy the data directory before each SQL statement of the `with` body, as after a crash.

    The last copy is the state after the body.
    """
    store = broker.node.broker.store
    assert isinstance(store, DurableStore)
    copies: list[Path] = []

    def copy(statement: str) -> None:
        copies.append(directory.with_name(f"crash{len(copies)}"))
        shutil.copytree(directory, copies[-1])

    store.catalog._db.set_trace_callback(copy)
    yield copies
    copy("")
    store.catalog._db.set_trace_callback(None)


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_a_crash_leaves_no_vhost_without_the_permissions_of_its_creator(
    start: Start, tmp_path: Path
) -> None:
    directory = tmp_path / "data"
    broker = await start(users=[ADMIN], data={"dir": str(directory)})
    maker = {"password": "known", "tags": "administrator"}
    assert (await api(broker, "PUT", "users/maker", maker))[0] == 201
    async with crashes(broker, directory) as copies:
        assert (await api(broker, "PUT", "vhosts/made", user="maker"))[0] == 201
    states = set()
    for path in copies:
        home = Home(path)
        permissions = home.broker.users.by_name["maker"].permissions
        states.add(("made" in home.broker.vhosts, permissions.get("made")))
        home.crash()
    assert len(copies) > 5
    assert states == {(False, None), (True, ALL)}


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_a_crash_leaves_all_topic_permissions_or_none_while_all_are_deleted(
    start: Start, tmp_path: Path
) -> None:
    directory = tmp_path / "data"
    broker = await start(users=[ADMIN], data={"dir": str(directory)})
    assert (await api(broker, "PUT", "users/ann", {"password": "x", "tags": ""}))[0] == 201
    exchanges = ("amq.topic", "amq.direct", "amq.fanout")
    path = "topic-permissions/%2F/ann"
    for exchange in exchanges:
        patterns = {"exchange": exchange, "write": "^y", "read": ".*"}
        assert (await api(broker, "PUT", path, patterns))[0] == 201
    async with crashes(broker, directory) as copies:
        assert (await api(broker, "DELETE", path))[0] == 204
    states = set()
    for copy in copies:
        home = Home(copy)
        states.add(frozenset(home.broker.users.by_name["ann"].topics.get("/", {})))
        home.crash()
    assert states == {frozenset(exchanges), frozenset()}
    assert (await api(broker, "PUT", path, patterns))[0] == 201
    assert (await api(broker, "DELETE", f"{path}/amq.topic"))[0] == 204
    assert [row["exchange"] for row in (await api(broker, "GET", path))[1]] == [exchange]


@pytest.mark.asyncio(loop_factories=["asyncio"])
@pytest.mark.parametrize("path", ["definitions", "definitions/%2F"])
async def test_imported_definitions_are_durable_before_the_answer(
    start: Start, tmp_path: Path, path: str
) -> None:
    directory = tmp_path / "data"
    broker = await start(users=[ADMIN], data={"dir": str(directory)})
    names = {f"q{n}" for n in range(30)}
    document = {"queues": [{"name": name, "vhost": "/", "durable": True} for name in names]}
    async with crashes(broker, directory) as copies:
        status, answer = await api(broker, "POST", path, document)
        assert (status, answer["taken"]) == (200, {"queues": 30})
    home = Home(copies[-1])
    assert home.broker.vhosts["/"].queues.keys() == names
    home.crash()
    # A repeated request, which changes nothing, is answered too.
    assert (await api(broker, "POST", path, document))[0] == 200
    assert (await api(broker, "POST", path, {"queues": []}))[0] == 200
