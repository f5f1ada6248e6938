"""The build backend of trellis-pyspark: setuptools, after it has copied the packages.

The packages pyspark_trellis and matching are in the directory above. The backend copies them to
`src`; a source distribution has them there already. The wheel is pure Python: Spark's workers may
run another version of Python than the machine that builds it.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Final

from setuptools import build_meta

__all__ = [
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_wheel",
]

PACKAGES: Final = ("matching", "pyspark_trellis")


def _copy_packages() -> None:
    tree = Path.cwd().parent
    if not (tree / PACKAGES[0]).is_dir():
        return  # An unpacked source distribution has the packages in `src`.
    shutil.rmtree("build", ignore_errors=True)
    shutil.rmtree("src", ignore_errors=True)
    for name in PACKAGES:
        ignored = shutil.ignore_patterns("__pycache__", "*.so", "*.pyc")
        shutil.copytree(tree / name, Path("src", name), ignore=ignored)
    shutil.copy2(tree / "LICENSE", "LICENSE")


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    """Return the packages that the build of a wheel needs (PEP 517)."""
    _copy_packages()
    return build_meta.get_requires_for_build_wheel(config_settings)


def get_requires_for_build_sdist(config_settings: Any = None) -> list[str]:
    """Return the packages that the build of a source distribution needs (PEP 517)."""
    _copy_packages()
    return build_meta.get_requires_for_build_sdist(config_settings)


def build_wheel(
    wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None
) -> str:
    """Build a wheel and return its name (PEP 517)."""
    _copy_packages()
    return build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_sdist(sdist_directory: str, config_settings: Any = None) -> str:
    """Build a source distribution and return its name (PEP 517)."""
    _copy_packages()
    return build_meta.build_sdist(sdist_directory, config_settings)


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: Any = None) -> str:
    """Write the metadata of a wheel and return the name of their directory (PEP 517)."""
    _copy_packages()
    return build_meta.prepare_metadata_for_build_wheel(metadata_directory, config_settings)
