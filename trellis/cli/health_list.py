"""`trellis health` and `trellis list`: the state of a running broker."""

from __future__ import annotations

import argparse
import urllib.error
import urllib.request

import msgspec

from trellis.cli.api_client import ApiClient, add_login, base_url, error_text, fetch
from trellis.cli.parsing import CommandError, Commands, add_command, add_settings, load_settings
from trellis.cli.table import Row, columns_of, table
from trellis.settings.errors import nearest

KINDS = ("queues", "exchanges", "bindings", "connections", "sessions", "delayed", "policies")


def add(commands: Commands) -> None:
    """Add the commands health and list."""
    health_usage = "[--url URL] [--config FILE]... [FLAG VALUE]..."
    command = add_command(
        commands,
        "health",
        health,
        "exit with code 0 if the broker is ready, else with 1",
        health_usage,
    )
    command.add_argument(
        "--url",
        help="URL of the broker's metrics listener, such as http://127.0.0.1:15692 "
        "[metrics port of the settings]",
    )
    add_settings(command, "metrics")

    list_usage = "KIND [--columns A,B] [--json] [--url URL] [--user NAME --password WORD]"
    command = add_command(
        commands, "list", list_objects, "list objects of a running broker", list_usage
    )
    command.add_argument(
        "kind", metavar="KIND", choices=KINDS, help=f"kind of the objects: {', '.join(KINDS)}"
    )
    command.add_argument(
        "--columns", metavar="A,B", help="columns to print, separated by commas [all]"
    )
    command.add_argument("--json", action="store_true", help="print a JSON list of objects")
    command.add_argument(
        "--cancel",
        metavar="VHOST:EXCHANGE:ID",
        help="only with KIND delayed: remove this delayed message, then list the others",
    )
    add_login(command)


def health(arguments: argparse.Namespace) -> int:
    """Print that the broker is ready. Raises CommandError, exit code 1, if the broker is not."""
    settings = load_settings(arguments).settings
    url = base_url(arguments.url, "metrics", settings.metrics) + "/readyz"
    try:
        fetch(urllib.request.Request(url))
    except urllib.error.HTTPError as error:
        answer = f"{error.code}: {error_text(error)}"
        raise CommandError(f"not ready: {url} answered {answer}") from None
    print(f"ready: {url}")
    return 0


def list_objects(arguments: argparse.Namespace) -> int:
    """Print the objects of the kind in `arguments`; with --cancel, first remove a message."""
    client = ApiClient(arguments)
    if arguments.cancel is not None:
        _cancel(client, arguments)
    path = ("trellis", arguments.kind)
    answer = client.request("GET", *path)
    rows: list[Row] = client.decode(answer, list[Row], "JSON list of flat objects", *path)
    _print(rows, arguments)
    return 0


def _cancel(client: ApiClient, arguments: argparse.Namespace) -> None:
    """Remove the delayed message that --cancel names. Raises CommandError."""
    vhost, _, rest = arguments.cancel.partition(":")
    exchange, colon, number = rest.rpartition(":")
    if arguments.kind != "delayed" or not colon:
        raise CommandError(
            "--cancel needs KIND delayed and the value VHOST:EXCHANGE:ID, such as /:later:7", 2
        )
    query = {"vhost": vhost, "exchange": exchange, "id": number}
    client.request("DELETE", "trellis", "delayed", query=query)


def _print(rows: list[Row], arguments: argparse.Namespace) -> None:
    known = columns_of(rows)
    columns = (
        [name.strip() for name in arguments.columns.split(",")] if arguments.columns else known
    )
    for name in columns if rows else ():
        if name not in known:
            raise CommandError(
                f"{arguments.kind} have no column {name}; the nearest is {nearest(name, known)}", 2
            )
    chosen = (
        [{name: row.get(name) for name in columns} for row in rows] if arguments.columns else rows
    )
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(chosen)).decode())
    else:
        print(table(chosen, columns) if chosen else f"no {arguments.kind}")
