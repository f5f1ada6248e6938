"""The files of the archive, in an S3 object store or in a directory, with pyarrow's file systems.

A file appears under its name at once and whole, or not at all: an object store makes an object
visible when its upload is complete, and a directory gets a finished file by a rename. Used by the
worker only.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import fs

from trellis.archive.names import ArchivedFile, parse_day, parse_file
from trellis.settings.archive_location import ArchiveLocation

#: Seconds to wait for a connection to the object store, and for an answer.
CONNECT_SECONDS: Final = 5
REQUEST_SECONDS: Final = 20
#: Number of attempts at each request within one upload or fetch; the service tries again later.
ATTEMPTS: Final = 2


class ArchiveAway(Exception):
    """Raised if the archive cannot be reached, or refuses a request. The text has the reason.

    A later attempt may succeed.
    """


class FileMissing(Exception):
    """Raised if a file of the archive does not exist any more."""


class ArchiveStorage:
    """The archive at a location. Each method may raise ArchiveAway, and `open` FileMissing."""

    def __init__(self, location: ArchiveLocation) -> None:
        self._root = location.path
        self._local = location.scheme == "file"
        self._fs: Any = fs.LocalFileSystem() if self._local else _s3(location)

    def check(self) -> None:
        """Raise ArchiveAway unless the directory of the archive exists.

        A missing directory is not created: it may be the mount point of a disk that is not mounted.
        """
        if self._local and not os.path.isdir(self._root):
            raise ArchiveAway(
                f"the directory {self._root} does not exist; create it, or mount its disk"
            )

    def days(self, stream: str) -> list[str]:
        """Return the days for which the archive has a directory of a stream, sorted."""
        self.check()
        days = (parse_day(info.base_name) for info in self._list(stream))
        return sorted(day for day in days if day is not None)

    def files(self, stream: str, day: str) -> list[ArchivedFile]:
        """Return the files of a stream and a day, sorted by their first offset."""
        self.check()
        files = (
            parse_file(day, info.base_name, info.size)
            for info in self._list(f"{stream}/day={day}")
            if info.type == fs.FileType.File
        )
        return sorted(file for file in files if file is not None)

    def _list(self, path: str) -> list[Any]:
        try:
            infos: list[Any] = self._fs.get_file_info(
                fs.FileSelector(f"{self._root}/{path}", allow_not_found=True)
            )
        except (OSError, pa.ArrowException) as error:
            raise ArchiveAway(f"cannot list {self._root}/{path}: {_first_line(error)}") from None
        return infos

    def put(self, source: Path, path: str) -> None:
        """Store a complete local file under a path; overwrite an existing file at this path."""
        self.check()
        target = f"{self._root}/{path}"
        try:
            if self._local:
                _put_local(source, Path(target))
            else:
                # The whole file is one buffer, so that no read can fail between the begin and the
                # end of the upload: a stream that is closed early would store a partial object.
                with pa.memory_map(str(source)) as file:
                    data = file.read_buffer()
                out = self._fs.open_output_stream(target)
                out.write(data)
                out.close()
        except (OSError, pa.ArrowException) as error:
            raise ArchiveAway(f"cannot store {target}: {_first_line(error)}") from None

    def open(self, path: str) -> Any:
        """Return a file of the archive, opened for reading by pyarrow."""
        self.check()
        target = f"{self._root}/{path}"
        try:
            return self._fs.open_input_file(target)
        except FileNotFoundError:
            raise FileMissing(f"{target} does not exist any more") from None
        except (OSError, pa.ArrowException) as error:
            raise ArchiveAway(f"cannot read {target}: {_first_line(error)}") from None


def _s3(location: ArchiveLocation) -> Any:
    options: dict[str, Any] = {}
    if location.endpoint:
        server = urlsplit(location.endpoint)
        options["endpoint_override"] = server.netloc
        options["scheme"] = server.scheme
    if location.region:
        options["region"] = location.region
    return fs.S3FileSystem(
        connect_timeout=CONNECT_SECONDS,
        request_timeout=REQUEST_SECONDS,
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=ATTEMPTS),
        background_writes=False,
        **options,
    )


def _put_local(source: Path, target: Path) -> None:
    """Copy a file into a directory. The copy is durable before it appears under its name."""
    new_parents = [parent for parent in target.parents if not parent.exists()]
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.partial")
    with source.open("rb") as file, partial.open("wb") as copy:
        while data := file.read(1 << 20):
            copy.write(data)
        copy.flush()
        os.fsync(copy.fileno())
    partial.replace(target)
    for directory in {target.parent, *(parent.parent for parent in new_parents)}:
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
