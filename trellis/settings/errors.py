"""How wrong configuration is told: one line saying where, which key, what is wrong and what would
be right.
"""

from collections.abc import Iterable
from difflib import SequenceMatcher

SHOWN = 60  # characters of a wrong name or value that are looked at and repeated


class SettingsError(Exception):
    """Wrong configuration, in one line: where (file, environment variable or flag), key, problem."""

    def __init__(self, *parts: str) -> None:
        super().__init__(printable(": ".join(parts)))


def printable(text: str) -> str:
    r"""`text` with control characters, line ends and lone surrogates written as escapes such as
    `\x1b`.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def shown(value: object) -> str:
    """A wrong value for an error message, in TOML's words and short."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, str):
        return '"' + printable(value[:SHOWN]) + ('..."' if len(value) > SHOWN else '"')
    return str(value)[:SHOWN]


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name most like `name`; there always is one."""
    return max(known, key=lambda candidate: SequenceMatcher(None, candidate, name[:SHOWN]).ratio())
