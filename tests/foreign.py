"""Is what a foreign client needs installed here?"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

#: Where npm puts what runs on Node, by runtime.
_INSTALLED = {name: Path(__file__).parent / name / "node_modules" for name in ("node", "browser")}

#: The programs a foreign client needs. A name that is not here is itself the program.
_PROGRAMS = {
    "node": ("node",),
    "browser": ("node",),
    "mosquitto": ("mosquitto_pub", "mosquitto_sub"),
}

#: The oldest Node that it runs on.
_OLDEST_NODE = {"node": 18, "browser": 20}


def _missing(name: str) -> str:
    """What is missing of the runtime `name`, and what to do about it; an empty string when nothing
    is.
    """
    for program in _PROGRAMS.get(name, (name,)):
        if shutil.which(program) is None:
            return f"{program} is not on PATH"
    if name in _INSTALLED:
        version = subprocess.run(
            ["node", "--version"], capture_output=True, text=True, check=True
        ).stdout.strip()
        major = re.match(r"v(\d+)", version)
        if major is None or int(major[1]) < _OLDEST_NODE[name]:
            return f"node is {version}, what is in tests/{name} needs {_OLDEST_NODE[name]}"
        if not _INSTALLED[name].is_dir():
            return f"what tests/{name} names is not installed (cd tests/{name} && npm ci)"
    return ""


def require(name: str) -> str:
    """Path of the runtime `name` (of its first program). Without it the test is skipped.

    It fails instead if the environment variable TRELLIS_REQUIRE names the runtime, or says `all`: a
    list of names separated by spaces or commas.
    """
    missing = _missing(name)
    if missing:
        reason = f"foreign client {name}: {missing}"
        required = re.split(r"[\s,]+", os.environ.get("TRELLIS_REQUIRE", ""))
        if name in required or "all" in required:
            pytest.fail(f"{reason} (TRELLIS_REQUIRE)", pytrace=False)
        pytest.skip(reason, allow_module_level=True)
    return shutil.which(_PROGRAMS.get(name, (name,))[0]) or name
