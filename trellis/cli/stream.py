"""`trellis stream`: lists the streams of a running broker, prints or exports a stream's rows."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from broker.stream.arrow import END_OF_STREAM
from broker.stream.template import COLUMNS
from trellis.cli.api_client import ApiClient, add_login
from trellis.cli.parsing import CommandError, Commands, Parser, add_command, number
from trellis.cli.stream_source import StreamSource, add_range
from trellis.cli.table import columns_of, table

_USAGE = "list | archive | head QUEUE | export QUEUE FILE [--url URL] [--user NAME --password WORD]"
_NO_ROWS = "the stream has no rows in the range from --from to --to"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: A time in seconds after the last possible datetime; larger timestamps are cut to it, because a
#: timedelta cannot hold them.
_TOO_LATE = 1 << 40
#: Largest number of seconds in a timestamp of Parquet, which counts milliseconds in 64 bits. A
#: publisher may send any 64-bit number of seconds.
_PARQUET_SECONDS = ((1 << 63) - 1) // 1000


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
        "QUEUE [--from N] [--to N] [--count N] ",
    )
    add_range(head)
    head.add_argument(
        "--count", type=number(int, 1), default=10, metavar="N", help="largest number of rows [10]"
    )
    export = _add(
        tools,
        "export",
        export_rows,
        "write rows of a stream to a file: Parquet (.parquet, needs pyarrow) or Arrow (.arrow)",
        "QUEUE FILE [--from N] [--to N] ",
    )
    add_range(export)
    export.add_argument(
        "file", metavar="FILE", type=Path, help="new file with the suffix .parquet or .arrow"
    )


def _add(
    tools: Any, name: str, run: Callable[[argparse.Namespace], int], text: str, arguments: str = ""
) -> Parser:
    tool: Parser = tools.add_parser(
        name,
        prog=f"trellis stream {name}",
        help=text,
        description=text[:1].upper() + text[1:] + ".",
        usage=f"trellis stream {name} {arguments}[--url URL] [--user NAME --password WORD]",
    )
    tool.set_defaults(run=run, parser=tool)
    add_login(tool)
    return tool


def _needs_tool(arguments: argparse.Namespace) -> int:
    raise CommandError(
        "name a tool: list, head, export or archive (see `trellis stream --help`)", 2
    )


def list_streams(arguments: argparse.Namespace) -> int:
    """Print a list of the streams that the user may read."""
    rows = StreamSource(arguments).rows("streams")
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(rows)).decode())
    else:
        print(table(rows, columns_of(rows)) if rows else "no streams that this user may read")
    return 0


def show_archive(arguments: argparse.Namespace) -> int:
    """Print the state of the archive of streams: what waits, what was uploaded, the last error.

    The exit code is 1 if the archive is away, a stream is not uploaded any more, or rows were lost.
    """
    state = ApiClient(arguments).json("GET", "streams", "archive")
    if arguments.json:
        print(json.dumps(state, indent=2))
    else:
        for name, value in state.items():
            print(f"{name.replace('_', ' '):<18} {value if value != '' else '-'}")
    return 0 if state["up"] and not state["refused_streams"] and not state["dropped_rows"] else 1


def show_head(arguments: argparse.Namespace) -> int:
    """Print the first --count rows of a range of offsets, one JSON object per line."""
    left = arguments.count
    for _, batch, first, end in StreamSource(arguments).batches():
        for row in range(first, min(end, first + left)):
            cells = {
                column: _readable(column, batch.value(column, row))
                for column in COLUMNS
                if column != "content_header"
            }
            known = {column: cell for column, cell in cells.items() if cell is not None}
            print(json.dumps(known, default=_text, ensure_ascii=False))
        left -= end - first
        if left <= 0:
            break
    return 0


def _readable(column: str, cell: Any) -> Any:
    """Return the cell of a column for printing: a time as text in UTC, the headers as an object,
    any other cell unchanged.
    """
    if column in ("published_at", "timestamp") and cell is not None:
        time = (
            timedelta(microseconds=cell)
            if column == "published_at"
            else timedelta(seconds=min(cell, _TOO_LATE))
        )
        try:
            return (_EPOCH + time).isoformat().replace("+00:00", "Z")
        except OverflowError:
            return cell  # Not a datetime: publishers may send any 64-bit number.
    return json.loads(cell) if column == "headers" and cell is not None else cell


def _text(data: object) -> str:
    return data.decode(errors="backslashreplace") if isinstance(data, bytes) else str(data)


def export_rows(arguments: argparse.Namespace) -> int:
    """Write the rows of a range of offsets to a new file; remove the file if this fails."""
    path: Path = arguments.file
    if path.suffix not in (".parquet", ".arrow"):
        raise CommandError(f"{path} must have the suffix .parquet or .arrow", 2)
    write = _parquet_writer() if path.suffix == ".parquet" else _write_arrow
    source = StreamSource(arguments)
    try:
        with path.open("xb") as out:
            try:
                count = write(source, out)
                out.flush()
            except BaseException:
                path.unlink()
                raise
    except FileExistsError:
        raise CommandError(f"{path} exists already; name a new file") from None
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror or error}") from None
    print(f"{count} rows written to {path}")
    return 0


def _write_arrow(source: StreamSource, out: BinaryIO) -> int:
    """Write the rows as an Arrow IPC stream and return their number.

    Whole batches of rows are copied as they are. The last batch may be cut at its end, by lowering
    its number of rows. A batch cannot be cut at its beginning: a range that begins within a batch
    raises CommandError. A range without rows raises CommandError, too.
    """
    count = 0
    for schema, batch, first, end in source.batches():
        if first:
            raise CommandError(
                "an .arrow file must begin with the first offset of a batch, such as "
                f"--from {int(batch.base)}; a .parquet file can begin anywhere"
            )
        if not count:
            out.write(schema)
        out.write(batch.first_rows(end))
        count += end - first
    if not count:
        raise CommandError(_NO_ROWS)
    out.write(END_OF_STREAM)
    return count


def _parquet_writer() -> Callable[[StreamSource, BinaryIO], int]:
    """Return a function that writes rows as Parquet and returns their number.

    A timestamp that Parquet cannot represent becomes null; its value is still in the column
    `content_header`. Raises CommandError if pyarrow is missing.
    """
    try:
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.parquet as pq
    except ImportError:
        raise CommandError(
            "a .parquet file needs pyarrow: pip install 'trellis-broker[arrow]', "
            "or export to an .arrow file"
        ) from None

    def write(source: StreamSource, out: BinaryIO) -> int:
        count = 0
        writer: Any = None
        for schema, batch, first, end in source.batches():
            data = schema + batch.data[batch.at : batch.end] + END_OF_STREAM
            rows = (
                pa.ipc.open_stream(data)
                .read_all()
                .slice(first, end - first)
                .replace_schema_metadata(None)
            )
            at = rows.schema.get_field_index("timestamp")
            seconds = rows.column(at).cast(pa.int64())
            valid = pc.and_(
                pc.greater_equal(seconds, -_PARQUET_SECONDS),
                pc.less_equal(seconds, _PARQUET_SECONDS),
            )
            rows = rows.set_column(
                at, rows.schema.field(at), pc.if_else(valid, rows.column(at), None)
            )
            if writer is None:
                writer = pq.ParquetWriter(out, rows.schema)
            writer.write_table(rows)
            count += end - first
        if writer is None:
            raise CommandError(_NO_ROWS)
        writer.close()
        return count

    return write
