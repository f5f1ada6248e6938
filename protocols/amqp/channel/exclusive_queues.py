"""Deletes, in slices, the queues that end with their connection or with their last consumer.

Only the connection that declared an exclusive queue may use it.
"""

from __future__ import annotations

from typing import Final

from broker.agenda import BulkTask
from broker.queues.consumer import MessageSource
from broker.queues.queue import Queue
from broker.vhost.vhost import VirtualHost

#: The number of queues that one task deletes in one turn of the event loop.
CLEARED: Final = 100
#: Shortest length at which the list of a connection is searched for deleted queues.
_LISTED_LEAST: Final = 8


class ExclusiveQueues:
    """The exclusive queues that one connection has declared."""

    def __init__(self) -> None:
        self._queues: dict[Queue, None] = {}
        #: Number of listed queues at which `add` removes the deleted queues from the list.
        self._most = _LISTED_LEAST

    def __len__(self) -> int:
        return len(self._queues)

    def add(self, queue: Queue) -> None:
        """Add a queue that the connection has declared as exclusive.

        Queues that expired, or that an operator deleted, stay in the list at first. They are
        removed each time that the length of the list has doubled.
        """
        if len(self._queues) >= self._most:
            present: dict[Queue, None] = {}
            for known in self._queues:
                while known.replacement is not None:
                    known = known.replacement
                if not known.dead:
                    present[known] = None
            self._queues = present
            self._most = max(_LISTED_LEAST, 2 * len(present))
        self._queues[queue] = None

    def discard(self, queue: Queue) -> None:
        """Remove a deleted queue from the list; ignore a queue that is not in the list."""
        self._queues.pop(queue, None)

    def delete(self, vhost: VirtualHost, owner: object) -> None:
        """Delete the listed queues that still belong to the connection `owner`.

        The first CLEARED queues are deleted now, and further CLEARED queues in each later turn of
        the event loop.
        """
        names = [queue.name for queue in self._queues]
        self._queues.clear()
        ExclusiveQueueRemoval(vhost, owner, names).run_first_slice()


class ExclusiveQueueRemoval(BulkTask):
    """A task that deletes the exclusive queues of an ended connection: CLEARED queues in each turn
    of the event loop.
    """

    def __init__(self, vhost: VirtualHost, owner: object, names: list[str]) -> None:
        super().__init__(vhost.agenda)
        self._vhost = vhost
        self._owner = owner
        self._names = names

    def has_work(self) -> bool:
        return bool(self._names)

    def do_slice(self) -> None:
        """Delete the next CLEARED queues."""
        vhost = self._vhost
        left = CLEARED
        while left > 0 and self._names:
            left -= 1
            # A policy may have replaced the queue object, so it is looked up by its name.
            queue = vhost.queues.get(self._names.pop())
            if queue is not None and queue.exclusive_to is self._owner:
                vhost.delete_queue(queue)


class AutoDeletion(BulkTask):
    """A task that deletes the auto-delete queues that lost their last consumers, in slices."""

    def __init__(
        self, vhost: VirtualHost, exclusive_queues: ExclusiveQueues, queues: list[MessageSource]
    ) -> None:
        super().__init__(vhost.agenda)
        self._vhost = vhost
        self._exclusive_queues = exclusive_queues
        self._queues = queues

    def has_work(self) -> bool:
        return bool(self._queues)

    def do_slice(self) -> None:
        """Examine the next CLEARED queues; delete each auto-delete queue without consumers."""
        vhost = self._vhost
        left = CLEARED
        while left > 0 and self._queues:
            left -= 1
            queue = self._queues.pop()
            while isinstance(queue, Queue) and queue.replacement is not None:
                queue = queue.replacement
            known = vhost.queues.get(queue.name)
            if known is queue and known.auto_delete and not known.consumer_count:
                vhost.delete_queue(known)
                self._exclusive_queues.discard(known)
