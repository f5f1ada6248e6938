"""Decides when a checkpoint is worth its cost, and which files it replaces."""

from __future__ import annotations

from typing import Final

from broker.store.checkpoint import Checkpointing
from broker.store.files import (
    LogFile,
)
from broker.store.segments import SegmentLog

#: If there are more small files than this number, a checkpoint is made to merge them.
FILES_MAX: Final = 64
#: Total size of the dead records that the full files of a busy log may keep, in segments. Also the
#: largest number of the newest full files that a checkpoint may leave out.
SLACK_SEGMENTS: Final = 2


def begin_checkpoint(
    log: SegmentLog, holder_numbers: set[int], idle: bool = False
) -> Checkpointing | None:
    """Begin a checkpoint of the full files; return None if it would certainly free too little.

    The Checkpointing gets a copy of `holder_numbers`. A checkpoint measures the size of the live
    records, and ends early if too little space would be freed.

    In a busy log, most files soon have no live record, and are dropped without being read. A
    checkpoint can prevent such drops: if it copies a message just before the message is settled,
    the file with the settlement and all later files cannot be dropped. So two rules apply to a log
    that is not `idle` and does not have many small files. The checkpoint must free at least
    SLACK_SEGMENTS segments. The checkpoint leaves out up to SLACK_SEGMENTS of the newest full
    files, as long as these files have live records.
    """
    sealed = log.sealed()
    many_small = _many_small(log, sealed)
    slack = 0
    if not idle and not many_small:
        slack = SLACK_SEGMENTS * int(log.segment_size)
        oldest = max(len(sealed) - SLACK_SEGMENTS, 0)
        while len(sealed) > oldest and sealed[-1].live > 0:
            sealed.pop()
    if _is_barred(log) or not sealed or sealed[-1].checkpoint:
        return None
    if many_small:
        return Checkpointing(log, sealed, set(holder_numbers))
    size = sum(int(file.size) for file in sealed)
    gone = sum(file.reclaimable for file in sealed)
    least = _half_size(sealed)
    if gone < max(least, int(log.check_reclaimable), slack) and (
        size < max(int(log.check_size), 2 * slack)
    ):
        return None
    return Checkpointing(log, sealed, set(holder_numbers), least)


def files_worth_checkpoint(log: SegmentLog) -> list[LogFile]:
    """Return all full files if a checkpoint of them is worth its cost, else an empty list.

    A checkpoint is worth its cost if it seems to free half of the files' bytes, or if it merges
    many small files. So the log stays at most about twice as large as its live records, and a
    checkpoint copies no more bytes than it frees.
    """
    sealed = log.sealed()
    if _is_barred(log) or not sealed or sealed[-1].checkpoint:
        return []
    gone = sum(file.reclaimable for file in sealed)
    return (
        sealed
        if _many_small(log, sealed) or gone >= max(_half_size(sealed), int(log.check_reclaimable))
        else []
    )


def _is_barred(log: SegmentLog) -> bool:
    """True if no checkpoint may begin: the log is stopped or damaged, or a write of a head
    failed.
    """
    return bool(log.poisoned or log.no_checkpoint_reason) or log.unsure_head is not None


def live_estimate(log: SegmentLog) -> int:
    """Return the estimated size of a checkpoint of all full files, in bytes.

    The estimate may be too low. If the disk is full before the checkpoint is finished, the
    checkpoint is cancelled, and its file removed.
    """
    return sum(int(file.size) - file.reclaimable for file in log.sealed())


def _many_small(log: SegmentLog, sealed: list[LogFile]) -> bool:
    return (
        len(sealed) > FILES_MAX
        and sum(int(file.size) for file in sealed) < len(sealed) * int(log.segment_size) // 8
    )


def _half_size(files: list[LogFile]) -> int:
    """Return half of the total size of the files in bytes, rounded up.

    A checkpoint that frees this many bytes copies no more than it frees.
    """
    return (sum(int(file.size) for file in files) + 1) // 2
