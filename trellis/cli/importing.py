"""`trellis import mosquitto`: convert a Mosquitto configuration into settings and users."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import msgspec

from trellis.cli.actions import add_result, print_json
from trellis.cli.parsing import CommandError, Commands, add_command
from trellis.mosquitto.importing import MosquittoImport
from trellis.mosquitto.report import DIFFERS, NOT_NEEDED, NOT_TAKEN
from trellis.settings import load
from trellis.settings.errors import printable

#: Name of the configuration file in a directory that PATH names.
_CONF = "mosquitto.conf"
_SETTINGS, _DEFINITIONS = "broker.toml", "definitions.json"


def add(commands: Commands) -> None:
    """Add the parser of the command `trellis import`."""
    command = add_command(
        commands,
        "import",
        import_,
        "write broker.toml and definitions.json from the configuration of another broker, and "
        "report each line that could not be imported (exit code 1 if there is such a line)",
        "mosquitto PATH [--output DIR] [--force] [--json]",
    )
    command.add_argument(
        "broker", metavar="BROKER", choices=("mosquitto",), help="the other broker: mosquitto"
    )
    command.add_argument("path", metavar="PATH", help=f"{_CONF}, or its directory")
    command.add_argument(
        "--output",
        metavar="DIR",
        default=".",
        help="directory for broker.toml and definitions.json [.]",
    )
    add_result(command)
    command.add_argument(
        "--force", action="store_true", help="overwrite files that exist in the directory"
    )


def import_(arguments: argparse.Namespace) -> int:
    """Import a Mosquitto configuration; the exit code is 1 if a line was not imported.

    Raises SettingsError after the files are written, if the settings are not valid together.
    """
    path = Path(arguments.path)
    path = path / _CONF if path.is_dir() else path
    output = Path(arguments.output)
    try:
        imported = MosquittoImport(path)
    except OSError as error:
        raise CommandError(f"cannot read {error.filename}: {error.strerror}", 2) from None
    definitions = (output / _DEFINITIONS).resolve()
    _write(
        definitions, msgspec.json.format(msgspec.json.encode(imported.definitions)), arguments.force
    )
    settings = output / _SETTINGS
    _write(settings, imported.settings_text(definitions).encode(), arguments.force)
    report = imported.report
    notes = [
        note
        for kind in (NOT_TAKEN, DIFFERS, NOT_NEEDED)
        for note in report.notes
        if note.kind == kind
    ]
    if arguments.json:
        files = {"settings": str(settings), "definitions": str(definitions)}
        users = len(imported.definitions["users"])
        print_json({**files, "users": users, "notes": [note.row() for note in notes]})
    else:
        for note in notes:
            print(printable(str(note)))
    print(
        f"wrote {settings} and {definitions}: {len(imported.definitions['users'])} users; lines of "
        f"Mosquitto's files: {report.count(NOT_TAKEN)} not taken, {report.count(DIFFERS)} that "
        f"differ in Trellis, {report.count(NOT_NEEDED)} not needed",
        file=sys.stderr,
    )
    load([settings], {})  # Two ports may conflict, such as a listener's and the HTTP API's.
    return 1 if report.count(NOT_TAKEN) else 0


def _write(path: Path, data: bytes, force: bool) -> None:
    """Write a file that only its owner may read, because the file holds password hashes.

    If `force` is False, an existing file is an error. Raises CommandError.
    """
    flags = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if force else os.O_EXCL)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(os.open(path, flags, 0o600), "wb") as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(data)
    except FileExistsError:
        raise CommandError(
            f"{path} exists; choose another --output, or overwrite it with --force", 2
        ) from None
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror}", 2) from None
