"""Tests of changes that exceed their time limits: the answer names the completed steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.top.api_client import ADMIN, api
from tests.top.conftest import Start
from tests.top.disks import HandledDisk
from trellis.http.management import answers, topology

BULK_REASON = (
    "0 of 2 users are deleted; the deletion of user 'one' is not durable yet because the disk is "
    "slow; delete the remaining users again"
)
USER = {"password": "known", "tags": ""}


@pytest.mark.parametrize(
    ("method", "path", "body", "reason"),
    [
        (
            "PUT",
            "users/three",
            USER,
            (
                "the change was made, but is not durable yet, because the disk is slow: check "
                "whether it took effect before you try again"
            ),
        ),
        (
            "POST",
            "users/bulk-delete",
            {"users": ["one", "two"]},
            BULK_REASON,
        ),
    ],
)
async def test_a_change_that_is_not_durable_in_time_says_so(
    start: Start,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    path: str,
    body: dict[str, Any],
    reason: str,
) -> None:
    disk = HandledDisk()
    broker = await start(disk=disk, users=[ADMIN], data={"dir": str(tmp_path)})
    for name in ("one", "two"):
        assert (await api(broker, "PUT", f"users/{name}", USER))[0] == 201
    with monkeypatch.context() as patch:
        patch.setattr(answers, "DURABLE_SECONDS", 0)
        expected = {"error": "timeout", "reason": reason}
        assert await api(broker, method, path, body) == (503, expected)
    # With the usual time limit, the same change is answered.
    assert (await api(broker, method, path, body))[0] == 204


async def test_a_deletion_of_a_vhost_that_takes_long_says_so_and_goes_on(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await start(users=[ADMIN])
    assert (await api(broker, "PUT", "vhosts/gone"))[0] == 201
    with monkeypatch.context() as patch:
        patch.setattr(topology, "VHOST_DELETION_SECONDS", 0)
        status, answer = await api(broker, "DELETE", "vhosts/gone")
    assert (status, answer["error"]) == (503, "timeout")
    assert answer["reason"] == (
        "vhost 'gone' is still being deleted after 0 s; the deletion goes on: GET the vhost until "
        "it is not found"
    )
    await broker.until(lambda: "gone" not in broker.node.broker.vhosts)
    assert (await api(broker, "GET", "vhosts/gone"))[0] == 404
    assert (await api(broker, "PUT", "vhosts/gone"))[0] == 201
