"""What clients of both protocols share."""

from __future__ import annotations

from typing import Final

#: Seconds that anything may take.
PATIENCE: Final = 20.0


class LoginRefused(Exception):
    """The library says, in its own words, that the name or the password is wrong."""
