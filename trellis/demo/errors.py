"""The error of `trellis cluster demo`."""

from __future__ import annotations


class DemoError(Exception):
    """Raised if the demonstration cannot begin or continue. The text is one line for the user."""
