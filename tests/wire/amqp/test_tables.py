"""Field tables: every type, any depth, any size, as arguments and as headers."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pamqp.commands as spec
import pamqp.decode
import pamqp.encode
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.nesting import NESTING_MAX
from protocols.amqp.codec.properties import amended, read_properties, write_properties
from protocols.amqp.codec.tables import read_table, write_table
from tests.clients import Amqp, World, marshal
from tests.wire.amqp.speech import content, long, method, names, publish, short

Q, B = spec.Queue, spec.Basic

#: Encoded values by name. The names in one group of EQUAL have equal values.
VALUES = {
    "true": b"t\1",
    "true too": b"t\7",
    "false": b"t\0",
    "one": b"b\1",
    "minus one": b"b\xff",
    "255": b"B\xff",
    "one in 16": b"s\0\1",
    "65535": b"u\xff\xff",
    "one in 32": b"I\0\0\0\1",
    "one in u32": b"i\0\0\0\1",
    "one in 64": b"l" + bytes(7) + b"\1",
    "one in L": b"L" + bytes(7) + b"\1",
    "minus one in 64": b"l" + b"\xff" * 8,
    "float": b"f\x3f\x80\0\0",
    "double": b"d\x3f\xf0" + bytes(6),
    "decimal": b"D\1\0\0\0\x0f",
    "negative decimal": b"D\1\xff\xff\xff\xf1",
    "text": b"S" + long(b"text"),
    "empty": b"S" + long(b""),
    "string of bytes": b"S" + long(b"\xff"),
    "bytes": b"x" + long(b"\xff"),
    "array": b"A" + long(b"b\1t\1"),
    "array in 16": b"A" + long(b"s\0\1t\1"),
    "no array": b"A" + long(b""),
    "table": b"F" + long(short("a") + b"b\1"),
    "no table": b"F" + long(b""),
    "time": b"T\0\0\0\0\x65\0\0\0",
    "milliseconds": b"T\0\0\1\x8b\xcf\xe5\x68\0",
    "void": b"V",
    "odd void": b"\0",
}
EQUAL = [
    {"one", "one in 16", "one in 32", "one in u32", "one in 64", "one in L"},
    {"minus one", "minus one in 64"},
    {"true", "true too"},
    {"float", "double"},
    {"string of bytes", "bytes"},
    {"array", "array in 16"},
]


def headers(entries: bytes) -> bytes:
    return b"\x20\0" + long(entries)


def nested(depth: int, kind: bytes) -> bytes:
    """Return the entries of a table with nested tables or arrays."""
    value = b"V"
    for _ in range(depth):
        value = kind + (long(short("") + value) if kind == b"F" else long(value))
    return short("deep") + value


def headers_bound(client: Amqp, arguments: bytes) -> list[str]:
    client.connection.receive_data(
        method(
            1,
            50,
            20,
            b"\0\0" + short("q") + short("amq.headers") + short("") + b"\0" + long(arguments),
        )
    )
    return names(client.read())


@pytest.mark.parametrize("wanted", VALUES)
def test_headers_are_compared_by_value_in_any_encoding(wanted: str) -> None:
    client = World().amqp()
    client.queue("q")
    assert headers_bound(client, short("h") + VALUES[wanted]) == ["Queue.BindOk"]
    queue = client.world.queue("q")
    for carried, data in VALUES.items():
        before = queue.depth
        client.connection.receive_data(
            publish("amq.headers", "")
            + content(b"x", headers(short("before") + b"V" + short("h") + data))
        )
        fits = (
            carried == wanted
            or VALUES[wanted] in (b"V", b"\0")
            or any({carried, wanted} <= group for group in EQUAL)
        )
        assert (queue.depth > before) == fits, carried


@pytest.mark.parametrize("value", VALUES.values())
def test_every_type_is_taken_as_an_argument_and_relayed_as_a_header(value: bytes) -> None:
    client = World().amqp()
    arguments = long(short("x-unheard-of") + value)
    client.connection.receive_data(
        method(1, 50, 10, b"\0\0" + short("q") + b"\0" + arguments)
        + method(1, 40, 10, b"\0\0" + short("x") + short("topic") + b"\0" + arguments)
        + method(1, 50, 20, b"\0\0" + short("q") + short("x") + short("#") + b"\0" + arguments)
        + method(1, 60, 20, b"\0\0" + short("q") + short("t") + b"\2" + arguments)
    )
    assert names(client.read()) == [
        "Queue.DeclareOk",
        "Exchange.DeclareOk",
        "Queue.BindOk",
        "Basic.ConsumeOk",
    ]
    client.connection.receive_data(publish("x", "k") + content(b"x", headers(short("h") + value)))
    assert headers(short("h") + value) in client.read_bytes()


def test_a_table_may_fill_a_frame() -> None:
    client = World().amqp()
    client.queue("q")
    client.queue("dead_letters", "amq.fanout")
    for entries in (short("") + b"V", short("a") + b"t\1", b"\0\0"):
        many = entries * (131_000 // len(entries))
        client.connection.receive_data(method(1, 50, 10, b"\0\0" + short("q") + b"\0" + long(many)))
        assert names(client.read()) == ["Queue.DeclareOk"]
        client.connection.receive_data(publish("amq.headers", "") + content(b"x", headers(many)))
        assert client.read() == []
    array = short("a") + b"A" + long(b"V" * 130_000)
    client.connection.receive_data(method(1, 50, 10, b"\0\0" + short("q") + b"\0" + long(array)))
    assert names(client.read()) == ["Queue.DeclareOk"]


@pytest.mark.parametrize("kind", [b"F", b"A"])
@pytest.mark.parametrize(
    ("depth", "fine"),
    [(1, True), (NESTING_MAX, True), (NESTING_MAX + 1, False), (1_000, False), (10_000, False)],
)
def test_tables_may_stand_inside_each_other_a_hundred_times(
    depth: int, fine: bool, kind: bytes
) -> None:
    client = World().amqp()
    client.connection.receive_data(
        method(1, 50, 10, b"\0\0" + short("q") + b"\0" + long(nested(depth, kind)))
    )
    [answer] = client.read()
    if fine:
        assert answer.name == "Queue.DeclareOk"
    else:
        assert answer.reply_text == (
            "FRAME_ERROR - arguments of Queue.Declare: tables are nested more than "
            f"{NESTING_MAX} levels deep"
        )


@pytest.mark.parametrize("kind", [b"F", b"A"])
@pytest.mark.parametrize("depth", [NESTING_MAX, 10_000])
def test_headers_of_any_depth_are_relayed_and_dead_lettered(depth: int, kind: bytes) -> None:
    client = World().amqp()
    client.queue("dead_letters", "amq.fanout")
    client.queue("q", x_dead_letter_exchange="amq.fanout", x_max_length=0)
    for queue in ("dead_letters", "q"):
        client.connection.receive_data(
            publish("", queue) + content(b"x", headers(nested(depth, kind)))
        )
        client.world.turn()
        client.connection.receive_data(marshal(1, B.Get(queue="dead_letters", no_ack=True)))
        assert nested(depth, kind) in client.read_bytes()


def test_a_deep_binding_is_told_from_another() -> None:
    client = World().amqp()
    client.queue("q")
    for kind in (b"F", b"A", b"F"):
        assert headers_bound(client, nested(NESTING_MAX, kind)) == ["Queue.BindOk"]
    assert len(list(client.world.vhost.exchange("amq.headers"))) == 2
    client.connection.receive_data(
        publish("amq.headers", "") + content(b"x", headers(nested(NESTING_MAX, b"A")))
    )
    assert client.world.queue("q").depth == 1


@pytest.mark.parametrize(
    "entries",
    [
        b"\xff",
        short("a"),
        short("a") + b"?",
        short("a") + b"I\0\0",
        short("a") + b"S\0\0\0\5four",
        short("a") + b"F" + long(b"\1"),
        short("a") + b"A" + long(b"I"),
        short("a") + b"A\0\0\0\2V",
        short("a") + b"T\0\0\0\0",
        short("a") + b"D\0\0",
        short(b"\xff") + b"V",
        short("a") + b"F\0\0",
        short("a") + b"x\xff\xff\xff\xff",
        short("a") + b"A" + long(b"F" + long(short("b") + b"A" + long(b"?"))),
    ],
)
def test_an_argument_table_that_cannot_be_read_is_refused_with_501(entries: bytes) -> None:
    client = World().amqp()
    client.connection.receive_data(
        method(1, 50, 10, b"\0\0" + short("q") + b"\0" + long(short("fine") + b"V" + entries))
    )
    [close] = client.read()
    assert (close.reply_code, close.class_id, close.method_id) == (501, 50, 10)
    assert close.reply_text.startswith("FRAME_ERROR - arguments of Queue.Declare: ")


# -- the codec compared with other codecs

SIMPLE: Any = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.text(max_size=10)
    | st.binary(max_size=5).map(bytearray)
    | st.floats(allow_nan=False, width=32)
    | st.datetimes(min_value=datetime(1970, 1, 1), max_value=datetime(2100, 1, 1)).map(
        lambda when: when.replace(microsecond=0, tzinfo=UTC)
    )
    | st.decimals(0, 1_000, places=2, allow_nan=False)
)
TABLES: Any = st.recursive(
    SIMPLE,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.text(max_size=10), TABLES, max_size=5))
def test_tables_are_exchanged_with_pamqp_in_both_directions(table: Any) -> None:
    theirs = pamqp.encode.field_table(table)
    assert read_table(theirs, 0, len(theirs)) == (table, len(theirs))
    ours = write_table(plain(table))
    assert pamqp.decode.field_table(ours)[1] == table and read_table(
        b"x" + ours + b"more", 1, len(ours) + 5
    ) == (table, len(ours) + 1)


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, list):
        return [plain(one) for one in value]
    return bytes(value) if isinstance(value, bytearray) else value


@settings(max_examples=300, deadline=None)
@given(
    st.binary(max_size=60)
    | st.lists(
        st.sampled_from(
            [
                b"\0\0\0\5",
                b"\0\0\0\2",
                b"\1a",
                b"F",
                b"A",
                b"S",
                b"t",
                b"I",
                b"V",
                b"\xff",
                b"D",
                b"T",
            ]
        ),
        max_size=20,
    ).map(b"".join)
)
def test_bytes_are_a_table_or_raise_value_error(data: bytes) -> None:
    try:
        table, stop = read_table(data, 0, len(data))
    except ValueError:
        return
    assert 4 <= stop <= len(data)
    assert repr(read_table(write_table(table), 0, len(write_table(table)))[0]) == repr(table)


NAMES = [
    "content_type",
    "content_encoding",
    "correlation_id",
    "reply_to",
    "expiration",
    "message_id",
    "type",
    "user_id",
    "app_id",
    "cluster_id",
]
PROPERTIES: Any = st.fixed_dictionaries(
    {},
    optional={name: st.text(min_size=1, max_size=20) for name in NAMES}
    | {
        "headers": st.dictionaries(st.text(max_size=10), SIMPLE.map(plain), min_size=1, max_size=3),
        "delivery_mode": st.sampled_from([1, 2]),
        "priority": st.integers(0, 255),
        "timestamp": st.datetimes(
            min_value=datetime(1970, 1, 1), max_value=datetime(9999, 1, 1)
        ).map(lambda when: when.replace(microsecond=0, tzinfo=UTC)),
    },
)


@settings(max_examples=150, deadline=None)
@given(
    PROPERTIES,
    st.dictionaries(
        st.sampled_from(["x-death", "a", "b"]), st.integers(0, 9), min_size=1, max_size=2
    ),
)
def test_properties_are_read_as_they_were_written_and_amended_in_two_places_only(
    properties: Any, more: Any
) -> None:
    data = write_properties(properties)
    assert read_properties(data) == properties
    expected = {name: value for name, value in properties.items() if name != "expiration"}
    expected["headers"] = {**properties.get("headers", {}), **more}
    assert read_properties(amended(data, more, {"expiration": None})) == expected


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 0xFFFF), st.binary(max_size=60))
def test_any_bytes_are_properties_of_some_sort(flags: int, data: bytes) -> None:
    properties = flags.to_bytes(2, "big") + data
    first = read_properties(properties)
    letter = amended(properties, {"x-death": []}, {"expiration": None})
    kept = read_properties(letter)
    assert "expiration" not in kept and kept["headers"]["x-death"] == []  # type: ignore[index]
    for name in ("content_type", "timestamp", "message_id", "app_id"):
        assert repr(kept.get(name)) == repr(first.get(name))
    assert read_properties(amended(letter, {"x-death": []}, {})).keys() == kept.keys()


@pytest.mark.parametrize(
    "value",
    [
        object(),
        {1, 2},
        1j,
        {"a": object()},
        [object()],
        {"x" * 256: 1},
        Decimal("NaN"),
        Decimal(2**40),
        -(2**70),
    ],
)
def test_value_that_no_table_can_hold_is_not_written(value: Any) -> None:
    assert write_properties({"headers": {"a": value}, "app_id": "kept"}) == write_properties(
        {"app_id": "kept"}
    )


@pytest.mark.parametrize(
    "properties",
    [
        {"content_type": "x" * 256},
        {"priority": 256},
        {"priority": -1},
        {"timestamp": "now"},
        {"type": 7},
        {"headers": []},
    ],
)
def test_properties_that_cannot_be_written_are_left_out(properties: Any) -> None:
    assert write_properties(properties) == b"\0\0"
