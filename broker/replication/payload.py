"""The payload of a batch: the records for the log, and the definitions for the catalog.

A payload is a format number and sections, each with its kind and its length. A node that meets an
unknown format or an unknown kind of section stops, because it would lose data of the batch. Numbers
are big-endian.

    section      content
    definitions  JSON: for each change its position, vhost, kind and name, then the definition as
                 text (values.py), or null and the number of the removed object
    records      the records as they stand in the log
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from typing import Final

from broker.replication.contract import ReplicaDiverged
from broker.replication.records import REMEDY, ForeignRecord
from broker.store import values
from broker.store.entries import Defined, StoreEntry, Undefined

#: The format of payloads.
FORMAT: Final = 1
#: Kinds of sections.
DEFINITIONS: Final = 1
RECORDS: Final = 2

_FORMAT: Final = struct.Struct(">B")
_SECTION: Final = struct.Struct(">BQ")

#: A position, and the definition that was made, changed or removed at it.
Change = tuple[int, StoreEntry]


@dataclass(frozen=True, slots=True)
class Payload:
    """The content of a batch."""

    #: Definitions that were made, changed or removed.
    changes: list[Change]
    #: The records of the batch, encoded for the log.
    records: bytes


def encode(changes: list[Change], parts: list[bytes]) -> bytes:
    """Return the payload of a batch; `parts` are the bytes of its records."""
    found = [_FORMAT.pack(FORMAT)]
    if changes:
        text = json.dumps([_row(position, entry) for position, entry in changes]).encode()
        found += [_SECTION.pack(DEFINITIONS, len(text)), text]
    if parts:
        found += [_SECTION.pack(RECORDS, sum(map(len, parts))), *parts]
    return b"".join(found)


def decode(data: bytes) -> Payload:
    """Return the content of a payload.

    Raises ForeignRecord if a newer version of Trellis wrote it, ReplicaDiverged if it is malformed.
    """
    if data[:1] != _FORMAT.pack(FORMAT):
        raise ForeignRecord(
            f"a batch has format {data[:1].hex() or 'none'}, and this broker knows only format "
            f"{FORMAT}: upgrade this node"
        )
    try:
        sections = _sections(data)
        changes = [_change(row) for row in json.loads(sections.pop(DEFINITIONS, b"[]"))]
    except (struct.error, ValueError, TypeError) as error:
        raise ReplicaDiverged(f"a batch is malformed: {error}; {REMEDY}") from error
    records = sections.pop(RECORDS, b"")
    if sections:
        raise ForeignRecord(
            f"a batch has a section of kind {min(sections)}, which this broker does not know: "
            "upgrade this node"
        )
    return Payload(changes, records)


def _sections(data: bytes) -> dict[int, bytes]:
    """Return the sections of a payload by their kinds."""
    found: dict[int, bytes] = {}
    at = _FORMAT.size
    while at < len(data):
        kind, size = _SECTION.unpack_from(data, at)
        at += _SECTION.size + size
        if at > len(data) or kind in found:
            raise ValueError(f"the section of kind {kind} is cut off or repeated")
        found[kind] = data[at - size : at]
    return found


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
