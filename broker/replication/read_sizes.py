"""The sizes of the batches that a follower has read.

The owner of the log limits the size of the log (`cluster.keep_most`). The log also has batches of
earlier owners, which the owner has read as a standby.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from broker.replication.trimming import NodeList

#: Largest number of marks whose place among the batches is remembered.
MARKS_MAX: Final = 1_000


class ReadSizes:
    """The sizes in bytes of the payloads that were read from the offset `first` on."""

    def __init__(self, first: int) -> None:
        self._first = first
        #: Total size of the payloads that were read.
        self.total = 0
        #: For each of the last marks: its offset, and `total` when the mark was read.
        self._marks: deque[tuple[int, int]] = deque(maxlen=MARKS_MAX)

    def add(self, size: int) -> None:
        """Count a chunk of a batch with a payload of `size` bytes."""
        self.total += size

    def mark(self, offset: int) -> None:
        """Record that the mark at an offset was read."""
        self._marks.append((offset, self.total))

    def since(self, offset: int) -> int | None:
        """Return the size of all payloads that were read after `offset`.

        `offset` is the offset of a mark, or the offset at which the reading began. Return None for
        any other offset, and for a mark that is not remembered any more.
        """
        if offset == self._first:
            return self.total
        for mark, total in reversed(self._marks):
            if mark == offset:
                return self.total - total
        return None

    def of_log(self, low: int, nodes: NodeList) -> int:
        """Return the size of the payloads of a log whose first record has the offset `low`.

        A node that started after the mark at `low` did not read all batches of the log. For the
        batches up to the former owner's last mark, the size is in the list of the nodes, where the
        former owner stored it. Batches between this mark and the node's start are not counted.
        """
        exact = self.since(low)
        if exact is not None:
            return exact
        stored = nodes.size if nodes.begin == low else 0
        behind = self.since(nodes.mark)
        return stored + (self.total if behind is None else behind)
