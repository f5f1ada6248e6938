"""The files of the repository, and the violations that the checks report about them."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path

#: Names of files that this project does not write: version control, and files of package managers.
FOREIGN = (".git", "*.lock", "*.sum", "package-lock.json")


@dataclass(frozen=True, order=True)
class Violation:
    """One violation of one rule: its place, and the text that explains it.

    Lines and columns count from 1.
    """

    path: str
    line: int
    column: int
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.text}"


@dataclass(frozen=True)
class TextFile:
    """One text file. `path` is relative to the repository's root, with forward slashes."""

    path: str
    text: str

    @cached_property
    def lines(self) -> list[str]:
        """The lines of the file, without their line ends."""
        return self.text.split("\n")

    @cached_property
    def _starts(self) -> list[int]:
        starts = [0]
        for line in self.lines:
            starts.append(starts[-1] + len(line) + 1)
        return starts

    @property
    def is_python(self) -> bool:
        """True if the file holds Python."""
        return self.path.endswith(".py")

    @property
    def is_test(self) -> bool:
        """True if the file belongs to the tests."""
        return "tests" in self.path.split("/")[:-1]

    def position(self, offset: int) -> tuple[int, int]:
        """Return the line and the column of a character of the text, both counted from 1."""
        line = bisect_right(self._starts, offset)
        return line, offset - self._starts[line - 1] + 1

    def offset(self, line: int, column: int) -> int:
        """Convert a line and a column, both counted from 1, to an offset in the file's text."""
        return self._starts[line - 1] + column - 1

    def violation(self, offset: int, rule: str, text: str) -> Violation:
        """Return a violation at a character of the text."""
        return Violation(self.path, *self.position(offset), rule, text)


def read_text_files(root: Path) -> list[TextFile]:
    """Return all text files below `root`, sorted by path, except files that a .gitignore names."""
    files = []
    for path in _paths(root, FOREIGN):
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # The file is binary.
        files.append(TextFile(path.relative_to(root).as_posix(), text))
    return sorted(files, key=lambda file: file.path)


def _paths(directory: Path, ignored: tuple[str, ...]) -> Iterator[Path]:
    """Yield the files of a directory tree that no .gitignore excludes.

    A .gitignore applies to its directory and the directories below.
    """
    ignore_file = directory / ".gitignore"
    if ignore_file.is_file():
        lines = ignore_file.read_text(encoding="utf-8").splitlines()
        ignored += tuple(line.strip("/") for line in lines if line and not line.startswith("#"))
    for entry in sorted(os.scandir(directory), key=lambda entry: entry.name):
        if any(_matches(entry.name, entry.path, pattern) for pattern in ignored):
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _paths(Path(entry.path), ignored)
        elif entry.is_file():
            yield Path(entry.path)


def _matches(name: str, path: str, pattern: str) -> bool:
    return fnmatch(path, f"*/{pattern}") if "/" in pattern else fnmatch(name, pattern)
