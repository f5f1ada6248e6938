"""Prints docs/moving-from-mosquitto.md with the tables of options that the import uses.

python tools/mosquitto_page.py > page.md && mv page.md docs/moving-from-mosquitto.md

The text above the marker (MARKER) is copied from the present page.
"""

from __future__ import annotations

from pathlib import Path

from trellis.mosquitto.options import GROUPS, OPTIONS

PAGE = Path(__file__).resolve().parent.parent / "docs" / "moving-from-mosquitto.md"
MARKER = "<!-- tools/mosquitto_page.py generates the tables below. -->\n"
TAIL = """
`trellis import mosquitto` uses these tables of options. A test checks that this page is up to date.
"""


def main() -> None:
    """Print the text of docs/moving-from-mosquitto.md."""
    head, marker, _ = PAGE.read_text().partition(MARKER)
    print(head + marker, end="")
    for group, title in GROUPS.items():
        print(f"\n### {title}\n\n| option | | in Trellis | note |\n|---|---|---|---|")
        for option in OPTIONS.values():
            if option.group == group:
                trellis = "" if option.trellis == "-" else option.trellis
                print(f"| `{option.name}` | {option.verdict} | {trellis} | {option.note} |")
    print(TAIL, end="")


if __name__ == "__main__":
    main()
