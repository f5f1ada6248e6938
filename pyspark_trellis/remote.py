"""A running broker, asked over its HTTP listener: its definitions, and its streams, of which it
shows what is durable.
"""

from __future__ import annotations

import base64
import http.client
import json
import struct
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote, urlencode, urlsplit

import pyarrow as pa

from pyspark_trellis.errors import PipelineError, shown
from pyspark_trellis.journal import (
    ROWS_PER_TASK,
    JournalSpan,
    JournalStream,
    OffsetRange,
    Piece,
    check_whole,
)
from pyspark_trellis.messages import DamagedSegment
from pyspark_trellis.segments import SegmentName, SegmentScan, damaged

#: Seconds to wait for an answer.
PATIENCE: Final = 30


@dataclass(frozen=True)
class RemoteBroker:
    """Where it is, and who asks."""

    url: str
    user: str
    password: str

    @classmethod
    def of(cls, place: str) -> RemoteBroker:
        """http://USER:PASSWORD@HOST:15672; guest where nobody is named. Raises PipelineError."""
        try:
            parts = urlsplit(place)
            port = parts.port or 15672
        except ValueError as error:
            raise PipelineError(f"{shown(place)} is no URL: {error}") from None
        if not parts.hostname or parts.path not in ("", "/"):
            raise PipelineError(
                f"{shown(place)} should be http://USER:PASSWORD@HOST:15672, the broker's HTTP listener"
            )
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        return cls(
            f"{parts.scheme}://{host}:{port}",
            unquote(parts.username or "guest"),
            unquote(parts.password or "guest"),
        )

    def document(self, path: str) -> Any:
        """What it answers there, decoded. Raises PipelineError."""
        octets = self.octets(path)
        try:
            return json.loads(octets)
        except ValueError as error:
            raise self._unexpected(path, error) from None

    def octets(self, path: str) -> bytes:
        """What it answers there. Raises PipelineError."""
        request = urllib.request.Request(self.url + path)
        request.add_header(
            "Authorization",
            "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode(),
        )
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                found: bytes = answer.read()
                return found
        except urllib.error.HTTPError as error:
            with error:
                raise PipelineError(
                    f"{self.url} answered {error.code} to user '{self.user}': {_reason(error)}"
                ) from None
        except urllib.error.URLError as error:
            raise PipelineError(
                f"{self.url} does not answer: {error.reason}; is the listener `http` on?"
            ) from None
        except (OSError, http.client.HTTPException) as error:
            raise self._unexpected(path, error) from None

    def _unexpected(self, path: str, error: Exception) -> PipelineError:
        return PipelineError(
            f"{self.url}{path} answered something else than expected ({error}); is it Trellis?"
        )


def _reason(error: urllib.error.HTTPError) -> str:
    """Why the broker refuses, which it says in JSON; another server's own words."""
    octets = error.read(2_000)
    try:
        return str(json.loads(octets)["reason"])
    except (ValueError, TypeError, KeyError):
        return f"{error.reason}; is it Trellis?"


#: Octets that are asked for to read heads of batches: at first, and as long as some more batches
#: are found in them.
_HEADS: Final = 8 << 10
_HEADS_MAX: Final = 1 << 20


@dataclass(frozen=True)
class RemotePiece(Piece):
    """Rows of a segment of a broker's: `path` is the question for it."""

    broker: RemoteBroker
    path: str

    @property
    def where(self) -> str:
        return f"{self.broker.url}{self.path}"

    def octets(self) -> pa.Buffer:
        return pa.py_buffer(
            self.broker.octets(f"{self.path}&start={self.cut.start}&end={self.cut.end}")
        )


class Remote(JournalStream):
    """A stream of a running broker."""

    def __init__(self, broker: RemoteBroker, vhost: str, queue: str) -> None:
        self._broker: Final = broker
        self._question: Final = urlencode({"vhost": vhost, "queue": queue})
        self._name: Final = f"stream '{queue}' in vhost '{vhost}' of {broker.url}"
        self._scans: dict[SegmentName, SegmentScan] = {}

    @classmethod
    def of(cls, place: str, options: Mapping[str, str]) -> Remote:
        """Of http://USER:PASSWORD@HOST:15672 and the option `stream`: VHOST/QUEUE, or QUEUE of the
        vhost /. Raises PipelineError.
        """
        stream = options.get("stream", "")
        if not stream:
            raise PipelineError(
                f"which stream of {shown(place)}? Say it with the option stream: QUEUE, or VHOST/QUEUE"
            )
        vhost, _, queue = stream.rpartition("/")
        return cls(RemoteBroker.of(place), vhost or "/", queue)

    @property
    def name(self) -> str:
        return self._name

    def bounds(self) -> OffsetRange:
        rows = self._segments()
        return (
            OffsetRange(rows[0]["first"], rows[-1]["end"], rows[-1]["epoch"])
            if rows
            else OffsetRange(0, 0, 0)
        )

    def rewritten(self, offset: int, epoch: int) -> bool:
        return False  # What is shown is durable.

    def pieces(self, low: int, high: int, rows: int = ROWS_PER_TASK) -> list[Piece]:
        if high <= low:
            return []
        found = [row for row in self._segments() if row["first"] < high and row["end"] > low]
        check_whole(
            self.name,
            [
                JournalSpan(SegmentName(row["epoch"], row["first"]), row["first"], row["end"])
                for row in found
            ],
            low,
            high,
        )
        pieces: list[Piece] = []
        for row in found:
            path = f"/api/streams/segment?{self._question}&segment={row['name']}"
            begin, last = max(low, row["first"]), min(high, row["end"])
            scan = self._scans.setdefault(
                SegmentName(row["epoch"], row["first"]), SegmentScan(row["first"])
            )
            self._scan(scan, path, row["bytes"], last)
            pieces += [RemotePiece(cut, self._broker, path) for cut in scan.cut(begin, last, rows)]
        return pieces

    def _segments(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._broker.document(
            f"/api/streams/segments?{self._question}"
        )
        return found

    def _scan(self, scan: SegmentScan, path: str, size: int, until: int) -> None:
        """Read the heads of batches up to that offset: each says where the next one is."""
        some = _HEADS
        while not scan.schema or scan.end < until:
            start, known = scan.size, len(scan.places)
            try:
                scan.go_on(
                    self._broker.octets(f"{path}&start={start}&end={min(start + some, size)}"),
                    start,
                    size,
                )
                if scan.size == start:
                    raise DamagedSegment(f"there is no batch at octet {start}")
            except (DamagedSegment, struct.error) as error:
                raise damaged(f"{self._broker.url}{path}", error) from error
            some = min(2 * some, _HEADS_MAX) if len(scan.places) > known + 1 else _HEADS
