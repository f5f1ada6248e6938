"""The memory of verified passwords: a login with a remembered password needs no argon2id hash.

    password verified ----> remembered for `auth.remember` seconds
    connection opened ----> remembered until the connection has ended
    last connection ended -> remembered for `auth.remember` seconds

Devices may stay connected for days, and lose their connections all at once in a network outage.
When the devices reconnect, their passwords are still remembered. So the broker does not compute a
hash of 24 ms for each device.

A password is remembered as a keyed digest of user name, stored hash and password. If the stored
hash of a user changes, the old digest no longer matches a login.
"""

from __future__ import annotations

import asyncio
from typing import Final

from broker.access.identity import LoginRecord
from broker.eviction import evict_oldest

#: Largest number of remembered passwords, 0.24 kB each. Above this number, the password that was
#: verified longest ago is evicted. With more users, each of their reconnects may need a hash.
MAX_REMEMBERED: Final = 100_000


class RememberedPassword(LoginRecord):
    """A verified password, with the number of open connections that were opened with it."""

    __slots__ = ("_connections", "_expires", "_seconds")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._connections = 0
        self._expires = 0.0
        self.renew()

    def renew(self) -> None:
        """Remember the password for `auth.remember` seconds from now on."""
        self._expires = asyncio.get_running_loop().time() + self._seconds

    @property
    def expired(self) -> bool:
        """True if the password must be verified again."""
        return self._connections == 0 and self._expires <= asyncio.get_running_loop().time()

    def on_connection_opened(self) -> None:
        self._connections += 1

    def on_connection_closed(self) -> None:
        self._connections -= 1
        if self._connections == 0:
            self.renew()


class RememberedPasswords:
    """The remembered passwords by digest. Passwords are never remembered if `seconds` is 0."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.by_digest: dict[bytes, RememberedPassword] = {}

    def add(self, digest: bytes) -> None:
        """Remember a password that was verified now."""
        if not self._seconds:
            return
        known = self.by_digest.pop(digest, None)
        if known is None:
            known = RememberedPassword(self._seconds)
            if len(self.by_digest) >= MAX_REMEMBERED:
                evict_oldest(self.by_digest)
        known.renew()
        self.by_digest[digest] = known

    def find(self, digest: bytes) -> RememberedPassword | None:
        """Return the remembered password with this digest.

        Return None if the password is not remembered, or has expired.
        """
        known = self.by_digest.get(digest)
        if known is not None and known.expired:
            del self.by_digest[digest]
            return None
        return known
