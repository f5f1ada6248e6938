"""The live messages of the log: their positions, and the numbers of the queues that hold them.

    ScannedMessages    for one scan of the log: all messages, in the order of the log
    FollowedMessages   for a log that grows for days: blocks of ScannedMessages, from which settled
                       messages are removed

A message takes 20 bytes, and more if it is in several queues.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from typing import Final

from mypy_extensions import i64

from broker.store.files import SUM_MASK, LogFile, entry_hash

#: Size of the position, the queue and the size of a message, in bytes.
MESSAGE_BYTES: Final[i64] = 20
#: Estimated size of the list of queues of a message that is in several queues, in bytes.
SHARED_BYTES: Final[i64] = 220
#: Largest number of messages in a block of FollowedMessages. A block is copied in up to 1 ms.
BLOCK: Final[i64] = 4_096


class LiveMessages:
    """Interface of a collection of the messages that queues hold.

    `size` is the total size of the records of these messages in bytes.
    """

    def __init__(self) -> None:
        self.size: i64 = 0

    def add(self, position: i64, queues: list[int], size: i64) -> None:
        """Add a message with the queues that hold it; `size` is the size of its record in bytes.

        Positions must rise from call to call.
        """
        raise NotImplementedError

    def settle(self, queue: i64, position: i64) -> None:
        """Settle a message in one queue; ignore a message that the queue does not hold."""
        raise NotImplementedError

    def is_held(self, queue: i64, position: i64) -> bool:
        """True if the queue still holds the message."""
        raise NotImplementedError

    def count_live(self, files: list[LogFile]) -> None:
        """Add each live message to the counts of the log file that has its record."""
        raise NotImplementedError

    def by_queue(self) -> dict[int, array[int]]:
        """Return the positions of each queue's messages in ascending order, by queue number."""
        raise NotImplementedError


class ScannedMessages(LiveMessages):
    """Messages in three parallel arrays: one element of each array belongs to one message.

        positions   position in the log, in ascending order
        queues      number of the queue that holds the message; 0 if no queue holds it;
                    -1 if several queues held it: `_shared` has their numbers
        sizes       size of the record in bytes

    `held` is the number of messages that at least one queue holds. A message that no queue holds
    any more stays in the arrays.
    """

    def __init__(self) -> None:
        super().__init__()
        self._positions: array[int] = array("q")
        self._queues: array[int] = array("q")
        self._sizes: array[int] = array("I")
        self.held: i64 = 0
        self._shared: dict[int, list[int]] = {}
        self._next: i64 = 0
        #: Index after the last message found. The next search mostly finds the message there.
        self._hint: i64 = 0

    def add(self, position: i64, queues: list[int], size: i64) -> None:
        self._positions.append(position)
        self._sizes.append(size)
        if queues:
            self.size += size
            self.held += 1
        if len(queues) == 1:
            self._queues.append(queues[0])
        elif queues:
            self._queues.append(-1)
            self._shared[position] = queues
        else:
            self._queues.append(0)

    def _find(self, position: i64) -> i64:
        """Return the index of the message at a position; -1 if it is not there. Hot path."""
        positions = self._positions
        at: i64 = self._hint
        if at >= len(positions) or positions[at] != position:
            at = bisect_left(positions, position)
            if at == len(positions) or positions[at] != position:
                return -1
        self._hint = at + 1
        return at

    def settle(self, queue: i64, position: i64) -> None:
        at = self._find(position)
        if at < 0:
            return
        holder: i64 = self._queues[at]
        if holder == queue:
            self._end(at)
        elif holder < 0:
            queues = self._shared[position]
            if queue in queues:
                queues.remove(queue)
                if not queues:
                    self._end(at)
                    del self._shared[position]

    def _end(self, at: i64) -> None:
        """Record that no queue holds the message at an index any more."""
        self._queues[at] = 0
        self.size -= self._sizes[at]
        self.held -= 1

    def is_held(self, queue: i64, position: i64) -> bool:
        at = self._find(position)
        if at < 0:
            return False
        holder: i64 = self._queues[at]
        return holder == queue if holder >= 0 else queue in self._shared[position]

    def count_live(self, files: list[LogFile]) -> None:
        self.count_from(files, 0)

    def count_from(self, files: list[LogFile], at_file: i64) -> i64:
        """Add each live message to the counts of the log file that has its record.

        `at_file` is the index in `files` of the first message's file, or of an earlier file. Return
        the index of the last message's file.
        """
        for at, position in enumerate(self._positions):
            while files[at_file].last < position:
                at_file += 1
            file = files[at_file]
            holder: i64 = self._queues[at]
            if holder > 0:
                file.live += 1
                file.balance = (file.balance + entry_hash(holder, position)) & SUM_MASK
            elif holder < 0:
                for queue in self._shared[position]:
                    file.live += 1
                    file.balance = (file.balance + entry_hash(queue, position)) & SUM_MASK
        return at_file

    def next_holders(self) -> list[int]:
        """Return the numbers of the queues that hold the next message in the order of the log.

        The first call is about the first message; each call advances by one message.
        """
        at: i64 = self._next
        self._next = at + 1
        holder: i64 = self._queues[at]
        if holder > 0:
            return [holder]
        return self._shared[int(self._positions[at])] if holder < 0 else []

    def by_queue(self) -> dict[int, array[int]]:
        positions: dict[int, array[int]] = {}
        self.add_to(positions)
        return positions

    def add_to(self, positions: dict[int, array[int]]) -> None:
        """Append the position of each message to the array of each queue that holds the message.

        `positions` maps the numbers of queues to these arrays.
        """
        last: i64 = 0
        same: array[int] = array("q")
        for at, position in enumerate(self._positions):
            holder: i64 = self._queues[at]
            if holder > 0:
                if holder != last:
                    same = positions.setdefault(holder, array("q"))
                    last = holder
                same.append(position)
            elif holder < 0:
                for queue in self._shared[position]:
                    positions.setdefault(queue, array("q")).append(position)

    # -- a block

    @property
    def count(self) -> int:
        """Number of messages, including messages that no queue holds any more."""
        return len(self._positions)

    @property
    def shared(self) -> int:
        """Number of messages that were in several queues, and are still in at least one."""
        return len(self._shared)

    @property
    def first(self) -> int:
        """The position of the first message."""
        return self._positions[0]

    def move_to(self, other: ScannedMessages) -> None:
        """Append the messages that queues still hold to the collection `other`, which replaces this
        collection.
        """
        for at, position in enumerate(self._positions):
            holder: i64 = self._queues[at]
            if holder > 0:
                other.add(position, [holder], self._sizes[at])
            elif holder < 0:
                queues = self._shared[position]
                other.add(position, queues, self._sizes[at])

    def released(self, holder_numbers: set[int]) -> list[tuple[int, int]]:
        """Return the messages in queues that do not exist any more, as (queue number, position).

        `holder_numbers` are the numbers of all existing queues. A message in several missing queues
        appears once for each of them.
        """
        messages: list[tuple[int, int]] = []
        for at, position in enumerate(self._positions):
            holder: i64 = self._queues[at]
            if holder > 0 and holder not in holder_numbers:
                messages.append((int(holder), position))
            elif holder < 0:
                messages += [
                    (queue, position)
                    for queue in self._shared[position]
                    if queue not in holder_numbers
                ]
        return messages


class FollowedMessages(LiveMessages):
    """The live messages of a log that grows, in blocks of up to `block` messages.

    When more than half of the messages of a block are settled, the block is copied without the
    settled messages. A small block is then joined with a small neighbour. So at most about half of
    the memory is used for settled messages, and no call works on more than a few blocks.
    """

    def __init__(self, block: i64 = BLOCK) -> None:
        super().__init__()
        self._block_size: i64 = block
        self._blocks: list[ScannedMessages] = []
        #: For each block, the position from which on messages belong to it.
        self._firsts: array[int] = array("q")
        #: Index of the block found last.
        self._hint: i64 = 0
        #: Number of messages in all blocks, and number of messages that several queues held.
        self._count: i64 = 0
        self._shared: i64 = 0

    @property
    def memory_bytes(self) -> int:
        """The estimated memory of the messages in bytes."""
        return int(self._count * MESSAGE_BYTES + self._shared * SHARED_BYTES)

    @property
    def blocks(self) -> int:
        """Number of blocks in which the messages are recorded."""
        return len(self._blocks)

    @property
    def count(self) -> int:
        """Number of messages in all blocks, including settled messages."""
        return int(self._count)

    def add(self, position: i64, queues: list[int], size: i64) -> None:
        if not queues:
            return
        blocks = self._blocks
        if not blocks or blocks[-1].count >= self._block_size:
            if blocks:
                self._shrink_if_sparse(len(blocks) - 1)
            blocks.append(ScannedMessages())
            self._firsts.append(position)
        blocks[-1].add(position, queues, size)
        self.size += size
        self._count += 1
        if len(queues) > 1:
            self._shared += 1

    def _find(self, position: i64) -> i64:
        """Return the index of the block that may have the message at a position; -1 if there is
        none.
        """
        firsts = self._firsts
        at: i64 = self._hint
        if (
            at >= len(firsts)
            or firsts[at] > position
            or (at + 1 < len(firsts) and firsts[at + 1] <= position)
        ):
            at = bisect_right(firsts, position) - 1
            self._hint = max(at, 0)
        return at

    def settle(self, queue: i64, position: i64) -> None:
        at = self._find(position)
        if at < 0:
            return
        block = self._blocks[at]
        size, shared = block.size, block.shared
        block.settle(queue, position)
        self.size += block.size - size
        self._shared += block.shared - shared
        if at < len(self._blocks) - 1:
            self._shrink_if_sparse(at)

    def is_held(self, queue: i64, position: i64) -> bool:
        at = self._find(position)
        return at >= 0 and self._blocks[at].is_held(queue, position)

    def count_live(self, files: list[LogFile]) -> None:
        at_file: i64 = 0
        for block in self._blocks:
            at_file = block.count_from(files, at_file)

    def by_queue(self) -> dict[int, array[int]]:
        positions: dict[int, array[int]] = {}
        for block in self._blocks:
            block.add_to(positions)
        return positions

    def release(self, at: int, holder_numbers: set[int]) -> list[tuple[int, int]]:
        """Settle the messages of the block `at` in all queues that do not exist any more.

        `holder_numbers` are the numbers of all existing queues. Return (queue number, position) of
        each settled message.
        """
        if at >= len(self._blocks):
            return []
        released = self._blocks[at].released(holder_numbers)
        for queue, position in released:
            self.settle(queue, position)
        return released

    def _shrink_if_sparse(self, at: i64) -> None:
        """Copy a block without its settled messages if these are more than half of the block."""
        block = self._blocks[at]
        if 2 * block.held >= block.count:
            return
        self._count -= block.count
        if block.held == 0:
            self._remove(at)
            return
        copy = ScannedMessages()
        block.move_to(copy)
        self._blocks[at] = copy
        self._count += copy.count
        if at + 2 < len(self._blocks):
            self._join(at)
        if at > 0:
            self._join(at - 1)

    def _join(self, at: i64) -> None:
        """Join a block with the next block if both together fill at most half a block."""
        block, following = self._blocks[at], self._blocks[at + 1]
        if block.count + following.count > self._block_size // 2:
            return
        self._count -= following.count
        before = block.count
        following.move_to(block)
        self._count += block.count - before
        self._remove(at + 1)

    def _remove(self, at: i64) -> None:
        """Remove a block, whose messages are all settled or were moved to another block."""
        del self._blocks[at]
        del self._firsts[at]
