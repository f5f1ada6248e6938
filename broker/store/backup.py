"""Backups of the data directory of a running broker.

A backup contains everything that was confirmed before it began. These are the steps, in order:

    1. copy the catalog, with SQLite's backup interface
    2. open all files of the log, then copy them
    3. copy the segments of streams
    4. rename TARGET.part to TARGET

So the definitions are never newer than the log. The log may have messages of queues that were
declared after step 1: a start from the backup ignores them. A file of the log only grows, until it
is removed, because a checkpoint has replaced it or because none of its entries is live. A removed
file stays readable while it is open. The copy of the newest file may end within a record, as after
a crash.

During the copy, the broker may drop old files, and record this in the head of the next file
(dropping.py). The backup has the dropped files, but it may lack newer records, such as records that
settle or move messages of the dropped files. So a start from the backup must read the dropped
files. Therefore each copy gets the head that its file had when all files were opened, before the
drop.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Final

from broker.store.disk import StoreError, create_private
from broker.store.files import DATA_START
from broker.store.opening import CATALOG, LOG, STREAMS

#: Number of bytes copied at once.
_COPY: Final = 1 << 20
#: Largest number of attempts to open all files of the log, or the newest segment of a stream. An
#: attempt fails if a checkpoint or retention removes a file meanwhile.
_TRIES: Final = 1_000
#: Endings of the names of a stream's segments, and of their indexes.
_SEGMENT: Final = ".arrow"
_INDEX: Final = ".arrow.index"


class OpenedFile:
    """A file to copy: its descriptor, and `head`, the bytes already read from its beginning.

    If `complete` is True, `head` is the whole content of the copy.
    """

    def __init__(self, descriptor: int, head: bytes = b"", complete: bool = False) -> None:
        self.descriptor = descriptor
        self.head = head
        self.complete = complete


def back_up(directory: str, target: str, progress: Callable[[int, int], None]) -> int:
    """Copy a store to a new directory, and return the size of the copy in bytes.

    `progress` is called with the number of bytes copied from the log so far, and the log's size.
    Raises StoreError if there is no store, if the target exists, or if copying fails.
    """
    if not os.path.exists(f"{directory}/{CATALOG}"):
        raise StoreError(f"there is no store in {directory}: give a data directory of a broker")
    if os.path.exists(target):
        raise StoreError(
            f"cannot back up to {target}: this path exists already; name a new directory"
        )
    part = target.rstrip("/") + ".part"
    try:
        os.mkdir(part, 0o700)
        os.mkdir(f"{part}/{LOG}", 0o700)
        copy_catalog(f"{directory}/{CATALOG}", f"{part}/{CATALOG}")
        files = _open_log(f"{directory}/{LOG}")
        try:
            size = _copy(files, f"{part}/{LOG}", progress)
        finally:
            for file in files.values():
                os.close(file.descriptor)
        size += _copy_streams(f"{directory}/{STREAMS}", f"{part}/{STREAMS}")
        for path in (f"{part}/{LOG}", part):
            _sync_directory(path)
        os.rename(part, target)
        _sync_directory(os.path.dirname(os.path.abspath(target)))
    except FileExistsError as existing:
        raise StoreError(
            f"cannot back up to {target}, because {part} exists: another backup is running, or was "
            f"interrupted; after an interrupted backup, remove {part}"
        ) from existing
    except OSError as error:
        raise StoreError(
            f"cannot back up {directory} to {target}: {error.strerror or error}"
        ) from error
    return size + os.path.getsize(f"{target}/{CATALOG}")


def copy_catalog(source: str, target: str) -> None:
    """Copy the state of a catalog at one moment. A broker may write the catalog during the copy.

    Raises StoreError if the catalog cannot be read or the copy cannot be written.
    """
    create_private(target)
    try:
        with (
            closing(sqlite3.connect(f"file:{source}?mode=ro", uri=True)) as old,
            closing(sqlite3.connect(target)) as new,
        ):
            old.backup(new)
            new.execute("PRAGMA journal_mode = DELETE")
    except sqlite3.Error as error:
        raise StoreError(f"cannot back up the catalog {source} to {target}: {error}") from error


def _open_log(directory: str) -> dict[str, OpenedFile]:
    """Open all files that the log has at one moment, and read their heads. Return them by name.

    If a file is added or removed meanwhile, try again; raise StoreError after _TRIES attempts.
    """
    for _ in range(_TRIES):
        names = _names(directory)
        files: dict[str, OpenedFile] = {}
        try:
            for name in names:
                descriptor = os.open(f"{directory}/{name}", os.O_RDONLY | os.O_CLOEXEC)
                file = files[name] = OpenedFile(descriptor)
                file.head = os.read(descriptor, int(DATA_START))
                # A file with an incomplete head has no confirmed record yet.
                file.complete = len(file.head) < DATA_START
            if _names(directory) == names:
                return files
        except FileNotFoundError:
            pass
        for file in files.values():
            os.close(file.descriptor)
    raise StoreError(
        f"cannot back up {directory}: its files changed at each attempt to open all of them; start"
        " the backup again"
    )


def _names(directory: str) -> list[str]:
    return sorted(name for name in os.listdir(directory) if name.endswith(".log"))


def _copy(files: dict[str, OpenedFile], target: str, progress: Callable[[int, int], None]) -> int:
    """Copy files, and return the size of the copies in bytes.

    `progress` is called with the number of bytes copied so far, and the total number of bytes.
    """
    total = sum(os.fstat(file.descriptor).st_size for file in files.values())
    done = 0
    for name, file in files.items():
        with open(
            os.open(f"{target}/{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb"
        ) as copy:
            copy.write(file.head)
            done += len(file.head)
            while not file.complete and (data := os.read(file.descriptor, _COPY)):
                copy.write(data)
                done += len(data)
                progress(done, max(done, total))
            copy.flush()
            os.fsync(copy.fileno())
    return done


def _copy_streams(source: str, target: str) -> int:
    """Copy the segments of streams, after the log, and return their size in bytes.

    The log has the durable end of each stream; a start from the backup removes rows after this end.
    The newest segments are copied first: retention may remove the oldest segments meanwhile, and
    the copy must not have a gap.
    """
    done = 0
    for directory, _, _ in os.walk(source):
        target_directory = target + directory[len(source) :]
        os.mkdir(target_directory, 0o700)
        for _ in range(_TRIES):
            size = _copy_files(directory, target_directory)
            if size >= 0:
                break
        else:
            raise StoreError(
                f"cannot back up {directory}: its newest segment was removed at each attempt to"
                " copy the segment; start the backup again"
            )
        done += size
        _sync_directory(target_directory)
    return done


def _copy_files(directory: str, target: str) -> int:
    """Copy the files of one directory, the newest segment first, and return their size in bytes.

    If the newest segment was removed after the files were listed, copy nothing and return -1: the
    caller lists the files again. In this case the stream has newer segments, or it is deleted,
    because retention never removes the last segment of a stream.
    """
    names = _files_in(directory)
    newest = next((name for name in names if name.endswith(_SEGMENT)), "")
    done = 0
    for name in names:
        if name.endswith((_INDEX, ".tmp")):
            continue  # An index is copied with its segment.
        try:
            opened = _open_with_index(directory, name)
        except FileNotFoundError:
            if name == newest:
                return -1
            continue
        try:
            done += _copy(opened, target, lambda *_: None)
        finally:
            for file in opened.values():
                os.close(file.descriptor)
    return done


def _open_with_index(directory: str, name: str) -> dict[str, OpenedFile]:
    """Open a file, and its index if there is one. Raises FileNotFoundError if the file is missing.

    The index is opened before the segment. In between, the stream may be deleted, and another
    stream of its name may create a segment of this name. In this case only the segment is returned:
    the opened index belongs to the deleted stream.
    """
    path = f"{directory}/{name}"
    opened: dict[str, OpenedFile] = {}
    try:
        if name.endswith(_SEGMENT) and os.path.exists(f"{path}.index"):
            opened[f"{name}.index"] = _open(f"{path}.index")
        opened[name] = _open(path)
        index = opened.get(f"{name}.index")
        if index is not None and not _is_at(index.descriptor, f"{path}.index"):
            os.close(opened.pop(f"{name}.index").descriptor)
    except FileNotFoundError:
        for file in opened.values():
            os.close(file.descriptor)
        raise
    return opened


def _open(path: str) -> OpenedFile:
    return OpenedFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC))


def _is_at(descriptor: int, path: str) -> bool:
    """True if the path still names the file that the descriptor has open."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _files_in(directory: str) -> list[str]:
    """Return the names of the files in a directory, the newest segment first."""
    try:
        with os.scandir(directory) as entries:
            return sorted((entry.name for entry in entries if entry.is_file()), reverse=True)
    except FileNotFoundError:
        return []


def _sync_directory(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
