"""The log: one line for each event, with key=value fields, without message bodies and passwords."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime

_log = logging.getLogger("trellis")


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


def set_up(level: str) -> None:
    """Write log lines of a level and above (debug, info, warning or error) to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LogLine())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("asyncio").setLevel(logging.WARNING)


def set_level(level: str) -> None:
    """Set the lowest level of the log lines that are written."""
    logging.getLogger().setLevel(level.upper())


def log(level: int, event: str, **fields: object) -> None:
    """Write a log line; `level` is a level of module logging, such as logging.INFO."""
    if _log.isEnabledFor(level):
        _log.log(
            level,
            "%s",
            " ".join([event, *(f"{name}={quote(str(value))}" for name, value in fields.items())]),
        )


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
