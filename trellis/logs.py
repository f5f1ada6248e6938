"""The log: one line for each event, with key=value fields, without message bodies and passwords.

The last EVENTS_MAX events are also kept in memory, for `trellis list log` and the web page.
"""

from __future__ import annotations

import logging
import sys
from collections import deque
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

#: Number of events that are kept in memory, and largest number of characters of each.
EVENTS_MAX: Final = 1_000
EVENT_CHARACTERS_MAX: Final = 1_000

_log = logging.getLogger("trellis")


class LogEvent:
    """An event of the log: its time in seconds since 1970, its level, and its text.

    `text` is the name of the event with its fields, as in the log line, at most
    EVENT_CHARACTERS_MAX characters.
    """

    __slots__ = ("at", "level", "text")

    def __init__(self, at: float, level: str, text: str) -> None:
        self.at = at
        self.level = level
        self.text = text


#: The last events of this process, the oldest first.
recent: deque[LogEvent] = deque(maxlen=EVENTS_MAX)


class RecentEvents(logging.Handler):
    """Keeps the last events in `recent`, except events that hold a secret."""

    def emit(self, record: logging.LogRecord) -> None:
        """Store the event of a log record in `recent`."""
        if getattr(record, SECRET, False):
            return
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text += f" {quote(repr(record.exc_info[1]))}"
        recent.append(
            LogEvent(record.created, record.levelname.lower(), text[:EVENT_CHARACTERS_MAX])
        )


#: Attribute of the records that are written to the log only, because they hold a secret.
SECRET: Final = "trellis_secret"


class LogLine(logging.Formatter):
    """Format of a log line: ``2026-01-31T12:00:00.123Z info ready amqp=127.0.0.1:5672``."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the log line of a record."""
        when = (
            datetime.fromtimestamp(record.created, UTC)
            .isoformat(timespec="milliseconds")
            .replace("+00:00", "Z")
        )
        line = f"{when} {record.levelname.lower()} {record.getMessage()}"
        if record.exc_info:
            line += " " + quote(self.formatException(record.exc_info))
        return line


def set_up(level: str, without: str = "") -> None:
    """Write log lines of a level and above (debug, info, warning or error) to stderr.

    Events whose name is `without` are not written.
    """
    handler = logging.StreamHandler(sys.stderr)
    if without:
        handler.addFilter(lambda record: not record.getMessage().startswith(f"{without} "))
    handler.setFormatter(LogLine())
    logging.basicConfig(level=level.upper(), handlers=[handler, RecentEvents()], force=True)
    logging.getLogger("asyncio").setLevel(logging.WARNING)


def set_level(level: str) -> None:
    """Set the lowest level of the log lines that are written."""
    logging.getLogger().setLevel(level.upper())


def log(level: int, event: str, **fields: object) -> None:
    """Write a log line; `level` is a level of module logging, such as logging.INFO."""
    if _log.isEnabledFor(level):
        _log.log(level, "%s", _event_text(event, fields))


def secret(event: str, **fields: object) -> None:
    """Write an event at level warning that is not kept in memory, because it holds a secret."""
    _log.warning("%s", _event_text(event, fields), extra={SECRET: True})


def _event_text(event: str, fields: Mapping[str, object]) -> str:
    return " ".join([event, *(f"{name}={quote(str(value))}" for name, value in fields.items())])


def debug(event: str, **fields: object) -> None:
    """Write an event at level debug."""
    log(logging.DEBUG, event, **fields)


def info(event: str, **fields: object) -> None:
    """Write an event at level info."""
    log(logging.INFO, event, **fields)


def warning(event: str, **fields: object) -> None:
    """Write an event at level warning."""
    log(logging.WARNING, event, **fields)


def error(event: str, **fields: object) -> None:
    """Write an event at level error."""
    log(logging.ERROR, event, **fields)


def quote(value: str) -> str:
    """Return the value of a field for a log line, quoted and escaped if necessary."""
    if value and all(" " < character <= "~" and character not in '"\\=' for character in value):
        return value
    escaped = value.encode("unicode_escape").decode().replace('"', '\\"')
    return f'"{escaped}"'
