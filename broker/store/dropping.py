"""Drops dead files: frees the space of files without live entries, without reading these files.

    1. write into the head of the next segment that the files before it were dropped
    2. sync that segment: from now on, recovery ignores the dropped files
    3. remove the files, in any order

A segment has two copies of its head, and each is synced before the other is written. None of these
steps needs free space on the disk. A file with the settlements of an earlier file's messages is
dropped together with the earlier file or after it. If it was dropped first, a restart would restore
the settled messages.

The newest file with a durable record is never dropped: it holds the last position. Recovery removes
a newer segment without records.
"""

from __future__ import annotations

from itertools import pairwise

from broker.store.disk import StoreError, WriteFailed
from broker.store.files import DATA_START, HEAD_SIZE, SEGMENT, Head, LogFile, os_error_text
from broker.store.segments import SegmentLog


def dead_files(log: SegmentLog) -> list[list[LogFile]]:
    """Return the files that can be dropped, as lists of neighbouring files.

    The files and the lists are in the order of the log.
    """
    if log.poisoned or log.no_checkpoint_reason:
        return []
    files = list(log.files)
    present = {file.name for file in files}
    runs: list[list[LogFile]] = []
    run: list[LogFile] = []
    for file, following in pairwise(files):
        if (
            file.is_dead
            and file is not log.active
            and following.previous_last == file.last
            and (following is not log.active or log.synced_size > DATA_START)
            and not any(name in present for name in list(file.needs))
        ):
            if not run:
                runs.append(run)
            run.append(file)
            # A later dead file whose settlements concern only dropped files can be dropped too.
            present.discard(file.name)
        else:
            run = []
    return runs


def dead_size(log: SegmentLog) -> int:
    """Return the total size of the files that can be dropped, in bytes."""
    return sum(int(file.size) for run in dead_files(log) for file in run)


def drop_dead_files(log: SegmentLog) -> int:
    """Drop all dead files, and return their total size in bytes. May block.

    No checkpoint may be in progress. Raises StoreError if a file cannot be dropped or removed; a
    later call tries again.
    """
    size = log.remove_leftover()
    failure: StoreError | None = None
    for run in dead_files(log):
        mark_gap(log, run)
        log.unlist(run)
        for file in run:
            try:
                size += log.remove(file)
            except StoreError as error:
                failure = failure or error
        log.sync_directory()
    if failure is not None:
        raise failure
    return size


def mark_gap(log: SegmentLog, run: list[LogFile]) -> None:
    """Record durably, in the head of the next segment, that the files of `run` are dropped.

    Raises StoreError if the head cannot be written: `log.unsure_head` then prevents checkpoints
    until a later call succeeds.
    """
    at = log.files.index(run[-1])
    following = log.files[at + 1]
    before = log.files[at - len(run)] if at >= len(run) else None
    last = 0 if before is None else int(before.last)
    head = Head(SEGMENT, log.salt, following.first, last, True).encode()
    try:
        file = log.disk.open(following.path, True)
    except OSError as error:
        raise StoreError(os_error_text(following.path, "open", error)) from error
    log.unsure_head = following
    for start in (0, int(HEAD_SIZE)):
        try:
            file.write(start, head[start : start + int(HEAD_SIZE)])
        except OSError as error:
            raise WriteFailed(
                os_error_text(following.path, "write", error), error.errno or 0
            ) from error
        try:
            file.sync()
        except OSError as error:
            log.poison(os_error_text(following.path, "sync", error))
    file.close()
    log.unsure_head = None
    following.previous_last = last
