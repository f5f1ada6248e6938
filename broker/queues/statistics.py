"""The message statistics of a queue, as RabbitMQ's management API shows them.

A queue counts on its hot path only what it needs anyway: the fates of its copies, its depth and its
unacknowledged messages. It also counts rare events. The statistics follow from these numbers:

    deliveries with manual acknowledgement = acknowledged + unacknowledged + returned - held back
    publications to the queue = copies that ended + copies in the queue - copies restored

A message is held back if the queue counts it as unacknowledged although no client has it: the
message waits for a delayed retry, or a move has set it aside.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from broker.messages.fates import ACKNOWLEDGED, AUTO_ACKNOWLEDGED

# Rare events of a queue. Each number is a position in the list of a queue's events.

#: A consumer, or a client that polled (basic.get), returned or rejected the message.
RETURNED: Final[i64] = 0
#: The message was delivered to a client again.
REDELIVERED: Final[i64] = 1
#: Two events: the message was fetched by basic.get with manual acknowledgement, or with automatic
#: acknowledgement.
FETCHED: Final[i64] = 2
FETCHED_AUTO: Final[i64] = 3
#: The message was restored when the broker started.
RESTORED: Final[i64] = 4
#: The message had been delivered before the broker started, and its consumer may still settle it.
RESTORED_UNACKED: Final[i64] = 5
#: The full queue refused the message. The message has a fate, although it never was in the queue.
NOT_TAKEN: Final[i64] = 6
#: Four events, in the order of DEATH_REASONS: the message was dead-lettered because it expired,
#: because the queue was full, because a consumer rejected it, or because it was returned too often.
DEAD_EXPIRED: Final[i64] = 7
DEAD_MAXLEN: Final[i64] = 8
DEAD_REJECTED: Final[i64] = 9
DEAD_OVERDELIVERED: Final[i64] = 10
#: Not an event: the number of unacknowledged messages that no client holds. They wait for a delayed
#: retry, or a move has set them aside.
HELD_BACK: Final[i64] = 11
#: The reasons of dead letters, as the header `x-death` names them.
DEATH_REASONS: Final = ("expired", "maxlen", "rejected", "delivery_limit")
#: The counts of every queue without rare events: one shared list, never changed, because most
#: queues are inboxes of idle sessions.
NO_EVENTS: Final[list[int]] = [0] * 12

#: The names of the statistics, in the order of the lists that `statistics_of` returns.
STATISTICS: Final = (
    "publish",
    "deliver",
    "deliver_no_ack",
    "get",
    "get_no_ack",
    "redeliver",
    "ack",
)


def statistics_of(fates: list[int], events: list[int], depth: i64, unacked: i64) -> list[int]:
    """Return the statistics of a queue, in the order of STATISTICS.

    `fates` are counts of copies in the order of COPY_FATES, `events` the counts of rare events.
    """
    acknowledged = fates[ACKNOWLEDGED]
    fetched, fetched_auto = events[FETCHED], events[FETCHED_AUTO]
    outstanding = int(unacked) - events[HELD_BACK] - events[RESTORED_UNACKED]
    manual = acknowledged + outstanding + events[RETURNED]
    present = int(depth + unacked)
    return [
        max(0, sum(fates) + present - events[RESTORED] - events[NOT_TAKEN]),
        max(0, manual - fetched),
        max(0, fates[AUTO_ACKNOWLEDGED] - fetched_auto),
        fetched,
        fetched_auto,
        events[REDELIVERED],
        acknowledged,
    ]
