"""setuptools, plus a C compiler from PyPI on a Linux that has none.

An editable install is for working on the source, so it is never compiled: a stale extension would
hide the source.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import sys
import sysconfig
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import (
    build_sdist,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

#: mypyc, and what the compiled modules import, for its types.
_COMPILING = ["mypy[mypyc]>=2.4,<3", "librt>=0.16,<1", "pamqp>=4,<5", "pyroaring>=1.2,<2"]

#: What the Zig compiler calls the machines it can compile for, by Python's names of them.
_ZIG_MACHINES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}

#: The oldest C library a compiled wheel runs with: that of Debian 10 and RHEL 8.
_GLIBC = "2.28"


def _pure() -> bool:
    return bool(os.environ.get("TRELLIS_PURE"))


def wants_zig() -> bool:
    """Whether this is a 64-bit Linux with Python's headers, without a C compiler, and of a kind
    that Zig knows.
    """
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[0]
    return (
        sys.platform == "linux"
        and sys.maxsize > 2**32
        and shutil.which(compiler) is None
        and platform.machine().lower() in _ZIG_MACHINES
        and Path(sysconfig.get_path("include"), "Python.h").exists()
    )


def zig_target() -> str:
    machine = _ZIG_MACHINES[platform.machine().lower()]
    musl = "musl" in (sysconfig.get_config_var("HOST_GNU_TYPE") or "")
    return f"{machine}-linux-musl" if musl else f"{machine}-linux-gnu.{_GLIBC}"


def _use_zig() -> None:
    command = f"{shlex.quote(sys.executable)} -m ziglang cc -target {zig_target()}"
    os.environ.update(CC=command, LDSHARED=f"{command} -shared")
    # Zig wants to keep what it made, and the home directory may not be writable.
    for kind in ("LOCAL", "GLOBAL"):
        os.environ.setdefault(f"ZIG_{kind}_CACHE_DIR", str(Path("build", "zig").resolve()))


def _forget_earlier_builds() -> None:
    """setuptools would carry a module that is gone since the last build into the wheel."""
    for path in Path("build").glob("lib*"):
        shutil.rmtree(path)


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    required: list[str] = build_meta.get_requires_for_build_wheel(config_settings)
    if _pure():
        return required
    return required + _COMPILING + (["ziglang>=0.13"] if wants_zig() else [])


def build_wheel(
    wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None
) -> str:
    if not _pure() and wants_zig():
        _use_zig()
    _forget_earlier_builds()
    return build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)


def get_requires_for_build_editable(config_settings: Any = None) -> list[str]:
    return build_meta.get_requires_for_build_editable(config_settings)


def build_editable(
    wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None
) -> str:
    os.environ["TRELLIS_PURE"] = "1"
    return build_meta.build_editable(wheel_directory, config_settings, metadata_directory)
