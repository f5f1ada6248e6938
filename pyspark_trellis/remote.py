"""Reads the definitions of a running broker, and the durable rows of its streams, over HTTP."""

from __future__ import annotations

import base64
import http
import http.client
import json
import ssl
import struct
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import pyarrow as pa

from matching.topic_summary import TopicSummary
from pyspark_trellis.archived import ArchivedPiece, ArchivedScan
from pyspark_trellis.credentials import credentials_of, tls_context, token_of
from pyspark_trellis.errors import PipelineError, failed_request, lost_rows, redacted
from pyspark_trellis.journal import JournalSpan, JournalStream, Piece, journal_name, name_parts
from pyspark_trellis.messages import DamagedSegment
from pyspark_trellis.segment_topics import summary_of
from pyspark_trellis.segments import Cut, SegmentName, SegmentScan, damaged, rows_of

#: The time in seconds to wait for an answer.
PATIENCE: Final = 30


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A handler that follows no redirection, so that no other server gets the password."""

    def redirect_request(self, *arguments: Any) -> None:
        """Return None, so that the redirection is an error."""


@lru_cache(maxsize=4)
def _opener(ca_file: str | None) -> urllib.request.OpenerDirector:
    """Return an object that opens URLs without a proxy, so that no proxy gets the password.

    A proxy that the environment names is ignored. `ca_file` is None for URLs without TLS.
    """
    handlers: list[Any] = [urllib.request.ProxyHandler({}), _NoRedirect]
    if ca_file is not None:
        handlers.append(urllib.request.HTTPSHandler(context=tls_context(ca_file)))
    return urllib.request.build_opener(*handlers)


@dataclass(frozen=True)
class RemoteBroker:
    """A broker's HTTP listener and the user to authenticate as.

    A token, if there is one, is used in place of the password. `ca_file` has the certificates of
    authorities to trust; if it is empty, the system's authorities are trusted.
    """

    url: str
    user: str
    password: str
    token: str = ""
    ca_file: str = ""

    @classmethod
    def of(cls, url: str, options: Mapping[str, str] = MappingProxyType({})) -> RemoteBroker:
        """Return the broker at a URL such as http://HOST:15672.

        credentials.py finds the user and the password. Raises PipelineError.
        """
        try:
            parts = urlsplit(url)
            port = parts.port or 15672
        except ValueError as error:
            raise PipelineError(f"{redacted(url)} is not a URL: {error}") from None
        if not parts.hostname or parts.path not in ("", "/"):
            raise PipelineError(
                f"{redacted(url)} must be the URL of the broker's HTTP listener, http://HOST:15672"
            )
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        return cls(
            f"{parts.scheme}://{host}:{port}",
            *credentials_of(parts, options),
            token_of(options),
            options.get("cafile", ""),
        )

    def document(self, path: str) -> Any:
        """Return the decoded JSON document that the broker serves at this HTTP path.

        Raises PipelineError.
        """
        data = self.fetch(path)
        try:
            return json.loads(data)
        except ValueError as error:
            raise self._unexpected(path, error) from None

    def fetch(self, path: str, attempts: int = 1) -> bytes:
        """Return the bytes that the broker serves at this HTTP path. Raises PipelineError.

        Try up to `attempts` times while the broker answers that it is busy.
        """
        request = urllib.request.Request(self.url + path)
        login = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
        request.add_header(
            "Authorization", f"Bearer {self.token}" if self.token else f"Basic {login}"
        )
        opener = _opener(self.ca_file if self.url.startswith("https:") else None)
        try:
            with opener.open(request, timeout=PATIENCE) as answer:
                body: bytes = answer.read()
                return body
        except urllib.error.HTTPError as error:
            with error:
                if error.code == http.HTTPStatus.SERVICE_UNAVAILABLE and attempts > 1:
                    return self.fetch(path, attempts - 1)
                text = (
                    f"{self.url} answered a request of user '{self.user}' with status "
                    f"{error.code}: {_reason(error)}"
                )
                if error.code == http.HTTPStatus.GONE:
                    raise lost_rows(text) from None
                raise failed_request(text, error.code) from None
        except urllib.error.URLError as error:
            untrusted = isinstance(error.reason, ssl.SSLCertVerificationError)
            raise failed_request(
                f"the certificate of {self.url} is not trusted: {error.reason}; set the option "
                "caFile to the certificate of its authority"
                if untrusted
                else f"{self.url} does not answer: {error.reason}; check that a broker runs there, "
                "with the listener `http`"
            ) from None
        except (OSError, http.client.HTTPException) as error:
            raise self._unexpected(path, error) from None

    def _unexpected(self, path: str, error: Exception) -> PipelineError:
        return failed_request(
            f"{self.url}{path} sent an unexpected answer ({error}); check that a Trellis broker "
            "listens there"
        )


def _reason(error: urllib.error.HTTPError) -> str:
    """Return the reason for an error: the reason in the broker's JSON, or, if another server
    answers, the HTTP reason phrase.
    """
    data = error.read(2_000)
    try:
        return str(json.loads(data)["reason"])
    except (ValueError, TypeError, KeyError):
        return f"{error.reason}; check that a Trellis broker listens there"


#: Size in bytes of a request for batch headers: _HEADS at first, _HEADS_MAX at most. The size
#: doubles after each answer with several batches; after any other answer it is _HEADS again.
_HEADS: Final = 8 << 10
_HEADS_MAX: Final = 1 << 20


@dataclass(frozen=True)
class RemotePiece(Piece):
    """Rows of a segment of a running broker; `path` is the HTTP path of the segment.

    `base` is the first offset of the segment.
    """

    broker: RemoteBroker
    path: str
    base: int

    @property
    def where(self) -> str:
        return f"{self.broker.url}{self.path}"

    def data(self) -> pa.Buffer:
        return pa.py_buffer(
            self.broker.fetch(f"{self.path}&start={self.cut.start}&end={self.cut.end}")
        )

    def batches(self, columns: Sequence[str], verify: bool = True) -> Iterator[pa.RecordBatch]:
        try:
            data = self.data()
        except PipelineError as error:
            if not error.rows_lost:
                raise
            # Retention has removed the segment since the query was planned: request the whole
            # segment, which the broker may have in its archive.
            cut = replace(self.cut, first=self.base)
            piece = ArchivedPiece(cut, self.broker, self.path, journal=self.journal)
            yield from piece.batches(columns, verify)
            return
        yield from rows_of(self.cut, data, self.where, columns, verify)


class Remote(JournalStream):
    """A stream of a running broker, read over HTTP."""

    def __init__(self, broker: RemoteBroker, vhost: str, queue: str) -> None:
        self._broker: Final = broker
        self._question: Final = urlencode({"vhost": vhost, "queue": queue})
        self.name = f"stream '{queue}' in vhost '{vhost}' of {broker.url}"
        self.journal = journal_name(vhost, queue)
        self._scans: dict[SegmentName, SegmentScan] = {}
        #: The broker's description of each segment, from the last call of `spans`.
        self._rows: dict[SegmentName, dict[str, Any]] = {}

    @classmethod
    def of(cls, url: str, options: Mapping[str, str]) -> Remote:
        """Return the stream that the option `journal` or `stream` names.

        `url` is the broker's URL, such as http://HOST:15672. The option is VHOST/QUEUE, or
        QUEUE for the vhost /. Raises PipelineError.
        """
        stream = options.get("journal") or options.get("stream", "")
        if not stream:
            raise PipelineError(
                f"the query names no stream of {redacted(url)}: set the option stream to QUEUE or "
                "VHOST/QUEUE"
            )
        return cls(RemoteBroker.of(url, options), *name_parts(stream))

    def spans(self) -> list[JournalSpan]:
        rows: list[dict[str, Any]] = self._broker.document(
            f"/api/streams/segments?{self._question}"
        )
        self._rows = {SegmentName(row["epoch"], row["first"]): row for row in rows}
        return [
            JournalSpan(name, row["first"], row["end"], row["from"], row["to"])
            for name, row in self._rows.items()
            if row["end"] > row["first"]
        ]

    def rewritten(self, offset: int, epoch: int) -> int | None:
        return None  # The broker returns only durable rows, which a crash cannot remove.

    def time_of(self, offset: int) -> int:
        [span] = (span for span in self.spans() if span.low <= offset < span.high)
        if span.first_at is not None and self._rows[span.name].get("archived"):
            return span.first_at  # Do not fetch an archived file for one time.
        return super().time_of(offset)

    def piece(self, span: JournalSpan, cut: Cut) -> Piece:
        path = self._path(span)
        if self._rows[span.name].get("archived"):
            return ArchivedPiece(cut, self._broker, path, journal=self.journal)
        return RemotePiece(cut, self._broker, path, span.name.base, journal=self.journal)

    def summary(self, span: JournalSpan) -> TopicSummary | None:
        row = self._rows[span.name]
        if row.get("archived") or not row["full"]:
            return None
        try:
            data = self._broker.fetch(f"/api/streams/topics?{self._question}&segment={row['name']}")
        except PipelineError:
            # There is no summary (yet), or the broker is of an earlier version. Other errors, such
            # as a lost connection, fail the request for the segment too.
            return None
        return summary_of(data, span.name.epoch, span.name.base, row["end"])

    def _path(self, span: JournalSpan) -> str:
        name = self._rows[span.name]["name"]
        return f"/api/streams/segment?{self._question}&segment={name}"

    def scanned(self, span: JournalSpan, until: int) -> SegmentScan:
        """Return the positions of a segment's batches, at least up to the offset `until`.

        The headers of the batches are read over HTTP; each gives the position of the next.
        """
        if self._rows[span.name].get("archived"):
            return ArchivedScan(span.low, size=self._rows[span.name]["bytes"])
        scan = self._scans.setdefault(span.name, SegmentScan(span.low))
        path, size = self._path(span), self._rows[span.name]["bytes"]
        some = _HEADS
        while not scan.schema or scan.end < until:
            start, known = scan.size, len(scan.positions)
            try:
                scan.read_headers(
                    self._broker.fetch(f"{path}&start={start}&end={min(start + some, size)}"),
                    start,
                    size,
                )
                if scan.size == start:
                    raise DamagedSegment(f"there is no batch at byte {start}")
            except (DamagedSegment, struct.error) as error:
                raise damaged(f"{self._broker.url}{path}", error) from error
            some = min(2 * some, _HEADS_MAX) if len(scan.positions) > known + 1 else _HEADS
        return scan


def stream_names(broker: RemoteBroker) -> list[str]:
    """Return the names of the streams that the user may read. Raises PipelineError."""
    return [journal_name(row["vhost"], row["name"]) for row in broker.document("/api/streams")]
