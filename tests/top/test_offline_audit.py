"""Tests of the audit log of commands that change a data directory without the broker."""

from __future__ import annotations

import json
import os
import resource
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import msgspec
import pytest

from broker.store.disk import StoreError
from trellis.server.offline_audit import OfflineAudit, offline_path
from trellis.settings import Settings, SettingsError
from trellis.settings.schema import Data, Log

LINES: Final = 200


def audited(path: Path) -> Settings:
    """Return settings with an audit log, and with the data directory `data` beside it."""
    data = Data(dir=str(path.parent / "data"))
    return msgspec.structs.replace(Settings(), log=Log(audit=str(path)), data=data)


def test_commands_at_the_same_time_do_not_mix_their_lines(tmp_path: Path) -> None:
    settings = audited(tmp_path / "audit.jsonl")

    def write(command: int) -> None:
        with OfflineAudit(settings, f"command {command}") as audit:
            for number in range(LINES):
                audit.add("repair", "file", f"{command} {number}", {"reason": "x" * (50 * command)})

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    path = tmp_path / "audit-offline.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for command in range(4):
        mine = [line["name"] for line in lines if line["command"] == f"command {command}"]
        assert mine == [f"{command} {number}" for number in range(LINES)]
    assert len(lines) == 4 * LINES


def test_a_line_after_an_incomplete_line_begins_on_its_own(tmp_path: Path) -> None:
    path = offline_path(tmp_path / "audit.jsonl")
    path.write_text('{"time":"2026')
    with OfflineAudit(audited(tmp_path / "audit.jsonl"), "c") as audit:
        audit.add("repair", "file", "a")
    incomplete, line = path.read_text().splitlines()
    assert incomplete == '{"time":"2026' and json.loads(line)["name"] == "a"


def test_a_full_disk_names_the_change_and_the_file(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with OfflineAudit(audited(tmp_path / "audit.jsonl"), "c") as audit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
        try:
            for problem in ("only 10 of ", "File too large"):
                with pytest.raises(StoreError, match=problem) as raised:
                    audit.add("forget", "node", "a")
                assert "the change is made (forget, node 'a')" in str(raised.value)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("log", [True, False])
def test_a_file_of_root_belongs_to_the_user_of_the_broker(tmp_path: Path, log: bool) -> None:
    path = tmp_path / "audit.jsonl"
    (tmp_path / "data").mkdir()
    if log:
        path.touch()
    owner = 12_345 if os.geteuid() == 0 else os.geteuid()
    os.chown(path if log else tmp_path / "data", owner, -1)
    with OfflineAudit(audited(path), "c"):
        status = offline_path(path).stat()
    assert (status.st_uid, status.st_mode & 0o777) == (owner, 0o600)
    # A later command leaves the owner and the mode as they are.
    offline_path(path).chmod(0o640)
    with OfflineAudit(audited(path), "c") as audit:
        audit.add("repair", "file", "a")
    assert offline_path(path).stat().st_mode & 0o777 == 0o640


def test_a_user_that_called_sudo_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_USER", "ann")
    with OfflineAudit(audited(tmp_path / "audit.jsonl"), "c") as audit:
        audit.add("repair", "file", "a")
    line = json.loads(offline_path(tmp_path / "audit.jsonl").read_text())
    assert line.get("sudo_user") == ("ann" if os.getuid() == 0 else None)


def test_without_an_audit_log_nothing_is_written(tmp_path: Path) -> None:
    with OfflineAudit(Settings(), "c") as audit:
        audit.add("repair", "file", "a")
    with pytest.raises(SettingsError, match="nothing was changed"):
        OfflineAudit(audited(tmp_path / "none" / "audit.jsonl"), "c")
    assert list(tmp_path.iterdir()) == []
