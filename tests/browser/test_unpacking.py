"""Test that processes may unpack the browser at the same time."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.foreign import require

HERE = Path(__file__).parent


@pytest.mark.long
def test_processes_that_unpack_the_browser_at_the_same_time_can_run_it(tmp_path: Path) -> None:
    node = require("browser")
    shutil.copy(HERE / "chromium.mjs", tmp_path)
    modules = tmp_path / "node_modules"
    modules.mkdir()
    packages = {path.name for path in (HERE / "node_modules").iterdir() if path.name[0] != "."}
    for name in packages:
        (modules / name).symlink_to(HERE / "node_modules" / name)
    unpack = 'set -e; program=$("$0" chromium.mjs); exec "$program" --version'
    unpacking = [
        subprocess.Popen(["sh", "-c", unpack, node], cwd=tmp_path, stdout=subprocess.PIPE)
        for _ in range(3)
    ]
    versions = {process.communicate()[0] for process in unpacking}
    assert [process.returncode for process in unpacking] == [0, 0, 0]
    assert len(versions) == 1 and versions.pop().startswith(b"Chromium ")
    assert {path.name for path in modules.iterdir()} == {*packages, ".chromium"}
    shutil.rmtree(modules / ".chromium")
