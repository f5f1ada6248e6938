"""The build backend: setuptools, and a C compiler from PyPI on a Linux system without one.

An editable install is never compiled, because a stale extension would hide changed source.
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

#: The build requirements for compiling: mypyc, and the packages whose types the compiled modules
#: use. The versions are pinned, so that one source distribution always gives the same C code.
COMPILING = [
    "mypy[mypyc]==2.4.1",
    "mypy_extensions==1.2.0",
    "librt==0.16.0",
    "pamqp==4.0.1",
    "pyroaring==1.2.0",
]

#: The C compiler for a system without one.
ZIG = "ziglang==0.17.1"

#: Machines that Zig can compile for: Zig's name of each, by the name that Python reports.
_ZIG_MACHINES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}

#: Oldest version of glibc on which a compiled wheel runs: the version of Debian 10 and RHEL 8.
_GLIBC = "2.28"


def _pure() -> bool:
    return bool(os.environ.get("TRELLIS_PURE"))


def wants_zig() -> bool:
    """Return True if wheels need Zig: on a supported 64-bit Linux without a C compiler.

    The result is False if Python's headers are missing, because Zig needs the headers, too.
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
    """Return the machine and C library to compile for, as Zig names them."""
    machine = _ZIG_MACHINES[platform.machine().lower()]
    musl = "musl" in (sysconfig.get_config_var("HOST_GNU_TYPE") or "")
    return f"{machine}-linux-musl" if musl else f"{machine}-linux-gnu.{_GLIBC}"


def _use_zig() -> None:
    command = f"{shlex.quote(sys.executable)} -m ziglang cc -target {zig_target()}"
    os.environ.update(CC=command, LDSHARED=f"{command} -shared")
    # The default cache directories of Zig are in the home directory, which may not be writable.
    for kind in ("LOCAL", "GLOBAL"):
        os.environ.setdefault(f"ZIG_{kind}_CACHE_DIR", str(Path("build", "zig").resolve()))


def _remove_earlier_builds() -> None:
    """Remove earlier builds, from which setuptools would copy deleted modules into the wheel."""
    for path in Path("build").glob("lib*"):
        shutil.rmtree(path)


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    """Return the packages needed to build a wheel (PEP 517)."""
    required: list[str] = build_meta.get_requires_for_build_wheel(config_settings)
    if _pure():
        return required
    return required + COMPILING + ([ZIG] if wants_zig() else [])


def build_wheel(
    wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None
) -> str:
    """Build a wheel and return its name (PEP 517)."""
    if not _pure() and wants_zig():
        _use_zig()
    _remove_earlier_builds()
    return build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)


def get_requires_for_build_editable(config_settings: Any = None) -> list[str]:
    """Return the packages needed for an editable install (PEP 660)."""
    return build_meta.get_requires_for_build_editable(config_settings)


def build_editable(
    wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None
) -> str:
    """Build an editable wheel and return its name (PEP 660)."""
    os.environ["TRELLIS_PURE"] = "1"
    return build_meta.build_editable(wheel_directory, config_settings, metadata_directory)
