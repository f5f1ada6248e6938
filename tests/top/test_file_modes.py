"""Modes of the files in the data directory: other users of the machine can read none of them."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pamqp.commands as spec
import pytest

from broker.store.backup import back_up
from tests.clients import marshal, publication
from tests.top.conftest import Start
from tests.top.running import Running, settings


@pytest.fixture(autouse=True)
def open_mask() -> Iterator[None]:
    """Set the umask to 0 during a test, so that it removes no permission from created files."""
    before = os.umask(0)
    yield
    os.umask(before)


def modes(directory: Path) -> dict[str, int]:
    """Return the mode of each file and directory, by its path in the data directory."""
    return {
        str(path.relative_to(directory.parent)): stat.S_IMODE(path.lstat().st_mode)
        for path in [directory, *directory.rglob("*")]
    }


def assert_private(directory: Path) -> None:
    mode_of = modes(directory)
    assert len(mode_of) > 5
    wrong = {
        path: oct(mode)
        for path, mode in mode_of.items()
        if mode != (0o700 if (directory.parent / path).is_dir() else 0o600)
    }
    assert wrong == {}


async def _fill(running: Running) -> None:
    """Store a definition, a message and a row of a stream in the data directory."""
    client = await running.amqp()
    stream: Any = {"x-queue-type": "stream"}
    await client.socket.send(
        marshal(1, spec.Confirm.Select())
        + marshal(1, spec.Queue.Declare(queue="q", durable=True))
        + marshal(1, spec.Queue.Declare(queue="s", durable=True, arguments=stream))
        + publication("", "q", b"x", delivery_mode=2)
        + publication("", "s", b"x", delivery_mode=2)
    )
    await running.until(lambda: running.node.broker.vhosts["/"].queues.get("q") is not None)
    await running.until(lambda: any((running.node.directory or Path()).glob("streams/*/*/*")))


async def test_a_new_data_directory_is_private(start: Start, tmp_path: Path) -> None:
    home = tmp_path / "home"
    running = await start(data={"dir": str(home)}, store={"reserve": True})
    await _fill(running)
    assert (home / "catalog.sqlite-wal").exists()
    assert_private(home)
    back_up(str(home), str(tmp_path / "copy"), lambda done, total: None)
    assert_private(tmp_path / "copy")


async def test_an_existing_data_directory_becomes_private(start: Start, tmp_path: Path) -> None:
    home = tmp_path / "home"
    chosen = settings(data={"dir": str(home)})
    running = Running(chosen)
    await running.start()
    await _fill(running)
    await running.stop()
    for path in [home, *home.rglob("*")]:
        path.chmod(0o777 if path.is_dir() else 0o644)
    (home / "notes.txt").write_text("of an operator")
    foreign = stat.S_IMODE((home / "notes.txt").stat().st_mode)
    outside = tmp_path / "outside"
    outside.write_text("of another program")
    (home / "log" / "link").symlink_to(outside)
    mode = stat.S_IMODE(outside.stat().st_mode)
    again = await start(chosen)
    assert again.node.ready
    assert stat.S_IMODE((home / "notes.txt").stat().st_mode) == foreign
    assert stat.S_IMODE(outside.stat().st_mode) == mode
    (home / "notes.txt").unlink()
    (home / "log" / "link").unlink()
    assert_private(home)
