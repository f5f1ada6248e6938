"""`trellis stream`: lists the streams of a running broker, prints or exports a stream's rows."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from broker.stream.arrow import BatchView
from broker.stream.template import COLUMNS
from trellis.cli.actions import print_json
from trellis.cli.api_client import ApiClient, add_login
from trellis.cli.export import add_export
from trellis.cli.parsing import CommandError, Commands, Parser, add_command, number, time_of
from trellis.cli.stream_source import StreamSource, add_range
from trellis.cli.table import columns_of, table

_USAGE = "list | archive | head QUEUE | export QUEUE FILE [--url URL] [--user NAME --password WORD]"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: A time in seconds after the last possible datetime; larger timestamps are replaced by this time,
#: because a timedelta cannot hold them.
_TOO_LATE = 1 << 40
#: Number of rows that `trellis stream head` prints without --count and --follow.
_ROWS: Final = 10
#: Seconds between two requests of --follow for new rows.
_FOLLOW_SECONDS: Final = 0.5


def add(commands: Commands) -> None:
    """Add the parser of the command `trellis stream`."""
    command = add_command(
        commands,
        "stream",
        _needs_tool,
        "list the streams of a running broker, or print or export rows of a stream",
        _USAGE,
    )
    tools = command.add_subparsers(title="tools", metavar="TOOL", dest="tool")
    listing = _add(tools, "list", list_streams, "list the streams that this user may read")
    listing.add_argument("--json", action="store_true", help="print a JSON list of objects")
    archive = _add(
        tools, "archive", show_archive, "show the state of the archive (setting stream.archive)"
    )
    archive.add_argument("--json", action="store_true", help="print a JSON object")
    head = _add(
        tools,
        "head",
        show_head,
        "print rows of a stream, one JSON object per line",
        "QUEUE [--from N | --since TIME] [--to N] [--count N] [--follow] ",
    )
    add_range(head)
    head.add_argument(
        "--since",
        type=time_of,
        metavar="TIME",
        help="first row by its time of publication: an age such as 15m, 2h or 7d, or an ISO 8601 "
        "time (UTC if it has no time zone)",
    )
    head.add_argument(
        "--count",
        type=number(int, 1),
        metavar="N",
        help="largest number of rows [10; with --follow, no limit]",
    )
    head.add_argument(
        "--follow", action="store_true", help="wait for new rows, and print them, until Ctrl-C"
    )
    add_export(tools)


def _add(
    tools: Any, name: str, run: Callable[[argparse.Namespace], int], text: str, arguments: str = ""
) -> Parser:
    usage = f"{arguments}[--url URL] [--user NAME --password WORD]"
    tool = add_command(tools, name, run, text, usage, group="stream")
    add_login(tool)
    return tool


def _needs_tool(arguments: argparse.Namespace) -> int:
    raise CommandError(
        "`trellis stream` needs a tool: list, head, export or archive (see `trellis "
        "stream --help`)",
        2,
    )


def list_streams(arguments: argparse.Namespace) -> int:
    """Print a list of the streams that the user may read."""
    rows = StreamSource(arguments).rows("streams")
    if arguments.json:
        print_json(rows)
    else:
        print(
            table(rows, columns_of(rows)) if rows else "there is no stream that the user may read"
        )
    return 0


def show_archive(arguments: argparse.Namespace) -> int:
    """Print the state of the archive of streams: waiting segments, uploads, the last error.

    The exit code is 1 if the archive is unreachable, a stream is not uploaded any more, or rows
    were lost.
    """
    state = ApiClient(arguments).json("GET", "streams", "archive")
    if arguments.json:
        print(json.dumps(state, indent=2))
    else:
        for name, value in state.items():
            print(f"{name.replace('_', ' '):<18} {value if value != '' else '-'}")
    return 0 if state["up"] and not state["refused_streams"] and not state["dropped_rows"] else 1


def show_head(arguments: argparse.Namespace) -> int:
    """Print the first --count rows of a range, one JSON object per line; with --follow, wait for
    new rows.

    Raises CommandError.
    """
    if arguments.since is not None and arguments.first is not None:
        raise CommandError(
            "--from N and --since TIME both set the first row: give only one of them", 2
        )
    left = arguments.count or (sys.maxsize if arguments.follow else _ROWS)
    source = StreamSource(arguments)
    since = 0 if arguments.since is None else round(arguments.since * 1_000_000)
    if since:
        source.begin_with_segment_of(since)
    while True:
        for _, batch, first, end in source.batches():
            for row in range(first, end):
                published: Any = batch.value("published_at", row)
                if published >= since:
                    _print_row(batch, row)
                    left -= 1
                    if left == 0:
                        return 0
            arguments.first = int(batch.base) + end
        first, end = arguments.first, arguments.end
        if not arguments.follow or (end is not None and first is not None and first >= end):
            return 0
        time.sleep(_FOLLOW_SECONDS)


def _print_row(batch: BatchView, row: int) -> None:
    cells = {
        column: _readable(column, batch.value(column, row))
        for column in COLUMNS
        if column != "content_header"
    }
    known = {column: cell for column, cell in cells.items() if cell is not None}
    print(json.dumps(known, default=_text, ensure_ascii=False), flush=True)


def _readable(column: str, cell: Any) -> Any:
    """Return the cell of a column for printing: a time as text in UTC, the headers as an object,
    any other cell unchanged.
    """
    if column in ("published_at", "timestamp") and cell is not None:
        age = (
            timedelta(microseconds=cell)
            if column == "published_at"
            else timedelta(seconds=min(cell, _TOO_LATE))
        )
        try:
            return (_EPOCH + age).isoformat().replace("+00:00", "Z")
        except OverflowError:
            return cell  # Not a datetime: publishers may send any 64-bit number.
    return json.loads(cell) if column == "headers" and cell is not None else cell


def _text(data: object) -> str:
    return data.decode(errors="backslashreplace") if isinstance(data, bytes) else str(data)
