"""Tests of the rows that a stream makes of runs: adjacent publications with common values.

The stream must have the same rows, whether publications come in runs or one by one, and wherever
batches and turns end.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import example, given, settings
from hypothesis import strategies as st
from librt.strings import write_i32_le

from broker.messages.message import PLAIN, Address, Message, Origin
from broker.store.values import dump
from broker.stream.arrow import view_batch
from broker.stream.captured_rows import CapturedRows
from broker.stream.columns import SparseColumn, equal_ends
from broker.stream.row_codecs import PROPERTY_COLUMNS, PublishRun, RowCodecs
from broker.stream.rows import RowWriter
from broker.stream.template import COLUMNS
from protocols.amqp.codec.journal_codec import AmqpHeaderCodec
from protocols.amqp.codec.properties import split_properties
from protocols.amqp.codec.tables import read_table
from protocols.mqtt.codec.journal_codec import MqttPacketParser
from tests.clients import mqtt_publish
from tests.streams.test_template import FRAMES, KeptBatches, content, table

#: Few origins, so that adjacent rows have the same one; two origins are equal but different
#: objects.
ORIGINS = [Origin("ann", "amqp091"), Origin("ann", "amqp091"), Origin("b\xe9", "amqp091")]
#: Routing keys of the rows. The last two differ only after the first 255 bytes, which is all that
#: an Address keeps of a key.
KEYS = [
    "",
    "k",
    "a.b",
    "room.1.temperature",
    "room.2.temperature",
    "room.1.temperatures",
    "odd\udcff",
    "z" * 300,
    "z" * 299 + "y",
]
PROPERTIES: list[dict[str, Any]] = [
    {},
    {"app_id": "a"},
    {"app_id": "b", "priority": 3},
    {"message_id": "m", "delivery_mode": 2},
    {"headers": {"h": 1}},
]
BODIES = [b"", b"x", b"y", b"twelve bytes", bytes(2_047), bytes(2_048), bytes(70_000)]

AMQP = st.tuples(
    st.just("amqp"),
    st.sampled_from(["", "amq.topic", "amq.fanout"]),
    st.sampled_from(KEYS),
    st.sampled_from(ORIGINS),
    st.sampled_from(PROPERTIES),
    st.sampled_from(BODIES),
    st.integers(0, 2),
    st.integers(0, 2),
)
RUN = st.tuples(
    st.just("run"),
    st.sampled_from([3, 4, 5]),
    st.sampled_from([b"ann", b"eve"]),
    st.integers(0, 2),
    st.lists(
        st.tuples(
            st.sampled_from([key for key in KEYS if "\udcff" not in key]), st.sampled_from(BODIES)
        ),
        min_size=1,
        max_size=6,
    ),
)
PLAINLY = st.tuples(
    st.just("plain"), st.sampled_from(KEYS), st.sampled_from(BODIES), st.integers(0, 2)
)
#: A step: the action, the number of its repetitions, and True if a turn begins with the step.
STEP = st.tuples(st.one_of(AMQP, RUN, PLAINLY), st.sampled_from([1, 1, 2, 3, 8, 9]), st.booleans())
LONG = (("amqp", "amq.topic", "k", ORIGINS[0], PROPERTIES[1], b"x", 0, 1), 4_200, True)
LONG_RUN = (
    ("run", 5, b"ann", 1, [("room.1.temperature", b"x"), ("room.2.temperature", b"y")]),
    2_100,
    False,
)
SHORT = (("amqp", "amq.topic", "odd\udcff", ORIGINS[2], PROPERTIES[2], b"", 1, 0), 1, True)


def expected_row(
    exchange: str,
    key: str,
    protocol: str,
    publisher: str,
    qos: int,
    routed: int,
    body: bytes,
    header: bytes,
    properties: dict[str, Any],
) -> dict[str, Any]:
    data = key.encode("utf-8", "surrogateescape")
    odd = data if "\udcff" in key else None
    columns = properties | ({"headers": '{"h":1}'} if "headers" in properties else {})
    return (
        dict.fromkeys(COLUMNS)
        | columns
        | {
            "vhost": "v",
            "exchange": exchange,
            "topic": data.decode("utf-8", "replace"),
            "protocol": protocol,
            "publisher": publisher,
            "qos": qos,
            "routed": routed,
            "size": len(body),
            "body": body,
            "content_header": header,
            "routing_key": odd,
        }
    )


def header_of(body: bytes, mode: int) -> bytes:
    return b"\x00\x3c\x00\x00" + len(body).to_bytes(8, "big") + b"\x10\x00" + bytes([mode])


def play(steps: list[Any], captured: CapturedRows) -> list[dict[str, Any]]:
    """Put the publications of all steps into `captured`; return the rows that a table must have."""
    rows: list[dict[str, Any]] = []
    now = 1_700_000_000_000_000
    for (kind, *what), count, turn in steps:
        if turn or not captured.times:
            now += 1_000
            captured.times.append((len(captured.items), now))
        expected: list[dict[str, Any]] = []
        for _ in range(count):
            if kind == "run":
                level, publisher, routed, packets = what
                data = b"".join(
                    mqtt_publish(key.replace(".", "/"), (b"\0" if level == 5 else b"") + body)
                    for key, body in packets
                )
                captured.items.append(PublishRun(data, len(packets), publisher, routed, level))
                write_i32_le(captured.routed, 0)
                expected += [
                    expected_row(
                        "amq.topic",
                        key,
                        {3: "mqtt310", 4: "mqtt311", 5: "mqtt50"}[level],
                        publisher.decode(),
                        0,
                        routed,
                        body,
                        header_of(body, 1),
                        {"delivery_mode": 1},
                    )
                    for key, body in packets
                ]
                continue
            if kind == "plain":
                key, body, quality = what
                exchange, origin, properties, routed = (
                    "amq.topic",
                    ORIGINS[0],
                    {"delivery_mode": 2 if quality else 1},
                    1,
                )
                header, message = (
                    header_of(body, properties["delivery_mode"]),
                    Message(Address(exchange, key), body, PLAIN, quality),
                )
            else:
                exchange, key, origin, properties, body, quality, routed = what
                data = content(body, **properties)
                header, message = (
                    FRAMES.whole_header(data),
                    Message(Address(exchange, key), data, FRAMES, quality),
                )
            message.address.origin = origin
            captured.items.append(message)
            write_i32_le(captured.routed, routed)
            by, who = origin.protocol.decode(), origin.publisher.decode()
            expected.append(
                expected_row(exchange, key, by, who, quality, routed, body, header, properties)
            )
        rows += [row | {"published_at": now} for row in expected]
    return rows


@settings(max_examples=40, deadline=None)
@given(portions=st.lists(st.lists(STEP, min_size=1, max_size=8), min_size=1, max_size=3))
@example([[LONG, SHORT, LONG, LONG_RUN]])
@example([[LONG_RUN, SHORT, LONG_RUN], [LONG_RUN, LONG]])
def test_a_table_is_the_same_however_much_its_rows_have_in_common(
    portions: list[list[Any]],
) -> None:
    codecs = RowCodecs()
    codecs.header_codec, codecs.packet_parser = AmqpHeaderCodec(), MqttPacketParser()
    writer, kept = RowWriter("v", codecs), KeptBatches()
    rows: list[dict[str, Any]] = []
    for steps in portions:  # One writer writes all tables: its caches must not change a result.
        captured = CapturedRows(len(rows))
        rows += play(steps, captured)
        writer.write(captured, kept)
        assert captured.items == [None] * len(captured.items)
    for number, row in enumerate(rows):
        row["offset"] = number
    read = table([one.data for one in kept.encoded])
    instants = {"published_at": pa.int64(), "timestamp": pa.int64()}
    for name in COLUMNS:
        column = read.column(name)
        assert (column.cast(instants[name]) if name in instants else column).to_pylist() == [
            row[name] for row in rows
        ], name
    next_offset = 0
    for one in kept.encoded:
        view = view_batch(bytes(one.data), 0)
        assert (
            view is not None
            and view.is_intact()
            and (view.base, view.rows) == (next_offset, one.count)
        )
        times = [row["published_at"] for row in rows[next_offset : next_offset + one.count]]
        assert (one.first_at, one.last_at) == (times[0], times[-1])
        next_offset += one.count
    assert next_offset == len(rows)


RUNS = st.lists(
    st.tuples(st.integers(0, 20), st.integers(1, 20), st.sampled_from([b"", b"a", b"bc"])),
    max_size=8,
)


@settings(deadline=None)
@given(runs=RUNS, behind=st.integers(0, 20))
def test_column_with_nulls_equals_that_of_pyarrow(
    runs: list[tuple[int, int, bytes]], behind: int
) -> None:
    texts, numbers = SparseColumn(), SparseColumn(8)
    values: list[bytes | None] = []
    for gap, count, value in runs:
        values += [None] * gap
        texts.add_run(len(values), count, value)
        numbers.add_run(len(values), count, value.ljust(8, b"\1"))
        values += [value] * count
    values += [None] * behind
    rows = len(values)
    ends, data = texts.encode_texts(rows)
    array = pa.Array.from_buffers(
        pa.binary(),
        rows,
        [pa.py_buffer(texts.encode_validity(rows)), pa.py_buffer(ends), pa.py_buffer(data)],
    )
    array.validate(full=True)
    assert array.to_pylist() == values
    cells = pa.Array.from_buffers(
        pa.int64(),
        rows,
        [pa.py_buffer(numbers.encode_validity(rows)), pa.py_buffer(numbers.encode_numbers(rows))],
    )
    assert cells.to_pylist() == [
        None if value is None else int.from_bytes(value.ljust(8, b"\1"), "little")
        for value in values
    ]


@settings(deadline=None)
@given(step=st.integers(0, 100_000), rows=st.integers(0, 500) | st.just(5_000))
def test_ends_of_texts_of_one_length(step: int, rows: int) -> None:
    assert equal_ends(step, rows) == b"".join(
        ((step * row) & 0xFFFFFFFF).to_bytes(4, "little") for row in range(rows + 1)
    )


def test_names_that_share_a_place_are_told_apart() -> None:
    """Check that each row has the right topic, although several names share a place in a cache.

    The parser caches topic names in a table with a fixed number of places. The test uses more names
    than the table has places.
    """
    opener, codecs, kept = MqttPacketParser(), RowCodecs(), KeptBatches()
    codecs.header_codec, codecs.packet_parser = AmqpHeaderCodec(), opener
    names = [f"n/{number}/{'x' * (number % 23)}" for number in range(3_000)] + [
        f"{number}" for number in range(1_500)
    ]
    captured = CapturedRows(0)
    captured.times = [(0, 1)]
    for turn in (names, names[::-1]):
        captured.items.append(
            PublishRun(b"".join(mqtt_publish(name, b"") for name in turn), len(turn), b"", 0, 4)
        )
        write_i32_le(captured.routed, 0)
    RowWriter("v", codecs).write(captured, kept)
    read = table([one.data for one in kept.encoded]).column("topic").to_pylist()
    assert read == [name.replace("/", ".") for turn in (names, names[::-1]) for name in turn]


ENCODED = [
    b"\0",
    b"\1",
    b"\3abc",
    b"\2\xff\xfe",
    b"\2\xc3\xa9",
    bytes(4),
    b"\0\0\0\5\1aI\0\0",
    b"\0\0\0\x05\2abt\1",
    bytes(8),
    b"\xff" * 4,
]


def columns_of(data: bytes) -> list[tuple[int, bytes]]:
    """Return the expected (column number, value) pairs of encoded AMQP properties."""
    columns = []
    for name, kind, value in split_properties(data):
        if kind == "text":
            columns.append((PROPERTY_COLUMNS[name], value[1:].decode("utf-8", "replace").encode()))
        elif kind == "table":
            try:
                columns.append(
                    (PROPERTY_COLUMNS[name], dump(read_table(value, 0, len(value))[0]).encode())
                )
            except (ValueError, TypeError):
                continue
        else:
            columns.append((PROPERTY_COLUMNS[name], value[::-1]))
    return sorted(columns)


@settings(max_examples=300, deadline=None)
@given(
    flags=st.integers(0, 0xFFFF),
    data=st.lists(st.sampled_from(ENCODED), max_size=16),
    cut=st.integers(0, 40),
)
@example(flags=0x2000, data=[], cut=0)
@example(flags=0xFFFC, data=[], cut=2)
def test_columns_have_the_values_of_the_properties(flags: int, data: list[bytes], cut: int) -> None:
    whole = flags.to_bytes(2, "big") + b"".join(data)
    header_codec, head = AmqpHeaderCodec(), b"\x00\x3c\x00\x00" + bytes(8)
    for encoded in (whole, whole[:-cut], whole[:cut]):
        assert header_codec.properties(head + encoded) == columns_of(encoded)
