"""The names of a virtual host's queues, in groups, which a caller can copy one by one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

#: Largest number of groups, a power of two. A group of 50,000 queues has about 200 names.
GROUPS_MAX: Final = 256


class QueueNames:
    """The names of the queues and inboxes of a virtual host, in groups.

    A metrics scrape lists all queues, but lets other work run after every few queues. Meanwhile,
    queues may be declared and deleted, so the scrape works on copies of the names. A copy of 50,000
    names would take 1.3 to 3 ms, so one group is copied at a time.

    A group is a dict with the value None for each name: in a set, a name would take nearly twice
    the memory.
    """

    def __init__(self) -> None:
        self._groups: dict[int, dict[str, None]] = {}

    def add(self, name: str) -> None:
        """Add the name of a new queue."""
        self._groups.setdefault(hash(name) % GROUPS_MAX, {})[name] = None

    def remove(self, name: str) -> None:
        """Remove the name of a deleted queue; do nothing if the name is unknown."""
        key = hash(name) % GROUPS_MAX
        group = self._groups.get(key)
        if group is not None:
            group.pop(name, None)
            if not group:
                del self._groups[key]

    def groups(self) -> Iterator[list[str]]:
        """Yield all names, one group at a time; each group is copied when it is yielded.

        A name that exists during the whole iteration is yielded once.
        """
        for key in list(self._groups):
            group = self._groups.get(key)
            if group is not None:
                yield list(group)
