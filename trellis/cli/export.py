"""`trellis stream export`: writes rows of a stream to a Parquet or Arrow file.

The rows come from a running broker over HTTP, or from the files of a data directory. The packages
pyspark_trellis, which reads the rows, and pyarrow, which writes the file, are imported by name,
because they are not installed with every broker.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

from broker.stream.segments import directory_name
from broker.stream.template import COLUMNS
from matching.grammar import AMQP, MQTT, InvalidPattern
from trellis.cli.actions import add_result, print_result
from trellis.cli.api_client import ApiClient, ApiRefused, add_login
from trellis.cli.history_arguments import imported
from trellis.cli.parsing import CommandError, add_command, time_of
from trellis.cli.readable import count_text, size_text
from trellis.progress import Interval, ProgressLine
from trellis.settings.errors import nearest

#: The formats of the file, which are also its suffixes.
_FORMATS: Final = ("parquet", "arrow", "arrows")
#: Offsets have 63 bits.
_OFFSETS: Final = 1 << 63
#: Seconds between two updates of the progress line.
_EVERY: Final = 0.2


class _Bound(NamedTuple):
    """A bound of the rows: `offset`, or `time` in microseconds since 1970; the other is None.

    `text` is the value of the argument.
    """

    text: str = ""
    offset: int | None = None
    time: int | None = None


def _bound_of(text: str) -> _Bound:
    """Return the bound in the value of --from or --until.

    Raises argparse.ArgumentTypeError.
    """
    if text.isascii() and text.isdecimal() and int(text) < _OFFSETS:
        return _Bound(text, offset=int(text))
    try:
        time = round(time_of(text) * 1_000_000)
    except (argparse.ArgumentTypeError, OverflowError):
        raise argparse.ArgumentTypeError(
            f"'{text}' must be an offset or a time: give an offset such as 1000, an age such "
            "as 15m, 2h or 7d, or an ISO 8601 time such as 2026-11-24T14:00"
        ) from None
    return _Bound(text, time=time)


def _columns_of(text: str) -> list[str]:
    """Return the names in the value of --columns. Raises argparse.ArgumentTypeError."""
    names = text.split(",")
    for name in names:
        if name not in COLUMNS:
            raise argparse.ArgumentTypeError(
                f"a stream has no column '{name}'; the nearest is {nearest(name, COLUMNS)}; the "
                f"columns are {', '.join(COLUMNS)}"
            )
        if names.count(name) > 1:
            raise argparse.ArgumentTypeError(f"column '{name}' is named twice; name it once")
    return names


def add_export(tools: Any) -> None:
    """Add the parser of the command `trellis stream export`."""
    tool = add_command(
        tools,
        "export",
        export_rows,
        "write rows of a stream to a Parquet or Arrow file (needs pyarrow)",
        "QUEUE FILE [--from OFFSET|TIME] [--until OFFSET|TIME] [--topic FILTER | --key KEY] "
        "[--columns NAME,...] [--format FORMAT] [--json] [--vhost NAME] "
        "[--directory DIR | --url URL] [--user NAME --password WORD]",
        group="stream",
    )
    tool.add_argument("queue", metavar="QUEUE", help="name of the stream")
    tool.add_argument(
        "file",
        metavar="FILE",
        type=Path,
        help="new file: .parquet, .arrow (Arrow IPC file) or .arrows (Arrow IPC stream)",
    )
    tool.add_argument("--vhost", default="/", metavar="NAME", help="virtual host of the stream [/]")
    tool.add_argument(
        "--directory",
        metavar="DIR",
        type=Path,
        help="data directory of a broker, also a stopped one, or a backup: read its files instead "
        "of asking a running broker",
    )
    tool.add_argument(
        "--from",
        dest="first",
        type=_bound_of,
        default=_Bound(),
        metavar="OFFSET|TIME",
        help="first row: an offset, or the time of publication: 15m, 2h or 7d ago, or ISO 8601 "
        "(UTC if it has no time zone) [the first row of the stream]",
    )
    tool.add_argument(
        "--until",
        "--to",
        dest="end",
        type=_bound_of,
        default=_Bound(),
        metavar="OFFSET|TIME",
        help="end, not included: an offset or a time [the end of the stream]",
    )
    topics = tool.add_mutually_exclusive_group()
    topics.add_argument(
        "--topic", metavar="FILTER", help="only topics that match this MQTT filter, such as a/+/b"
    )
    topics.add_argument(
        "--key", metavar="KEY", help="only routing keys that match this binding key, such as a.*.b"
    )
    tool.add_argument(
        "--columns",
        type=_columns_of,
        default=list(COLUMNS),
        metavar="NAME,...",
        help="columns to write, in this order, such as topic,published_at,body [all]",
    )
    tool.add_argument(
        "--format",
        choices=_FORMATS,
        metavar="|".join(_FORMATS),
        help="format of the file [the format that its suffix names]",
    )
    add_result(tool)
    add_login(tool)


def export_rows(arguments: argparse.Namespace) -> int:
    """Write the selected rows of a stream to a new file, and print a summary.

    Until the file is complete, its name has the suffix `.partial`. If the command fails, the file
    is removed.
    """
    kind = _format_of(arguments)
    _check(arguments)
    errors, reading = imported(arguments, "pyspark_trellis.exporting", "arrow")
    _, tables = imported(arguments, "trellis.table_files", "arrow")
    path: Path = arguments.file
    progress = ProgressLine()
    try:
        with _new_file(path) as out:
            selection = _selection(arguments, reading)
            table = _write(selection, out, kind, tables, progress)
            if table is None:
                raise CommandError(
                    f"stream '{arguments.queue}' in vhost '{arguments.vhost}' has no row that the "
                    "arguments select; no file was written"
                )
            size = out.tell()
    except errors.PipelineError as error:
        if not error.status:
            raise CommandError(str(error)) from None
        raise ApiRefused(str(error), error.status, ApiClient(arguments)) from None
    finally:
        progress.end()
    summary = {
        "file": str(path),
        "format": kind,
        "rows": table.rows,
        "groups": table.groups,
        "bytes": size,
        "first_offset": selection.first_offset,
        "last_offset": selection.last_offset,
    }
    group = ("row group", "row groups") if kind == "parquet" else ("batch", "batches")
    text = (
        f"{count_text(table.rows, 'row')} in {table.groups:,} {group[table.groups != 1]}, "
        f"{size_text(size)}, written to {path}"
    )
    print_result(arguments, text, **summary)
    return 0


def _format_of(arguments: argparse.Namespace) -> str:
    """Return the format of the file: the value of --format, else the suffix of the file's name.

    Raises CommandError.
    """
    suffix = arguments.file.suffix.removeprefix(".")
    if arguments.format is None and suffix not in _FORMATS:
        raise CommandError(
            f"the name of the file {arguments.file} does not say its format: use the suffix "
            ".parquet, .arrow or .arrows, or give --format",
            2,
        )
    return str(arguments.format or suffix)


def _check(arguments: argparse.Namespace) -> None:
    """Raise CommandError if a pattern is invalid, or the arguments contradict each other."""
    for flag, grammar in (("topic", MQTT), ("key", AMQP)):
        pattern = getattr(arguments, flag)
        try:
            if pattern is not None:
                grammar.check(pattern)
        except InvalidPattern as error:
            raise CommandError(f"--{flag}: {error}", 2) from None
    first, end = arguments.first, arguments.end
    for low, high in ((first.offset, end.offset), (first.time, end.time)):
        if low is not None and high is not None and high < low:
            problem = f"--until {end.text} is before --from {first.text}"
            raise CommandError(f"{problem}: give a later end, or an earlier first row", 2)
    if arguments.directory is not None and arguments.url is not None:
        raise CommandError("--directory reads files, and --url asks a broker: give one of them", 2)


def _selection(arguments: argparse.Namespace, reading: Any) -> Any:
    """Return the RowSelection of the rows that the arguments choose.

    `reading` is the module pyspark_trellis.exporting.
    """
    if arguments.directory is not None:
        place = (
            arguments.directory
            / "streams"
            / directory_name(arguments.vhost)
            / directory_name(arguments.queue)
        )
        try:
            place.stat()
        except (FileNotFoundError, NotADirectoryError):
            raise CommandError(
                f"the data directory {arguments.directory} has no stream '{arguments.queue}' in "
                f"vhost '{arguments.vhost}': there is no directory {place}"
            ) from None
        except OSError as error:
            raise CommandError(f"cannot read {place}: {error.strerror}") from None
        stream = reading.stream_in(str(place))
    else:
        client = ApiClient(arguments)
        login = {"user": client.user, "password": client.password}
        stream = reading.stream_at(client.base, arguments.vhost, arguments.queue, login)
    pattern = None
    if arguments.topic is not None:
        pattern = (arguments.topic, "mqtt")
    elif arguments.key is not None:
        pattern = (arguments.key, "amqp")
    return reading.RowSelection(
        stream,
        arguments.columns,
        arguments.first.offset,
        arguments.end.offset,
        arguments.first.time,
        arguments.end.time,
        pattern,
    )


def _write(selection: Any, out: BinaryIO, kind: str, tables: Any, progress: ProgressLine) -> Any:
    """Write the selected rows to a file, and return its TableFile; None if there are no rows.

    `tables` is the module trellis.table_files.
    """
    table: Any = None
    rows = 0
    interval = Interval(_EVERY)
    progress.begin("export")
    progress.bar(0, "0 rows")
    try:
        for batch in selection.batches():
            if batch.num_rows:
                if table is None:
                    table = tables.TableFile(out, kind, batch.schema)
                table.write(batch)
                rows += batch.num_rows
            if interval.due():
                share, rate = selection.share, rows / interval.elapsed
                progress.bar(share, f"{share:.0%}  {rows:,} rows  {rate:,.0f} rows/s")
        if table is not None:
            table.close()
    except BaseException:
        if table is not None:
            table.cancel()
        raise
    return table


@contextmanager
def _new_file(path: Path) -> Iterator[BinaryIO]:
    """Open a new file for writing, which gets its name `path` when the block ends without an error.

    Until then its name has the suffix `.partial`. If the block fails, the file is removed. Raises
    CommandError.
    """
    partial = path.with_name(f"{path.name}.partial")
    try:
        if path.exists():
            raise CommandError(f"{path} exists already; name a new file")
        with partial.open("xb") as out:
            try:
                yield out
                out.flush()
                os.fsync(out.fileno())
                if path.exists():
                    raise CommandError(
                        f"another program made {path} during the export, so the export is not "
                        "written there; name a new file"
                    )
                partial.rename(path)
            except BaseException:
                partial.unlink()
                raise
    except FileExistsError:
        raise CommandError(
            f"{partial} exists already: another export is writing this file, or a killed export "
            "left it; if no export is running, remove the file"
        ) from None
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror or error}") from None
