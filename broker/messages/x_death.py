"""The death records of a dead letter: headers `x-death`, `x-first-death-*`, `x-last-death-*`.

They have the format of RabbitMQ 4. `x-death` is a list, the last death first:

    [{queue, reason, count, exchange, routing-keys, time, original-expiration}, ...]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

#: Largest count of a death. A higher count starts again at 1: publishers may write any number.
COUNT_MAX: Final = 1 << 32

Death = dict[str, object]


def deaths_of(headers: Mapping[str, object]) -> list[Death]:
    """Return the deaths in the header `x-death`, the last one first.

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

    That is so if the message died in that queue before, and no consumer has rejected it since.
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
    """Count in `deaths` that a message died in `queue` for `reason`.

    The entry of this queue and reason moves to the front of the list. `exchange`, `keys` and
    `expiration` are those with which the message was published; only a new entry gets them. `time`
    is in seconds since the epoch.
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


def death_headers(
    headers: Mapping[str, object], deaths: list[Death], queue: str, reason: str, exchange: str
) -> dict[str, object]:
    """Return the headers that the broker adds to a dead letter.

    `headers` are those that the message has already. The headers `x-first-death-...` are added only
    if the message does not have them.
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
