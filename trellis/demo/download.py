"""Fetches Kafka's files from a Maven repository into a directory, and checks their SHA-256."""

from __future__ import annotations

import hashlib
import os
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from trellis.demo.errors import DemoError
from trellis.demo.kafka_jars import FILES, SIZE, VERSION

#: The address of Maven Central.
MAVEN_CENTRAL: Final = "https://repo.maven.apache.org/maven2"
#: Seconds without data after which a download fails.
_SECONDS: Final = 30.0

#: A function that is called with the number of bytes downloaded so far.
Progress = Callable[[int], None]


def cache_directory(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the directory in which Kafka's files stay for the next run."""
    base = environment.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base, "trellis", f"kafka-{VERSION}")


def file_list() -> dict[str, str]:
    """Return the SHA-256 of each file by the file's path in a Maven repository."""
    words = FILES.split()
    return {_path(name): digest for name, digest in zip(words[::2], words[1::2], strict=True)}


def fetch_kafka(directory: Path, progress: Progress, repository: str = MAVEN_CENTRAL) -> list[Path]:
    """Download Kafka's missing files to a directory; return the paths of all files.

    Raises DemoError.
    """
    directory.mkdir(parents=True, exist_ok=True)
    paths, done = [], 0
    for path, digest in file_list().items():
        target = directory / path.rpartition("/")[2]
        if not target.exists() or _digest(target.read_bytes()) != digest:
            _download(f"{repository}/{path}", target, digest)
        done += target.stat().st_size
        progress(done)
        paths.append(target)
    return paths


def total_size() -> int:
    """Return the size of all of Kafka's files in bytes."""
    return SIZE


def _path(name: str) -> str:
    group, artifact, version = name.split(":")
    return f"{group.replace('.', '/')}/{artifact}/{version}/{artifact}-{version}.jar"


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _download(url: str, target: Path, digest: str) -> None:
    """Download a file.

    The file is written to `target` only if its SHA-256 is `digest`. Raises DemoError.
    """
    try:
        with urllib.request.urlopen(url, timeout=_SECONDS) as response:
            data: bytes = response.read()
    except OSError as error:
        raise DemoError(
            f"cannot download {url} ({error}): give a directory with Kafka's files (--jars DIR), "
            "or the address of a running Kafka (--servers HOST:PORT)"
        ) from None
    if _digest(data) != digest:
        raise DemoError(
            f"the file downloaded from {url} is not the expected one (SHA-256 {_digest(data)} "
            f"instead of {digest}): repeat the command, or give a directory with Kafka's files "
            "(--jars DIR)"
        )
    draft = target.with_name(f"{target.name}.{os.getpid()}")
    draft.write_bytes(data)
    draft.replace(target)
