"""Counts of the open connections of one virtual host, for the limits of connections.

After a connection has ended, its will still uses the connection's publish context: while the will
waits for its delay, and while a task publishes it. Such a will or task is not counted here.
"""

from __future__ import annotations


class ConnectionCounts:
    """The number of open connections of one virtual host, in all and by user name."""

    def __init__(self) -> None:
        self.total = 0
        self._by_user: dict[str, int] = {}

    def of_user(self, user: str) -> int:
        """Return the number of open connections of a user."""
        return self._by_user.get(user, 0)

    def add(self, user: str) -> None:
        """Count a new connection of a user."""
        self.total += 1
        self._by_user[user] = self._by_user.get(user, 0) + 1

    def remove(self, user: str) -> None:
        """Remove a connection of a user, which has ended, from the counts."""
        self.total -= 1
        self._by_user[user] -= 1
        if not self._by_user[user]:
            del self._by_user[user]
