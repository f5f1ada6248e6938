"""The live records of the log of a node that follows, kept up to date with each batch.

    open the log      one scan, as at each start (Survivors)
    each new batch    its records are passed to the same Survivors, after they are durable
    removed queue     its messages are released block by block, between the batches
    take over         the broker gets the survivors, and the log is not read again

The survivors must equal those of a scan of the log at the same moment. So they begin only when the
catalog is as far as the log, and a log that is cut back is scanned again (directory.py).
"""

from __future__ import annotations

from typing import Final

from broker.store.live_messages import FollowedMessages
from broker.store.received import ReceivedRecords
from broker.store.segments import SegmentLog
from broker.store.survivors import Survivors

#: Estimated memory of an entry of the other collections of Survivors, in bytes.
ENTRY_BYTES: Final = 250


class WarmSurvivors:
    """The survivors of an open log.

    `holder_numbers` are the numbers of the definitions that can hold messages. The set changes
    while the node follows.
    """

    def __init__(self, holder_numbers: set[int], newest_number: int) -> None:
        """`newest_number` is the last position in the catalog."""
        self._messages = FollowedMessages()
        self.survivors = Survivors(holder_numbers, newest_number, self._messages)
        #: Number of blocks of messages that may have messages of removed queues.
        self._unreleased = 0

    def follow(self, log: SegmentLog) -> None:
        """Begin to follow batches: the log was read, and its records were passed to `survivors`."""
        self.survivors.count_live(log)
        self.survivors.follow()

    def add(self, records: bytes, received: ReceivedRecords) -> None:
        """Add the records of a batch that is durable."""
        received.replay(records, self.survivors)

    def remove_holders(self, numbers: set[int]) -> None:
        """Remove the entries about removed queues, sessions and streams.

        The numbers are not in `holder_numbers` any more, and their removal is durable. `release`
        removes their messages.
        """
        for number in numbers:
            self.survivors.remove_holder(number)
        if numbers:
            self._unreleased = self._messages.blocks

    def release(self, log: SegmentLog) -> bool:
        """Release the messages of removed queues in one block; return True if blocks are left.

        The log then counts these messages as settled, so that their files can be dropped.
        """
        if self._unreleased == 0:
            return False
        self._unreleased -= 1
        survivors = self.survivors
        for queue, position in self._messages.release(self._unreleased, survivors.holder_numbers):
            log.settle(queue, position)
            survivors.pubrec_received.discard((queue, position))
            survivors.counts.pop((queue, position), None)
        return self._unreleased > 0

    @property
    def memory_bytes(self) -> int:
        """The estimated memory of the survivors in bytes. Any thread may ask."""
        survivors = self.survivors
        entries = sum(
            map(
                len,
                (
                    survivors.pubrec_received,
                    survivors.held_packet_ids,
                    survivors.retained,
                    survivors.streams,
                    survivors.sequences,
                    survivors.marks,
                    survivors.counts,
                ),
            )
        )
        return self._messages.memory_bytes + entries * ENTRY_BYTES
