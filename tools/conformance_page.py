"""Prints docs/mqtt-conformance.md: all normative statements, with the tests that name them.

    python tools/conformance_page.py > docs/mqtt-conformance.md

A test names a statement in a comment or docstring between its first line and its first assertion:
`# [MQTT-3.3.5-1]`. A range such as `[MQTT-3.1.2-23..29]` names several statements.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent

Statement = tuple[tuple[int, ...], int]


class Version(NamedTuple):
    """A specification: the folders of its tests, and its statements as numbered in appendix B.

    `untested` maps the statements that need no test to the reason.
    """

    folders: tuple[str, ...]
    statements: str
    untested: dict[str, str]


CLIENT = "a rule for clients, not for brokers"
TRANSPORTS = "all tests with clients use an ordered transport: TCP, TLS, WebSocket or Unix sockets"
VERSIONS = {
    "MQTT 5": Version(
        ("tests/wire/mqtt5", "tests/top"),
        "1.5.4-1..3 1.5.5-1 1.5.7-1 2.1.3-1 2.2.1-2..6 2.2.2-1 3.1.0-1..2 3.1.2-1..30 "
        "3.1.3-1..12 3.1.4-1..6 3.2.0-1..2 3.2.2-1..22 3.3.1-1..13 3.3.2-1..20 3.3.4-1..10 "
        "3.4.2-1..3 3.5.2-1..3 3.6.1-1 3.6.2-1..3 3.7.2-1..3 3.8.1-1 3.8.3-1..5 3.8.4-1..8 "
        "3.9.2-1..2 3.9.3-1..2 3.10.1-1 3.10.3-1..2 3.10.4-1..6 3.11.2-1..2 3.11.3-1..2 "
        "3.12.4-1 3.14.0-1 3.14.1-1 3.14.2-1..4 3.14.4-1..3 3.15.1-1 3.15.2-1..3 4.1.0-1..2 "
        "4.2.0-1 4.3.1-1 4.3.2-1..5 4.3.3-1..13 4.4.0-1..2 4.5.0-1..2 4.6.0-1..6 4.7.0-1 "
        "4.7.1-1..2 4.7.2-1 4.7.3-1..4 4.8.2-1..6 4.9.0-1..3 4.12.0-1..7 4.12.1-1..2 4.13.1-1 "
        "4.13.2-1 6.0.0-1..4",
        {
            "3.1.2-20 3.2.2-4 3.2.2-5 3.2.2-11 3.2.2-14 3.2.2-17 3.2.2-18 3.3.4-8 4.5.0-2 "
            "4.6.0-2..4 6.0.0-3": CLIENT,
            "3.2.2-9 3.2.2-10 3.2.2-12": "the broker supports every QoS",
            "3.2.2-13": "the broker supports retained messages",
            "4.2.0-1": TRANSPORTS,
        },
    ),
    "MQTT 3.1.1": Version(
        ("tests/wire/mqtt", "tests/top"),
        "1.5.3-1..3 2.2.2-1..2 2.3.1-1..7 3.1.0-1..2 3.1.2-1..24 3.1.3-1..11 3.1.4-1..5 "
        "3.2.0-1 3.2.2-1..6 3.3.1-1..12 3.3.2-1..3 3.3.4-1 3.3.5-1..2 3.6.1-1 3.8.1-1 "
        "3.8.3-1..4 3.8.4-1..6 3.9.3-1..2 3.10.1-1 3.10.3-1..2 3.10.4-1..6 3.12.4-1 3.14.1-1 "
        "3.14.4-1..3 4.1.0-1..2 4.3.1-1 4.3.2-1..2 4.3.3-1..2 4.4.0-1 4.5.0-1..2 4.6.0-1..6 "
        "4.7.1-1..3 4.7.2-1 4.7.3-1..4 4.8.0-1..2 6.0.0-1..4 7.0.0-1..2 7.1.1-1 7.1.2-1",
        {
            "3.1.2-23 3.1.3-7 3.14.4-1 4.5.0-2 6.0.0-3 7.1.2-1": CLIENT,
            "3.2.2-6": "each refusal has a fitting return code, or needs none",
            "4.8.0-2": "a test cannot cause a transient error with packets",
            "7.0.0-1": "only bridges connect to other brokers, through the library paho-mqtt",
            "7.0.0-2": "the clients in the tests use no extension",
            "7.1.1-1": TRANSPORTS,
        },
    ),
}

HEAD = """# MQTT conformance

This page is for readers who want to know if Trellis follows a rule of MQTT, and for developers who
change the behaviour of the MQTT front end. Appendix B of each OASIS specification numbers the
statements of the specification. After this page you can find the test of every statement, or the
reason why a statement has no test.

The tests send bytes to the broker, and check the bytes that the broker sends back. The tests of
MQTT 5 encode and decode packets with the Python package mqtt5, not with the broker's codec.

- The scenarios of Eclipse's interoperability suite are tests too
  ([test_eclipse.py](../tests/wire/mqtt5/test_eclipse.py)), with the settings of
  [conformance.toml](../config/conformance.toml).
- [tests/interop](../tests/interop) tests the broker with other clients: paho (Python and Go, 3.1.1
  and 5), aiomqtt, gmqtt, amqtt's client, MQTT.js, Mosquitto's tools, HiveMQ's client (Java) and
  rumqttc (Rust). [tests/conformance](../tests/conformance) runs Node-RED's MQTT nodes
  (3.1.1 and 5) and Telegraf's MQTT plugins.

If a specification permits several behaviours, or MQTT 3.1 has no rule, the broker behaves like
Mosquitto, apart from the exception in the last item:

- A client of MQTT 3.1 may set the reserved bit of its connect flags, and any flags in a fixed
  header. In the CONNACK to such a client, the first byte of the variable header is 0.
- A bridge connects with the protocol level 0x83 (MQTT 3.1) or 0x84 (MQTT 3.1.1). The subscriptions
  of such a connection have No Local and Retain As Published. A bridge of MQTT 5 asks for these two
  options itself, so the level 0x85 is refused.
- If the CONNACK is larger than the Maximum Packet Size of the client, the broker closes the
  connection without an answer.
- A topic with more than `mqtt.max_levels` levels is refused, but the connection stays open.
  (Mosquitto closes the connection.) The log names the first 10 refused topics of a connection, and
  `trellis_mqtt_topics_refused_total` counts all refused topics.

`tools/conformance_page.py` generates this page from the tests, and a test checks that it is up to
date.
"""

_TEST = re.compile(r"^(?:    )?(?:async )?def (test_\w+)", re.MULTILINE)
_NUMBER = r"(\d+\.\d+\.\d+(?:\.\d+)?)-(\d+)(?:\.\.(\d+))?"
_STATEMENT = re.compile(rf"\[MQTT-{_NUMBER}\]")


def statements(text: str, form: re.Pattern[str] = _STATEMENT) -> list[Statement]:
    """Return the statements named in a text, as sections and numbers."""
    pairs = []
    for section, first, last in form.findall(text):
        key = tuple(int(part) for part in section.split("."))
        pairs += [(key, number) for number in range(int(first), int(last or first) + 1)]
    return pairs


def listed(numbers: str) -> list[Statement]:
    """Return the statements in a text such as `3.1.2-23..29 3.1.3-1` (`Version.statements`)."""
    return statements(numbers, re.compile(_NUMBER))


def tests(folder: Path) -> list[tuple[Path, str, str]]:
    """Return file, name and text of every test in a folder; the text includes the decorators."""
    cases = []
    for file in sorted(folder.glob("test_*.py")):
        text = file.read_text()
        starts = list(_TEST.finditer(text))
        for at, start in enumerate(starts):
            before = text.rfind("\n\n", 0, start.start())
            end = starts[at + 1].start() if at + 1 < len(starts) else len(text)
            following = text.rfind("\n\n\n", start.start(), end)
            cases.append((file, start[1], text[before : end if following < 0 else following]))
    return cases


def table(version: Version) -> str:
    """Return the table of a specification.

    Raises SystemExit if a statement has neither a test nor a reason, or a test names a statement
    that does not exist.
    """
    rows: dict[Statement, dict[str, None]] = {}
    for folder in version.folders:
        for file, name, text in tests(ROOT / folder):
            label = f"[{name.removeprefix('test_').replace('_', ' ')}](../{file.relative_to(ROOT)})"
            for statement in statements(text):
                rows.setdefault(statement, {})[label] = None
    known = listed(version.statements)
    reasons = {
        statement: reason
        for numbers, reason in version.untested.items()
        for statement in listed(numbers)
    }
    wrong = [
        f"a test names {statement_name(one)}, which the specification lacks: correct its number"
        for one in rows
        if one not in known
    ]
    wrong += [
        f"{statement_name(one)} has no test: add a test, or the reason for its absence"
        for one in known
        if one not in rows and one not in reasons
    ]
    if wrong:
        raise SystemExit("\n".join(wrong))
    binding = sum(one in rows for one in known)
    clients = sum(reasons.get(one) == CLIENT and one not in rows for one in known)
    count = (
        f"The specification has {len(known)} statements: {binding} have tests, and {clients} are "
        "rules for clients only. For each other statement, the table has the reason why the "
        "statement has no test."
    )
    lines = [count, "", "| statement | tests |", "|---|---|"]
    for statement in sorted(known):
        text = "; ".join(rows[statement]) if statement in rows else f"no test: {reasons[statement]}"
        lines.append(f"| {statement_name(statement)} | {text} |")
    return "\n".join(lines) + "\n"


def statement_name(statement: Statement) -> str:
    """Return the name of a statement, such as `MQTT-3.3.5-1`."""
    return f"MQTT-{'.'.join(map(str, statement[0]))}-{statement[1]}"


def document() -> str:
    """Return the text of docs/mqtt-conformance.md."""
    return HEAD + "".join(f"\n## {name}\n\n{table(version)}" for name, version in VERSIONS.items())


if __name__ == "__main__":
    print(document(), end="")
