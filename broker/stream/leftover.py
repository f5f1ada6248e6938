"""What is left in the directory of all streams of those that are deleted.

    STREAMS/VHOST/QUEUE/    no stream of that name, its segments say a number that the catalog knows: deleted, they go
                            ... a number beyond the end of a catalog that lost its end: they stay, and are told
                            a quarantine with copies: it stays; and so does what is no file of a stream

A stream is deleted in the catalog first; its files go with the same batch, unless the process ends
between.
"""

from __future__ import annotations

from broker.store.disk import Disk, remove_files
from broker.store.findings import CUT, IGNORED, QUARANTINE, Finding
from broker.stream.archive import directory_name
from broker.stream.arrow import SCHEMA_SIZE, read_schema
from broker.stream.recovery import LOST, WRITTEN
from broker.stream.segments import SUFFIXES, parse_segment


def remove_deleted_streams(
    disk: Disk, root: str, names: list[tuple[str, str]], newest: int
) -> list[Finding]:
    """Remove what is left of streams that are deleted; returns what must stay. `names` are those of
    the queues that there are (virtual host and name), `newest` is the last number that the catalog
    knows.
    """
    kept = {f"{directory_name(vhost)}/{directory_name(name)}" for vhost, name in names}
    here = root.rpartition("/")[2]
    findings: list[Finding] = []
    for vhost in _names(disk, root):
        directories = _names(disk, f"{root}/{vhost}")
        for name in directories:
            place = f"{vhost}/{name}"
            if place not in kept:
                findings += _remove_stream(disk, f"{root}/{place}", f"{here}/{place}", newest)
        if not directories:
            remove_files(disk, [f"{root}/{vhost}/"])
    return findings


def _remove_stream(disk: Disk, directory: str, place: str, newest: int) -> list[Finding]:
    """Remove a directory, if nothing is in it but what a deleted stream had."""
    names = _names(disk, directory)
    ours = [name for name in names if name.endswith(SUFFIXES)]
    for name in ours:
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
                    "there is no such stream, and nobody can say whose it is: move it away",
                )
            ]
        if number > newest:
            return [
                Finding(
                    IGNORED,
                    place,
                    0,
                    0,
                    f"there is no such stream; one was declared at position {number}, behind {newest}, the "
                    "end of the catalog: the next start removes it",
                )
            ]
    kept = f"{directory}/{QUARANTINE}"
    notes = [f"{kept}/{name}" for name in _names(disk, kept) if name.startswith((LOST, WRITTEN))]
    remove_files(
        disk, [*(f"{directory}/{name}" for name in ours), *notes, f"{kept}/", f"{directory}/"]
    )
    removed = (
        [Finding(CUT, place, 0, 0, f"{len(ours)} files of a stream that is deleted")]
        if ours
        else []
    )
    return removed + find_foreign_files(disk, directory)


def find_foreign_files(disk: Disk, directory: str) -> list[Finding]:
    """What is in a stream's directory, and of no stream."""
    place = "/".join(directory.split("/")[-3:])
    return [
        Finding(IGNORED, f"{place}/{name}", 0, 0, "no file of a stream: move it away")
        for name in _names(disk, directory)
        if not name.endswith(SUFFIXES) and name != QUARANTINE
    ]


def _stream_number(disk: Disk, path: str) -> int:
    """Whose segment it is; 0: of nobody, for nothing was written in it; -1: nobody can say."""
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
