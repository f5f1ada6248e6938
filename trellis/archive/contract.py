"""The messages between the broker and the archive's worker: one JSON object per line.

    broker -> worker                           worker -> broker
    Open      the archive, once                Ready     the worker serves messages
    Upload    a full segment                   Uploaded  the segment is in the archive
    FetchFile the file with an offset          Fetched   the file is a segment in the cache
    FindTime  the first file of a time         Found     an offset, or -1
    FindFirst the first offset of a stream
    ListFiles the files of a stream            Listed    some of the files
    Remove    a segment from the cache
    Forget    the progress of a deleted stream
                                               RequestFailed  a message cannot be served

Messages with a `number` get an answer with the same number. `stream` is the path of a stream below
the prefix of the archive (names.py).
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct

#: Kinds of failures. AWAY: the archive does not answer, or the worker has an unexpected error; the
#: message is to be repeated. This is the only kind for FindTime, FindFirst and ListFiles. GONE: the
#: segment of an Upload was removed from the disk. MISSING: the archive lacks the row of a
#: FetchFile. BAD: the rows of an Upload differ from the rows in the archive, or the file of a
#: FetchFile is damaged.
AWAY, GONE, MISSING, BAD = "away", "gone", "missing", "bad"


class Open(Struct, tag=True):
    """The request to open the archive: its URL, and the directory for the worker's own files.

    The worker fetches no file while the disk of this directory has less than `disk_free` bytes.
    """

    url: str
    directory: str
    disk_free: int


class Upload(Struct, tag=True):
    """A request to upload a full segment: the rows from offset `base` to `end` - 1.

    The rows were published between the times `from_us` and `to_us`, in microseconds.
    """

    number: int
    stream: str
    stream_number: int
    path: str
    base: int
    end: int
    size: int
    from_us: int
    to_us: int


class FetchFile(Struct, tag=True):
    """A request for the file that has the row at an offset."""

    number: int
    stream: str
    stream_number: int
    offset: int


class FindTime(Struct, tag=True):
    """A request for the first offset of the first file with a row published at `moment` or later.

    `moment` is in microseconds since 1970.
    """

    number: int
    stream: str
    moment: int


class FindFirst(Struct, tag=True):
    """A request for the first offset of a stream in the archive."""

    number: int
    stream: str


class ListFiles(Struct, tag=True):
    """A request for at most `count` files, from the file with the row at `offset` on."""

    number: int
    stream: str
    offset: int
    count: int


class Remove(Struct, tag=True):
    """A request, without an answer, to delete the segment file at `path` from the cache."""

    path: str


class Forget(Struct, tag=True):
    """A request, without an answer, to drop the upload progress of a deleted stream."""

    stream_number: int


class Ready(Struct, tag=True):
    """The notice that the worker has opened the archive, and serves messages."""


class Uploaded(Struct, tag=True):
    """The answer to an Upload: the archive has the rows of the segment.

    `first` is the first offset of the stream in the archive. The upload wrote `files` files with
    `size` bytes in total: 0 files if an earlier upload had written all rows.
    """

    number: int
    first: int
    files: int
    size: int


class Fetched(Struct, tag=True):
    """The answer to a FetchFile: a segment file in the cache, at `path`, with `size` bytes.

    The segment has the rows from offset `base` on. `index` is the content of the segment's index;
    `archived` is the size of the file in the archive, in bytes.
    """

    number: int
    base: int
    path: str
    size: int
    index: bytes
    archived: int


class Found(Struct, tag=True):
    """The answer to a FindTime or FindFirst: an offset; -1 if the archive has no such row."""

    number: int
    offset: int


class FileRow(Struct, array_like=True):
    """A file of a stream: its offsets, times in microseconds, size in bytes and path."""

    first: int
    end: int
    from_us: int
    to_us: int
    size: int
    path: str


class Listed(Struct, tag=True):
    """The answer to a ListFiles: files of a stream, in the order of their offsets."""

    number: int
    files: list[FileRow]


class RequestFailed(Struct, tag=True):
    """The answer to a request that failed.

    `kind` is AWAY (a repeated request may succeed), GONE (the segment was removed), MISSING (the
    archive lacks the row or file) or BAD (a file or segment is damaged or has other rows).
    """

    number: int
    kind: str
    reason: str


#: The messages that get an answer.
Request = Upload | FetchFile | FindTime | FindFirst | ListFiles
ToWorker = Open | Request | Remove | Forget
FromWorker = Ready | Uploaded | Fetched | Found | Listed | RequestFailed

_encoder: Final = msgspec.json.Encoder()
to_worker: Final = msgspec.json.Decoder(ToWorker)
from_worker: Final = msgspec.json.Decoder(FromWorker)


def line(message: ToWorker | FromWorker) -> bytes:
    """Return a message as one line of JSON."""
    return _encoder.encode(message) + b"\n"
