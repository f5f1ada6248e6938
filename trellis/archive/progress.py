"""The file of each stream's upload progress: the broker can start without asking the archive.

    s3://bucket/prefix          the URL of the archive
    17 0 250000                 number of a stream, its first offset in the archive, end of uploads

If several lines are about one stream, the last of them applies. `17 -1 -1` means that stream 17 is
deleted. The file may lose its last lines in a crash: then the segments are compared with the
archive again. The worker writes the file.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

#: Name of the file in the archive's directory in the data directory.
NAME: Final = "progress"


def read_progress(directory: Path, url: str) -> dict[int, tuple[int, int]]:
    """Return (first offset in the archive, offset up to which rows are uploaded) by stream number.

    Return an empty dict if the file is not about the archive at `url`.
    """
    entries: dict[int, tuple[int, int]] = {}
    try:
        lines = (directory / NAME).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return entries
    if lines[:1] != [url]:
        return entries
    for text in lines[1:]:
        words = text.split(" ")
        if len(words) == 3 and all(word.removeprefix("-").isdecimal() for word in words):
            number, first, until = map(int, words)
            entries[number] = (first, until)
    return {number: entry for number, entry in entries.items() if entry[1] >= 0}


class ProgressFile:
    """The file of upload progress, to which the worker appends lines. Raises OSError."""

    def __init__(self, directory: Path, url: str) -> None:
        """Open the file of the archive at `url`, and write the file anew without outdated lines."""
        known = read_progress(directory, url)
        path = directory / NAME
        new = path.with_name(f"{NAME}.new")
        lines = [url, *(f"{number} {first} {until}" for number, (first, until) in known.items())]
        new.write_text("\n".join(lines) + "\n", encoding="utf-8")
        new.replace(path)
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)

    def add(self, number: int, first: int, until: int) -> None:
        """Record that the archive has the rows of a stream from offset `first` to `until` - 1."""
        os.write(self._descriptor, f"{number} {first} {until}\n".encode())
