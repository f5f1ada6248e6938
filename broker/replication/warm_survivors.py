"""The live records (survivors) in a standby's local log, kept up to date with each batch.

A takeover needs the live records. A standby that keeps them in memory need not read its local log
for them.

    open the log      a scan of the whole log fills a Survivors object, as at each start
    each new batch    its records are passed to the same Survivors object, once they are durable
    removed queue     its messages are released block by block, between the batches
    take over         the broker gets the Survivors object, and does not read the log

At each moment, the survivors must equal the survivors that a scan of the log would find. So the log
is scanned again after a start at which the catalog was behind the log, and after records were cut
off the end of the log (directory.py).
"""

from __future__ import annotations

from typing import Final

from broker.store.live_messages import FollowedMessages
from broker.store.received import ReceivedRecords
from broker.store.segments import SegmentLog
from broker.store.survivors import Survivors

#: Estimated memory in bytes of an entry of Survivors that is not a message.
ENTRY_BYTES: Final = 250


class WarmSurvivors:
    """The survivors (live records) of the open local log of a standby.

    `holder_numbers` are the numbers of the definitions that can hold messages. The set changes
    while the standby follows the replicated log.
    """

    def __init__(self, holder_numbers: set[int], newest_number: int) -> None:
        """Begin with no survivors. `newest_number` is the last position in the catalog."""
        self._messages = FollowedMessages()
        self.survivors = Survivors(holder_numbers, newest_number, self._messages)
        #: Number of blocks of messages that may have messages of removed queues.
        self._unreleased = 0

    def follow(self, log: SegmentLog) -> None:
        """Expect the records of new batches from now on, after the scan of the log.

        The caller has passed all records of the log to `survivors`.
        """
        self.survivors.count_live(log)
        self.survivors.follow()

    def add(self, records: bytes, received: ReceivedRecords) -> None:
        """Pass the records of a batch, which must be durable, to `survivors` through `received`."""
        received.replay(records, self.survivors)

    def remove_holders(self, numbers: set[int]) -> None:
        """Remove the entries about removed queues, sessions and streams.

        `numbers` are the numbers of the removed objects. The caller has removed these numbers from
        `holder_numbers`, and the removal of the objects is durable. Later calls of `release` remove
        the messages.
        """
        for number in numbers:
            self.survivors.remove_holder(number)
        if numbers:
            self._unreleased = self._messages.blocks

    def release(self, log: SegmentLog) -> bool:
        """Settle messages of removed queues: the messages in the next block of FollowedMessages.

        When all messages of a file are settled, the log can drop the file. Return True if further
        blocks remain for later calls.
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
        """The estimated memory of the survivors in bytes. Any thread may read this property."""
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
