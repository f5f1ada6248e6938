"""Rows of a stream, fetched from a running broker over HTTP."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from broker.stream.arrow import SCHEMA_SIZE, BatchView, view_batch
from trellis.cli.api_client import ApiClient, ApiRefused
from trellis.cli.parsing import CommandError, Parser, number
from trellis.cli.table import Row

#: The status with which the broker answers that the archive has not delivered a segment in time,
#: and the number of attempts, each of which waits for several seconds.
BUSY = 503
ARCHIVE_ATTEMPTS = 5


def add_range(tool: Parser) -> None:
    """Add the arguments that choose a stream and a range of its offsets."""
    tool.add_argument("queue", metavar="QUEUE", help="name of the stream")
    tool.add_argument("--vhost", default="/", metavar="NAME", help="virtual host of the stream [/]")
    tool.add_argument(
        "--from",
        dest="first",
        type=number(int, 0),
        metavar="N",
        help="first offset [the first offset of the stream]",
    )
    tool.add_argument(
        "--to",
        dest="end",
        type=number(int, 0),
        metavar="N",
        help="end offset, not included [the end of the durable rows]",
    )


class _ReadSegment:
    """The segment that was read last: its name and schema, the bytes and rows that were read."""

    def __init__(self, name: object, schema: bytes) -> None:
        self.name = name
        self.schema = schema
        #: Size in bytes of the part of the segment whose rows were all read.
        self.size = len(schema)
        #: The offset of the first row behind this part.
        self.end = -1


class StreamSource:
    """The stream rows that the arguments of a command choose, fetched over HTTP.

    The methods raise CommandError.
    """

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._client = ApiClient(arguments)
        self._read: _ReadSegment | None = None

    def rows(self, *path: str, query: dict[str, object] | None = None) -> list[Row]:
        """Request `/api/PATH`, and return the answer: a decoded list of JSON objects."""
        answer = self._client.request("GET", *path, query=query)
        rows: list[Row] = self._client.decode(answer, list[Row], "JSON list of objects", *path)
        return rows

    def begin_with_segment_of(self, at: int) -> None:
        """Skip segments whose rows are all older than the time `at`, in microseconds since 1970."""
        stream: dict[str, object] = {"vhost": self._arguments.vhost, "queue": self._arguments.queue}
        for segment in self.rows("streams", "segments", query=stream):
            if _number(segment["to"]) < at:
                self._arguments.first = _number(segment["end"])

    def batches(self) -> Iterator[tuple[bytes, BatchView, int, int]]:
        """Yield (schema, batch, first row, end row) for each batch of the range, in order.

        Rows `first row` to `end row` - 1 of the batch, counted from 0, belong to the range.
        `schema` is the encoded schema message. If the range begins where the rows of an earlier
        call have ended, only the new bytes of the segment are fetched.
        """
        arguments = self._arguments
        if (
            arguments.first is not None
            and arguments.end is not None
            and arguments.end < arguments.first
        ):
            problem = f"--to {arguments.end} is before --from {arguments.first}"
            raise CommandError(f"{problem}: give a later end, or an earlier first row", 2)
        stream: dict[str, object] = {"vhost": arguments.vhost, "queue": arguments.queue}
        first_offset = {} if arguments.first is None else {"offset": arguments.first}
        segments = self.rows("streams", "segments", query={**stream, **first_offset})
        at = arguments.first
        if not segments:
            self._check_reached(at)
        for segment in segments:
            first, end = _number(segment["first"]), _number(segment["end"])
            if at is None:
                at = first
            if arguments.end is not None and at >= arguments.end:
                return
            if at < first:
                raise CommandError(
                    f"offsets {at} to {first - 1} of stream '{arguments.queue}' are lost: their "
                    f"segment or archived file is missing; continue with --from {first}"
                )
            stop = end if arguments.end is None else min(end, arguments.end)
            if at >= stop:
                return
            query = {**stream, "segment": segment["name"]}
            read = self._read
            if read is not None and (read.name, read.end) == (segment["name"], at):
                skipped = read.size
                data = self._segment(query | {"start": skipped})
                place = 0
            else:
                data, skipped, place = self._segment(query), 0, int(SCHEMA_SIZE)
                read = self._read = _ReadSegment(segment["name"], data[:place])
            while at < stop:
                batch = view_batch(data, place)
                if batch is None or not batch.is_intact():
                    raise CommandError(
                        f"segment '{segment['name']}' of stream '{arguments.queue}' is damaged at "
                        f"byte {skipped + place}; stop the broker and run `trellis store verify`"
                    )
                base, rows = int(batch.base), int(batch.rows)
                place = int(batch.end)
                if base + rows > at:
                    yield read.schema, batch, at - base, min(stop - base, rows)
                    at = min(base + rows, stop)
                if base + rows <= stop:
                    read.size, read.end = skipped + place, base + rows

    def _segment(self, query: dict[str, object]) -> bytes:
        """Return the bytes of a segment, which the broker may have to fetch from its archive."""
        for _ in range(ARCHIVE_ATTEMPTS - 1):
            try:
                return self._client.request("GET", "streams", "segment", query=query)
            except ApiRefused as refused:
                if refused.status != BUSY:
                    raise
        return self._client.request("GET", "streams", "segment", query=query)

    def _check_reached(self, first: int | None) -> None:
        """Raise CommandError if the durable rows of the stream end before the offset `first`.

        None as `first` is always accepted.
        """
        arguments = self._arguments
        for row in self.rows("streams"):
            if (
                (row["vhost"], row["name"]) == (arguments.vhost, arguments.queue)
                and first is not None
                and first > _number(row["durable"])
            ):
                raise CommandError(
                    f"offset {first} of stream '{arguments.queue}' in vhost '{arguments.vhost}' is "
                    f"not written yet: begin with --from {row['durable']} or lower"
                )


def _number(cell: object) -> int:
    assert isinstance(cell, int)
    return cell
