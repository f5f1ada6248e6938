"""A copy of the sources, in which tests run commands that build something."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

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
