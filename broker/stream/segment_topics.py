"""Summaries of the topics of full segments, with which readers skip segments.

    <epoch>-<base offset>.arrow.topics   beside a full segment

Format: "TSTP", version u32; number of the stream, epoch, first offset, end; the summary
(matching/topic_summary.py); CRC-32 of all these bytes as u64. Numbers without a width have 8 bytes.
All are little-endian.

A summary is derived from its segment: a child process of the broker makes it some time after the
segment became full (trellis/topic_summaries). A reader that finds no summary, or a damaged one, or
the summary of another segment, reads the segment.
"""

from __future__ import annotations

import struct
from typing import Final
from zlib import crc32

from librt.strings import read_i32_le
from mypy_extensions import i64

from broker.store.disk import Disk, File
from broker.stream.arrow import FIRST_BUFFER, SCHEMA_SIZE, BatchView, read_schema
from broker.stream.batch_scan import BatchScan
from broker.stream.segment_writer import write_derived
from broker.stream.segments import INDEX, TOPICS, Segment, parse_segment
from matching.topic_summary import encode_summary

#: A summary has at most 1/SUMMARY_SHARE of the size of its segment, or SUMMARY_MIN bytes if that is
#: more.
SUMMARY_SHARE: Final = 128
SUMMARY_MIN: Final = 512
#: Largest size of a summary in bytes: 1/SUMMARY_SHARE of a segment of 64 MiB.
SUMMARY_MAX: Final = 512 << 10
#: The process that makes a summary holds all topics of the segment in memory, so the summary of a
#: segment with more topics is empty.
TOPICS_MAX: Final = 500_000

_MAGIC: Final = b"TSTP"
_VERSION: Final = 1
_HEAD: Final = struct.Struct("<4sIqqqq")
_CHECKSUM: Final = struct.Struct("<Q")
#: Size of the bytes before the summary.
HEAD_SIZE: Final = _HEAD.size


def encode_head(stream: int, epoch: int, base: int, end: int) -> bytes:
    """Return the first bytes of the file with the summary of a segment."""
    return _HEAD.pack(_MAGIC, _VERSION, stream, epoch, base, end)


def without_summary(names: list[str]) -> list[str]:
    """Return the names of the full segments that have no summary, the oldest first.

    `names` are the names of all files in the directory of a stream. Full segments have an index.
    """
    known = set(names)
    return sorted(
        name
        for name in names
        if parse_segment(name) is not None
        and f"{name}{INDEX}" in known
        and f"{name}{TOPICS}" not in known
    )


def write_summary(disk: Disk, path: str) -> bool:
    """Write the summary of the full segment at `path`.

    The summary is empty, and readers do not use it, if a batch of the segment is damaged or if the
    segment has more than TOPICS_MAX topics. Return False, and write nothing, if the segment's
    schema or index is damaged. Raises FileNotFoundError if the segment was removed meanwhile, and
    another OSError if a file cannot be read or written. Raises TooNew for an unknown format.
    """
    data = _summary_of(disk, path)
    if data is None:
        return False
    target = f"{path}{TOPICS}"
    write_derived(disk, target, data)
    try:
        disk.open(path, False).close()
    except FileNotFoundError:
        # The broker may have removed the segment and its other files before this file was written.
        disk.remove(target)
        raise
    return True


def _summary_of(disk: Disk, path: str) -> bytes | None:
    parsed = parse_segment(path.rpartition("/")[2])
    file = disk.open(path, False)
    head = read_schema(file.read(0, SCHEMA_SIZE))
    if parsed is None or head is None or head[1:] != parsed:
        return None
    size = int(file.size())
    segment = Segment(disk, path, *parsed)
    index = disk.open(f"{path}{INDEX}", False)
    if not segment.load_index(index.read(0, index.size()), size):
        return None
    topics = _topics_of(file, segment)
    most = min(max(size // SUMMARY_SHARE, SUMMARY_MIN), SUMMARY_MAX) - HEAD_SIZE - _CHECKSUM.size
    data = encode_head(*head, int(segment.end))
    if topics is not None:
        data += encode_summary(topics, most)
    return data + _CHECKSUM.pack(crc32(data))


def _topics_of(file: File, segment: Segment) -> set[bytes] | None:
    """Return the topics of a segment's rows; None if it is damaged, or has too many topics."""
    topics: set[bytes] = set()
    scan = BatchScan(file, SCHEMA_SIZE, segment.size)
    at: i64 = segment.base
    while at < segment.end:
        # The checksums are checked: a damaged topic must not hide the segment from readers.
        batch = scan.next()
        if batch is None or batch.base != at:
            return None
        add_topics(batch, topics)
        if len(topics) > TOPICS_MAX:
            return None
        at += batch.rows
    return topics


def add_topics(batch: BatchView, topics: set[bytes]) -> None:
    """Add the topics of the rows of a batch to a set."""
    data = batch.data
    column: i64 = FIRST_BUFFER["topic"]
    ends: i64 = batch.buffer_start(column + 1)
    texts: i64 = batch.buffer_start(column + 2)
    begin: i64 = texts + i64(read_i32_le(data, ends))
    row: i64 = 0
    while row < batch.rows:
        ends += 4
        end: i64 = texts + i64(read_i32_le(data, ends))
        topics.add(data[begin:end])
        begin = end
        row += 1
