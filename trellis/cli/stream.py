"""`trellis stream list|head|export` and `trellis replay`: what streams hold, asked of a running
broker over HTTP.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlencode, urlsplit

import msgspec

from broker.stream.arrow import END_OF_STREAM, SCHEMA_SIZE, BatchView, view_batch
from broker.stream.template import COLUMNS
from trellis.cli.client import add_asking, authorised, base_of, credentials, fetch, said_by
from trellis.cli.parsing import (
    CommandError,
    Commands,
    Parser,
    add_command,
    add_settings,
    load_settings,
    number,
)
from trellis.cli.replaying import ReplayPublisher
from trellis.cli.table import Row, columns_of, table
from trellis.settings import Settings

_USAGE = "list | head QUEUE | export QUEUE FILE [--url URL] [--user NAME --password WORD]"
PORT_MAX = 65_535
#: Seconds between two lines about the progress.
EVERY = 1.0
_NOTHING = "there are no rows in that range"
_BEGAN = datetime(1970, 1, 1, tzinfo=UTC)
#: Seconds that no datetime has, and a timedelta can hold.
_NEVER = 1 << 40
#: Seconds that fit into Parquet's timestamps, which are milliseconds. A publisher may say others.
_SAYABLE = ((1 << 63) - 1) // 1000


def add(commands: Commands) -> None:
    command = add_command(
        commands, "stream", _help, "list streams, show rows of one, or export them", _USAGE
    )
    tools = command.add_subparsers(title="tools", metavar="TOOL", dest="tool")
    listing = _add(tools, "list", list_streams, "list the streams that this user may read")
    listing.add_argument("--json", action="store_true", help="print a JSON list of objects")
    head = _add(
        tools,
        "head",
        show_head,
        "print rows of a stream, a JSON object a line",
        "QUEUE [--from N] [--to N] [--count N] ",
    )
    _add_range(head, 10)
    export = _add(
        tools,
        "export",
        export_rows,
        "write rows of a stream to a file: Parquet (.parquet, needs pyarrow) or Arrow (.arrow)",
        "QUEUE FILE [--from N] [--to N] ",
    )
    _add_range(export, None)
    export.add_argument(
        "file", metavar="FILE", type=Path, help="a .parquet or .arrow file that is not there yet"
    )
    replay = add_command(
        commands,
        "replay",
        replay_rows,
        "publish rows of a stream again",
        "QUEUE [--from N] [--to N] [--rate N] [--topic KEY] [--exchange NAME] [--amqp HOST:PORT] "
        "[--url URL] [--user NAME --password WORD]",
    )
    _add_range(replay, None)
    replay.add_argument(
        "--rate",
        type=number(float, 0),
        metavar="N",
        default=0.0,
        help="messages a second [as fast as they are confirmed]",
    )
    replay.add_argument("--topic", metavar="KEY", help="only rows with this routing key")
    replay.add_argument(
        "--exchange", metavar="NAME", help="publish there [to the exchange of each row]"
    )
    replay.add_argument(
        "--amqp",
        metavar="HOST:PORT",
        help="where to publish [the host of --url or of the settings, and their amqp port]",
    )
    add_asking(replay)
    add_settings(replay, "http", without=("user", "password", "password_file"))


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
    add_asking(tool)
    add_settings(tool, "http", without=("user", "password", "password_file"))
    return tool


def _add_range(tool: Parser, count: int | None) -> None:
    tool.add_argument("queue", metavar="QUEUE", help="name of the stream")
    tool.add_argument("--vhost", default="/", metavar="NAME", help="its virtual host [/]")
    tool.add_argument(
        "--from",
        dest="first",
        type=number(int, 0),
        metavar="N",
        help="first offset [the first there is]",
    )
    tool.add_argument(
        "--to",
        dest="end",
        type=number(int, 0),
        metavar="N",
        help="offset at which to stop, not included [what is durable now]",
    )
    if count is not None:
        tool.add_argument(
            "--count",
            type=number(int, 1),
            default=count,
            metavar="N",
            help=f"rows at most [{count}]",
        )


def _help(arguments: argparse.Namespace) -> int:
    raise CommandError("name a tool: list, head or export (see `trellis stream --help`)", 2)


class StreamSource:
    """The rows of a stream, from a broker."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._settings = load_settings(arguments).settings
        self._base = base_of(arguments.url, "http", self._settings.http)

    def ask(self, page: str, query: dict[str, object]) -> bytes:
        request = urllib.request.Request(f"{self._base}/api/{page}?{urlencode(query)}")
        user = authorised(request, self._arguments, self._settings)
        try:
            return fetch(request)
        except urllib.error.HTTPError as error:
            said = said_by(error)
            if error.code == 401:
                said = f"{self._base} refused user {user} ({said}); give --user and --password"
            raise CommandError(said) from None

    def rows_of(self, page: str, query: dict[str, object]) -> list[Row]:
        try:
            return msgspec.json.decode(self.ask(page, query), type=list[Row])
        except msgspec.MsgspecError:
            raise CommandError(f"{self._base} answered no JSON list; is it Trellis?") from None

    def batches(self) -> Iterator[tuple[bytes, BatchView, int, int]]:
        """(schema, batch, first row, end row) of the range that is asked for, in order."""
        arguments = self._arguments
        if (
            arguments.first is not None
            and arguments.end is not None
            and arguments.end < arguments.first
        ):
            raise CommandError(f"--to {arguments.end} is before --from {arguments.first}", 2)
        named: dict[str, object] = {"vhost": arguments.vhost, "queue": arguments.queue}
        given = {} if arguments.first is None else {"offset": arguments.first}
        segments = self.rows_of("streams/segments", {**named, **given})
        at = arguments.first
        if not segments:
            self._check_there(at)
        for segment in segments:
            first, end = _number(segment["first"]), _number(segment["end"])
            if at is None:
                at = first
            if arguments.end is not None and at >= arguments.end:
                return
            if at < first:
                raise CommandError(
                    f"offsets {at} to {first} of stream '{arguments.queue}' are lost; go on with --from {first}"
                )
            stop = end if arguments.end is None else min(end, arguments.end)
            if at >= stop:
                return
            octets = self.ask("streams/segment", {**named, "segment": segment["name"]})
            place = int(SCHEMA_SIZE)
            while at < stop:
                batch = view_batch(octets, place)
                if batch is None or not batch.is_intact():
                    raise CommandError(
                        f"segment '{segment['name']}' of stream '{arguments.queue}' cannot be read at {place}"
                    )
                base, rows = int(batch.base), int(batch.rows)
                place = int(batch.end)
                if base + rows > at:
                    yield octets[: int(SCHEMA_SIZE)], batch, at - base, min(stop - base, rows)
                    at = min(base + rows, stop)

    def _check_there(self, first: int | None) -> None:
        """Raises CommandError where the stream does not reach to this offset."""
        arguments = self._arguments
        for row in self.rows_of("streams", {}):
            if (
                (row["vhost"], row["name"]) == (arguments.vhost, arguments.queue)
                and first is not None
                and first > _number(row["durable"])
            ):
                raise CommandError(
                    f"offset {first} of stream '{arguments.queue}' in vhost '{arguments.vhost}' is not there yet: "
                    f"the next one that comes is {row['durable']}"
                )


def _number(cell: object) -> int:
    assert isinstance(cell, int)
    return cell


def list_streams(arguments: argparse.Namespace) -> int:
    rows = StreamSource(arguments).rows_of("streams", {})
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(rows)).decode())
    else:
        print(table(rows, columns_of(rows)) if rows else "no streams that this user may read")
    return 0


def show_head(arguments: argparse.Namespace) -> int:
    left = arguments.count
    for _, batch, first, end in StreamSource(arguments).batches():
        for row in range(first, min(end, first + left)):
            cells = {
                column: _readable(column, batch.value(column, row))
                for column in COLUMNS
                if column != "content_header"
            }
            print(
                json.dumps(
                    {column: cell for column, cell in cells.items() if cell is not None},
                    default=_text,
                    ensure_ascii=False,
                )
            )
        left -= end - first
        if left <= 0:
            break
    return 0


def _readable(column: str, cell: Any) -> Any:
    """Times as text in UTC, headers as the object that they are."""
    if column in ("published_at", "timestamp") and cell is not None:
        moment = (
            timedelta(microseconds=cell)
            if column == "published_at"
            else timedelta(seconds=min(cell, _NEVER))
        )
        try:
            return (_BEGAN + moment).isoformat().replace("+00:00", "Z")
        except OverflowError:
            return cell  # Publishers may say any second of 64 bits.
    return json.loads(cell) if column == "headers" and cell is not None else cell


def _text(octets: object) -> str:
    return octets.decode(errors="backslashreplace") if isinstance(octets, bytes) else str(octets)


def export_rows(arguments: argparse.Namespace) -> int:
    path: Path = arguments.file
    if path.suffix not in (".parquet", ".arrow"):
        raise CommandError(f"{path}: name a .parquet or an .arrow file", 2)
    write = _as_parquet() if path.suffix == ".parquet" else _as_arrow
    source = StreamSource(arguments)
    try:
        with path.open("xb") as out:
            try:
                count = write(source, out)
                out.flush()
            except BaseException:
                path.unlink()  # Half of it is of no use, and would be in the way.
                raise
    except FileExistsError:
        raise CommandError(f"{path} is there already") from None
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror or error}") from None
    print(f"{count} rows are in {path}")
    return 0


def _as_arrow(source: StreamSource, out: BinaryIO) -> int:
    """As Arrow's IPC stream; a batch of which only some rows are wanted is cut at its end by its
    number of rows.
    """
    count = 0
    for schema, batch, first, end in source.batches():
        if first:
            raise CommandError(
                f"--from must be the first offset of a batch for an .arrow file (take .parquet): {int(batch.base)} is one"
            )
        if not count:
            out.write(schema)
        out.write(batch.first_rows(end))
        count += end - first
    if not count:
        raise CommandError(_NOTHING)
    out.write(END_OF_STREAM)
    return count


def _as_parquet() -> Callable[[StreamSource, BinaryIO], int]:
    """A timestamp that Parquet cannot say becomes null; `content_header` still has it. Raises
    CommandError where pyarrow is missing, before anything is asked."""
    try:
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.parquet as pq
    except ImportError:
        raise CommandError(
            "Parquet needs pyarrow: pip install 'trellis-broker[arrow]', or export to an .arrow file"
        ) from None

    def write(source: StreamSource, out: BinaryIO) -> int:
        count = 0
        writer: Any = None
        for schema, batch, first, end in source.batches():
            octets = schema + batch.data[batch.at : batch.end] + END_OF_STREAM
            rows = (
                pa.ipc.open_stream(octets)
                .read_all()
                .slice(first, end - first)
                .replace_schema_metadata(None)
            )
            at = rows.schema.get_field_index("timestamp")
            seconds = rows.column(at).cast(pa.int64())
            said = pc.and_(pc.greater_equal(seconds, -_SAYABLE), pc.less_equal(seconds, _SAYABLE))
            rows = rows.set_column(
                at, rows.schema.field(at), pc.if_else(said, rows.column(at), None)
            )
            if writer is None:
                writer = pq.ParquetWriter(out, rows.schema)
            writer.write_table(rows)
            count += end - first
        if writer is None:
            raise CommandError(_NOTHING)
        writer.close()
        return count

    return write


def replay_rows(arguments: argparse.Namespace) -> int:
    """Each row with the content header, exchange and routing key that it had; confirmed before it
    counts.
    """
    settings = load_settings(arguments).settings
    host, port = _publishing_to(arguments, settings)
    user, password = credentials(arguments, settings)
    began = said = time.monotonic()
    at = arguments.first or 0  # The first offset that is not published yet.
    with ReplayPublisher(host, port, user, password, arguments.vhost) as publisher:
        try:
            for _, batch, first, end in StreamSource(arguments).batches():
                for row in range(first, end):
                    at = int(batch.base) + row
                    key = (
                        batch.text("topic", row)
                        if batch.is_null("routing_key", row)
                        else batch.text("routing_key", row)
                    )
                    if (
                        arguments.topic is not None
                        and key.decode(errors="replace") != arguments.topic
                    ):
                        continue
                    exchange = (
                        arguments.exchange.encode()
                        if arguments.exchange is not None
                        else batch.text("exchange", row)
                    )
                    if arguments.rate:
                        ahead = began + publisher.published / arguments.rate - time.monotonic()
                        if ahead > 0:
                            publisher.wait_for_confirms()
                            time.sleep(ahead)
                    publisher.publish(
                        exchange,
                        key,
                        batch.text("content_header", row),
                        batch.text("body", row),
                        at,
                    )
                    at += 1
                    if time.monotonic() - said >= EVERY:
                        said = time.monotonic()
                        print(
                            f"offset {at - 1}: {publisher.published} published, {publisher.confirmed} confirmed, "
                            f"{publisher.published / (said - began):.0f}/s",
                            file=sys.stderr,
                        )
            publisher.wait_for_confirms()
        except CommandError as error:
            if not publisher.published:
                raise
            raise CommandError(f"{error}; {publisher.standing(at)}", error.code) from None
        except KeyboardInterrupt:
            print(f"trellis: stopped; {publisher.standing(at)}", file=sys.stderr)
            raise
    print(
        f"{publisher.confirmed} messages published again and confirmed"
        + (f", {publisher.refused} refused" if publisher.refused else "")
    )
    return 1 if publisher.refused else 0


def _publishing_to(arguments: argparse.Namespace, settings: Settings) -> tuple[str, int]:
    """Host and port of AMQP: those given, else of the broker that is asked for the rows."""
    if arguments.amqp is not None:
        host, _, port = arguments.amqp.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) <= PORT_MAX:
            raise CommandError(
                f"--amqp is HOST:PORT, such as 127.0.0.1:5672, and not '{arguments.amqp}'", 2
            )
        return host, int(port)
    asked = urlsplit(base_of(arguments.url, "http", settings.http)).hostname
    return (
        asked if arguments.url is not None and asked else settings.amqp.addresses[0]
    ), settings.amqp.port
