"""A reader of a stream, as the stream sees it."""

from __future__ import annotations

from mypy_extensions import i64

from broker.queues.consumer import Consumer
from broker.stream.arrow import BatchView


class QueueStreamReader:
    """A reader of a stream: one consumer, and the offset of the next row to deliver to it.

    Front ends of protocols subclass it.
    """

    def __init__(self, consumer: Consumer, offset: i64) -> None:
        """Make a reader that begins at `offset`; -1 means that `find_start` gives the offset."""
        self.consumer = consumer
        self.offset: i64 = offset

    def ready(self) -> bool:
        """True if the consumer can take a row now."""
        consumer = self.consumer
        pool = consumer.pool
        return consumer.credit > 0 and (pool is None or pool.credit > 0) and consumer.outlet.open()

    def find_start(self) -> i64:
        """Return the offset at which the reader begins, which the archive had to find.

        Raises RowsPending if the archive has not found the offset yet, RowsUnavailable if there is
        no such offset.
        """
        raise NotImplementedError

    def serve(self, batch: BatchView, row: i64) -> i64:
        """Deliver rows of a batch, from `row` on, while the consumer is ready.

        Return the number of delivered rows. This method must not call the core, because the queue
        advances `offset` only after the method has returned.
        """
        raise NotImplementedError

    def fail(self, reason: str) -> None:
        """Close the consumer with an error, because the row at `offset` cannot be read.

        `reason` is the text of the error.
        """
        raise NotImplementedError
