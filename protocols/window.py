"""A window of outstanding deliveries by sequence number: a list with a moving base.

    items   [ None | None | D | None | D | D ]        take(n): index n - base, no hash
              ^base         ^head

AMQP delivery tags and MQTT packet identifiers are assigned in order and mostly settled in order. So
a delivery is found by its index in a list; per acknowledged message, this takes 18 % less time than
a dict. If the list has more than 65,536 entries from the first outstanding delivery on, and at most
one eighth of them are outstanding, the outstanding deliveries move to a dict of stragglers. So one
message that is never settled does not make the list grow for ever.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

from mypy_extensions import i64

from broker.messages.memory import SAMPLES, estimate
from broker.messages.message import Message
from broker.queues.consumer import Delivery

#: The settled entries at the start of the list are removed together, but only if there are at least
#: SLACK of them and they are at least half of the list.
SLACK: Final[i64] = 512
#: Largest number of entries from the first outstanding delivery of the list to its end. In a longer
#: list, the outstanding deliveries become stragglers if they are few (`_leave_behind`).
SPAN: Final[i64] = 65_536
#: Empty dict that all windows without stragglers share. It is never changed.
_NO_STRAGGLERS: Final[dict[int, Delivery]] = {}


class Window:
    """The outstanding deliveries of one client or channel, numbered from 1.

    Recent deliveries are in a list. A few old deliveries, the stragglers, may be in a dict.
    """

    def __init__(self) -> None:
        #: Number of outstanding deliveries.
        self.count: i64 = 0
        #: Delivery number of the list's first entry, and index of its first outstanding entry.
        self.base: i64 = 1
        self.head: i64 = 0
        #: Number of deliveries that needed no settlement.
        self.skipped: i64 = 0
        self._items: list[Delivery | None] = []
        #: Outstanding deliveries with numbers below `base`, oldest first.
        self._stragglers: dict[int, Delivery] = _NO_STRAGGLERS

    def add(self, delivery: Delivery) -> i64:
        """Add a delivery to the window; return the number that the window assigns to it."""
        self._items.append(delivery)
        self.count += 1
        return self.base + len(self._items) - 1

    def skip(self) -> i64:
        """Use up a number for a delivery that needs no settlement; return the number."""
        self.skipped += 1
        if self.count > len(self._stragglers):
            self._items.append(None)
            if len(self._items) - self.head > SPAN:
                self._leave_behind()
            return self.base + len(self._items) - 1
        if self._items:
            self.base += len(self._items)
            self._items.clear()
            self.head = 0
        self.base += 1
        return self.base - 1

    def skip_to(self, number: i64) -> None:
        """Make `number` the number of the next delivery. `number` must not be below `next`."""
        if self.count > len(self._stragglers):
            while self.next < number:
                self.skip()
        else:
            self._items.clear()
            self.head = 0
            self.base = number

    @property
    def first(self) -> i64:
        """Lowest number of an outstanding delivery in the list; `next` if the list has none.

        Deliveries in the dict of stragglers have lower numbers.
        """
        return self.base + self.head

    @property
    def next(self) -> i64:
        """Number of the next delivery."""
        return self.base + len(self._items)

    def span(self) -> i64:
        """Return `next` minus `first`: the length of the list from its first outstanding delivery
        on.

        Deliveries in the dict of stragglers do not count.
        """
        return len(self._items) - self.head

    def get(self, number: i64) -> Delivery | None:
        """Return the outstanding delivery with this number; None if there is none."""
        index: i64 = number - self.base
        if index < 0 and self._stragglers:
            return self._stragglers.get(number)
        return self._items[index] if self.head <= index < len(self._items) else None

    def take(self, number: i64) -> Delivery | None:
        """Remove and return the delivery with this number; None if there is none. Hot path."""
        items = self._items
        index: i64 = number - self.base
        if index < self.head or index >= len(items):
            return self._take_straggler(number) if index < 0 and self._stragglers else None
        delivery = items[index]
        if delivery is None:
            return None
        items[index] = None
        self.count -= 1
        if index != self.head:
            if len(items) - self.head > SPAN:
                self._leave_behind()
        else:
            index += 1
            while index < len(items) and items[index] is None:
                index += 1
            self.head = index
            if index >= SLACK:
                self._trim()
        return delivery

    def numbers(self, after: i64, last: i64, limit: i64) -> list[i64]:
        """Return the numbers of outstanding deliveries above `after` and up to `last`, ascending.

        At most `limit` numbers are returned.
        """
        numbers: list[i64] = []
        for straggler in self._stragglers:
            if straggler > last or len(numbers) >= limit:
                return numbers
            if straggler > after:
                numbers.append(i64(straggler))
        at: i64 = max(self.first, after + 1) - self.base
        end: i64 = min(last + 1 - self.base, len(self._items))
        while at < end and len(numbers) < limit:
            if self._items[at] is not None:
                numbers.append(self.base + at)
            at += 1
        return numbers

    def most_up_to(self, number: i64) -> i64:
        """Return an upper limit for the count of outstanding deliveries up to `number`."""
        return len(self._stragglers) + max(0, number + 1 - self.first)

    def take_up_to(self, number: i64) -> list[Delivery]:
        """Remove and return all deliveries up to this number, inclusive, oldest first."""
        taken: list[Delivery] = []
        for straggler in [straggler for straggler in self._stragglers if straggler <= number]:
            delivery = self.take(straggler)
            if delivery is not None:
                taken.append(delivery)
        last: i64 = min(number, self.base + len(self._items) - 1)
        at: i64 = self.first
        while at <= last:
            delivery = self.take(at)
            if delivery is not None:
                taken.append(delivery)
            at += 1
        return taken

    def take_all(self) -> list[Delivery]:
        """Remove and return all deliveries, oldest first."""
        return self.take_up_to(self.base + len(self._items) - 1)

    def outstanding(self) -> list[tuple[i64, Delivery]]:
        """Return all outstanding deliveries with their numbers, oldest first."""
        deliveries: list[tuple[i64, Delivery]] = [
            (i64(number), item) for number, item in self._stragglers.items()
        ]
        return deliveries + [
            (self.base + at, item) for at, item in enumerate(self._items) if item is not None
        ]

    def memory_bytes(self) -> i64:
        """Return the estimated memory of the outstanding deliveries, in bytes."""
        sampled: list[Message] = [
            item.message for item in islice(self._stragglers.values(), int(SAMPLES))
        ]
        items = self._items
        stride: i64 = max(1, self.span() // SAMPLES)
        at: i64 = self.head
        while at < len(items):
            item = items[at]
            if item is not None:
                sampled.append(item.message)
            at += stride
        return estimate(sampled, self.count)

    def _take_straggler(self, number: i64) -> Delivery | None:
        delivery = self._stragglers.pop(number, None)
        if delivery is not None:
            self.count -= 1
        return delivery

    def _leave_behind(self) -> None:
        """Move the outstanding deliveries to the dict of stragglers, and empty the list.

        Do nothing if more than one eighth of the list's entries are outstanding, counted from the
        first outstanding delivery on.
        """
        if (self.count - len(self._stragglers)) * 8 > self.span():
            return
        if self._stragglers is _NO_STRAGGLERS:
            self._stragglers = {}
        items = self._items
        for at in range(self.head, len(items)):
            item = items[at]
            if item is not None:
                self._stragglers[self.base + at] = item
        self.base += len(items)
        self.head = 0
        self._items = []

    def _trim(self) -> None:
        head: i64 = self.head
        if head * 2 >= len(self._items):
            del self._items[:head]
            self.base += head
            self.head = 0
