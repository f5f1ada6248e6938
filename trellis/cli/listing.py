"""`trellis list`: objects of a running broker as a table or as JSON."""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Iterator
from typing import Final

import msgspec

from trellis.cli.api_client import ApiClient, ApiRefused, add_login
from trellis.cli.confirming import add_yes, confirm
from trellis.cli.list_columns import COLUMNS
from trellis.cli.parsing import CommandError, Commands, add_command, number
from trellis.cli.readable import size_text, time_text
from trellis.cli.row_filters import condition_of, sorted_rows
from trellis.cli.table import Cell, Row, columns_of, table
from trellis.settings.errors import nearest

KINDS: Final = tuple(COLUMNS)
#: Nouns for the rows of the kinds whose name is not a noun in the plural.
_NOUNS: Final = {
    "cluster": "cluster nodes",
    "delayed": "delayed messages",
    "log": "log lines",
    "retained": "retained messages",
    "topic_groups": "topic groups",
}
#: Columns with sizes in bytes, with lengths of time in ms, and with times in seconds since the
#: epoch. On a terminal, their values are printed with units.
_SIZES: Final = frozenset({"octets_in", "octets_out", "unsent", "bytes"})
_LENGTHS: Final = frozenset({"left_ms", "expires_in_ms", "head_age_ms"})
_TIMES: Final = frozenset({"since", "due"})
#: Columns that a table has only with --wide, or if --columns names them. JSON has all columns.
_WIDE: Final = {
    "queues": re.compile("dead_lettered_"),
    "exchanges": re.compile("dead_letters_"),
    "sessions": re.compile(
        "published|redelivered|acknowledged|expired|over_limit|rejected|dead_lettered|"
        "delivered_qos0"
    ),
}
#: Default number of seconds between two lists with --watch.
_INTERVAL: Final = 2.0
_CLEAR: Final = "\x1b[H\x1b[2J"


def add(commands: Commands) -> None:
    """Add the parser of the command `trellis list`."""
    command = add_command(
        commands,
        "list",
        list_objects,
        "list objects of a running broker",
        "KIND [--vhost NAME] [--filter CONDITION]... [--sort COLUMN [--reverse]] [--limit N] "
        "[--columns A,B | --wide] [--cancel VHOST:EXCHANGE:ID [--yes]] [--json] "
        "[--watch [SECONDS]] [--url URL] [--user NAME --password WORD]",
    )
    command.add_argument(
        "kind", metavar="KIND", choices=KINDS, help=f"kind of the objects: {', '.join(KINDS)}"
    )
    command.add_argument("--vhost", metavar="NAME", help="only objects of this virtual host [all]")
    command.add_argument(
        "--filter",
        action="append",
        default=[],
        metavar="CONDITION",
        help="only rows that satisfy COLUMN=PATTERN, COLUMN!=PATTERN (* and ? are wildcards), "
        "COLUMN>NUMBER or COLUMN<NUMBER; any other CONDITION is a text that a cell of the row must "
        "contain; may be repeated",
    )
    command.add_argument("--sort", metavar="COLUMN", help="sort by this column")
    command.add_argument("--reverse", action="store_true", help="print the rows in reverse order")
    command.add_argument(
        "--limit", type=number(int, 1), metavar="N", help="print at most N rows [all]"
    )
    command.add_argument(
        "--columns",
        metavar="A,B",
        help="columns to print, separated by commas [all but the further counts of --wide]",
    )
    command.add_argument(
        "--wide",
        action="store_true",
        help="also print the further counts of queues, exchanges and sessions, such as the dead "
        "letters by reason; --json always prints these counts",
    )
    command.add_argument("--json", action="store_true", help="print a JSON list of objects")
    command.add_argument(
        "--watch",
        nargs="?",
        type=number(float, 0.1),
        const=_INTERVAL,
        metavar="SECONDS",
        help=f"print the list again every SECONDS seconds, until Ctrl-C [{_INTERVAL:g}]",
    )
    command.add_argument(
        "--cancel",
        metavar="VHOST:EXCHANGE:ID",
        help="only with KIND delayed: remove this delayed message, then list the others",
    )
    add_yes(command)
    add_login(command)


def list_objects(arguments: argparse.Namespace) -> int:
    """Print the objects of the kind in `arguments`.

    With --cancel, which the kind `delayed` permits, first remove a delayed message.
    """
    if arguments.vhost is not None and "vhost" not in COLUMNS[arguments.kind]:
        raise CommandError(
            f"the objects of kind {arguments.kind} belong to no virtual host: leave out --vhost", 2
        )
    client = ApiClient(arguments)
    if arguments.cancel is not None:
        _cancel(client, arguments)
    while True:
        text = _text(_rows(client, arguments), arguments)
        if arguments.watch is not None and sys.stdout.isatty():
            print(_CLEAR, end="")
        print(text, flush=True)
        if arguments.watch is None:
            return 0
        time.sleep(arguments.watch)


def _cancel(client: ApiClient, arguments: argparse.Namespace) -> None:
    """Remove the delayed message that --cancel names, after a confirmation.

    Raises CommandError.
    """
    vhost, _, rest = arguments.cancel.partition(":")
    exchange, colon, identifier = rest.rpartition(":")
    if arguments.kind != "delayed" or not colon:
        raise CommandError(
            "--cancel needs KIND delayed and the value VHOST:EXCHANGE:ID, such as /:later:7", 2
        )
    confirm(arguments, _cancel_lines(client, (vhost, exchange, identifier)))
    query = {"vhost": vhost, "exchange": exchange, "id": identifier}
    client.request("DELETE", "trellis", "delayed", query=query)


def _cancel_lines(client: ApiClient, wanted: tuple[str, str, str]) -> Iterator[str]:
    """Yield the line about a delayed message that is removed: its exchange, key, size and time.

    `wanted` has the message's virtual host, exchange and number. Raises CommandError if no such
    message waits.
    """
    for row in client.json("GET", "trellis", "delayed"):
        if (row["vhost"], row["exchange"], str(row["id"])) == wanted:
            yield (
                f"delayed message {row['id']} of exchange '{row['exchange']}' in vhost "
                f"'{row['vhost']}' will be removed: routing key '{row['routing_key']}', "
                f"{size_text(row['bytes'])}, due in {time_text(row['left_ms'] / 1000)}"
            )
            return
    vhost, exchange, identifier = wanted
    raise CommandError(
        f"no message {identifier} is delayed by exchange '{exchange}' in vhost '{vhost}'; "
        "next: trellis list delayed"
    )


def _rows(client: ApiClient, arguments: argparse.Namespace) -> list[Row]:
    """Fetch the list; return the rows that the flags select, with the chosen columns."""
    path = ("trellis", arguments.kind)
    answer = client.request("GET", *path)
    rows: list[Row] = client.decode(answer, list[Row], "JSON list of flat objects", *path)
    # A broker of another version may have other columns than COLUMNS.
    known = list(dict.fromkeys((*columns_of(rows), *COLUMNS[arguments.kind])))
    if arguments.vhost is not None:
        rows = [row for row in rows if row.get("vhost") == arguments.vhost]
        if not rows:
            _check_vhost(client, arguments.vhost)
    for text in arguments.filter:
        condition = condition_of(text, known)
        rows = [row for row in rows if condition(row)]
    if arguments.sort is not None:
        _check_column(arguments.sort, known, arguments)
        rows = sorted_rows(rows, arguments.sort, False)
    if arguments.reverse:
        rows = rows[::-1]
    rows = rows[: arguments.limit]
    if not arguments.columns:
        return rows
    columns = [name.strip() for name in arguments.columns.split(",")]
    for name in columns:
        _check_column(name, known, arguments)
    return [{name: row.get(name) for name in columns} for row in rows]


def _check_vhost(client: ApiClient, name: str) -> None:
    """Raise ApiRefused if the virtual host `name` is not among those that the user may see."""
    known = [row["name"] for row in client.list_rows(("vhosts",), {})]
    if known and name not in known:
        raise ApiRefused(f"there is no vhost '{name}'", 404, client)


def _check_column(name: str, known: list[str], arguments: argparse.Namespace) -> None:
    if name not in known:
        raise CommandError(
            f"`trellis list {arguments.kind}` has no column {name}; the nearest is "
            f"{nearest(name, known)}",
            2,
        )


def _text(rows: list[Row], arguments: argparse.Namespace) -> str:
    """Return the rows as a table, or with --json as JSON."""
    if arguments.json:
        return msgspec.json.format(msgspec.json.encode(rows)).decode()
    if not rows:
        nouns = _NOUNS.get(arguments.kind, arguments.kind)
        if arguments.filter:
            return f"no {nouns} satisfy the conditions of --filter"
        vhost = "" if arguments.vhost is None else f" in vhost '{arguments.vhost}'"
        return f"no {nouns}{vhost}"
    columns = columns_of(rows)
    wide = _WIDE.get(arguments.kind)
    if wide is not None and not arguments.wide and not arguments.columns:
        columns = [name for name in columns if wide.match(name) is None]
    if sys.stdout.isatty():
        rows = [{name: _readable(name, row.get(name)) for name in columns} for row in rows]
    return table(rows, columns)


def _readable(column: str, cell: Cell) -> Cell:
    """Return the cell of a column as a person reads it: sizes, times and durations with units."""
    if isinstance(cell, str | bool) or cell is None:
        return cell
    if column in _SIZES:
        return size_text(cell)
    if column in _LENGTHS:
        return time_text(cell / 1000)
    if column in _TIMES:
        seconds = cell - time.time()
        return f"in {time_text(seconds)}" if seconds > 0 else f"{time_text(-seconds)} ago"
    return cell
