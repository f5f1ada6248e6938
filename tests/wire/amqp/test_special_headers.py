"""Tests of the search for special headers: the result agrees with the table as it is decoded."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, reject, settings
from hypothesis import strategies as st

from protocols.amqp.codec.special_headers import (
    COPIES,
    MQTT_HEADER,
    NUMBERED,
    TRACED,
    special_headers,
)
from protocols.amqp.codec.tables import read_table, write_table
from tests.wire.amqp.speech import long, short
from tests.wire.amqp.test_tables import VALUES

NAMES = [
    *("CC", "BCC", "x-mqtt-qos", "x-mqtt-retain", "x-mqtt-", "x-trellis-producer", "traceparent"),
    *(
        "",
        "C",
        "CCC",
        "cc",
        "BC",
        "BCCC",
        "x",
        "x-mqtt",
        "x-m",
        "y-mqtt-qos",
        "x-trellis-producer2",
    ),
    *("x-trellis-sequence", "Traceparent", "traceparents", "tracestate", "x-death", "ü", "n" * 255),
]
#: Encoded values, without tables and arrays.
SCALARS = st.sampled_from([value for value in VALUES.values() if value[0] not in b"AF"])
#: The bits, and the bytes that set them if they occur anywhere in an invalid table.
MARKS = {
    COPIES: (b"\x02CC", b"\x03BCC"),
    MQTT_HEADER: (b"x-mqtt-",),
    NUMBERED: (b"x-trellis-producer",),
    TRACED: (b"traceparent",),
}
RAW = st.lists(st.tuples(st.sampled_from(NAMES), SCALARS), max_size=6).map(
    lambda entries: long(b"".join(short(name) + value for name, value in entries))
)
NESTED: Any = st.dictionaries(
    st.sampled_from(NAMES),
    st.recursive(
        st.one_of(st.integers(-(2**63), 2**63 - 1), st.text(max_size=8), st.none()),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3)
        ),
        max_leaves=6,
    ),
    max_size=6,
).map(write_table)


def wanted(names: set[str]) -> int:
    bits = 0
    if names & {"CC", "BCC"}:
        bits |= COPIES
    if any(name.startswith("x-mqtt-") for name in names):
        bits |= MQTT_HEADER
    if "x-trellis-producer" in names:
        bits |= NUMBERED
    return bits | TRACED if "traceparent" in names else bits


@settings(max_examples=500, deadline=None)
@given(st.one_of(RAW, NESTED), st.binary(max_size=20), st.binary(max_size=20))
def test_the_bits_are_those_of_the_names_of_the_table(
    table: bytes, before: bytes, after: bytes
) -> None:
    data = before + table + after
    names = set(read_table(table, 0, len(table))[0])
    assert special_headers(data, len(before), len(before) + len(table)) == wanted(names)
    assert special_headers(data, len(before), len(data)) == wanted(names)


@settings(max_examples=1000, deadline=None)
@example(long(b"\x02CC"), 5, 1)
@example(b"", 0, 1)
@given(RAW, st.integers(0, 400), st.integers(1, 255))
def test_a_name_anywhere_in_an_invalid_table_counts(table: bytes, place: int, change: int) -> None:
    changed = bytearray(table)
    if place < len(changed):
        changed[place] ^= change
    else:
        del changed[place // 2 :]
    data = bytes(changed)
    bits = special_headers(data, 0, len(data))
    try:
        names = set(read_table(data, 0, len(data))[0])
    except UnicodeDecodeError:
        reject()  # The entries are valid, and one name is no text.
    except ValueError:
        assert bits == sum(
            bit for bit, texts in MARKS.items() if any(map(data.__contains__, texts))
        )
    else:
        assert bits == wanted(names)


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param(b"S\0\0\0\x63a", id="a cut value"),
        pytest.param(b"S\0\0", id="a cut length"),
        pytest.param(b"S\xff\xff\xff\xff", id="a length of 4 GiB"),
        pytest.param(b"?", id="an unknown type"),
        pytest.param(b"", id="a name without a value"),
    ],
)
@pytest.mark.parametrize("name", ["CC", "BCC", "x-mqtt-qos", "x-trellis-producer", "traceparent"])
def test_a_name_before_and_after_an_invalid_entry_is_found(name: str, broken: bytes) -> None:
    special, invalid = short(name) + b"V", short("a") + broken
    for table in (long(special + invalid), long(invalid + special)):
        assert special_headers(table, 0, len(table)) == wanted({name})
    too_long = (100).to_bytes(4, "big") + special
    assert special_headers(too_long, 0, len(too_long)) == wanted({name})
