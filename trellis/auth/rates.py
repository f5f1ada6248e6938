"""How fast clients may publish: token buckets for a connection, a user, a virtual host and an
address.

    chunk of input --> its octets and publications are charged --> a bucket in debt: the client is not read for as long
                                                                   longer than `rates.patience`: it is sent away

A bucket holds what may come in one second. Where no rate is set there are no buckets, and links
that know nothing of them.
"""

from __future__ import annotations

from typing import Final

from broker.eviction import evict_oldest
from trellis.settings.schema import RatesSettings as RateSettings

#: Buckets kept of those that many share; the one that was used longest ago goes first.
MAX_SHARED_BUCKETS: Final = 10_000
#: Whose a bucket is, and what it counts: the options of the settings.
LIMITS: Final = tuple(
    f"{whose}_{what}"
    for whose in ("connection", "user", "vhost", "address")
    for what in ("messages", "bytes")
)


class TokenBucket:
    """What may come now, and what comes in each second. May be in debt. Times are in ms."""

    def __init__(self, rate: int, now: int) -> None:
        self.rate = rate
        self._level = float(rate)
        self._updated_at = now

    def charge(self, amount: int, now: int) -> float:
        """Charge so much; returns the seconds until the debt is paid."""
        self._level = (
            min(float(self.rate), self._level + (now - self._updated_at) * self.rate / 1000)
            - amount
        )
        self._updated_at = now
        return max(0.0, -self._level / self.rate)


class PublishRates:
    """All buckets of a broker."""

    def __init__(self, settings: RateSettings) -> None:
        self.patience = settings.patience
        self.limits: dict[str, int] = {
            name: getattr(settings, name) for name in LIMITS if getattr(settings, name)
        }
        #: How often somebody had to wait, and was sent away, by limit.
        self.throttled = dict.fromkeys(self.limits, 0)
        self.disconnected = dict.fromkeys(self.limits, 0)
        self._shared: dict[tuple[str, str], TokenBucket] = {}

    @property
    def enabled(self) -> bool:
        return bool(self.limits)

    def connection_buckets(self, now: int) -> dict[str, TokenBucket]:
        """The buckets of a connection's own."""
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
        octets: int,
        now: int,
    ) -> tuple[float, str]:
        """Charge what came; returns how many seconds to wait, and because of which limit."""
        longest, reason = 0.0, ""
        for name, rate in self.limits.items():
            whose, _, what = name.partition("_")
            key = user if whose == "user" else vhost if whose == "vhost" else address
            if whose == "connection":
                bucket = own[name]
            elif key:
                bucket = self._bucket(name, key, rate, now)
            else:
                continue  # Nobody yet.
            seconds = bucket.charge(messages if what == "messages" else octets, now)
            if seconds > longest:
                longest, reason = seconds, name
        if reason:
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
