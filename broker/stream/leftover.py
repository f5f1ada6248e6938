"""Removal of the files of deleted streams that are still on the disk.

A stream is deleted in the catalog first, then its files are removed. A crash in between leaves
files, which the next start removes. The start looks at each directory STREAMS/VHOST/QUEUE/ whose
QUEUE is not in the catalog. Such a stream was deleted, or the catalog is damaged and has lost its
newest definitions. The number of the stream, which each of its segments has, decides:

- The catalog has all definitions up to this number: the stream was deleted, so its files are
  removed.
- The catalog has lost its definitions from a lower number on: the files are reported, and stay.

Copies in the quarantine, and files that are not files of a stream, are never removed.
"""

from __future__ import annotations

from broker.store.disk import Disk, remove_files
from broker.store.findings import CUT, IGNORED, QUARANTINE, Finding
from broker.stream.arrow import SCHEMA_SIZE, read_schema
from broker.stream.recovery import LOST, WRITTEN
from broker.stream.segments import SUFFIXES, directory_name, parse_segment


def remove_deleted_streams(
    disk: Disk, root: str, names: list[tuple[str, str]], newest: int
) -> list[Finding]:
    """Remove the files of deleted streams; return findings about these files and foreign files.

    `names` has the pair (virtual host, name) of each existing queue. `newest` is the highest number
    of a definition in the catalog. The files of a stream with a higher number stay, because the
    catalog may have lost its last definitions.
    """
    existing = {f"{directory_name(vhost)}/{directory_name(name)}" for vhost, name in names}
    here = root.rpartition("/")[2]
    findings: list[Finding] = []
    for vhost in _names(disk, root):
        directories = _names(disk, f"{root}/{vhost}")
        for name in directories:
            place = f"{vhost}/{name}"
            if place not in existing:
                findings += _remove_stream(disk, f"{root}/{place}", f"{here}/{place}", newest)
        if not directories:
            remove_files(disk, [f"{root}/{vhost}/"])
    return findings


def _remove_stream(disk: Disk, directory: str, place: str, newest: int) -> list[Finding]:
    """Remove the files of a deleted stream, and its directory if no other file is in it.

    Remove nothing, and return a finding, if it is uncertain that the stream was deleted. `place` is
    the directory's name in findings; `newest` is as in `remove_deleted_streams`.
    """
    names = _names(disk, directory)
    stream_files = [name for name in names if name.endswith(SUFFIXES)]
    for name in stream_files:
        number = (
            _stream_number(disk, f"{directory}/{name}") if parse_segment(name) is not None else 0
        )
        if number < 0:
            return [
                Finding(
                    IGNORED,
                    f"{place}/{name}",
                    0,
                    0,
                    "no stream with the name of this directory exists, and the file's schema is "
                    "damaged: move the file away",
                )
            ]
        if number > newest:
            return [
                Finding(
                    IGNORED,
                    place,
                    0,
                    0,
                    "no stream with the name of this directory exists, but the files belong to a "
                    f"stream that was declared at position {number}, and the catalog ends at "
                    f"position {newest}; the next start removes the files",
                )
            ]
    quarantine = f"{directory}/{QUARANTINE}"
    notes = [
        f"{quarantine}/{name}"
        for name in _names(disk, quarantine)
        if name.startswith((LOST, WRITTEN))
    ]
    remove_files(
        disk,
        [
            *(f"{directory}/{name}" for name in stream_files),
            *notes,
            f"{quarantine}/",
            f"{directory}/",
        ],
    )
    reason = f"these files belong to a deleted stream (files: {len(stream_files)})"
    removed = [Finding(CUT, place, 0, 0, reason)] if stream_files else []
    return removed + find_foreign_files(disk, directory)


def find_foreign_files(disk: Disk, directory: str) -> list[Finding]:
    """Return a finding for each file in a stream's directory that is not a file of a stream."""
    place = "/".join(directory.split("/")[-3:])
    return [
        Finding(
            IGNORED, f"{place}/{name}", 0, 0, "this is not a file of a stream: move the file away"
        )
        for name in _names(disk, directory)
        if not name.endswith(SUFFIXES) and name != QUARANTINE
    ]


def _stream_number(disk: Disk, path: str) -> int:
    """Return the stream's number in a segment; 0 for an empty segment, -1 for a damaged schema."""
    file = disk.open(path, False)
    head = read_schema(file.read(0, SCHEMA_SIZE))
    if head is not None:
        return head[0]
    return 0 if file.size() <= SCHEMA_SIZE else -1


def _names(disk: Disk, directory: str) -> list[str]:
    try:
        return disk.list(directory)
    except OSError:
        return []
