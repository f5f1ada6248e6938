"""A set of packet identifiers that costs a few instructions per identifier if they are consecutive.

    run      first, first + 1, ... first + length - 1; 65,535 is followed by 1
    others   all other identifiers

Clients and the broker use packet identifiers in order, and acknowledge most of them in order. So
mostly all identifiers are in the run, and no object is made for an identifier.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

#: Number of packet identifiers; the smallest is 1.
IDENTIFIERS: Final[i64] = 65_535
#: The empty `_others` of all sets without other identifiers. It is never changed.
_NO_OTHERS: Final[set[int]] = set()


class PacketIdSet:
    """A set of packet identifiers from 1 to IDENTIFIERS."""

    def __init__(self) -> None:
        #: The first identifier of the run, and the number of identifiers in the run.
        self._first: i64 = 1
        self._length: i64 = 0
        self._others = _NO_OTHERS

    @property
    def count(self) -> i64:
        """Number of identifiers in the set."""
        return self._length + len(self._others)

    def contains(self, packet_id: i64) -> bool:
        """True if the identifier is in the set. Hot path."""
        return self._offset(packet_id) < self._length or (
            len(self._others) > 0 and packet_id in self._others
        )

    def add(self, packet_id: i64) -> None:
        """Add an identifier, which may be in the set already. Hot path."""
        if self.contains(packet_id):
            return
        if self._length == 0:
            self._first = packet_id
            self._length = 1
        elif self._offset(packet_id) == self._length:
            self._length += 1
        else:
            if self._others is _NO_OTHERS:
                self._others = set()
            self._others.add(packet_id)

    def remove(self, packet_id: i64) -> bool:
        """Remove an identifier; return False if it is not in the set. Hot path."""
        offset: i64 = self._offset(packet_id)
        if offset >= self._length:
            if len(self._others) == 0 or packet_id not in self._others:
                return False
            self._others.remove(packet_id)
            return True
        if offset > 0:
            if offset == self._length - 1:
                self._length -= 1
                return True
            self._set_aside(offset)
        self._first = packet_id % IDENTIFIERS + 1
        self._length -= offset + 1
        return True

    def identifiers(self) -> list[int]:
        """Return all identifiers in the set, in ascending order."""
        run = [int((self._first - 1 + offset) % IDENTIFIERS + 1) for offset in range(self._length)]
        return sorted([*run, *self._others])

    def _offset(self, packet_id: i64) -> i64:
        """Return by how many identifiers `packet_id` follows the first identifier of the run."""
        offset: i64 = packet_id - self._first
        return offset if offset >= 0 else offset + IDENTIFIERS

    def _set_aside(self, count: i64) -> None:
        """Put the first `count` identifiers of the run into `_others`. The run itself stays.

        Each identifier is set aside at most once.
        """
        if self._others is _NO_OTHERS:
            self._others = set()
        offset: i64 = 0
        while offset < count:
            self._others.add(int((self._first - 1 + offset) % IDENTIFIERS + 1))
            offset += 1


#: The empty set of all windows without identifiers. It is never changed.
NO_PACKET_IDS: Final = PacketIdSet()
