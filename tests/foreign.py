"""Finds the programs that tests of other projects' clients need, and skips tests without them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import NoReturn

import pytest

#: Directories into which npm installs the packages of each Node.js runtime.
_INSTALLED = {
    name: Path(__file__).parent / name / "node_modules"
    for name in ("node", "browser", "conformance", "openid")
}

#: Directory of the programs that `make` fetches for tests.
_FETCHED = Path(__file__).parents[1] / "build" / "tools"

#: The programs of each runtime. A name that is not listed is itself the program.
_PROGRAMS = {
    "node": ("node",),
    "browser": ("node",),
    "conformance": ("node",),
    "openid": ("node",),
    "mosquitto": ("mosquitto_pub", "mosquitto_sub"),
    "mosquitto-broker": ("mosquitto",),
}

#: The oldest version of Node.js on which each runtime works.
_OLDEST_NODE = {"node": 18, "browser": 20, "conformance": 20, "openid": 20}


def _missing(name: str) -> str:
    """Describe a missing part of the runtime `name`, for example "npm is not on PATH".

    Return "" if the runtime is complete.
    """
    for program in _PROGRAMS.get(name, (name,)):
        if _which(program) is None:
            return f"{program} is not on PATH"
    if name in _INSTALLED:
        version = subprocess.run(
            ["node", "--version"], capture_output=True, text=True, check=True
        ).stdout.strip()
        major = re.match(r"v(\d+)", version)
        if major is None or int(major[1]) < _OLDEST_NODE[name]:
            return f"node is {version}, and tests/{name} needs version {_OLDEST_NODE[name]}"
        if not _INSTALLED[name].is_dir():
            return f"the packages of tests/{name} are not installed (cd tests/{name} && npm ci)"
    return ""


def require(name: str) -> str:
    """Return the path of the first program of the runtime `name`.

    If a part of the runtime is missing, skip the test, or fail the test if the environment variable
    TRELLIS_REQUIRE contains the runtime or is `all`. TRELLIS_REQUIRE is a list of runtimes,
    separated by spaces or commas.
    """
    missing = _missing(name)
    if missing:
        lacks(name, missing)
    return _which(_PROGRAMS.get(name, (name,))[0]) or name


def lacks(name: str, missing: str) -> NoReturn:
    """Skip the test, because a part of the runtime `name` is missing.

    `missing` describes the missing part, such as "npm is not on PATH". If TRELLIS_REQUIRE contains
    the runtime (`require`), fail the test.
    """
    reason = f"foreign client {name}: {missing}"
    required = re.split(r"[\s,]+", os.environ.get("TRELLIS_REQUIRE", ""))
    if name in required or "all" in required:
        pytest.fail(f"{reason} (TRELLIS_REQUIRE)", pytrace=False)
    pytest.skip(reason, allow_module_level=True)


def _which(program: str) -> str | None:
    """Return the path of a program that `make` has fetched or that is on PATH, or None."""
    fetched = _FETCHED / program
    return str(fetched) if fetched.exists() else shutil.which(program)
