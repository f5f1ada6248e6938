"""`trellis definitions`: import and export of exchanges, queues, bindings, users and policies.

The files are JSON in RabbitMQ's format.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

import msgspec

from trellis.cli.actions import print_json
from trellis.cli.api_client import ApiClient, add_login
from trellis.cli.confirming import add_yes, confirm_losses
from trellis.cli.consequences import SHOWN
from trellis.cli.parsing import CommandError, Commands, add_command
from trellis.cli.readable import count_text
from trellis.settings.errors import printable

#: Seconds within which the broker must answer an import. The broker imports thousands of objects in
#: slices, so that it also serves its clients, and answers after the last slice.
_IMPORT_SECONDS: Final = 600.0


class ReportedChange(msgspec.Struct):
    """An existing object that an import would change; `text` says how.

    `section` is the object's section of the document. `name` is the name of the object, or of the
    user to which the object belongs, such as a permission.
    """

    section: str
    name: str
    text: str


class ImportResult(msgspec.Struct):
    """The broker's answer to an import.

    `taken` counts the imported objects by kind, and `refused` has a line for each refused object.
    `notes` has a line for each part of an imported object that Trellis lacks or handles in another
    way than RabbitMQ. In the answer to a dry run, `changes` has existing objects that the import
    would change, and `more_changes` counts such objects that `changes` leaves out.
    """

    taken: dict[str, int]
    refused: list[str]
    notes: list[str] = []
    changes: list[ReportedChange] = []
    more_changes: int = 0


def add(commands: Commands) -> None:
    """Add the parser of the command `trellis definitions`."""
    usage = (
        "import FILE [--dry-run] [--yes] [--json] | export [FILE] [--url URL] "
        "[--user NAME --password WORD]"
    )
    command = add_command(
        commands,
        "definitions",
        definitions,
        "import or export definitions in RabbitMQ's JSON format",
        usage,
        more="If an import changes existing objects, the command lists these objects, and asks "
        "for a confirmation.",
    )
    command.add_argument(
        "action", metavar="ACTION", choices=("import", "export"), help="import or export"
    )
    command.add_argument(
        "file",
        metavar="FILE",
        nargs="?",
        default="-",
        help="file to read or write; - is standard input or output [-]",
    )
    command.add_argument(
        "--dry-run",
        action="store_true",
        help="change nothing: report the objects that an import would accept and refuse",
    )
    command.add_argument(
        "--json", action="store_true", help="print the report of an import as a JSON object"
    )
    add_yes(command)
    add_login(command)


def definitions(arguments: argparse.Namespace) -> int:
    """Import or export definitions; the exit code of an import is 1 if an object was refused.

    If an import changes existing objects, ask for a confirmation first.
    """
    client = ApiClient(arguments)
    if arguments.action == "export":
        answer = client.request("GET", "definitions")
        client.decode(answer, dict[str, object], "JSON", "definitions")
        _write(arguments.file, msgspec.json.format(answer, indent=2))
        return 0
    data = _read(arguments.file)
    if not arguments.dry_run:
        confirm_losses(arguments, lambda: change_lines(request_import(client, data, dry_run=True)))
    result = request_import(client, data, arguments.dry_run)
    if arguments.json:
        print_json(report_row(result, data, arguments.dry_run))
        return 1 if result.refused else 0
    return print_report(result, data, arguments.dry_run)


def request_import(client: ApiClient, data: bytes, dry_run: bool) -> ImportResult:
    """Ask the broker to import a definitions document; return the broker's report.

    If `dry_run` is True, the broker reports the result of an import and changes nothing. Raises
    CommandError.
    """
    answer = client.request(
        "POST",
        "definitions",
        query={"dry_run": "true"} if dry_run else None,
        body=data,
        timeout=_IMPORT_SECONDS,
    )
    result: ImportResult = client.decode(answer, ImportResult, "result of an import", "definitions")
    return result


def change_lines(report: ImportResult) -> list[str]:
    """Return the lines about the existing objects that an import will change.

    `report` is the report of a dry run."""
    changes = len(report.changes) + report.more_changes
    if not changes:
        return []
    lines = [f"the import will change {count_text(changes, 'existing object')}:"]
    lines += [f"  {change.text}" for change in report.changes[:SHOWN]]
    if changes > SHOWN:
        lines.append(f"further objects that will change: {changes - SHOWN:,}")
    return lines


def report_row(result: ImportResult, data: bytes, dry_run: bool) -> dict[str, object]:
    """Return the report of an import as a JSON object; `imported` counts the objects by kind.

    `data` is the document. `dry_run` is True if the report is about a dry run, which changes
    nothing. `changes` then has existing objects that an import would change, and `more_changes`
    counts such objects that `changes` leaves out.
    """
    row: dict[str, object] = {
        "imported": result.taken,
        "refused": result.refused,
        "notes": [*_unknown_parts(data), *result.notes],
        "changed": not dry_run and any(result.taken.values()),
    }
    if dry_run:
        row |= {
            "changes": [change.text for change in result.changes],
            "more_changes": result.more_changes,
        }
    return row


def print_report(result: ImportResult, data: bytes, dry_run: bool) -> int:
    """Print the report of an import; return 1 if an object was refused, else 0.

    `data` is the document. `dry_run` is True if nothing was changed.
    """
    counts = ", ".join(f"{count} {section}" for section, count in result.taken.items())
    print(f"{'would import' if dry_run else 'imported'}: {counts or 'nothing'}")
    for line in [*_unknown_parts(data), *result.notes]:
        print(printable(f"note: {line}"), file=sys.stderr)
    for change in result.changes if dry_run else ():
        print(printable(f"would change: {change.text}"), file=sys.stderr)
    if dry_run and result.more_changes:
        print(f"would change: {result.more_changes:,} further objects", file=sys.stderr)
    for line in result.refused:
        print(printable(f"refused: {line}"), file=sys.stderr)
    return 1 if result.refused else 0


def _unknown_parts(data: bytes) -> list[str]:
    """Return a line for each section or field of a document that Trellis does not know."""
    # Imported here, because it imports the whole core, which no other part of the command needs.
    from broker.definitions.rabbitmq import unknown_sections

    try:
        return unknown_sections(msgspec.json.decode(data))
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return []  # The broker has refused the document.


def _read(path: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror}", 2) from None


def _write(path: str, data: bytes) -> None:
    try:
        if path == "-":
            print(data.decode())
        else:
            Path(path).write_bytes(data + b"\n")
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror}", 2) from None
