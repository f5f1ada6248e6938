"""Hints for commands that asked a wrong port of the broker: the port that the command needs."""

from __future__ import annotations

from typing import Final

from trellis.settings.options import OPTIONS

#: The service of a listener, as the beginning of a sentence, by the listener's section of settings.
_SERVES: Final = {"http": "the HTTP API is", "metrics": "health checks are"}


def port_hint(section: str) -> str:
    """Return a hint that names the port of a listener, and what the listener serves.

    `section` is the listener's section of the settings: `http` or `metrics`.
    """
    key = f"{section}.port"
    return (
        f"{_SERVES[section]} on the {section} port ({key}, by default {OPTIONS[key].default}); "
        "give its URL with --url"
    )
