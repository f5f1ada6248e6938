"""The contract of field matching, and what all its algorithms share.

    rows    identity of the arguments -> Row: criteria, and a bucket of who bound with them

An algorithm indexes rows: `enter` one, `leave` one, and `reach` those that accept some headers.
Subscribers are kept as beside topic patterns (`matching.bucket`): any hashable, and one with
several bindings is found once.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Final, Generic

from matching.bucket import Bucket, PairCounts, holds, members, take, with_added, without
from matching.fields.criteria import Criteria, Fields
from matching.matcher import S

try:
    from mypy_extensions import mypyc_attr
except ImportError:  # pragma: no cover - the tests' environment can compile
    from matching.uncompiled import mypyc_attr


class FieldsRow(Generic[S]):
    """Bindings with equal arguments. `mark` is for the algorithm."""

    __slots__ = ("arguments", "bucket", "criteria", "mark")

    def __init__(self, arguments: Fields, criteria: Criteria) -> None:
        self.arguments: Final = arguments
        self.criteria: Final = criteria
        self.bucket: Bucket[S] = None
        self.mark = 0


@mypyc_attr(allow_interpreted_subclasses=True)
class HeadersMatcher(Generic[S]):
    """A set of (arguments, subscriber) pairs, asked with the headers of a message.

    Arguments are known by all they say: those that are no criteria distinguish two bindings too.
    """

    def __init__(self) -> None:
        self._rows: dict[Hashable, FieldsRow[S]] = {}
        self._tally: PairCounts[S] = PairCounts()
        self._pairs = 0

    # -- what an algorithm defines

    def enter(self, row: FieldsRow[S]) -> None:
        """Index the row."""
        raise NotImplementedError

    def leave(self, row: FieldsRow[S]) -> None:
        """Take the row out of the index."""
        raise NotImplementedError

    def find(self, headers: Fields) -> list[FieldsRow[S]]:
        """The rows that accept the headers, each once, in no order."""
        raise NotImplementedError

    # -- what follows

    def bind(self, arguments: Fields, subscriber: S) -> bool:
        """Add the pair; False when it was there already. Raises InvalidCriteria.

        The arguments must not be changed later.
        """
        hash(subscriber)  # what cannot be hashed is refused before anything changes
        criteria = Criteria(arguments)
        row = self._rows.get(criteria.identity)
        if row is None:
            row = self._rows[criteria.identity] = FieldsRow(arguments, criteria)
            self.enter(row)
        elif holds(row.bucket, subscriber):
            return False
        row.bucket = with_added(row.bucket, subscriber)
        self._tally.add(subscriber)
        self._pairs += 1
        return True

    def unbind(self, arguments: Fields, subscriber: S) -> bool:
        """Remove the pair; False when it was not there. Raises InvalidCriteria."""
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
        return True

    def match(self, headers: Fields) -> list[S]:
        """The subscribers of all bindings that accept the headers, each once, in no order.

        The list is the caller's.
        """
        found: list[S] = []
        for row in self.find(headers):
            take(row.bucket, found)
        return self._tally.distinct(found) if self._tally.shared else found

    def bindings(self) -> Iterator[tuple[Fields, S]]:
        """All pairs, in no order. The matcher must not be changed meanwhile."""
        for row in self._rows.values():
            for subscriber in members(row.bucket):
                yield row.arguments, subscriber

    def rows(self) -> list[FieldsRow[S]]:
        """All rows, the oldest first."""
        return list(self._rows.values())

    def stats(self) -> dict[str, int]:
        """Sizes by name, for operators."""
        return {"bindings": self._pairs, "rows": len(self._rows)}

    def __len__(self) -> int:
        return self._pairs

    def __contains__(self, pair: tuple[Fields, S]) -> bool:
        arguments, subscriber = pair
        row = self._rows.get(Criteria(arguments).identity)
        return row is not None and holds(row.bucket, subscriber)
