"""Frames and tables compared with pamqp, an independent codec: each reads the other's output."""

from __future__ import annotations

import inspect
from datetime import datetime
from typing import Any, Final

import pamqp.commands as spec
import pamqp.decode
import pamqp.encode
import pamqp.exceptions
import pamqp.frame
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.amqp.codec.frames import decode, encode
from protocols.amqp.codec.tables import read_table
from protocols.amqp.connection.handshake import GREETING
from protocols.amqp.errors import AmqpError
from tests.clients import World, marshal, unmarshal
from tests.wire.amqp.speech import Frame, frame, long, short, split
from tests.wire.amqp.test_garbage import CUTS, LOGIN, TALK, heard, streams
from tests.wire.amqp.test_tables import TABLES

METHODS: Final[list[Any]] = sorted(spec.INDEX_MAPPING.values(), key=lambda kind: str(kind.name))
#: The last second of the year 9999, in seconds since 1970: a later time is read as a number.
CALENDAR: Final = 253_402_300_799
#: Values of a field, by its type in AMQP 0-9-1.
FIELDS: Final[dict[str, Any]] = {
    "bit": st.booleans(),
    "octet": st.integers(0, 255),
    "short": st.integers(0, 0xFFFF),
    "long": st.integers(0, 0xFFFF_FFFF),
    "longlong": st.integers(0, (1 << 63) - 1),
    "shortstr": st.text(max_size=20),
    "longstr": st.text(max_size=20),
    "table": st.dictionaries(st.text(max_size=10), TABLES, max_size=3),
}
RESERVED: Final = (
    "ticket",
    "out_of_band",
    "channel_id",
    "capabilities",
    "insist",
    "known_hosts",
    "cluster_id",
)
TELLING: Final = st.sampled_from(
    [
        b"\0",
        b"\xff",
        b"\x80",
        b"\xce",
        b"\1",
        b"\0\0\0\0",
        b"\xff\xff\xff\xff",
        b"F",
        b"A",
        b"S",
        b"x",
        b"t",
    ]
)


@st.composite
def methods(draw: Any) -> Any:
    """Draw any method with any arguments that pamqp can write."""
    kind = draw(st.sampled_from(METHODS))
    method = kind.__new__(kind)
    for name in kind.attributes():
        known = inspect.signature(kind).parameters[name].default
        # pamqp writes reserved fields with their default value only.
        setattr(method, name, known if name in RESERVED else draw(FIELDS[kind.amqp_type(name)]))
    return method


def fields(method: Any) -> dict[str, object]:
    """Return the values of a decoded method's arguments."""
    return {name: same(getattr(method, name)) for name in type(method).attributes()}


def same(value: Any) -> Any:
    """Return a form of a decoded value that is equal for Trellis's codec and pamqp.

    All text becomes bytes, because one codec returns text where the other one returns bytes. All
    times become "time", because pamqp takes times from 2106 on for milliseconds.
    """
    if isinstance(value, dict):
        return {name: same(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [same(inner) for inner in value]
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    if isinstance(value, datetime) or isinstance(value, int) and value > CALENDAR:
        return "time"
    return bytes(value) if isinstance(value, bytearray) else value


def agree(raw: bytes) -> None:
    """Check that Trellis's codec and pamqp read the frame with equal results.

    Trellis's codec may refuse the frame with the hard error 501, 502 or 503 instead.
    """
    refusal: AmqpError | None = None
    try:
        ours = decode(raw)
    except AmqpError as error:
        refusal = error
    if refusal is not None:
        assert refusal.code in (501, 502, 503) and refusal.hard
        return
    try:
        theirs = pamqp.frame.unmarshal(raw)[2]
    except (
        pamqp.exceptions.PAMQPException,
        ValueError,
        KeyError,
        IndexError,
        TypeError,
        OverflowError,
        UnicodeDecodeError,
    ):
        return  # pamqp knows fewer types, and no bytes that are not text.
    mine, other = fields(ours), fields(theirs)
    assert type(ours) is type(theirs)
    assert repr(mine) == repr(other)  # NaN is not equal to itself.


@settings(max_examples=120, deadline=None)
@given(methods(), st.integers(0, 0xFFFF))
def test_a_method_that_pamqp_writes_is_read_as_pamqp_reads_it(method: Any, channel: int) -> None:
    raw = pamqp.frame.marshal(method, channel)
    assert fields(decode(raw)) == fields(pamqp.frame.unmarshal(raw)[2]) == fields(method)
    assert encode(channel, method) == raw


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_method_with_bytes_changed_is_read_alike_or_refused(data: Any) -> None:
    agree(changed(data))


@pytest.mark.long
@settings(max_examples=20_000, deadline=None)
@given(st.data())
def test_many_methods_with_bytes_changed_are_read_alike_or_refused(data: Any) -> None:
    agree(changed(data))


def changed(data: Any) -> bytes:
    """Return a random AMQP method frame with damaged arguments.

    Some bytes of the arguments are overwritten, inserted or removed, or the end is cut off.
    """
    payload = bytearray(split(pamqp.frame.marshal(data.draw(methods()), 1))[0].payload)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(4, len(payload)))
        kind = data.draw(st.sampled_from(["write", "insert", "drop", "cut"]))
        if kind == "cut":
            del payload[at:]
        elif kind == "drop":
            del payload[at : at + data.draw(st.integers(1, 6))]
        else:
            telling = data.draw(TELLING)
            payload[at : at + (len(telling) if kind == "write" else 0)] = telling
    return frame(1, 1, bytes(payload))


@settings(max_examples=120, deadline=None)
@given(st.dictionaries(st.text(max_size=10), TABLES, min_size=1, max_size=4), st.data())
def test_a_table_with_bytes_changed_is_read_alike_or_refused(table: Any, data: Any) -> None:
    raw = bytearray(pamqp.encode.field_table(table)[4:])
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(raw)))
        telling = data.draw(TELLING)
        raw[at : at + len(telling)] = telling
    whole = long(bytes(raw))
    try:
        ours, end = read_table(whole, 0, len(whole))
    except ValueError:
        refused_by_the_broker(whole)
        return
    assert end == len(whole)
    try:
        theirs = pamqp.decode.field_table(whole)[1]
    except (
        ValueError,
        KeyError,
        IndexError,
        TypeError,
        OverflowError,
        pamqp.exceptions.PAMQPException,
    ):
        return
    assert repr(same(ours)) == repr(same(theirs))


def refused_by_the_broker(table: bytes) -> None:
    """Check that the arguments of a queue.declare close the connection with 501."""
    client = World().amqp()
    client.connection.receive_data(frame(1, 1, b"\0\x32\0\x0a\0\0" + short("q") + b"\0" + table))
    [close] = client.read()
    assert (close.name, close.reply_code, close.class_id, close.method_id) == (
        "Connection.Close",
        501,
        50,
        10,
    )


def test_pamqp_reads_and_writes_all_output_of_the_broker_alike() -> None:
    answer = heard(b"".join(LOGIN + TALK), [])[0]
    assert len(split(answer)) > 40
    for one in split(answer):
        if not one.payload.startswith(b"\0\x1e"):  # access.request-ok, which pamqp cannot read
            reads_and_writes(one)


def reads_and_writes(one: Frame) -> None:
    size, channel, method = pamqp.frame.unmarshal(one.data)
    assert (size, channel) == (len(one.data), one.channel)
    # The tables of connection.start can differ, because pamqp chooses other types for their values.
    if one.kind == 1 and method.name != "Connection.Start":
        assert marshal(channel, method) == one.data


@pytest.mark.long
@settings(max_examples=4_000, deadline=None)
@given(streams(), CUTS)
def test_many_broken_streams_have_one_answer_that_pamqp_reads(raw: bytes, cuts: list[int]) -> None:
    whole = heard(raw, [])
    assert heard(raw, cuts) == whole
    reply = whole[0]
    if not reply.endswith(GREETING):
        # Only method frames are decoded: the broker relays headers and bodies unread, so they may
        # have any bytes.
        unmarshal(
            b"".join(
                one.data
                for one in split(reply)
                if one.kind == 1 and not one.payload.startswith(b"\0\x1e")
            )
        )
