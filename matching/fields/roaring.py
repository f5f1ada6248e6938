"""Counts the met criteria of all rows at once, in bitmaps, 64 rows per machine word.

    fields of the message        row  0 1 2 3          counts in binary      row  0 1 2 3
    currency = EUR                    0 1 1 0             ones                    0 1 0 1
    market = forex                    0 0 1 0             twos                    0 0 1 0
    urgent                            0 0 0 1

A row stands for all bindings with equal arguments. Each criterion has a bitmap of its rows. The
bitmaps of the met criteria are added digit by digit, with carries, and the sums are compared with
the number of hits that each row needs. A message costs O(headers x digits) bitmap operations,
whatever the number of names and criteria. ``any`` rows need no sum: the union of their bitmaps is
the answer. Choose this algorithm when thousands of rows share criteria. Needs the package
pyroaring. Source: article 4 (listed in `matching`), which describes the counts in this form.
"""

from __future__ import annotations

from collections.abc import Hashable

from pyroaring import BitMap

from matching.fields.criteria import PRESENT, Fields, token
from matching.fields.matcher import FieldsRow, HeadersMatcher
from matching.matcher import S


class Roaring(HeadersMatcher[S]):
    """A headers matcher that counts the met criteria of all bindings at once, in bitmaps.

    Choose this matcher if thousands of bindings share criteria. Needs the package pyroaring.
    """

    def __init__(self) -> None:
        super().__init__()
        self._all: dict[str, dict[Hashable, BitMap]] = {}
        self._any: dict[str, dict[Hashable, BitMap]] = {}
        self._always = BitMap()
        #: One bitmap per binary digit, the lowest first: the ``all`` rows whose required number of
        #: hits has this digit set.
        self._needs: list[BitMap] = []
        self._numbered: list[FieldsRow[S] | None] = []
        self._free: list[int] = []

    def enter(self, row: FieldsRow[S]) -> None:
        if self._free:
            row.mark = self._free.pop()
            self._numbered[row.mark] = row
        else:
            row.mark = len(self._numbered)
            self._numbered.append(row)
        wanted = row.criteria.wanted
        if not row.criteria.any:
            if not wanted:
                self._always.add(row.mark)
            for digit in range(len(wanted).bit_length()):
                if digit == len(self._needs):
                    self._needs.append(BitMap())
                if len(wanted) >> digit & 1:
                    self._needs[digit].add(row.mark)
        index = self._any if row.criteria.any else self._all
        for name, value in wanted.items():
            column = index.setdefault(name, {})
            rows = column.get(value)
            if rows is None:
                column[value] = BitMap([row.mark])
            else:
                rows.add(row.mark)

    def leave(self, row: FieldsRow[S]) -> None:
        self._numbered[row.mark] = None
        self._free.append(row.mark)
        wanted = row.criteria.wanted
        if not row.criteria.any:
            self._always.discard(row.mark)
            for digit in self._needs:
                digit.discard(row.mark)
            while self._needs and not self._needs[-1]:
                self._needs.pop()
        index = self._any if row.criteria.any else self._all
        for name, value in wanted.items():
            column = index[name]
            rows = column[value]
            rows.discard(row.mark)
            if not rows:
                del column[value]
                if not column:
                    del index[name]

    def find(self, headers: Fields) -> list[FieldsRow[S]]:
        hits = _hits(self._all, headers)
        united = _hits(self._any, headers)
        united.append(self._always)
        if hits:
            united.append(self._enough(hits))
        numbers = BitMap.union(*united)
        numbered = self._numbered
        rows: list[FieldsRow[S]] = []
        for number in numbers:
            row = numbered[number]
            assert row is not None
            rows.append(row)
        return rows

    def stats(self) -> dict[str, int]:
        """Return the sizes of the index.

        `criteria` is the number of indexed criteria. The largest number of criteria that one
        binding requires has `digits` binary digits.
        """
        return {
            **super().stats(),
            "criteria": _size(self._all) + _size(self._any),
            "digits": len(self._needs),
        }

    def _enough(self, hits: list[BitMap]) -> BitMap:
        """Return the ``all`` rows whose criteria the message meets completely.

        `hits` has one bitmap for each met criterion: the rows that have this criterion. A row is
        returned if the number of bitmaps that contain it equals the number of its criteria.
        """
        enough = BitMap.union(*hits)
        for needed, counted in zip(self._needs, _added(hits), strict=False):
            enough -= counted ^ (needed & enough)
        # No row has more hits than it needs, so the counts have no further digits. Rows whose
        # needed number has further digits do not match.
        for needed in self._needs[len(hits).bit_length() :]:
            enough -= needed
        return enough


def _hits(index: dict[str, dict[Hashable, BitMap]], headers: Fields) -> list[BitMap]:
    """Return the bitmaps of the criteria that the headers meet."""
    hits: list[BitMap] = []
    if not index:
        return hits
    for name, value in headers.items():
        column = index.get(name)
        if column is None:
            continue
        rows = column.get(PRESENT)
        if rows is not None:
            hits.append(rows)
        rows = column.get(token(value))
        if rows is not None:
            hits.append(rows)
    return hits


def _added(hits: list[BitMap]) -> list[BitMap]:
    """Return, for each row, the number of bitmaps that contain the row.

    The numbers are given as one bitmap per binary digit, the lowest digit first.
    """
    digits = [BitMap() for _ in range(len(hits).bit_length())]
    for carry in hits:
        for place, digit in enumerate(digits):
            if not carry:
                break
            digits[place], carry = digit ^ carry, digit & carry
    return digits


def _size(index: dict[str, dict[Hashable, BitMap]]) -> int:
    return sum(len(column) for column in index.values())
