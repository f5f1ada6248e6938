"""Which port of the broker a command needs, for errors about a port that gives another answer."""

from __future__ import annotations

from typing import Final

from trellis.settings.options import OPTIONS

#: Text about the requests that the listener of each section of the settings answers.
_SERVES: Final = {"http": "the HTTP API is", "metrics": "health checks are"}


def port_hint(section: str) -> str:
    """Return which port of the broker serves the requests to the listener of a section.

    `section` is `http` or `metrics`.
    """
    key = f"{section}.port"
    return (
        f"{_SERVES[section]} on the {section} port ({key}, by default {OPTIONS[key].default}); "
        "give its URL with --url"
    )
