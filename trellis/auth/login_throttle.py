"""Guessing passwords is slowed: who fails again and again waits, before anything is hashed.

    failures in a row      1 .. 5     6       7       8     ...          one is forgiven every FORGIVEN seconds
    wait in seconds        none       0.1     0.2     0.4   ... up to ADDRESS (by address), USER (by user name)

A name waits less than an address, for others can make it wait; credentials that were verified just
now never do. Addresses of this machine do not count: whoever is there shares them. Both tables are
bounded; what failed longest ago goes first.
"""

from __future__ import annotations

from typing import Final

from broker.eviction import evict_oldest

#: Failures that nobody waits for, and seconds that make good one of them.
FREE_FAILURES: Final = 5
FORGIVEN_SECONDS: Final = 30.0
#: Seconds of the first wait, and of the longest ones. (A handshake may take `limits.handshake`, 10
#: s.)
FIRST_WAIT: Final = 0.1
ADDRESS_WAIT_MAX: Final = 5.0
USER_WAIT_MAX: Final = 2.0
#: Addresses, and names, that are remembered. Names may be anything: longer ones are remembered by
#: their beginning.
MAX_KEYS: Final = 10_000
MAX_NAME: Final = 255


class LoginFailures:
    """Failures by a key, each with the time of the last one."""

    def __init__(self, most: float) -> None:
        self._wait_max = most
        self._failures: dict[str, tuple[float, float]] = {}

    def __len__(self) -> int:
        return len(self._failures)

    def _count(self, key: str, now: float) -> float:
        count, last = self._failures.get(key, (0.0, now))
        return max(0.0, count - (now - last) / FORGIVEN_SECONDS)

    def wait(self, key: str, now: float) -> float:
        """Seconds that the next attempt waits."""
        over = round(self._count(key, now)) - FREE_FAILURES
        return 0.0 if over < 0 else min(self._wait_max, FIRST_WAIT * 2 ** min(over, 20))

    def add(self, key: str, now: float) -> None:
        count = self._count(key, now) + 1
        self._failures.pop(key, None)
        if len(self._failures) >= MAX_KEYS:
            evict_oldest(self._failures)
        self._failures[key] = count, now

    def remove(self, key: str) -> None:
        self._failures.pop(key, None)


class LoginThrottle:
    """Who failed how often of late. Times are seconds of a clock that never goes back."""

    def __init__(self) -> None:
        self.addresses = LoginFailures(ADDRESS_WAIT_MAX)
        self.users = LoginFailures(USER_WAIT_MAX)
        #: Attempts that had to wait.
        self.throttled = 0

    def wait(self, user: str, address: str, local: bool, now: float) -> float:
        """Seconds that an attempt waits."""
        seconds = max(
            self.users.wait(user[:MAX_NAME], now),
            0.0 if local else self.addresses.wait(address, now),
        )
        self.throttled += seconds > 0
        return seconds

    def on_failure(self, user: str, address: str, local: bool, now: float) -> None:
        self.users.add(user[:MAX_NAME], now)
        if not local:
            self.addresses.add(address, now)

    def on_success(self, user: str) -> None:
        """Its name is good again.

        The address is not: one good account is no excuse for guessing at others.
        """
        self.users.remove(user[:MAX_NAME])
