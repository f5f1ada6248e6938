"""How copies of messages end: each that was put into a queue, or meant for one, has one fate."""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

#: Fates of a copy, by position in `Queue.fates`.
ACKNOWLEDGED: Final[i64] = 0
AUTO_ACKNOWLEDGED: Final[i64] = 1
EXPIRED: Final[i64] = 2
OVER_LIMIT: Final[i64] = 3
DROPPED: Final[i64] = 4
OFFLINE: Final[i64] = 5
UNREPRESENTABLE: Final[i64] = 6
PURGED: Final[i64] = 7
DEAD_LETTERED: Final[i64] = 8
REJECTED: Final[i64] = 9
#: It was to be read from the disk, and could not be.
UNREADABLE: Final[i64] = 10
OVERDELIVERED: Final[i64] = 11
#: Its delay is over.
RELEASED: Final[i64] = 12
#: What a queue has while it has none of these, one for all: nobody ever adds to them. Idle queues
#: are many (a session has one).
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
