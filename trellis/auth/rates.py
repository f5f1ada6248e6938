"""Rate limits for publishers: token buckets by connection, user, virtual host and address.

    input chunk -> its bytes and messages are charged -> a bucket in debt: the client is throttled
                                                         debt above `rates.patience`: disconnected

A bucket holds the messages or bytes that may arrive in one second. Without rate limits in the
settings there are no buckets, and links do not check rates.
"""

from __future__ import annotations

from typing import Final

from broker.eviction import evict_oldest
from protocols.peer import network_of
from trellis.settings.limits import RatesSettings as RateSettings

#: Largest number of shared buckets; the least recently used one is evicted.
MAX_SHARED_BUCKETS: Final = 10_000
#: Names of the rate limits, as in the settings: the owner of the token bucket, and the unit that
#: the bucket counts. `user_bytes` limits the bytes per second of a user.
LIMITS: Final = tuple(
    f"{owner}_{unit}"
    for owner in ("connection", "user", "vhost", "address")
    for unit in ("messages", "bytes")
)


class TokenBucket:
    """A token bucket that gains `rate` tokens per second and may be in debt.

    Times are in milliseconds.
    """

    def __init__(self, rate: int, now: int) -> None:
        self.rate = rate
        self._level = float(rate)
        self._updated_at = now

    def charge(self, amount: int, now: int) -> float:
        """Take `amount` tokens; return the seconds until the debt is paid (0: no debt)."""
        self._level = (
            min(float(self.rate), self._level + (now - self._updated_at) * self.rate / 1000)
            - amount
        )
        self._updated_at = now
        return max(0.0, -self._level / self.rate)

    def limit_debt(self, seconds: float) -> None:
        """Reduce a larger debt to the number of tokens that the bucket gains in `seconds`."""
        self._level = max(self._level, -seconds * self.rate)


class PublishRates:
    """The rate limits of a broker, with the buckets that connections share."""

    def __init__(self, settings: RateSettings) -> None:
        self.patience = settings.patience
        self.limits: dict[str, int] = {
            name: getattr(settings, name) for name in LIMITS if getattr(settings, name)
        }
        #: Number of times that each rate limit throttled a client.
        self.throttled = dict.fromkeys(self.limits, 0)
        #: Number of times that each rate limit disconnected a client.
        self.disconnected = dict.fromkeys(self.limits, 0)
        self._shared: dict[tuple[str, str], TokenBucket] = {}

    @property
    def enabled(self) -> bool:
        """True if the settings have rate limits."""
        return bool(self.limits)

    def connection_buckets(self, now: int) -> dict[str, TokenBucket]:
        """Return new token buckets for one connection, by rate limit; `now` is in ms."""
        return {
            name: TokenBucket(rate, now)
            for name, rate in self.limits.items()
            if name.startswith("connection_")
        }

    def charge(
        self,
        own: dict[str, TokenBucket],
        user: str,
        vhost: str,
        address: str,
        messages: int,
        size: int,
        now: int,
        ended: bool = False,
    ) -> tuple[float, str]:
        """Charge `messages` messages and `size` bytes of input to all buckets of a client.

        Return the seconds for which the client must be throttled, and the rate limit that causes
        the wait; 0 and "" if no limit is exceeded. `own` has the buckets of the client's
        connection. `now` is in ms. `ended` is True if the client has already closed the connection.
        The charge then throttles only the client's next connections, and no metric counts a wait.

        If the wait is longer than `patience`, the caller disconnects the client, and this method
        reduces the debt of the bucket so far that the next wait is about half of `patience`. So the
        other clients of the bucket are throttled, but not disconnected.
        """
        longest, reason = 0.0, ""
        for name, rate in self.limits.items():
            owner, _, unit = name.partition("_")
            key = user if owner == "user" else vhost if owner == "vhost" else network_of(address)
            if owner == "connection":
                bucket = own[name]
            elif key:
                bucket = self._bucket(name, key, rate, now)
            else:
                continue  # The client has not logged in.
            seconds = bucket.charge(messages if unit == "messages" else size, now)
            if seconds > self.patience:
                bucket.limit_debt(self.patience / 2)
            if seconds > longest:
                longest, reason = seconds, name
        if reason and not ended:
            (self.disconnected if longest > self.patience else self.throttled)[reason] += 1
        return longest, reason

    def _bucket(self, name: str, key: str, rate: int, now: int) -> TokenBucket:
        bucket = self._shared.pop((name, key), None)
        if bucket is None:
            bucket = TokenBucket(rate, now)
            if len(self._shared) >= MAX_SHARED_BUCKETS:
                evict_oldest(self._shared)
        self._shared[name, key] = bucket
        return bucket
