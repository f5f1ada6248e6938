"""Fates: the final outcome of each message, and of each copy of a message.

A message that a client published ends with exactly one message fate, the result of its routing.
Each copy that was put into a queue, or was meant for one, ends with exactly one copy fate. The
server counts both, and exports the counts as metrics (docs/metrics.md).
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

# Fates of messages. Each number is a position in MESSAGE_FATES.

#: The message was put into at least one queue, or sent to at least one subscriber.
ROUTED: Final[i64] = 0
#: No binding matched the message.
UNROUTABLE: Final[i64] = 1
#: A full queue refused the message, its exchange does not exist, or a property is invalid.
REFUSED: Final[i64] = 2
#: The publisher lacks the permission to publish the message.
DENIED: Final[i64] = 3
#: The message is larger than the limit of its front end.
TOO_LARGE: Final[i64] = 4
#: The message is part of a dead letter cycle: each queue to which it would go has discarded it
#: before, and no consumer has rejected it since. Or queues that dead-letter to each other would
#: make more than COPIES_MAX (x_death.py) copies of it.
LOOPED: Final[i64] = 5
#: The publisher numbers its messages, and published this sequence number before; or the exchange
#: deduplicates messages, and has already routed a message with the same `x-deduplication-header`.
REPEATED: Final[i64] = 6
#: The names of the message fates, as metrics show them.
MESSAGE_FATES: Final = (
    "routed",
    "unroutable",
    "refused",
    "denied",
    "too_large",
    "looped",
    "repeated",
)

# Fates of copies. Each number is a position in COPY_FATES, and in the list that `Queue.fates`
# returns.

#: A consumer acknowledged the message.
ACKNOWLEDGED: Final[i64] = 0
#: The message was delivered to a consumer that need not acknowledge it.
AUTO_ACKNOWLEDGED: Final[i64] = 1
#: The time to live (TTL) of the message was over: the message expired.
EXPIRED: Final[i64] = 2
#: The queue exceeded the limit on its messages or bytes, and dropped the message.
OVER_LIMIT: Final[i64] = 3
#: The message had QoS 0, and the receiving client did not read fast enough.
DROPPED: Final[i64] = 4
#: The message had QoS 0, and the receiving client was not connected.
OFFLINE: Final[i64] = 5
#: The protocol of the consumer cannot represent the message or its topic. Exported as
#: `not_representable`.
UNREPRESENTABLE: Final[i64] = 6
#: The queue was purged or deleted, or the user of an MQTT session may not read the message any
#: more.
PURGED: Final[i64] = 7
#: The message was published to the dead letter exchange of its queue.
DEAD_LETTERED: Final[i64] = 8
#: A consumer rejected the message without a requeue, and its queue has no dead letter exchange.
REJECTED: Final[i64] = 9
#: The store could not read the message from disk.
UNREADABLE: Final[i64] = 10
#: The message was returned to its queue more often than the delivery limit allows. Exported as
#: `delivery_limit`.
OVERDELIVERED: Final[i64] = 11
#: The delay of the message is over, and it was published again; or a newer message replaced it in
#: the history of an exchange.
RELEASED: Final[i64] = 12
#: The queue deduplicates its messages, and already holds a message with the same
#: `x-deduplication-header`. Exported as `repeated`.
REPEATED_IN_QUEUE: Final[i64] = 13
#: An operator moved the message to another queue or exchange.
MOVED: Final[i64] = 14
#: The counts of every queue that has not counted a fate yet: one shared list, never changed.
#: Sharing the list saves memory, because most queues are inboxes of idle sessions.
NO_FATES: Final[list[int]] = [0] * 15
#: The names of the copy fates, as metrics show them.
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
    "repeated",
    "moved",
)
assert len(COPY_FATES) == len(NO_FATES)
