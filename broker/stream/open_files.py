"""Open files of streams: at most a given number, so that many streams need few file descriptors."""

from __future__ import annotations

from typing import Final

#: Default for the largest number of open files.
OPEN_MAX: Final = 64


class FileUser:
    """An object with a file that it can close at any time, and opens again when it needs it."""

    def close_idle(self) -> bool:
        """Close the file, and return True; return False if it must stay open now."""
        raise NotImplementedError


class OpenFiles:
    """The objects with open files; the ones used last stay open.

    One thread calls `use`. Any thread may call `forget` meanwhile: the event loop calls it when a
    stream is deleted, and closing a file lets other threads run.
    """

    def __init__(self) -> None:
        #: Largest number of files that stay open.
        self.most = OPEN_MAX
        self._users: dict[FileUser, None] = {}

    def __len__(self) -> int:
        return len(self._users)

    def use(self, user: FileUser) -> None:
        """Note that an object uses its file now; close the files used longest ago above `most`."""
        users = self._users
        users.pop(user, None)
        if len(users) >= self.most:
            for other in list(users)[: len(users) + 1 - self.most]:
                if other.close_idle():
                    users.pop(other, None)
        users[user] = None

    def forget(self, user: FileUser) -> None:
        """Remove an object whose file is closed, or is not needed any more."""
        self._users.pop(user, None)
