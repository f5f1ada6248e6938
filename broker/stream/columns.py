"""Columns of an Arrow record batch that is being built from the rows of a stream.

Values are added in runs: a value that is equal in consecutive rows is added once.

    EndsColumn      end offsets of texts       TextColumn     texts, none null
    NumberColumn    numbers, none null         BodyColumn     texts that may be long
    SparseColumn    mostly nulls
"""

from __future__ import annotations

from typing import Final, final

from librt.strings import BytesWriter, read_i64_le, write_i32_le, write_i64_le
from mypy_extensions import i32, i64, u8

#: `_equal_ends` caches the encoded end offsets of texts of equal length, by this length. It has at
#: most _EQUAL_ENDS_MAX lengths, each encoded for at least _EQUAL_ENDS_ROWS rows.
_EQUAL_ENDS_MAX: Final = 64
_EQUAL_ENDS_ROWS: Final[i64] = 4_096
#: Size in bytes below which a body is copied into a common buffer.
_SMALL_BODY: Final[i64] = 2_048
_equal_ends: Final[dict[int, bytes]] = {}


def equal_ends(step: i64, rows: i64) -> bytes:
    """Return a 0 and the end offsets of `rows` texts of `step` bytes each, in Arrow's encoding."""
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
    """The end offsets of the texts of a column, which Arrow needs to separate the texts."""

    def __init__(self) -> None:
        self.rows: i64 = 0
        self.total: i64 = 0
        #: The common length of all texts, while `_out` is None.
        self._step: i64 = 0
        self._out: BytesWriter | None = None

    def add_run(self, size: i64, count: i64) -> None:
        """Add `count` texts with a length of `size` bytes."""
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
        """Return the end offsets of all texts in Arrow's encoding."""
        out = self._out
        return equal_ends(self._step, self.rows) if out is None else out.getvalue()


@final
class TextColumn:
    """A column of texts, none of them null."""

    def __init__(self) -> None:
        self.ends = EndsColumn()
        self._data = BytesWriter()

    def add_run(self, text: bytes, count: i64) -> None:
        """Add `count` consecutive rows with this text."""
        self.ends.add_run(len(text), count)
        self._data.write(text if count == 1 else text * int(count))

    def encode(self) -> bytes:
        """Return the texts of all rows, concatenated."""
        return self._data.getvalue()


@final
class BodyColumn:
    """A column of message bodies.

    Small bodies are copied into a common buffer, so that no object is kept for each body.
    """

    def __init__(self) -> None:
        self.ends = EndsColumn()
        self.total: i64 = 0
        self._parts: list[bytes] = []
        self._small = BytesWriter()

    def add(self, body: bytes) -> None:
        """Add the body of the next row's message. Hot path."""
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
        """Return the bodies of all rows, as a list of bytes to be concatenated."""
        self._gather()
        return self._parts


@final
class NumberColumn:
    """A column of numbers, none of them null, with a `width` of 1, 4 or 8 bytes."""

    def __init__(self, width: i64) -> None:
        self.width: i64 = width
        self._out = BytesWriter()

    def add_run(self, number: i64, count: i64) -> None:
        """Add `count` consecutive rows with this number."""
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
        """Return the numbers of all rows in Arrow's encoding."""
        return self._out.getvalue()


@final
class SparseColumn:
    """A column in which most rows are null; only the other rows take memory.

    Values are bytes. All numbers of a column are encoded with its `width` in bytes. A column of
    texts has the width 0.
    """

    def __init__(self, width: i64 = 0) -> None:
        self.width: i64 = width
        #: Number of rows that are not null.
        self.count: i64 = 0
        #: For each run: its first row and its number of rows, and the value.
        self._runs = BytesWriter()
        self._values: list[bytes] = []

    def add_run(self, first: i64, count: i64, value: bytes) -> None:
        """Add a run of `count` rows with this value, from the row `first` on. Runs must come in the
        order of rows.
        """
        write_i64_le(self._runs, first)
        write_i64_le(self._runs, count)
        self._values.append(value)
        self.count += count

    def clear(self) -> None:
        """Remove all runs."""
        if self._values:
            self.count = 0
            self._runs = BytesWriter()
            self._values = []

    def encode_validity(self, rows: i64) -> bytes:
        """Return Arrow's validity bitmap: one bit for each row, 1 if the row is not null."""
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
        """Return the numbers of all rows in Arrow's encoding, with 0 for null."""
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
        """Return the encoded end offsets of the texts, and the joined texts; null has length 0."""
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
