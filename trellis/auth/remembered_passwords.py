"""Passwords that were verified, so that a login with the same password needs no hash.

    password verified ----> remembered for `auth.remember` seconds
    connection opened ----> remembered until the connection has ended
    last connection ended -> remembered for `auth.remember` seconds

If many devices lose their connections at once, their passwords were verified when the devices
connected, days ago. Because the memory of a password ends after its last connection, the devices
connect again without a hash of 24 ms for each of them.

A password is stored as a keyed digest of user name, stored hash and password. So a user whose hash
has changed is unknown here at once.
"""

from __future__ import annotations

import asyncio
from typing import Final

from broker.access.identity import LoginRecord
from broker.eviction import evict_oldest

#: Largest number of remembered passwords, 0.24 kB each; those that were verified first are evicted.
#: If there were more users, a storm of their reconnects would verify each password again.
MAX_REMEMBERED: Final = 100_000


class RememberedPassword(LoginRecord):
    """A verified password, with the number of open connections that it has opened."""

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
        """Return the remembered password with this digest; None if it must be verified."""
        known = self.by_digest.get(digest)
        if known is not None and known.expired:
            del self.by_digest[digest]
            return None
        return known
