"""Open files of streams: at most a given number, so that many streams need few file descriptors."""

from __future__ import annotations

from typing import Final

#: Default for the largest number of open files.
OPEN_MAX: Final = 64


class FileUser:
    """An object with a file that it can close while idle, and opens again when needed."""

    def close_idle(self) -> bool:
        """Close the file, and return True. Return False if the file must stay open now."""
        raise NotImplementedError


class OpenFiles:
    """The objects with open files. If there are too many, the files used longest ago are closed.

    Only one thread calls `use`. At the same time, other threads may call `remove`, as the event
    loop does when a stream is deleted.
    """

    def __init__(self) -> None:
        #: Largest number of files that stay open.
        self.most = OPEN_MAX
        self._users: dict[FileUser, None] = {}

    def __len__(self) -> int:
        return len(self._users)

    def use(self, user: FileUser) -> None:
        """Record that `user` uses its file now.

        If more than `most` files are open, close the files that were used longest ago.
        """
        users = self._users
        users.pop(user, None)
        if len(users) >= self.most:
            for other in list(users)[: len(users) + 1 - self.most]:
                if other.close_idle():
                    users.pop(other, None)
        users[user] = None

    def remove(self, user: FileUser) -> None:
        """Remove an object whose file is closed, or no longer needed."""
        self._users.pop(user, None)
