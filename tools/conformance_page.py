"""Prints docs/mqtt-conformance.md: which normative statements have a test, from the tests themselves.

    python tools/conformance_page.py > docs/mqtt-conformance.md

A test names a statement in a comment or docstring between its first line and its first assertion: `# [MQTT-3.3.5-1]`;
`[MQTT-3.1.2-23..29]` are seven.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: Version -> where its tests are.
TESTS = {"MQTT 5": "tests/wire/mqtt5", "MQTT 3.1.1": "tests/wire/mqtt"}

HEAD = """# MQTT conformance

Statements of the OASIS specifications by their numbers, and the tests that hold the broker to them: octets in, octets out. The
tests of 5 are written with another codec (the package mqtt5). This page is made by `tools/conformance_page.py` from the tests;
a test holds it equal to them.

The scenarios of Eclipse's interoperability suite are tests too ([test_eclipse.py](../tests/wire/mqtt5/test_eclipse.py)), with
the settings of [conformance.toml](../config/conformance.toml).
"""

_TEST = re.compile(r"^(?:    )?def (test_\w+)", re.MULTILINE)
_STATEMENT = re.compile(r"\[MQTT-(\d+\.\d+\.\d+(?:\.\d+)?)-(\d+)(?:\.\.(\d+))?\]")


def statements(text: str) -> list[tuple[tuple[int, ...], int]]:
    """Sections and numbers."""
    found = []
    for section, first, last in _STATEMENT.findall(text):
        key = tuple(int(part) for part in section.split("."))
        found += [(key, number) for number in range(int(first), int(last or first) + 1)]
    return found


def tests(folder: Path) -> list[tuple[Path, str, str]]:
    """File, name and text of every test, with the decorators before it."""
    found = []
    for file in sorted(folder.glob("test_*.py")):
        text = file.read_text()
        starts = list(_TEST.finditer(text))
        for at, start in enumerate(starts):
            before = text.rfind("\n\n", 0, start.start())
            end = starts[at + 1].start() if at + 1 < len(starts) else len(text)
            following = text.rfind("\n\n\n", start.start(), end)
            found.append((file, start[1], text[before:end if following < 0 else following]))
    return found


def table(folder: str) -> str:
    rows: dict[tuple[tuple[int, ...], int], dict[str, None]] = {}
    for file, name, text in tests(ROOT / folder):
        label = f"[{name.removeprefix('test_').replace('_', ' ')}](../{file.relative_to(ROOT)})"
        for statement in statements(text):
            rows.setdefault(statement, {})[label] = None
    lines = ["| statement | tests |", "|---|---|"]
    for (section, number), labels in sorted(rows.items()):
        lines.append(f"| MQTT-{'.'.join(map(str, section))}-{number} | {'; '.join(labels)} |")
    return f"{len(rows)} statements have a test that names them.\n\n" + "\n".join(lines) + "\n"


def document() -> str:
    """The whole page."""
    return HEAD + "".join(f"\n## {version}\n\n{table(folder)}" for version, folder in TESTS.items())


if __name__ == "__main__":
    print(document(), end="")
