"""The programs of a build, and a copy of the sources for tests that build something."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[1]
#: The files and directories of a build, of the Debian package and of a release.
COPIED: Final = (
    *("matching", "broker", "protocols", "trellis", "pyspark_trellis", "connector"),
    *("build_backend", "config", "docs", "packaging", "tools"),
    *("pyproject.toml", "setup.py", "MANIFEST.in", "Makefile", "LICENSE"),
    *("README.md", "CHANGELOG.md"),
)
#: Names that builds and interpreters leave.
LEFT_OUT: Final = ("__pycache__", "build", "dist", "*.egg-info", "*.so", "src")


def copy_sources(target: Path) -> None:
    """Copy the sources into a new directory."""
    target.mkdir()
    for name in COPIED:
        path = ROOT / name
        if path.is_dir():
            shutil.copytree(path, target / name, ignore=shutil.ignore_patterns(*LEFT_OUT))
        else:
            shutil.copy2(path, target)


def load_program(path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Import a program of the build, such as setup.py, under a name that no package has."""
    monkeypatch.syspath_prepend(str(ROOT / "build_backend"))
    spec = importlib.util.spec_from_file_location(f"packaging_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
