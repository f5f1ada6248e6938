"""First in, first out, without an allocation a step."""

from __future__ import annotations

from typing import Final, Generic, TypeVar

from mypy_extensions import i64

T = TypeVar("T")

#: Slots that may lie empty at the head until it is cut.
EMPTY_SLOTS_MAX: Final[i64] = 512


class Fifo(Generic[T]):
    """A list with a moving head: appending and popping are an index and no allocation."""

    def __init__(self) -> None:
        self._items: list[T | None] = []
        self._head: i64 = 0

    def push(self, item: T) -> None:
        self._items.append(item)

    @property
    def size(self) -> int:
        return len(self._items) - int(self._head)

    def peek(self) -> T | None:
        return self._items[self._head] if self._head < len(self._items) else None

    def pop(self) -> T:
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

    def pop_last(self) -> T:
        """What was pushed last."""
        item = self._items.pop()
        assert item is not None
        return item

    def items(self) -> list[T]:
        """All that is in it, the first one first."""
        return [item for item in self._items[self._head :] if item is not None]
