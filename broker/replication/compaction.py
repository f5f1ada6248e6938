"""Frees the disk space of settled messages on a node that follows the replicated log.

The owner of the log frees disk space while it writes (DurableStoreWriter). A node that
follows does the same work in single steps, between its reads of the replicated log.

After a crash, the node again reads all batches that follow its stored state. This module cannot
remove a part of these batches: it reads and removes only full segments, and the stored state
already covers each batch in a full segment (durable_batch.py).
"""

from __future__ import annotations

from broker.store.checkpoint import Checkpointing
from broker.store.checkpoint_schedule import begin_checkpoint
from broker.store.disk import OutOfDescriptors, StoreError, WriteFailed
from broker.store.dropping import dead_files, drop_dead_files
from broker.store.segments import SegmentLog


class LogCompaction:
    """Frees the disk space of one local log, by checkpoints and by dropping dead files.

    `holder_numbers` are the numbers of all existing queues, sessions and other definitions that can
    hold messages. The caller changes this set while the node follows the replicated log.
    """

    def __init__(self, log: SegmentLog, holder_numbers: set[int]) -> None:
        #: Number of checkpoints made, and number of times that dead files were dropped.
        self.completed = 0
        self._log = log
        self._holder_numbers = holder_numbers
        self._checkpointing: Checkpointing | None = None

    def step(self) -> bool:
        """Do one step. Return True if another step should follow, False if nothing is to be done.

        A step that finds the disk full cancels the checkpoint; another checkpoint begins later.
        Raises StoreError if the log cannot be written any more.
        """
        try:
            return self._step()
        except (WriteFailed, OutOfDescriptors):
            return False
        except StoreError:
            if self._log.poisoned:
                raise
            return False

    def _step(self) -> bool:
        checkpointing = self._checkpointing
        if checkpointing is None:
            return self._begin()
        if checkpointing.step():
            return True
        self.completed += checkpointing.completed
        self._checkpointing = None
        return False

    def _begin(self) -> bool:
        """Drop dead files if there are any; else begin a checkpoint if it would free enough space.

        Return True if files were dropped or a checkpoint has begun, False if nothing was to be
        done.
        """
        if dead_files(self._log):
            self.completed += 1
            drop_dead_files(self._log)
            return True
        self._checkpointing = begin_checkpoint(self._log, self._holder_numbers)
        return self._checkpointing is not None

    def cancel(self) -> None:
        """Cancel the running checkpoint, and leave the log unchanged."""
        if self._checkpointing is not None:
            self._checkpointing.cancel()
            self._checkpointing = None
