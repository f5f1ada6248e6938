"""The death records of a dead letter: headers `x-death`, `x-first-death-*`, `x-last-death-*`.

These headers have the format of RabbitMQ 4. `x-death` is a list, the last death first:

    [{queue, reason, count, exchange, routing-keys, time, original-expiration}, ...]

A dead letter that goes to several queues with dead letter exchanges of their own may multiply:
through nine queues that dead-letter to each other, one message would become 986,409 messages. So
the last death has a further field, `copies`: the number of copies into which dead-lettering has
multiplied the message since a consumer last rejected it. Without the field, the number is one.
`count_copies` sets the field, up to COPIES_MAX.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from broker.messages.fates import (
    EXPIRED,
    OVER_LIMIT,
    OVERDELIVERED,
    REJECTED,
    UNREPRESENTABLE,
)

#: Largest count of a death. A higher count starts again at 1, so that clients can read it.
COUNT_MAX: Final = 1 << 32

#: Largest number of copies that one copy of a message becomes, because queues dead-letter it to
#: several queues.
COPIES_MAX: Final = 100

Death = dict[str, object]

#: The reason for which a message of this fate becomes a dead letter, as `x-death` and the metrics
#: name it.
REASONS: Final[dict[int, str]] = {
    int(EXPIRED): "expired",
    int(OVER_LIMIT): "maxlen",
    int(REJECTED): "rejected",
    int(OVERDELIVERED): "delivery_limit",
    int(UNREPRESENTABLE): "rejected",
}


def deaths_of(headers: Mapping[str, object]) -> list[Death]:
    """Return the deaths in the header `x-death`, the last death first.

    Return an empty list if there is no such header or it is not a list.
    """
    value = headers.get("x-death")
    return (
        [dict(death) for death in value if isinstance(death, dict)]
        if isinstance(value, list)
        else []
    )


def would_cycle(deaths: Sequence[Death], queue: str) -> bool:
    """True if a message with these deaths would go round in a dead letter cycle through `queue`.

    The cycle exists if the message died in that queue before, and neither this death nor a later
    death was a rejection by a consumer.
    """
    for death in deaths:
        if death.get("reason") == "rejected":
            return False
        if death.get("queue") == queue:
            return True
    return False


def count_death(
    deaths: list[Death],
    queue: str,
    reason: str,
    exchange: str,
    keys: list[str],
    time: int,
    expiration: object,
) -> None:
    """Record in `deaths` that a message died in `queue` for `reason`.

    The entry of this queue and reason moves to the front of the list. `exchange`, `keys` and
    `expiration` describe the publication of the message; only new entries record them. `time` is in
    seconds since the epoch.
    """
    for death in deaths:
        if death.get("queue") == queue and death.get("reason") == reason:
            count = death.get("count")
            death["count"] = count + 1 if isinstance(count, int) and 0 < count < COUNT_MAX else 1
            deaths.remove(death)
            deaths.insert(0, death)
            return
    death = {
        "count": 1,
        "reason": reason,
        "queue": queue,
        "time": datetime.fromtimestamp(time, UTC),
        "exchange": exchange,
        "routing-keys": list(keys),
    }
    if expiration is not None:
        death["original-expiration"] = expiration
    deaths.insert(0, death)


def copies_of(deaths: Sequence[Death], reason: str) -> int:
    """Return into how many copies dead-lettering has multiplied a message so far; at least 1.

    `deaths` are the earlier deaths of the message, and `reason` is the reason of its present death.
    If a consumer has rejected the message (`rejected`), return 1: each rejection is a decision of
    the consumer, so earlier copies do not count towards the limit COPIES_MAX.
    """
    copies = deaths[0].get("copies") if deaths and reason != "rejected" else 1
    return copies if isinstance(copies, int) and 0 < copies <= COPIES_MAX else 1


def count_copies(deaths: list[Death], before: int, queues: int) -> bool:
    """Set `copies` of the last death: into how many copies dead-lettering has multiplied a message.

    The message goes to `queues` queues that have a dead letter exchange. `before` is the result of
    `copies_of`: the number of copies so far. Return False if the message goes to several such
    queues and would become more than COPIES_MAX copies, else True.
    """
    copies = before * max(1, queues)
    deaths[0].pop("copies", None)
    if copies > 1:
        deaths[0]["copies"] = copies
    return queues <= 1 or copies <= COPIES_MAX


def death_headers(
    headers: Mapping[str, object], deaths: list[Death], queue: str, reason: str, exchange: str
) -> dict[str, object]:
    """Return the headers that the broker adds to a dead letter.

    `headers` are the headers that earlier deaths have set. `deaths` are all deaths. `queue`,
    `reason` and `exchange` belong to the last death. The headers `x-first-death-...` are added only
    if no earlier death has set them.
    """
    changed: dict[str, object] = {"x-death": deaths}
    for which in ("first", "last"):
        if which == "last" or f"x-{which}-death-queue" not in headers:
            changed |= {
                f"x-{which}-death-queue": queue,
                f"x-{which}-death-reason": reason,
                f"x-{which}-death-exchange": exchange,
            }
    return changed
