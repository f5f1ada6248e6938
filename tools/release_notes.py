"""Print the part of CHANGELOG.md that describes one version: `release_notes.py 1.2.3`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def notes(changelog: str, version: str) -> str:
    """Return the text below the heading `## VERSION`, up to the next such heading.

    Raises ValueError if there is no such heading, or no text below it.
    """
    parts = re.split(r"^## +(\S+)[^\n]*\n", changelog, flags=re.MULTILINE)
    text = dict(zip(parts[1::2], parts[2::2], strict=True)).get(version, "").strip()
    if not text:
        raise ValueError(f"CHANGELOG.md has no text below a heading '## {version}'")
    return text + "\n"


if __name__ == "__main__":
    try:
        sys.stdout.write(notes((ROOT / "CHANGELOG.md").read_text(), *sys.argv[1:]))
    except (TypeError, ValueError) as error:
        sys.exit(f"release_notes.py: {error}; usage: release_notes.py VERSION")
