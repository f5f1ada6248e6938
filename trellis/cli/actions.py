"""Commands with actions, such as `trellis users add`: parsers, requests, and printed answers."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from trellis.cli.api_client import ApiClient, add_login
from trellis.cli.parsing import DEFAULT_VHOST, Commands, Parser, add_command
from trellis.cli.table import Row, columns_of, table
from trellis.settings.errors import printable

#: Names of the three permissions of a user or a role in a virtual host: patterns of names.
PERMISSIONS: Final = ("configure", "write", "read")


def add_group(commands: Commands, name: str, text: str, more: str = "") -> Commands:
    """Add a command `trellis NAME ACTION`; return the group for `add_action`.

    `text` is the help of the command, and `more` has further sentences of --help.
    """
    command = add_command(commands, name, _needs_action, text, "ACTION [ARGUMENT]...", more=more)
    return command.add_subparsers(
        title="actions", metavar="ACTION", dest="action", parser_class=Parser
    )


def _needs_action(arguments: argparse.Namespace) -> int:
    arguments.parser.print_help()
    return 2


def add_action(
    group: Commands,
    command: str,
    name: str,
    run: Callable[[argparse.Namespace], int],
    text: str,
    usage: str = "",
    more: str = "",
) -> Parser:
    """Add the action `trellis COMMAND NAME` to a group, with the flags for login and settings.

    `run`, `text`, `usage` and `more` are the arguments of `add_command`. The caller adds the
    action's positional arguments to the returned parser.
    """
    action = add_command(group, name, run, text, usage, group=command, more=more)
    add_login(action)
    return action


def add_vhost(action: Parser, position: int | None = None) -> None:
    """Add the flag --vhost, which names a virtual host.

    Some commands of RabbitMQ's tools take the virtual host as a positional argument. `position` is
    the index of this argument, from 0; None for other commands. If a user gives one argument too
    many, the error suggests --vhost with the argument at this index.
    """
    action.add_argument("--vhost", default=DEFAULT_VHOST, metavar="NAME", help="virtual host [/]")
    action.has_vhost, action.vhost_position = True, position
    action.hint = action.hint or "; to name a virtual host, use --vhost NAME"


def add_json(action: Parser) -> None:
    """Add the flag --json, which prints JSON instead of a table."""
    _add_json(action, "print a JSON list of objects")


def add_result(command: Parser) -> None:
    """Add the flag --json, with which `print_result` prints JSON instead of a line of text."""
    _add_json(command, "print the result as a JSON object")


def _add_json(command: Parser, text: str) -> None:
    command.add_argument("--json", action="store_true", help=text)
    if command.usage is not None and "--json" not in command.usage:
        command.usage += " [--json]"


def add_patterns(command: Parser) -> None:
    """Add the arguments CONFIGURE, WRITE and READ: the patterns of permissions."""
    for name in PERMISSIONS:
        command.add_argument(
            name,
            metavar=name.upper(),
            help=f"queues and exchanges for which the permission {name} is granted: a regular "
            'expression that is searched in their names; "" selects none, ".*" all',
        )


def ask(arguments: argparse.Namespace, method: str, *path: str, body: object = None) -> Any:
    """Send one request to `/api/PATH`, and return the decoded answer; None for an empty answer.

    `method` is the HTTP method. `body` is sent as JSON; None for no body. Raises CommandError.
    """
    return ApiClient(arguments).json(method, *path, body=body)


def print_json(value: object) -> None:
    """Print a value as JSON, indented."""
    print(msgspec.json.format(msgspec.json.encode(value)).decode())


def print_result(arguments: argparse.Namespace, text: str, **fields: object) -> None:
    """Print what a command has done: a line of text, or with --json the fields as a JSON object."""
    if arguments.json:
        print_json(fields)
    else:
        print(printable(text))


def show(
    rows: Sequence[dict[str, Any]],
    columns: Sequence[str],
    arguments: argparse.Namespace,
    empty: str,
) -> None:
    """Print `columns` of the rows as a table, or with --json all columns as JSON.

    If there are no rows, print the text `empty` instead of a table. If `columns` is empty, print
    all columns.
    """
    if arguments.json:
        print_json(rows)
        return
    flat: list[Row] = [{name: _cell(row.get(name)) for name in columns} for row in rows]
    print(table(flat, list(columns) or columns_of(flat)) if flat else empty)


def _cell(value: Any) -> str | int | float | bool | None:
    if isinstance(value, list):
        return " ".join(map(str, value))
    return msgspec.json.encode(value).decode() if isinstance(value, dict) else value
