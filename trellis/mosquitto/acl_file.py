"""Mosquitto's acl_file.

    topic [read|write|readwrite|deny] FILTER      before the first `user`: for anonymous clients
    user NAME                                     the `topic` lines that follow are for this user
    pattern [read|write|readwrite|deny] FILTER    for all clients, with %u and %c

Mosquitto examines the entries of the client first, then the patterns; within each
group, `deny` entries come first.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from trellis.mosquitto.access import Entry, entry_of, rules_of, without_sys
from trellis.mosquitto.report import Place, Report

#: Access types: allow, publish, subscribe.
_ACCESS: Final = {
    "read": (True, False, True),
    "write": (True, True, False),
    "readwrite": (True, True, True),
    "deny": (False, True, True),
}


class AclLine(NamedTuple):
    """One line of an acl_file, with the topic filter as Mosquitto writes it."""

    place: Place
    access: str
    topic: str


class Acl:
    """The access control list of an acl_file."""

    def __init__(self) -> None:
        #: Lines of `topic` by user; the key None is for anonymous clients.
        self.users: dict[str | None, list[AclLine]] = {None: []}
        self.patterns: list[AclLine] = []

    @property
    def user_names(self) -> list[str]:
        """The users that have lines of their own."""
        return [name for name in self.users if name is not None]

    def rules(self, user: str | None, report: Report) -> list[str]:
        """Return the topic rules of a user; of anonymous clients if `user` is None."""
        entries = _entries(self.users.get(user, []), user, False, report)
        if user is None or ("+" not in user and "#" not in user):
            entries += _entries(self.patterns, user, True, report)
        elif self.patterns:
            report.differs(
                self.patterns[0].place,
                f"patterns for user '{user}'",
                "the name contains a wildcard, so Mosquitto and Trellis apply no pattern to it",
            )
        return rules_of(entries)


def read_acl(text: str, file: Path, report: Report) -> Acl:
    """Return the access control list in the text of an acl_file. Report lines that are left out."""
    acl = Acl()
    lines = acl.users[None]
    for number, line in enumerate(text.split("\n"), 1):
        line = line.rstrip()
        if not line or line.startswith("#"):
            continue
        place = Place(file, number)
        word, _, rest = line.strip().partition(" ")
        rest = rest.strip()
        if word == "user" and rest:
            lines = acl.users.setdefault(rest, [])
        elif word in ("topic", "pattern") and rest:
            access, _, topic = rest.partition(" ")
            if not topic:
                access, topic = "readwrite", rest
            if access not in _ACCESS:
                report.not_taken(
                    place,
                    line,
                    f"the access must be read, write, readwrite or deny, not '{access}'",
                )
                continue
            (lines if word == "topic" else acl.patterns).append(
                AclLine(place, access, topic.strip())
            )
        else:
            report.not_taken(place, line, "the line must begin with `user`, `topic` or `pattern`")
    for each in acl.patterns:
        _note_pattern(each, report)
    return acl


def _note_pattern(line: AclLine, report: Report) -> None:
    """Report the clients for which Mosquitto and Trellis apply a pattern line differently."""
    text = f"pattern {line.access} {line.topic}"
    if "%c" not in line.topic and line.access != "deny":
        report.differs(
            line.place,
            text,
            "Mosquitto applies no pattern to a client identifier with + or #; Trellis does",
        )
    for variable in ("%c", "%u"):
        if any(variable in word and word != variable for word in line.topic.split("/")):
            report.differs(
                line.place,
                text,
                f"Trellis replaces {variable} also in a part of a level, as Mosquitto 2.0 does; "
                "Mosquitto 2.1 does not",
            )


def _entries(
    lines: list[AclLine], user: str | None, variables: bool, report: Report
) -> list[Entry]:
    """Return the access entries of the lines; entries that deny come first."""
    entries: list[Entry] = []
    for line in sorted(lines, key=_is_allowed):
        allow, publish, subscribe = _ACCESS[line.access]
        entry, exact = entry_of(allow, publish, subscribe, line.topic, user, variables)
        if entry is not None:
            entries += without_sys(entry)
        if not exact:
            note = report.differs if entry is not None else report.not_taken
            how = (
                "the rule denies more topics"
                if entry is not None
                else "these topics are not allowed"
            )
            note(
                line.place,
                f"{line.access} {line.topic}",
                f"a topic rule cannot express the filter, so {how}; write a rule by hand",
            )
    return entries


def _is_allowed(line: AclLine) -> bool:
    return line.access != "deny"
