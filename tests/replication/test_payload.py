"""Tests of the payload of a batch."""

from __future__ import annotations

import struct
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from broker.replication import payload
from broker.replication.contract import ReplicaDiverged
from broker.replication.payload import Payload
from broker.replication.records import ForeignRecord
from broker.store.entries import Defined, Undefined
from broker.store.stream_contract import ShippedRows
from broker.stream.removal import SegmentRemoval


def fields(decoded: Payload) -> list[tuple[object, ...]]:
    return [
        (position, entry.vhost, entry.kind, entry.name, rest(entry))
        for position, entry in decoded.changes
        if isinstance(entry, (Defined, Undefined))
    ]


def rest(entry: Defined | Undefined) -> object:
    return entry.definition if isinstance(entry, Defined) else int(entry.number)


def test_all_values_of_definitions_and_all_bytes_of_records_come_back() -> None:
    definition: dict[str, object] = {
        "bytes": b"\x00\xff",
        "decimal": Decimal("1.50"),
        "time": datetime(2024, 2, 29, 12, tzinfo=UTC),
        "float": float("inf"),
        "table": {"$bytes": "no bytes"},
        "number": 1 << 62,
    }
    decoded = payload.decode(
        payload.encode(
            [
                (7, Defined("/", "queue", "q\udcff", definition)),
                (9, Undefined("v", "session", "s", 4)),
            ],
            [b"\x00one", b"", b"two\xff"],
        )
    )
    assert fields(decoded) == [
        (7, "/", "queue", "q\udcff", definition),
        (9, "v", "session", "s", 4),
    ]
    assert decoded.records == b"\x00onetwo\xff"


def test_a_batch_without_definitions_or_without_records_has_neither() -> None:
    assert payload.decode(payload.encode([], [])) == Payload([], b"")
    assert payload.decode(payload.encode([], [b"r"])) == Payload([], b"r")


def test_rows_of_streams_and_removals_come_back() -> None:
    rows = [
        ShippedRows("/", "s\udcff", 4, 2, 100, 1_720, 130, 3, bytearray(b"three rows")),
        ShippedRows("v", "t", 5, 1, 0, 9_999, 7, 1, b"\x00one"),
    ]
    garbage = [
        SegmentRemoval("/", "s\udcff", 4, [(1, 0), (2, 50)], False),
        SegmentRemoval("v", "u", 6, [], True),
    ]
    decoded = payload.decode(payload.encode([], [b"r"], rows, garbage))
    assert decoded.records == b"r"
    assert [vars(one) for one in decoded.rows] == [vars(one) for one in rows]
    assert [vars(one) for one in decoded.garbage] == [vars(one) for one in garbage]


def section(kind: int, content: bytes, size: int | None = None) -> bytes:
    return struct.pack(">BQ", kind, len(content) if size is None else size) + content


def streams(header: bytes, rows: bytes = b"") -> bytes:
    return section(3, struct.pack(">I", len(header)) + header + rows)


@pytest.mark.parametrize("data", [b"", b"\x02", b"\x00", b"\x01" + section(4, b"rows")])
def test_a_payload_of_a_newer_version_stops_the_node(data: bytes) -> None:
    with pytest.raises(ForeignRecord, match="upgrade this node"):
        payload.decode(data)


@pytest.mark.parametrize(
    "data",
    [
        b"\x01\x01",
        b"\x01" + section(2, b"short", 6),
        b"\x01" + section(2, b"", 1 << 63),
        b"\x01" + section(2, b"one") + section(2, b"two"),
        b"\x01" + section(1, b"[[1]]"),
        b"\x01" + section(1, b"[7]"),
        b"\x01" + section(1, b'[["1", "/", "queue", "q", "{}", 0]]'),
        b"\x01" + section(1, b'[[1, "/", "queue", "q", "[]", 0]]'),
        b"\x01" + section(1, b'[[1, "/", "queue", 2, null, 0]]'),
        b"\x01" + section(1, b"\xff"),
        b"\x01" + section(3, b"\0"),
        b"\x01" + section(3, b"\0\0\0\x02[]"),
        b"\x01" + streams(b"[[], []]more"),
        b"\x01" + streams(b'[[["/", "s", 1, 1, 0, 0, 0, 1, 9]], []]', b"short"),
        b"\x01" + streams(b'[[["/", "s", 1, 1, 0, 0, -1, 1, 1]], []]', b"x"),
        b"\x01" + streams(b'[[["/", 2, 1, 1, 0, 0, 0, 1, 1]], []]', b"x"),
        b"\x01" + streams(b'[[["/", "s", 1, 1, 1]], []]', b"x"),
        b"\x01" + streams(b'[[], [["/", "s", 1, [[1]], false]]]'),
        b"\x01" + streams(b'[[], [["/", "s", 1, 7, false]]]'),
    ],
)
def test_a_malformed_payload_stops_the_node(data: bytes) -> None:
    with pytest.raises(ReplicaDiverged, match="trellis cluster seed"):
        payload.decode(data)
