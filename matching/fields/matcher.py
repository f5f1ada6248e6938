"""Defines `HeadersMatcher`, the interface and common part of the header-matching algorithms.

    rows    identity of the arguments -> FieldsRow: criteria, and a bucket of the subscribers

An algorithm indexes rows: `enter` adds a row, `leave` removes a row, and `find` returns the rows
that accept a message's headers. Subscribers are stored as for topic patterns (`matching.bucket`):
any hashable object can be a subscriber, and a subscriber with several bindings is returned once.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Final, Generic

from matching.bucket import Bucket, PairCounts, holds, members, take, with_added, without
from matching.fields.criteria import Criteria, Fields
from matching.fields.signature import criteria_signature
from matching.matcher import S, Search

try:
    from mypy_extensions import mypyc_attr
except ImportError:  # pragma: no cover - the tests' environment can compile
    from matching.uncompiled import mypyc_attr


class FieldsRow(Generic[S]):
    """The bindings with equal arguments. The algorithm may store a number of its own in `mark`."""

    __slots__ = ("arguments", "bucket", "criteria", "mark", "signature")

    def __init__(self, arguments: Fields, criteria: Criteria) -> None:
        self.arguments: Final = arguments
        self.criteria: Final = criteria
        self.bucket: Bucket[S] = None
        self.mark = 0
        #: The signature, which shows without a comparison that a message fails two criteria
        #: (signature.py).
        self.signature: Final = criteria_signature(criteria)


@mypyc_attr(allow_interpreted_subclasses=True)
class HeadersMatcher(Generic[S]):
    """A set of (arguments, subscriber) pairs. `match` returns the subscribers whose arguments a
    message's headers meet.

    Two bindings are the same only if all their arguments are equal, including arguments that are
    not criteria.
    """

    def __init__(self) -> None:
        self._rows: dict[Hashable, FieldsRow[S]] = {}
        self._tally: PairCounts[S] = PairCounts()
        self._pairs = 0
        #: The number of rows plus the number of their criteria: the most comparisons that one
        #: lookup can need.
        self.weight = 0
        #: The number of rows that the last lookup examined, for callers that limit the work of
        #: lookups. If an algorithm does not count them, `examined` is the number of all rows.
        self.examined = 0

    # Implemented by each algorithm:

    def enter(self, row: FieldsRow[S]) -> None:
        """Add the row to the index."""
        raise NotImplementedError

    def leave(self, row: FieldsRow[S]) -> None:
        """Remove the row from the index."""
        raise NotImplementedError

    def find(self, headers: Fields) -> list[FieldsRow[S]]:
        """Return the rows that accept the headers, each once, in no order."""
        raise NotImplementedError

    # Common to all algorithms:

    def bind(self, arguments: Fields, subscriber: S) -> bool:
        """Add the (arguments, subscriber) pair. Return False if the pair was already present.

        The arguments must not be changed later. Raises InvalidCriteria.
        """
        hash(subscriber)  # raise TypeError for an unhashable subscriber before anything changes
        criteria = Criteria(arguments)
        row = self._rows.get(criteria.identity)
        if row is None:
            row = self._rows[criteria.identity] = FieldsRow(arguments, criteria)
            self.enter(row)
            self.weight += 1 + len(criteria.wanted)
        elif holds(row.bucket, subscriber):
            return False
        row.bucket = with_added(row.bucket, subscriber)
        self._tally.add(subscriber)
        self._pairs += 1
        return True

    def unbind(self, arguments: Fields, subscriber: S) -> bool:
        """Remove the (arguments, subscriber) pair. Return False if the pair was not present.

        Raises InvalidCriteria.
        """
        identity = Criteria(arguments).identity
        row = self._rows.get(identity)
        if row is None or not holds(row.bucket, subscriber):
            return False
        row.bucket = without(row.bucket, subscriber)
        self._tally.remove(subscriber)
        self._pairs -= 1
        if row.bucket is None:
            del self._rows[identity]
            self.leave(row)
            self.weight -= 1 + len(row.criteria.wanted)
        return True

    def match(self, headers: Fields) -> list[S]:
        """Return the subscribers of all bindings that accept the headers, each once, in no order.

        The caller owns the returned list.
        """
        subscribers: list[S] = []
        self.examined = len(self._rows)
        for row in self.find(headers):
            take(row.bucket, subscribers)
        return self._tally.distinct(subscribers) if self._tally.shared else subscribers

    def searches(self, headers: Fields, subscribers: list[S]) -> list[Search[S]]:
        """Begin a lookup that can pause.

        Append the subscribers that can be found quickly to `subscribers`, and return a list of
        searches for the remaining subscribers. By default, all subscribers are found at once, and
        the list is empty.
        """
        subscribers += self.match(headers)
        return []

    def bindings(self) -> Iterator[tuple[Fields, S]]:
        """Iterate over all pairs, in no order. The matcher must not be changed during the
        iteration.
        """
        for row in self._rows.values():
            for subscriber in members(row.bucket):
                yield row.arguments, subscriber

    def rows(self) -> list[FieldsRow[S]]:
        """Return all rows, in the order in which they were added."""
        return list(self._rows.values())

    def stats(self) -> dict[str, int]:
        """Return the sizes of the index by name, for operators."""
        return {"bindings": self._pairs, "rows": len(self._rows)}

    def __len__(self) -> int:
        return self._pairs

    def __contains__(self, pair: tuple[Fields, S]) -> bool:
        arguments, subscriber = pair
        row = self._rows.get(Criteria(arguments).identity)
        return row is not None and holds(row.bucket, subscriber)
