"""Whether SQLite's write-ahead log is whole. SQLite itself reads it as far as it can, and passes
over the rest in silence.

    head     magic, version, page size, checkpoint, salt, salt, sum, sum                  8 x u32
    frame    page number, size of the database after it if it ends a transaction, else 0,
             salt, salt, sum, sum                                                         6 x u32, then a page

(https://sqlite.org/fileformat2.html, section 4.) A sum goes on from that of the frame before.
Frames of an earlier round, with other salts, may stand at the end. Each transaction is synced
before the next begins: so what cannot be read is damage, if a transaction follows it; and else
perhaps the torn end of the last one, which nobody was promised.
"""

from __future__ import annotations

from typing import Final

from librt.strings import read_i32_be
from mypy_extensions import i64

from broker.store.disk import Disk

_HEAD: Final[i64] = 32
_FRAME: Final[i64] = 24
_MAGIC: Final[i64] = 0x377F0682
_VERSION: Final[i64] = 3_007_000
_PAGES: Final = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
_U32: Final[i64] = 0xFFFFFFFF


class Sum:
    """SQLite's checksum."""

    def __init__(self, little: bool) -> None:
        self._little = little
        self.one: i64 = 0
        self.two: i64 = 0

    def add(self, octets: bytes) -> None:
        """Octets whose count is a multiple of eight.

        Hot path: 1,000 pages are some tenths of a second where it is interpreted.
        """
        one: i64 = self.one
        two: i64 = self.two
        little = self._little
        at: i64 = 0
        end: i64 = len(octets)
        while at < end:
            if little:
                first: i64 = (
                    octets[at] | octets[at + 1] << 8 | octets[at + 2] << 16 | octets[at + 3] << 24
                )
                second: i64 = (
                    octets[at + 4]
                    | octets[at + 5] << 8
                    | octets[at + 6] << 16
                    | octets[at + 7] << 24
                )
            else:
                first = i64(read_i32_be(octets, at)) & _U32
                second = i64(read_i32_be(octets, at + 4)) & _U32
            one = (one + first + two) & _U32
            two = (two + second + one) & _U32
            at += 8
        self.one, self.two = one, two

    def is_in(self, octets: bytes, at: i64) -> bool:
        """Whether it stands there."""
        return (
            self.one == i64(read_i32_be(octets, at)) & _U32
            and self.two == i64(read_i32_be(octets, at + 4)) & _U32
        )


class Wal:
    """What a look at the file found. Raises OSError."""

    def __init__(self, disk: Disk, path: str) -> None:
        #: What is damaged; empty: nothing.
        self.damage = ""
        #: Where the last transaction begins to be unreadable, and how much follows; no octets: it
        #: is whole.
        self.torn_at: i64 = 0
        self.torn: i64 = 0
        try:
            self._file = disk.open(path, False)
        except FileNotFoundError:
            return
        self._size: i64 = self._file.size()
        if self._size > _HEAD:  # Else there never was a frame in it.
            self._look()

    def _look(self) -> None:
        file, size = self._file, self._size
        head = file.read(0, _HEAD)
        magic: i64 = i64(read_i32_be(head, 0)) & _U32
        page: i64 = i64(read_i32_be(head, 8)) & _U32
        sums = Sum(magic & 1 == 0)
        sums.add(head[:24])
        if (
            magic & ~1 != _MAGIC
            or read_i32_be(head, 4) != _VERSION
            or page not in _PAGES
            or not sums.is_in(head, 24)
        ):
            self.damage = "its head"
            return
        salts = head[16:24]
        at: i64 = _HEAD
        while at + _FRAME + page <= size:
            frame = file.read(at, _FRAME + page)
            sums.add(frame[:8])
            sums.add(frame[_FRAME:])
            if frame[8:16] != salts or not sums.is_in(frame, 16):
                break
            at += _FRAME + page
        self._look_behind(at, page, salts)

    def _look_behind(self, bad: i64, page: i64, salts: bytes) -> None:
        """Frames of this round behind one that cannot be read, or that one itself."""
        at: i64 = bad
        ended = False
        while at + _FRAME <= self._size:
            frame = self._file.read(at, _FRAME)
            at += _FRAME + page
            if frame[8:12] == salts[:4] or frame[12:16] == salts[4:]:
                if ended:
                    self.damage = f"at {bad}"
                    return
                ended = read_i32_be(frame, 4) != 0
                self.torn_at, self.torn = bad, min(at, self._size) - bad
