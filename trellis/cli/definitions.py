"""`trellis definitions import FILE` and `export [FILE]`: exchanges, queues, bindings, users and
policies as RabbitMQ's JSON.
"""

import argparse
import sys
import urllib.error
import urllib.request
from pathlib import Path

import msgspec

from trellis.cli.client import add_asking, authorised, base_of, fetch, said_by
from trellis.cli.parsing import CommandError, Commands, add_command, add_settings, load_settings


class ApiAnswer(msgspec.Struct):
    """What the broker says of an import."""

    taken: dict[str, int]
    refused: list[str]


def add(commands: Commands) -> None:
    usage = "import FILE | export [FILE] [--url URL] [--user NAME --password WORD]"
    command = add_command(
        commands,
        "definitions",
        definitions,
        "import or export definitions as RabbitMQ's JSON",
        usage,
    )
    command.add_argument(
        "action", metavar="ACTION", choices=("import", "export"), help="import, export"
    )
    command.add_argument(
        "file",
        metavar="FILE",
        nargs="?",
        default="-",
        help="file to read or write [- is standard input or output]",
    )
    add_asking(command)
    add_settings(command, "http", without=("user", "password", "password_file"))


def definitions(arguments: argparse.Namespace) -> int:
    settings = load_settings(arguments).settings
    url = f"{base_of(arguments.url, 'http', settings.http)}/api/definitions"
    importing = arguments.action == "import"
    request = urllib.request.Request(url, data=_read(arguments.file) if importing else None)
    authorised(request, arguments, settings)
    try:
        octets = fetch(request)
    except urllib.error.HTTPError as error:
        raise CommandError(f"{url} answered {error.code}: {said_by(error)}") from None
    if not importing:
        try:
            _write(arguments.file, msgspec.json.format(octets, indent=2))
        except msgspec.MsgspecError:
            raise CommandError(f"{url} answered no JSON; is it Trellis?") from None
        return 0
    try:
        answer = msgspec.json.decode(octets, type=ApiAnswer)
    except msgspec.MsgspecError:
        raise CommandError(f"{url} answered something else than expected; is it Trellis?") from None
    print(
        "taken in: "
        + (", ".join(f"{count} {section}" for section, count in answer.taken.items()) or "nothing")
    )
    for line in answer.refused:
        print(f"refused: {line}", file=sys.stderr)
    return 1 if answer.refused else 0


def _read(path: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror}", 2) from None


def _write(path: str, octets: bytes) -> None:
    try:
        if path == "-":
            print(octets.decode())
        else:
            Path(path).write_bytes(octets + b"\n")
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror}", 2) from None
