"""Columns of a batch that is being made, written by runs: what is the same in many rows next to
each other is said once.

Ends       where texts end          Texts      texts, of which none is null
Cells      numbers, none null       Bodies     texts that may be long
Sparse     of which most are null
"""

from __future__ import annotations

from typing import Final, final

from librt.strings import BytesWriter, read_i64_le, write_i32_le, write_i64_le
from mypy_extensions import i32, i64, u8

#: Ends of texts that are all of one length are kept, for so many lengths, and rows at least.
_EQUAL_ENDS_MAX: Final = 64
_EQUAL_ENDS_ROWS: Final[i64] = 4_096
#: Octets of a body that is kept as it is.
_SMALL_BODY: Final[i64] = 2_048
_equal_ends: Final[dict[int, bytes]] = {}


def equal_ends(step: i64, rows: i64) -> bytes:
    """Where so many texts of one length end, and before them where the first begins."""
    if step == 0:
        return bytes(int(4 * (rows + 1)))
    known = _equal_ends.get(int(step))
    if known is None or len(known) < 4 * (rows + 1):
        out = BytesWriter()
        end: i64 = 0
        at: i64 = 0
        most: i64 = max(rows, _EQUAL_ENDS_ROWS) if step * _EQUAL_ENDS_ROWS < 1 << 24 else rows
        while at <= most:
            write_i32_le(out, i32(end))
            end += step
            at += 1
        known = out.getvalue()
        if most > rows:
            if len(_equal_ends) >= _EQUAL_ENDS_MAX:
                _equal_ends.clear()
            _equal_ends[int(step)] = known
    return known[: 4 * (rows + 1)]


@final
class EndsColumn:
    """The lengths of texts, as Arrow writes them."""

    def __init__(self) -> None:
        self.rows: i64 = 0
        self.total: i64 = 0
        #: As long as all have one length, nothing else is noted.
        self._step: i64 = 0
        self._out: BytesWriter | None = None

    def add_run(self, size: i64, count: i64) -> None:
        """So many more texts of this length."""
        out = self._out
        if out is None:
            if self.rows == 0:
                self._step = size
            if self._step == size:
                self.rows += count
                self.total += size * count
                return
            out = self._out = BytesWriter()
            out.write(equal_ends(self._step, self.rows))
        self.rows += count
        total: i64 = self.total
        while count > 0:
            total += size
            write_i32_le(out, i32(total))
            count -= 1
        self.total = total

    def encode(self) -> bytes:
        out = self._out
        return equal_ends(self._step, self.rows) if out is None else out.getvalue()


@final
class TextColumn:
    """A column of octets, none of them null."""

    def __init__(self) -> None:
        self.ends = EndsColumn()
        self._data = BytesWriter()

    def add_run(self, text: bytes, count: i64) -> None:
        """So many more rows with this text."""
        self.ends.add_run(len(text), count)
        self._data.write(text if count == 1 else text * int(count))

    def encode(self) -> bytes:
        """The texts, one behind the other."""
        return self._data.getvalue()


@final
class BodyColumn:
    """Octets of bodies, one behind the other.

    Small ones are gathered, so that no object is kept for each.
    """

    def __init__(self) -> None:
        self.ends = EndsColumn()
        self.total: i64 = 0
        self._parts: list[bytes] = []
        self._small = BytesWriter()

    def add(self, body: bytes) -> None:
        """Hot path."""
        size: i64 = len(body)
        self.total += size
        if size < _SMALL_BODY:
            self._small.write(body)
            return
        self._gather()
        self._parts.append(body)

    def _gather(self) -> None:
        if len(self._small) > 0:
            self._parts.append(self._small.getvalue())
            self._small.truncate(0)

    def parts(self) -> list[bytes]:
        """All of them."""
        self._gather()
        return self._parts


@final
class NumberColumn:
    """A column of numbers, none of them null, `width` octets each: 1, 4 or 8."""

    def __init__(self, width: i64) -> None:
        self.width: i64 = width
        self._out = BytesWriter()

    def add_run(self, number: i64, count: i64) -> None:
        """So many more rows with this number."""
        out = self._out
        if count > 2:
            out.write(
                int(number).to_bytes(int(self.width), "little", signed=self.width > 1) * int(count)
            )
            return
        while count > 0:
            if self.width == 8:
                write_i64_le(out, number)
            elif self.width == 4:
                write_i32_le(out, i32(number))
            else:
                out.append(u8(number))
            count -= 1

    def encode(self) -> bytes:
        return self._out.getvalue()


@final
class SparseColumn:
    """A column of which most rows are null: only the others are noted. Numbers come as their
    octets, all of one `width`; texts have none."""

    def __init__(self, width: i64 = 0) -> None:
        self.width: i64 = width
        #: Rows that are not null.
        self.count: i64 = 0
        #: Of each run its first row and how many follow, and what they have.
        self._runs = BytesWriter()
        self._values: list[bytes] = []

    def add_run(self, first: i64, count: i64, value: bytes) -> None:
        """From this row on so many have this value. Rows come in order."""
        write_i64_le(self._runs, first)
        write_i64_le(self._runs, count)
        self._values.append(value)
        self.count += count

    def clear(self) -> None:
        """Nothing is noted any more."""
        if self._values:
            self.count = 0
            self._runs = BytesWriter()
            self._values = []

    def encode_validity(self, rows: i64) -> bytes:
        """Which of so many rows are not null: a bit each."""
        out = BytesWriter()
        out.write(bytes((int(rows) + 7) // 8))
        places = self._runs.getvalue()
        at: i64 = 0
        while at < len(places):
            row = read_i64_le(places, at)
            end = row + read_i64_le(places, at + 8)
            at += 16
            while row < end:
                if row & 7 == 0 and end - row >= 8:
                    out[row >> 3] = 255
                    row += 8
                else:
                    out[row >> 3] = u8(i64(out[row >> 3]) | 1 << (row & 7))
                    row += 1
        return out.getvalue()

    def encode_numbers(self, rows: i64) -> bytes:
        """The numbers; zeros where there is none."""
        parts: list[bytes] = []
        places = self._runs.getvalue()
        done: i64 = 0
        at: i64 = 0
        for value in self._values:
            first = read_i64_le(places, at)
            count = read_i64_le(places, at + 8)
            at += 16
            if first > done:
                parts.append(bytes(int((first - done) * self.width)))
            parts.append(value if count == 1 else value * int(count))
            done = first + count
        if rows > done:
            parts.append(bytes(int((rows - done) * self.width)))
        return b"".join(parts)

    def encode_texts(self, rows: i64) -> tuple[bytes, bytes]:
        """Where the texts end, and the texts."""
        ends = EndsColumn()
        parts: list[bytes] = []
        places = self._runs.getvalue()
        at: i64 = 0
        for value in self._values:
            first = read_i64_le(places, at)
            count = read_i64_le(places, at + 8)
            at += 16
            if first > ends.rows:
                ends.add_run(0, first - ends.rows)
            ends.add_run(len(value), count)
            parts.append(value if count == 1 else value * int(count))
        if rows > ends.rows:
            ends.add_run(0, rows - ends.rows)
        return ends.encode(), b"".join(parts)
