"""The lines of Mosquitto's files that were not imported, or whose effect differs."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

#: Kinds of notes. NOT_TAKEN: the line has no effect in Trellis. DIFFERS: it has another effect.
#: NOT_NEEDED: Trellis does not need the line.
NOT_TAKEN: Final = "not taken"
DIFFERS: Final = "differs"
NOT_NEEDED: Final = "not needed"


class Place(NamedTuple):
    """The place of a note: a file and the number of a line; 0 if the note is about the file."""

    file: Path
    number: int

    def __str__(self) -> str:
        return f"{self.file}:{self.number}" if self.number else str(self.file)


class Note(NamedTuple):
    """A note about one line: the line's place and text, and why its effect differs in Trellis."""

    kind: str
    place: Place
    text: str
    reason: str

    def __str__(self) -> str:
        return f"{self.place}: {self.kind}: {self.text}: {self.reason}"

    def row(self) -> dict[str, object]:
        """Return the note as a JSON object; `line` is 0 if the note is about the whole file."""
        return {
            "file": str(self.place.file),
            "line": self.place.number,
            "kind": self.kind,
            "text": self.text,
            "reason": self.reason,
        }


class Report:
    """The notes of one import, in the order in which the lines were read."""

    def __init__(self) -> None:
        self.notes: list[Note] = []

    def not_taken(self, place: Place, text: str, reason: str) -> None:
        """Record that a line has no effect in Trellis, with the reason and a remedy."""
        self._add(Note(NOT_TAKEN, place, text, reason))

    def differs(self, place: Place, text: str, reason: str) -> None:
        """Record that a line was imported, and that its effect differs."""
        self._add(Note(DIFFERS, place, text, reason))

    def not_needed(self, place: Place, text: str, reason: str) -> None:
        """Record that Trellis does not need a line."""
        self._add(Note(NOT_NEEDED, place, text, reason))

    def _add(self, note: Note) -> None:
        """Add a note, unless the report has an equal note."""
        if note not in self.notes:
            self.notes.append(note)

    def count(self, kind: str) -> int:
        """Return the number of notes of a kind (NOT_TAKEN, DIFFERS or NOT_NEEDED)."""
        return sum(note.kind == kind for note in self.notes)
