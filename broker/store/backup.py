"""A copy of a data directory that a broker is writing in: everything that was confirmed when the
copy was begun is in it.

    the catalog first, as SQLite copies it --> the log's files, opened before any is copied --> TARGET, under its name last

Definitions are then older than the log, never younger: what the log says of queues that came later
is for nobody. Files of the log only grow, or are removed when a checkpoint speaks for them; one
that is open can be read to its end. The end of the newest may be torn, as after a crash.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Final

from broker.store.disk import StoreError
from broker.store.opening import CATALOG, LOG, STREAMS

#: Octets copied at once.
_COPY: Final = 1 << 20
#: Times that the list of files may change while they are opened.
_TRIES: Final = 1_000


def back_up(directory: str, target: str, progress: Callable[[int, int], None]) -> int:
    """Copy a store to a directory that is not there yet; returns its octets. `progress` gets octets
    done and in all. Raises StoreError."""
    if not os.path.exists(f"{directory}/{CATALOG}"):
        raise StoreError(f"there is no store in {directory}")
    if os.path.exists(target):
        raise StoreError(f"cannot back up to {target}: there is something already")
    part = target.rstrip("/") + ".part"
    try:
        os.mkdir(part, 0o700)
        os.mkdir(f"{part}/{LOG}", 0o700)
        copy_catalog(f"{directory}/{CATALOG}", f"{part}/{CATALOG}")
        files = _open_log(f"{directory}/{LOG}")
        try:
            octets = _copy(files, f"{part}/{LOG}", progress)
        finally:
            for descriptor in files.values():
                os.close(descriptor)
        octets += _copy_streams(f"{directory}/{STREAMS}", f"{part}/{STREAMS}")
        for made in (f"{part}/{LOG}", part):
            _sync_directory(made)
        os.rename(part, target)
        _sync_directory(os.path.dirname(os.path.abspath(target)))
    except FileExistsError as error:
        raise StoreError(
            f"cannot back up to {target}: {part} is there, left by a backup that was broken off, or at work now"
        ) from error
    except OSError as error:
        raise StoreError(
            f"cannot back up {directory} to {target}: {error.strerror or error}"
        ) from error
    return octets + os.path.getsize(f"{target}/{CATALOG}")


def copy_catalog(source: str, target: str) -> None:
    """Copy a catalog, as it is at one moment, while others may write in it. Raises StoreError."""
    try:
        with (
            closing(sqlite3.connect(f"file:{source}?mode=ro", uri=True)) as old,
            closing(sqlite3.connect(target)) as new,
        ):
            old.backup(new)
            new.execute("PRAGMA journal_mode = DELETE")
    except sqlite3.Error as error:
        raise StoreError(f"cannot back up the catalog {source} to {target}: {error}") from error


def _open_log(directory: str) -> dict[str, int]:
    """Name -> descriptor of the files that make up the log at one moment."""
    for _ in range(_TRIES):
        names = _names(directory)
        files: dict[str, int] = {}
        try:
            for name in names:
                files[name] = os.open(f"{directory}/{name}", os.O_RDONLY | os.O_CLOEXEC)
            if _names(directory) == names:
                return files
        except FileNotFoundError:
            pass
        for descriptor in files.values():
            os.close(descriptor)
    raise StoreError(f"the files in {directory} change faster than they can be opened")


def _names(directory: str) -> list[str]:
    return sorted(name for name in os.listdir(directory) if name.endswith(".log"))


def _copy(files: dict[str, int], target: str, progress: Callable[[int, int], None]) -> int:
    total = sum(os.fstat(descriptor).st_size for descriptor in files.values())
    done = 0
    for name, descriptor in files.items():
        with open(
            os.open(f"{target}/{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb"
        ) as copy:
            while octets := os.read(descriptor, _COPY):
                copy.write(octets)
                done += len(octets)
                progress(done, max(done, total))
            copy.flush()
            os.fsync(copy.fileno())
    return done


def _copy_streams(source: str, target: str) -> int:
    """Segments, after the log: it says how far they are, and what stands behind that is cut at a
    start. The newest first, and an index before its segment: retention, which removes the oldest
    meanwhile, leaves no gap, and no index says more than there is.
    """
    done = 0
    for directory, _, names in os.walk(source):
        made = target + directory[len(source) :]
        os.mkdir(made, 0o700)
        for name in sorted(names, reverse=True):
            try:
                descriptor = os.open(f"{directory}/{name}", os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            try:
                done += _copy({name: descriptor}, made, lambda *_: None)
            finally:
                os.close(descriptor)
        _sync_directory(made)
    return done


def _sync_directory(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
