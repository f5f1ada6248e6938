"""Fates of message copies.

Each copy that was put into a queue, or was meant for one, ends with exactly one fate. The server
counts the copies of each fate, and exports the counts as a metric (docs/metrics.md).
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

# Each number is a position in the list that `Queue.fates` returns.

#: A consumer acknowledged the message.
ACKNOWLEDGED: Final[i64] = 0
#: The message was delivered to a consumer that need not acknowledge it.
AUTO_ACKNOWLEDGED: Final[i64] = 1
#: The time to live of the message was over.
EXPIRED: Final[i64] = 2
#: The queue was full.
OVER_LIMIT: Final[i64] = 3
#: A QoS 0 message for a client that does not read fast enough.
DROPPED: Final[i64] = 4
#: A QoS 0 message for a client that is not connected.
OFFLINE: Final[i64] = 5
#: The protocol of the consumer cannot represent the message or its topic.
UNREPRESENTABLE: Final[i64] = 6
#: The queue was purged or deleted.
PURGED: Final[i64] = 7
#: The message was published to the dead letter exchange of its queue.
DEAD_LETTERED: Final[i64] = 8
#: A consumer rejected the message without a requeue, and no dead letter exchange took it.
REJECTED: Final[i64] = 9
#: The store could not read the message from disk.
UNREADABLE: Final[i64] = 10
#: The message was returned to its queue more often than the delivery limit allows.
OVERDELIVERED: Final[i64] = 11
#: The delay of the message is over, and it was published again.
RELEASED: Final[i64] = 12
#: The counts of a queue without any: one shared list, never changed. Most queues are idle, because
#: each session has one.
NO_FATES: Final[list[int]] = [0] * 13
COPY_FATES: Final = (
    "acknowledged",
    "auto_acknowledged",
    "expired",
    "over_limit",
    "dropped",
    "offline",
    "not_representable",
    "purged",
    "dead_lettered",
    "rejected",
    "unreadable",
    "delivery_limit",
    "released",
)
assert len(COPY_FATES) == len(NO_FATES)
