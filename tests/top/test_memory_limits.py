"""Tests of the memory limits that control groups set for the broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from trellis.process import memory_limits

OF_SERVICE = "1:name=systemd:/\n0::/system.slice/trellis.service\n"


def limit(root: Path, group: str, text: str) -> None:
    directory = root / group
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "memory.max").write_text(text)


def test_limit_of_a_service_and_of_its_slice_are_found(tmp_path: Path) -> None:
    limit(tmp_path, "system.slice", "3000\n")
    limit(tmp_path, "system.slice/trellis.service", "2000\n")
    limit(tmp_path, "system.slice/other.service", "1000\n")
    assert sorted(memory_limits(tmp_path, OF_SERVICE)) == [2000, 3000]


@pytest.mark.parametrize("groups", ["0::/\n", "", "4:memory:/x\n"])
def test_limit_of_a_container_is_found(tmp_path: Path, groups: str) -> None:
    limit(tmp_path, "", "5000\n")
    assert memory_limits(tmp_path, groups) == [5000]


def test_limit_of_version_1_is_found(tmp_path: Path) -> None:
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("4000\n")
    assert memory_limits(tmp_path, "") == [4000]


def test_group_without_a_limit_has_none(tmp_path: Path) -> None:
    limit(tmp_path, "system.slice/trellis.service", "max\n")
    assert memory_limits(tmp_path, OF_SERVICE) == []
