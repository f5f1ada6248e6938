"""The payload of a batch: records for the log, definitions for the catalog, rows of streams.

A payload is a format number and sections, each with its kind and its length. A node that meets an
unknown format or an unknown kind of section stops, because it would lose data of the batch. Numbers
are big-endian.

    section      content
    definitions  JSON, for each change: position, vhost, kind and name of the object; then its
                 definition as text (values.py), or, if the object was removed, null and its number
    records      the bytes of the records, as in the log
    streams      the size of the header; the header; the bytes of the rows of all streams,
                 concatenated. The header is JSON with two lists. The first list has an element for
                 the rows of each stream: stream, byte position in the file, offsets, size. The
                 second list has the segments to remove.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from broker.replication.contract import ReplicaDiverged
from broker.replication.records import REMEDY, ForeignRecord
from broker.store import values
from broker.store.entries import Defined, StoreEntry, Undefined
from broker.store.stream_contract import ShippedRows, StreamGarbage
from broker.stream.removal import SegmentRemoval

#: The number of the payload format, the first byte of each payload.
FORMAT: Final = 1
#: Kinds of sections of a payload.
DEFINITIONS: Final = 1
RECORDS: Final = 2
STREAMS: Final = 3

_FORMAT: Final = struct.Struct(">B")
_SECTION: Final = struct.Struct(">BQ")
_HEADER_SIZE: Final = struct.Struct(">I")

#: A position in the log, and the definition that was made, changed or removed at this position.
Change = tuple[int, StoreEntry]


@dataclass(frozen=True, slots=True)
class Payload:
    """The content of a batch of the replicated log: records, definitions and rows of streams."""

    #: Definitions that were made, changed or removed.
    changes: list[Change]
    #: The records of the batch, encoded for the log.
    records: bytes
    #: Rows of streams, and segments of streams to remove.
    rows: list[ShippedRows] = field(default_factory=list)
    garbage: list[StreamGarbage] = field(default_factory=list)


def encode(
    changes: list[Change],
    parts: list[bytes],
    rows: Sequence[ShippedRows] = (),
    garbage: Sequence[StreamGarbage] = (),
) -> bytes:
    """Return the payload of a batch.

    `parts` are the bytes of the batch's records, `rows` are its rows of streams, and `garbage` is
    the list of stream segments to remove.
    """
    sections: list[bytes | bytearray] = [_FORMAT.pack(FORMAT)]
    if changes:
        text = json.dumps([_row(position, entry) for position, entry in changes]).encode()
        sections += [_SECTION.pack(DEFINITIONS, len(text)), text]
    if parts:
        sections += [_SECTION.pack(RECORDS, sum(map(len, parts))), *parts]
    if rows or garbage:
        header = json.dumps([list(map(_rows_row, rows)), list(map(_garbage_row, garbage))]).encode()
        size = _HEADER_SIZE.size + len(header) + sum(len(share.data) for share in rows)
        sections += [_SECTION.pack(STREAMS, size), _HEADER_SIZE.pack(len(header)), header]
        sections += [share.data for share in rows]
    return b"".join(sections)


def decode(data: bytes) -> Payload:
    """Return the content of a payload.

    Raises ForeignRecord if a newer version of Trellis wrote the payload, ReplicaDiverged if the
    payload is malformed.
    """
    if data[:1] != _FORMAT.pack(FORMAT):
        raise ForeignRecord(
            f"a batch has format {data[:1].hex() or 'none'}, and this broker knows only format "
            f"{FORMAT}: upgrade this node"
        )
    try:
        sections = _sections(data)
        changes = [_change(row) for row in json.loads(sections.pop(DEFINITIONS, b"[]"))]
        rows, garbage = _streams(sections.pop(STREAMS, b""))
    except (struct.error, ValueError, TypeError) as error:
        raise ReplicaDiverged(f"a batch is malformed: {error}; {REMEDY}") from error
    records = sections.pop(RECORDS, b"")
    if sections:
        raise ForeignRecord(
            f"a batch has a section of kind {min(sections)}, which this broker does not know: "
            "upgrade this node"
        )
    return Payload(changes, records, rows, garbage)


def _sections(data: bytes) -> dict[int, bytes]:
    """Return the content of each section of a payload, by the kind of the section.

    Raises ValueError if the payload is malformed.
    """
    sections: dict[int, bytes] = {}
    at = _FORMAT.size
    while at < len(data):
        kind, size = _SECTION.unpack_from(data, at)
        at += _SECTION.size + size
        if at > len(data) or kind in sections:
            raise ValueError(f"its section of kind {kind} is cut off or repeated")
        sections[kind] = data[at - size : at]
    return sections


def _rows_row(rows: ShippedRows) -> list[object]:
    stream = [rows.vhost, rows.name, rows.stream]
    place = [rows.epoch, rows.segment_base, rows.place]
    return [*stream, *place, rows.base, rows.count, len(rows.data)]


def _garbage_row(garbage: StreamGarbage) -> list[object]:
    return [garbage.vhost, garbage.name, garbage.stream, garbage.segments, garbage.deleted]


def _streams(data: bytes) -> tuple[list[ShippedRows], list[StreamGarbage]]:
    """Return the rows of streams and the segments to remove; `data` is the section of streams.

    Raises ValueError if the section is malformed.
    """
    if not data:
        return [], []
    at = _HEADER_SIZE.size + _HEADER_SIZE.unpack_from(data)[0]
    shares, removals = json.loads(data[_HEADER_SIZE.size : at])
    rows: list[ShippedRows] = []
    for *stream, size in shares:
        rows.append(_shipped(stream, data[at : at + size]))
        at += size
    if at != len(data):
        raise ValueError("its rows of streams are cut off")
    return rows, [_removal(row) for row in removals]


def _shipped(row: list[object], data: bytes) -> ShippedRows:
    vhost, name, *numbers = row
    if not (isinstance(vhost, str) and isinstance(name, str)):
        raise TypeError(
            f"the name of a stream, or its virtual host, is not a text: {vhost!r}, {name!r}"
        )
    stream, epoch, segment_base, place, base, count = _numbers(numbers, 6)
    return ShippedRows(vhost, name, stream, epoch, segment_base, place, base, count, data)


def _removal(row: list[object]) -> SegmentRemoval:
    vhost, name, stream, segments, deleted = row
    if not (isinstance(vhost, str) and isinstance(name, str)) or not (
        isinstance(segments, list) and isinstance(deleted, bool)
    ):
        raise TypeError(f"the entry that removes segments of stream {name!r} has a wrong type")
    [number] = _numbers([stream], 1)
    segment_keys = [(epoch, base) for epoch, base in (_numbers(pair, 2) for pair in segments)]
    return SegmentRemoval(vhost, name, number, segment_keys, deleted)


def _numbers(values: list[object], count: int) -> list[int]:
    """Return `values`. Raises ValueError unless they are `count` numbers from 0 to 2**63 - 1."""
    numbers = [value for value in values if isinstance(value, int) and 0 <= value < 1 << 63]
    if len(values) != count or len(numbers) != count:
        raise ValueError(f"{values!r} must be {count} numbers from 0 to 2**63 - 1")
    return numbers


def _row(position: int, entry: StoreEntry) -> list[object]:
    if isinstance(entry, Defined):
        text = values.dump(entry.definition)
        return [position, entry.vhost, entry.kind, entry.name, text, 0]
    assert isinstance(entry, Undefined), f"{entry!r} is no definition"
    return [position, entry.vhost, entry.kind, entry.name, None, int(entry.number)]


def _change(row: list[object]) -> Change:
    position, vhost, kind, name, text, number = row
    if (
        not (isinstance(position, int) and isinstance(number, int))
        or not (isinstance(vhost, str) and isinstance(kind, str) and isinstance(name, str))
        or not (text is None or isinstance(text, str))
    ):
        raise TypeError(f"the definition at position {position!r} has a value of a wrong type")
    if text is None:
        return position, Undefined(vhost, kind, name, number)
    return position, Defined(vhost, kind, name, values.load(text))
