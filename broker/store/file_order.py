"""Finds dropped files, and gaps between files, by the positions in the heads of the log's files."""

from __future__ import annotations

from mypy_extensions import i64

from broker.store.disk import Disk
from broker.store.files import CHECKPOINT, DATA_START, FileScan, Head, is_closed, seed_of
from broker.store.reading import END


def dropped_files(heads: dict[str, Head], headless: dict[str, Head]) -> list[str]:
    """Return the names of the files that were dropped, because none of their entries was live.

    The head of the segment after the dropped files has the last position before these files.
    `headless` are the files whose own heads are damaged.
    """
    gaps = [(head.previous_last, head.first) for head in heads.values() if head.follows_gap]
    return sorted(
        name
        for name, head in {**heads, **headless}.items()
        if any(start < head.first < end for start, end in gaps)
    )


class FileOrder:
    """The files of a log with intact heads; `sizes` are the sizes of all files in bytes."""

    def __init__(
        self, disk: Disk, directory: str, heads: dict[str, Head], sizes: dict[str, int]
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._heads = heads
        self._sizes = sizes

    def is_closed(self, name: str) -> bool:
        """True if a file ends with a closing record."""
        head = self._heads[name]
        return is_closed(
            self._disk.open(f"{self._directory}/{name}", False),
            self._sizes[name],
            seed_of(head.salt),
        )

    def follow_each_other(self, checkpoints: list[str], segments: list[str]) -> bool:
        """True if the newest checkpoint and the segments are complete, without a gap."""
        last: i64 = 0
        for name in [*checkpoints[-1:], *segments]:
            head = self._heads.get(name)
            if head is None:
                return False
            if head.kind == CHECKPOINT:
                if not self.is_closed(name):
                    return False
                last = head.first
                continue
            if head.previous_last != last:
                return False
            scan = FileScan(
                self._disk.open(f"{self._directory}/{name}", False),
                DATA_START,
                self._sizes[name],
                seed_of(head.salt),
                last,
            )
            while scan.advance():
                pass
            if scan.reader.stop != END and name != segments[-1]:
                return False
            last = scan.reader.last
        return bool(segments)
