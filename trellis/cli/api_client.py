"""One question to the HTTP API of a running broker, and commands that have actions: `trellis users
add`.
"""

import argparse
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import msgspec

from trellis.cli.client import add_asking, authorised, base_of, fetch, said_by
from trellis.cli.parsing import (
    CommandError,
    Commands,
    Parser,
    add_command,
    add_settings,
    load_settings,
)
from trellis.cli.table import Row, columns_of, table


def add_group(commands: Commands, name: str, text: str) -> Commands:
    """A command that needs an action: `trellis NAME ACTION`."""
    command = add_command(commands, name, _needs_action, text, "ACTION [ARGUMENT]...")
    return command.add_subparsers(
        title="actions", metavar="ACTION", dest="action", parser_class=Parser
    )


def _needs_action(arguments: argparse.Namespace) -> int:
    arguments.parser.print_help()
    return 2


def add_action(
    group: Commands, command: str, name: str, run: Any, text: str, usage: str = ""
) -> Parser:
    """One of them.

    Its positional arguments are for the caller to add; who asks and where, each takes.
    """
    action: Parser = group.add_parser(
        name,
        prog=f"trellis {command} {name}",
        usage=f"trellis {command} {name} {usage}".strip(),
        help=text,
        description=text[:1].upper() + text[1:] + ".",
    )
    action.set_defaults(run=run, parser=action)
    add_asking(action)
    add_settings(action, "http", without=("user", "password", "password_file"))
    return action


def add_vhost(action: Parser) -> None:
    action.add_argument("--vhost", default="/", metavar="NAME", help="virtual host [/]")


def add_json(action: Parser) -> None:
    action.add_argument("--json", action="store_true", help="print JSON")


def ask(arguments: argparse.Namespace, method: str, *parts: str, body: object = None) -> Any:
    """What the broker answers to /api/PART/PART..., decoded; None for no body.

    Raises CommandError with what the broker says.
    """
    settings = load_settings(arguments).settings
    path = "/".join(quote(part, safe="", errors="surrogateescape") for part in parts)
    url = f"{base_of(arguments.url, 'http', settings.http)}/api/{path}"
    data = None if body is None else msgspec.json.encode(body)
    request = urllib.request.Request(
        url, data=data, method=method, headers={"Content-Type": "application/json"}
    )
    user = authorised(request, arguments, settings)
    try:
        octets = fetch(request)
    except urllib.error.HTTPError as error:
        said = said_by(error)
        hint = (
            f"; asked as {user}: give --user and --password, or set TRELLIS_USER"
            if error.code in (401, 403)
            else ""
        )
        raise CommandError(f"{said}{hint}") from None
    try:
        return msgspec.json.decode(octets) if octets else None
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise CommandError(f"{url} answered no JSON; is it Trellis?") from None


def show(
    rows: Sequence[dict[str, Any]],
    columns: Sequence[str],
    arguments: argparse.Namespace,
    nothing: str,
) -> None:
    """Rows as a table, or as they are."""
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(rows)).decode())
        return
    flat: list[Row] = [{name: _cell(row.get(name)) for name in columns} for row in rows]
    print(table(flat, list(columns) or columns_of(flat)) if flat else nothing)


def _cell(value: Any) -> str | int | float | bool | None:
    if isinstance(value, list):
        return " ".join(map(str, value))
    return msgspec.json.encode(value).decode() if isinstance(value, dict) else value
