"""Login throttling: slow down password guessing by a wait before the password is checked.

    failures before a login   0 to 4   5     6     7    ...   one is forgiven every FORGIVEN_SECONDS
    wait in seconds           none     0.1   0.2   0.4  ...   up to ADDRESS_WAIT_MAX, USER_WAIT_MAX

Failures are counted by client address and by user name. The limit for a user name is lower, since
other clients can cause that wait. Credentials that were verified recently never wait. Loopback
addresses are not counted, since all programs of this machine share them. Both tables are bounded;
the entry with the oldest failure is evicted.
"""

from __future__ import annotations

from typing import Final

from broker.eviction import evict_oldest

#: Number of failures after which the next login must wait.
FREE_FAILURES: Final = 5
#: Seconds after which one failure is forgiven.
FORGIVEN_SECONDS: Final = 30.0
#: Seconds of the first wait.
FIRST_WAIT: Final = 0.1
#: Longest wait in seconds, for failures of one address. (A handshake may take `limits.handshake`,
#: 10 s.)
ADDRESS_WAIT_MAX: Final = 5.0
#: Longest wait in seconds, for failures of one user name.
USER_WAIT_MAX: Final = 2.0
#: Largest number of addresses, and of user names, whose failures are counted.
MAX_KEYS: Final = 10_000
#: Characters of a user name that are compared: longer names that begin alike share their failures.
MAX_NAME: Final = 255


class LoginFailures:
    """The number of login failures of each address, or user name, and the time of the last one."""

    def __init__(self, most: float) -> None:
        self._wait_max = most
        self._failures: dict[str, tuple[float, float]] = {}

    def __len__(self) -> int:
        return len(self._failures)

    def _count(self, key: str, now: float) -> float:
        count, last = self._failures.get(key, (0.0, now))
        return max(0.0, count - (now - last) / FORGIVEN_SECONDS)

    def wait(self, key: str, now: float) -> float:
        """Return the seconds that the next login with this key must wait."""
        over = round(self._count(key, now)) - FREE_FAILURES
        return 0.0 if over < 0 else min(self._wait_max, FIRST_WAIT * 2 ** min(over, 20))

    def add(self, key: str, now: float) -> None:
        """Count a login failure for a key."""
        count = self._count(key, now) + 1
        self._failures.pop(key, None)
        if len(self._failures) >= MAX_KEYS:
            evict_oldest(self._failures)
        self._failures[key] = count, now

    def remove(self, key: str) -> None:
        """Forget the failures of a key."""
        self._failures.pop(key, None)


class LoginThrottle:
    """Recent login failures by address and by user name. Times are seconds of a monotonic clock."""

    def __init__(self) -> None:
        self.addresses = LoginFailures(ADDRESS_WAIT_MAX)
        self.users = LoginFailures(USER_WAIT_MAX)
        #: Number of logins that had to wait.
        self.throttled = 0

    def wait(self, user: str, address: str, local: bool, now: float) -> float:
        """Return the seconds that a login must wait, and count the login if it must."""
        seconds = max(
            self.users.wait(user[:MAX_NAME], now),
            0.0 if local else self.addresses.wait(address, now),
        )
        self.throttled += seconds > 0
        return seconds

    def on_failure(self, user: str, address: str, local: bool, now: float) -> None:
        """Count a failed login."""
        self.users.add(user[:MAX_NAME], now)
        if not local:
            self.addresses.add(address, now)

    def on_success(self, user: str) -> None:
        """Forget the failures of a user after a successful login.

        The failures of the address stay: one known password must not allow guessing others.
        """
        self.users.remove(user[:MAX_NAME])
