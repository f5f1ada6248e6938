"""Values of field tables survive the conversion to text."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.store.values import dump, load

#: Text from a client: bytes that are not UTF-8 are surrogates.
TEXTS = st.text() | st.binary().map(lambda data: data.decode("utf-8", "surrogateescape"))
NAMES = TEXTS | st.sampled_from(
    ["$bytes", "$table", "$float", "$", "$decimal", "$time", "", "x-match"]
)
ZONES = st.just(UTC) | st.integers(-1439, 1439).map(
    lambda minutes: timezone(timedelta(minutes=minutes))
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-1 << 63, (1 << 64) - 1)
    | st.floats(allow_nan=False)
    | TEXTS
    | st.binary()
    | st.decimals(allow_nan=False, allow_infinity=False)
    | st.datetimes(timezones=ZONES)
    | st.datetimes()
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=12,
)


def exactly(value: object) -> object:
    """Return a form of a value that two values share only if they are exactly equal.

    Equal means here: same type, time zone, order of keys and sign of zero.
    """
    if isinstance(value, dict):
        return [(name, exactly(inner)) for name, inner in value.items()]
    if isinstance(value, list):
        return [exactly(inner) for inner in value]
    if isinstance(value, datetime):
        return type(value), value.replace(tzinfo=None), value.utcoffset()
    return type(value), repr(value)


@given(st.dictionaries(NAMES, VALUES, max_size=4))
def test_every_value_comes_back(table: dict[str, object]) -> None:
    text = dump(table)
    assert text.isascii()
    assert exactly(load(text)) == exactly(table)


@pytest.mark.parametrize(
    "odd", [math.inf, -math.inf, math.nan, Decimal("NaN"), Decimal("-0.00"), Decimal("1E+30"), -0.0]
)
def test_odd_numbers_come_back(odd: object) -> None:
    assert exactly(load(dump({"a": [odd, {"b": odd}]}))) == exactly({"a": [odd, {"b": odd}]})


def test_tables_as_deep_as_a_field_table_may_be_come_back() -> None:
    table: dict[str, object] = {"$bytes": b"x"}
    for _ in range(110):
        table = {"$table": [table, {}]}
    assert exactly(load(dump(table))) == exactly(table)


@pytest.mark.parametrize("stranger", [object(), {1, 2}, (1, 2), bytearray(b"x"), [{"a": 1j}]])
def test_value_that_no_field_table_can_hold_is_refused(stranger: object) -> None:
    with pytest.raises(TypeError):
        dump({"a": stranger})


@given(
    st.text()
    | st.sampled_from(
        [
            "",
            "[]",
            "1",
            '{"$bytes":"!"}',
            '{"a":{"$bytes":1}}',
            '{"a":{"$new":"x"}}',
            '{"a":{"$time":"yesterday"}}',
            '{"a":{"$decimal":"x"}}',
            '{"a":{"$float":"00"}}',
            '{"a":{"$table":[1]}}',
            '{"a":{"$table":[[[],1]]}}',
            '{"$decimal":"1"}',
            "[" * 100_000,
        ]
    )
)
def test_other_texts_are_refused_or_are_definitions(text: str) -> None:
    try:
        loaded = load(text)
    except ValueError:
        return
    assert exactly(load(dump(loaded))) == exactly(loaded)
