"""A first-in-first-out buffer that allocates nothing per item."""

from __future__ import annotations

from typing import Final, Generic, TypeVar

from mypy_extensions import i64

T = TypeVar("T")

#: The empty slots at the head are removed if their number is at least EMPTY_SLOTS_MAX, and at least
#: half of the length of the list.
EMPTY_SLOTS_MAX: Final[i64] = 512


class Fifo(Generic[T]):
    """A list with a moving head: pushing and popping an item allocates nothing."""

    def __init__(self) -> None:
        self._items: list[T | None] = []
        self._head: i64 = 0

    def push(self, item: T) -> None:
        """Append an item."""
        self._items.append(item)

    @property
    def size(self) -> int:
        """Number of items."""
        return len(self._items) - int(self._head)

    def peek(self) -> T | None:
        """Return the first item without removing it, or None if there is none."""
        return self._items[self._head] if self._head < len(self._items) else None

    def pop(self) -> T:
        """Remove and return the first item."""
        items = self._items
        head: i64 = self._head
        item = items[head]
        assert item is not None
        items[head] = None
        head += 1
        if head >= EMPTY_SLOTS_MAX and head * 2 >= len(items):
            del items[:head]
            head = 0
        self._head = head
        return item

    def peek_last(self) -> T | None:
        """Return the item that was pushed last without removing it; None if there is none."""
        return self._items[-1] if self._head < len(self._items) else None

    def pop_last(self) -> T:
        """Remove and return the item that was pushed last."""
        item = self._items.pop()
        assert item is not None
        return item

    def sample(self, most: i64) -> list[T]:
        """Return about `most` items, evenly spaced, or all items if there are fewer."""
        items = self._items
        sampled: list[T] = []
        stride: i64 = max(1, (len(items) - self._head) // most)
        at: i64 = self._head
        while at < len(items):
            item = items[at]
            if item is not None:
                sampled.append(item)
            at += stride
        return sampled

    def part(self, start: i64, most: i64) -> list[T]:
        """Return up to `most` items from the item with the index `start` on."""
        first: i64 = self._head + start
        return [item for item in self._items[first : first + most] if item is not None]

    def items(self) -> list[T]:
        """Return all items, in order."""
        return self.part(0, len(self._items))
