"""Texts of errors in the settings.

An error is one line: where the value was given, its key, the problem and the valid values, as in
`broker.toml: amqp.port: must be a whole number 0..65535, got -1`.
"""

import re
from collections.abc import Iterable
from difflib import SequenceMatcher

#: Number of characters of an invalid name or value that an error repeats and `nearest` compares.
SHOWN = 60
#: The credentials in a URL, and all text before them: an error must not repeat a password.
_CREDENTIALS = re.compile(r"://\S*@")


class SettingsError(Exception):
    """Raised if the settings have an error. The text is one line.

    The arguments are the parts of the text: the place (file, environment variable or flag), the key
    and the problem.
    """

    def __init__(self, *parts: str) -> None:
        super().__init__(printable(": ".join(parts)))


def printable(text: str) -> str:
    r"""Escape control characters, line ends and lone surrogates in `text`, as in `\x1b`."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def shown(value: object) -> str:
    """Return an invalid value for an error message: in TOML's notation, shortened.

    The credentials of a URL are left out, as in `"mqtt://...@host"`.
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    if isinstance(value, str):
        value = _CREDENTIALS.sub("://...@", value)
        return '"' + printable(value[:SHOWN]) + ('..."' if len(value) > SHOWN else '"')
    return str(value)[:SHOWN]


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the name in `known` that resembles `name` most. `known` must not be empty."""
    return max(known, key=lambda candidate: SequenceMatcher(None, candidate, name[:SHOWN]).ratio())
