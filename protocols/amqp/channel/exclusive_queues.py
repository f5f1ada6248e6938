"""Exclusive queues: only one connection may use them, and they are deleted when it ends."""

from __future__ import annotations

from typing import Final

from broker.agenda import BulkTask
from broker.queues.queue import Queue
from broker.vhost.vhost import VirtualHost

#: Exclusive queues that are deleted in one turn of the event loop.
CLEARED: Final = 100


class ExclusiveQueues:
    """The exclusive queues that one connection has declared."""

    def __init__(self) -> None:
        self._queues: dict[Queue, None] = {}

    def __len__(self) -> int:
        return len(self._queues)

    def add(self, queue: Queue) -> None:
        """Add a queue that the connection has declared as exclusive."""
        self._queues[queue] = None

    def discard(self, queue: Queue) -> None:
        """Remove a deleted queue from the list; ignore a queue that is not in the list."""
        self._queues.pop(queue, None)

    def delete(self, vhost: VirtualHost, owner: object) -> None:
        """Delete the listed queues that still belong to `owner`.

        CLEARED of them are deleted now, and as many in each later turn of the event loop.
        """
        names = [queue.name for queue in self._queues]
        self._queues.clear()
        ExclusiveQueueRemoval(vhost, owner, names).run()


class ExclusiveQueueRemoval(BulkTask):
    """A task that deletes the exclusive queues of an ended connection, CLEARED queues in a turn."""

    def __init__(self, vhost: VirtualHost, owner: object, names: list[str]) -> None:
        self._vhost = vhost
        self._owner = owner
        self._names = names

    def run(self) -> None:
        """Delete the next CLEARED queues."""
        vhost = self._vhost
        for name in self._names[-CLEARED:]:
            # A changed policy may have replaced the queue object, so it is looked up by its name.
            queue = vhost.queues.get(name)
            if queue is not None and queue.exclusive_to is self._owner:
                vhost.delete_queue(queue)
        del self._names[-CLEARED:]
        if self._names:
            vhost.agenda.add_bulk(self)
