"""The broker writes the same Arrow data as pyarrow."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from librt.strings import write_i32_le

from broker.messages.message import Address, Message, Origin
from broker.stream.arrow import END_OF_STREAM, BatchView, encode_schema, view_batch
from broker.stream.captured_rows import BatchSink, CapturedRows, EncodedBatch
from broker.stream.columns import SparseColumn
from broker.stream.row_codecs import RowCodecs
from broker.stream.rows import RowWriter
from broker.stream.template import COLUMNS
from protocols.amqp.codec.contents import frames_of
from protocols.amqp.codec.journal_codec import AmqpHeaderCodec
from tests.clients import publication

_SPEC = importlib.util.spec_from_file_location("arrow_template", "tools/arrow_template.py")
assert _SPEC is not None and _SPEC.loader is not None
arrow_template: Any = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(arrow_template)

FRAMES = frames_of(1, 131_072)


def content(body: bytes, **properties: Any) -> bytes:
    """Return the header and body frames of a publication."""
    data = publication("", "", body, **properties)
    return data[8 + int.from_bytes(data[3:7], "big") :]


class KeptBatches(BatchSink):
    """A sink that keeps the batches written to it."""

    def __init__(self) -> None:
        self.encoded: list[EncodedBatch] = []

    def add(self, encoded: EncodedBatch) -> None:
        self.encoded.append(encoded)


def encode(
    messages: list[Message],
    routed: list[int],
    base: int = 0,
    times: list[tuple[int, int]] | None = None,
) -> list[EncodedBatch]:
    codecs = RowCodecs()
    codecs.header_codec = AmqpHeaderCodec()
    captured = CapturedRows(base)
    captured.items = list(messages)
    captured.times = times or [(0, 1_700_000_000_000_000)]
    for number in routed:
        write_i32_le(captured.routed, number)
    kept = KeptBatches()
    RowWriter("v/é", codecs).write(captured, kept)
    return kept.encoded


def table(batches: Sequence[bytes | bytearray], end: bytes = END_OF_STREAM) -> pa.Table:
    read = pa.ipc.open_stream(
        io.BytesIO(encode_schema(5, 6, 7) + b"".join(batches) + end)
    ).read_all()
    read.validate(full=True)
    return read


def test_template_equals_the_output_of_pyarrow() -> None:
    assert Path("broker/stream/template.py").read_text() == arrow_template.module()


def test_a_segment_says_whose_it_is() -> None:
    metadata = table([]).schema.metadata
    assert {key: int(value) for key, value in metadata.items()} == {
        b"trellis.format": 1,
        b"trellis.stream": 5,
        b"trellis.epoch": 6,
        b"trellis.base": 7,
    }


MAYBE = st.none() | st.text(
    st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=20
)
ROW = st.fixed_dictionaries(
    {
        "exchange": st.text(st.characters(codec="ascii"), max_size=8),
        "topic": st.text(max_size=30).filter(str.isprintable),
        "body": st.binary(max_size=50),
        "routed": st.integers(0, 9),
        "qos": st.integers(0, 2),
        "publisher": st.sampled_from(["a", "bé", ""]),
        "properties": st.fixed_dictionaries(
            dict.fromkeys(("content_type", "correlation_id", "message_id", "app_id"), MAYBE)
        ),
        "mode": st.sampled_from([None, 1, 2]),
        "priority": st.none() | st.integers(0, 255),
    }
)


@settings(max_examples=30, deadline=None)
@given(rows=st.lists(ROW, min_size=1, max_size=20), base=st.integers(0, 1 << 60))
def test_equal_tables(rows: list[dict[str, Any]], base: int) -> None:
    messages, expected = [], []
    for number, row in enumerate(rows):
        given = {name: value for name, value in row["properties"].items() if value is not None}
        properties = given | {
            name: row[key]
            for name, key in (("delivery_mode", "mode"), ("priority", "priority"))
            if row[key] is not None
        }
        address = Address(row["exchange"], row["topic"])
        address.origin = Origin(row["publisher"], "amqp091")
        encoded_content = content(row["body"], **properties)
        messages.append(Message(address, encoded_content, FRAMES, row["qos"]))
        expected.append(
            dict.fromkeys(COLUMNS)
            | given
            | {
                "offset": base + number,
                "vhost": "v/é",
                "exchange": row["exchange"],
                "topic": row["topic"],
                "protocol": "amqp091",
                "qos": row["qos"],
                "publisher": row["publisher"],
                "routed": row["routed"],
                "size": len(row["body"]),
                "body": row["body"],
                "delivery_mode": row["mode"],
                "priority": row["priority"],
                "content_header": FRAMES.whole_header(encoded_content),
                "published_at": 1_700_000_000_000_000,
            }
        )
    encoded = encode(messages, [row["routed"] for row in rows], base)
    read = table([one.data for one in encoded])
    columns = [
        pa.array([row[name] for row in expected], kind) for name, kind, _ in arrow_template.COLUMNS
    ]
    assert read.equals(pa.Table.from_arrays(columns, schema=read.schema))
    view = view_batch(bytes(encoded[0].data), 0)
    assert view is not None and view.is_intact() and view.end == len(encoded[0].data)
    assert {name: view.value(name, 0) for name in COLUMNS} == expected[0]


def test_a_key_that_is_no_text_is_kept_beside_its_likeness() -> None:
    message = Message(Address("", "a\udcffb"), content(b""), FRAMES, 0)
    [row] = table([encode([message], [0])[0].data]).to_pylist()
    assert (row["topic"], row["routing_key"]) == ("a\ufffdb", b"a\xffb")


def test_a_batch_has_a_bound_and_the_next_goes_on_behind_it() -> None:
    messages = [Message(Address("", "k"), content(bytes(60_000)), FRAMES, 0) for _ in range(10)]
    encoded = encode(messages, [1] * 10, 3, [(0, 10), (4, 20)])
    assert [(one.base, one.count) for one in encoded] == [(3, 5), (8, 5)]
    read = table([one.data for one in encoded])
    assert read.column("offset").to_pylist() == list(range(3, 13))
    assert read.column("published_at").cast(pa.int64()).to_pylist() == [10] * 4 + [20] * 6


def test_the_first_rows_of_a_batch_are_a_batch() -> None:
    given = [{}, {"app_id": "x"}, {}]
    messages = [
        Message(Address("", f"k{n}"), content(b"%d" % n, **properties), FRAMES, 0)
        for n, properties in enumerate(given)
    ]
    whole = bytes(encode(messages, [0] * 3)[0].data)
    part = BatchView(whole, 0).first_rows(2)
    assert BatchView(part, 0).is_intact() and table([part]).equals(
        table([whole]).slice(0, 2).combine_chunks()
    )


def test_any_changed_byte_is_noticed() -> None:
    data = bytes(encode([Message(Address("e", "k"), content(b"body"), FRAMES, 1)], [1])[0].data)
    for at in range(8, len(data), 3):
        changed = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        view = view_batch(changed, 0)
        assert view is None or not view.is_intact() or view.end != len(data)


def test_a_column_of_which_all_or_nothing_is_null() -> None:
    for rows in ([], [0, 1, 2]):
        column = SparseColumn()
        for row in rows:
            column.add_run(row, 1, b"x")
        assert column.count == len(rows) and column.encode_validity(9) == bytes(
            [7 if rows else 0, 0]
        )
    messages = [Message(Address("", "k"), content(b"", app_id="a"), FRAMES, 0) for _ in range(9)]
    read = table([encode(messages, [0] * 9)[0].data])
    assert read.column("app_id").null_count == 0 and read.column("user_id").null_count == 9


def test_a_torn_end_leaves_all_batches_before_it() -> None:
    encoded = [
        encode([Message(Address("", "k"), content(b"%d" % n), FRAMES, 0)], [0], n)[0].data
        for n in range(3)
    ]
    data = encode_schema(1, 1, 0) + b"".join(encoded)
    whole = len(encode_schema(1, 1, 0)) + len(encoded[0]) + len(encoded[1])
    for size in range(whole, len(data), 7):
        reader = pa.ipc.open_stream(io.BytesIO(data[:size]))
        assert [reader.read_next_batch().column("body").to_pylist() for _ in range(2)] == [
            [b"0"],
            [b"1"],
        ]
