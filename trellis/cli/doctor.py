"""`trellis doctor`: shows how Trellis would import a definitions file of RabbitMQ.

The file is imported into a broker in memory. No broker needs to run, and nothing changes.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from broker.compatibility import DIFFERENT, EQUAL, MISSING
from broker.definitions.rabbitmq import (
    REFUSED,
    SECTIONS,
    Difference,
    faults_of,
    label_of,
    name_of,
    rows_of,
    unknown_sections,
)
from broker.definitions.trial import TrialImport
from broker.errors import QUEUE, BrokerError, NotFound
from trellis.auth.passwords import check_hash
from trellis.cli.actions import print_json
from trellis.cli.parsing import CommandError, Commands, add_command
from trellis.diagnosis.findings import command, in_vhost
from trellis.settings.errors import printable

#: Largest number of object names in a line, unless --all is given.
NAMES_MAX: Final = 5

Row = dict[str, str | int]


class Group:
    """Objects of one section of a definitions file to which the same difference applies.

    `text` describes the difference between RabbitMQ and Trellis after the import. `advice` says
    what to do about the difference; "" if there is no advice. `names` has the names of the objects.
    """

    def __init__(self, kind: str, section: str, text: str, advice: str) -> None:
        self.kind = kind
        self.section = section
        self.text = text
        self.advice = advice
        self.names: list[str] = []

    def lines(self, objects: int) -> Iterator[str]:
        """Yield the lines of the report about this group; `objects` is the number of objects in the
        section.
        """
        shown = ", ".join(self.names[:NAMES_MAX])
        more = len(self.names) - NAMES_MAX
        if more > 0:
            shown += f" and {more} more"
        count = f"{len(self.names)} of {objects}"
        yield f"{self.kind:9}  {self.section} ({count}): {self.text}: {shown}"
        if self.advice:
            yield f"  next: {self.advice}"


class Diagnosis:
    """The findings about the objects of a definitions file.

    An object without findings means the same in Trellis as in RabbitMQ.
    """

    def __init__(self) -> None:
        self.objects: Counter[str] = Counter()
        self.equal: Counter[str] = Counter()
        self.groups: dict[tuple[str, str, str], Group] = {}
        #: A line for each object, in the order of the import.
        self.lines: list[str] = []
        #: A row for each finding, and for each object without a finding.
        self.rows: list[Row] = []
        self.failed = False

    def add(self, section: str, name: str, findings: list[Difference]) -> None:
        """Add one object of a section with its findings."""
        at = self.objects[section]
        label = label_of(section, at, name)
        self.objects[section] += 1
        if not findings:
            self.equal[section] += 1
            self.lines.append(f"{EQUAL:9}  {label}")
            self._add_row(EQUAL, section, at, name)
        for finding in findings:
            kind = MISSING if finding.kind == REFUSED else finding.kind
            text = f"not imported: {finding.text}" if finding.kind == REFUSED else finding.text
            self.failed = self.failed or kind == MISSING
            reason = text.replace(f"'{name}'", "'...'") if name else text
            key = (kind, section, reason)
            declaration, advice = _advice_about(finding.missing)
            if key not in self.groups:
                self.groups[key] = Group(kind, section, reason, advice)
            self.groups[key].names.append(name or label)
            suffix = f"; next: {advice}" if advice else ""
            self.lines.append(f"{kind:9}  {label}: {text}{suffix}")
            self._add_row(kind, section, at, name, text, declaration)

    def _add_row(
        self, kind: str, section: str, index: int, name: str, text: str = "", after: str = ""
    ) -> None:
        """Add a row for an object, or for one of the object's findings, to the JSON output.

        `kind` is the result, such as EQUAL, and `text` describes the finding. `index` is the
        object's position in the section, from 0. `after` is the command to type next; "" if there
        is none.
        """
        row: Row = {"result": kind, "section": section, "index": index}
        if name:
            row["name"] = name
        row["text"] = text
        if after:
            row["next"] = after
        self.rows.append(row)

    def summary(self) -> list[str]:
        """Return a line for each section and each group of objects with the same difference."""
        lines = [
            f"{EQUAL:9}  {section}: {self.equal[section]} of {self.objects[section]}"
            for section in SECTIONS
            if self.equal[section]
        ]
        for kind in (DIFFERENT, MISSING):
            for group in self.groups.values():
                if group.kind == kind:
                    lines += group.lines(self.objects[group.section])
        return lines


def _advice_about(missing: NotFound | None) -> tuple[str, str]:
    """Return a command that declares a missing queue or exchange, and a text with the command.

    Both are "" if no queue and no exchange is missing.
    """
    if missing is None or not missing.kind:
        return "", ""
    vhost = in_vhost(missing.vhost)
    if missing.kind == QUEUE:
        declaration = command("queues", "declare", missing.name, *vhost)
    else:
        declaration = command("exchanges", "declare", missing.name, "--type", "TYPE", *vhost)
    text = f"add or correct {missing.kind} '{missing.name}' in the file, or declare it before the"
    return declaration, f"{text} import: {declaration}"


def add(commands: Commands) -> None:
    """Add the parser of the command `trellis doctor`."""
    parser = add_command(
        commands,
        "doctor",
        doctor,
        "compare RabbitMQ's definitions with the result of their import into Trellis; no broker "
        "needs to run",
        "FILE [--all] [--json]",
        more="The exit code is 1 if a part of an object is missing in Trellis.",
    )
    parser.add_argument(
        "file", metavar="FILE", help="definitions of RabbitMQ 3.8 to 4.x; - is standard input"
    )
    parser.add_argument(
        "--all",
        action="store_true",
        help="print a line for each object, also for objects without findings",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print a JSON list of the findings, with --all also of objects without findings; "
        "`index` is the position of an object in its section, from 0; `next` is a command that "
        "declares the queue or exchange that the object needs",
    )


def doctor(arguments: argparse.Namespace) -> int:
    """Print equal, different and missing objects; the exit code is 1 if something is missing."""
    document = read_document(arguments.file)
    diagnosis = diagnose(document)
    unknown = [*unknown_sections(document), *faults_of(document)]
    if arguments.json:
        rows = [row for row in diagnosis.rows if arguments.all or row["result"] != EQUAL]
        rows += [{"result": MISSING, "text": line} for line in unknown]
        print_json(rows)
        return 1 if diagnosis.failed or unknown else 0
    for line in diagnosis.lines if arguments.all else diagnosis.summary():
        print(printable(line))
    for line in unknown:
        print(printable(f"{MISSING:9}  {line}"))
    print("for further differences (metrics, settings, ...), see docs/moving-from-rabbitmq.md")
    return 1 if diagnosis.failed or unknown else 0


def diagnose(document: object) -> Diagnosis:
    """Import a document into a broker in memory, and return the findings. Raises CommandError."""
    trial, diagnosis = TrialImport(check_hash), Diagnosis()
    try:
        rows = rows_of(document)
    except BrokerError as error:
        raise CommandError(str(error), 2) from None
    for section, row in rows:
        diagnosis.add(section, name_of(section, row), trial.take(section, row))
    return diagnosis


def read_document(path: str) -> Any:
    """Return the decoded JSON of a file. Raises CommandError."""
    try:
        data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
        return msgspec.json.decode(data)
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror}", 2) from None
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise CommandError(
            f"{path} is not JSON ({error}); give a definitions file, as written by `trellis "
            "definitions export` or `rabbitmqctl export_definitions`",
            2,
        ) from None
