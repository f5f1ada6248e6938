"""The codec of MQTT 5 compared with the package mqtt5, and the codec of MQTT 3.1.1 with amqtt."""

from __future__ import annotations

import asyncio
from typing import Any

import mqtt5
import pytest
from amqtt.adapters import BufferReader
from amqtt.mqtt.connect import ConnectPacket
from amqtt.mqtt.subscribe import SubscribePacket
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.mqtt.codec import packets5
from protocols.mqtt.codec.connect import LEVEL_5, NEVER, Connect, UnacceptableVersion, read_connect
from protocols.mqtt.codec.packets import (
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    SUBSCRIBE,
    UNSUBSCRIBE,
    MalformedPacket,
    PacketReader,
)
from protocols.mqtt.codec.properties import (
    ASSIGNED_CLIENT_IDENTIFIER,
    AUTHENTICATION_DATA,
    AUTHENTICATION_METHOD,
    CONTENT_TYPE,
    CORRELATION_DATA,
    MAXIMUM_PACKET_SIZE,
    MESSAGE_EXPIRY,
    PAYLOAD_FORMAT,
    REASON,
    RECEIVE_MAXIMUM,
    REQUEST_PROBLEM,
    RESPONSE_INFORMATION,
    RESPONSE_TOPIC,
    SERVER_KEEP_ALIVE,
    SESSION_EXPIRY,
    TOPIC_ALIAS,
    TOPIC_ALIAS_MAXIMUM,
    Properties5,
    read_properties,
)
from tests.wire.mqtt.client import Will, connect, subscribe

TEXTS = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=20)
TOPICS = TEXTS.filter(lambda text: text and "+" not in text and "#" not in text)
NAMES = st.one_of(TOPICS, st.sampled_from(["#", "+/a", "a/+/#", "$share/g/a"]))
BINARY = st.binary(max_size=30)
USER = st.lists(st.tuples(TEXTS, TEXTS), max_size=3)
IDS = st.integers(1, 65_535)
SECONDS = st.integers(0, NEVER)
FOREVER = settings(max_examples=150, deadline=None)


def members(enum: Any) -> list[Any]:
    """Return the members of an enumeration of the package mqtt5, which cannot be iterated."""
    return [getattr(enum, name) for name in dir(enum) if name.isupper()]


def by_value(enum: Any, value: int) -> Any:
    return next(member for member in members(enum) if int(member) == value)


def body_of(data: bytes) -> PacketReader:
    """Return a reader of the part of a packet after its fixed header."""
    reader = PacketReader(data)
    reader.byte()
    size = reader.variable()
    assert size == len(reader.rest())
    return PacketReader(reader.rest())


def theirs(data: bytes) -> Any:
    packet, size = mqtt5.read(data)  # type: ignore[arg-type]  # it takes any buffer
    assert size == len(data)
    return packet


QOS = st.sampled_from(members(mqtt5.QoS))
WILLS = st.builds(
    mqtt5.Will,
    TOPICS,
    payload=BINARY,
    qos=QOS,
    retain=st.booleans(),
    payload_format_indicator=st.integers(0, 1),
    message_expiry_interval=st.none() | SECONDS,
    content_type=st.none() | TEXTS,
    response_topic=st.none() | TOPICS,
    correlation_data=st.none() | BINARY,
    will_delay_interval=SECONDS,
    user_properties=USER,
)
CONNECTS = st.builds(
    mqtt5.ConnectPacket,
    TEXTS,
    username=st.none() | TEXTS,
    password=st.none() | BINARY,
    clean_start=st.booleans(),
    will=st.none() | WILLS,
    keep_alive=st.integers(0, 65_535),
    session_expiry_interval=SECONDS,
    authentication_method=TEXTS,
    authentication_data=st.none() | BINARY,
    request_problem_info=st.booleans(),
    request_response_info=st.booleans(),
    receive_max=IDS,
    topic_alias_max=st.integers(0, 65_535),
    max_packet_size=st.none() | st.integers(1, NEVER),
    user_properties=USER,
)


@FOREVER
@given(CONNECTS)
def test_connect_as_another_codec_writes_it(packet: mqtt5.ConnectPacket) -> None:
    ours = read_connect(body_of(packet.write()))
    assert (ours.level, ours.client_id, ours.user, ours.password, ours.clean, ours.keep_alive) == (
        LEVEL_5,
        packet.client_id,
        packet.username,
        packet.password,
        packet.clean_start,
        packet.keep_alive,
    )
    assert (
        ours.expiry,
        ours.method,
        ours.method_data,
        ours.properties.number(REQUEST_PROBLEM, 1) == 1,
        ours.wants_response_information,
    ) == (
        packet.session_expiry_interval,
        packet.authentication_method,
        packet.authentication_data or b"",
        packet.request_problem_info,
        packet.request_response_info,
    )
    assert (
        ours.receive_maximum,
        ours.topic_alias_maximum,
        ours.maximum_packet_size,
        ours.properties.user,
    ) == (
        packet.receive_max,
        packet.topic_alias_max,
        packet.max_packet_size or 0,
        packet.user_properties,
    )
    assert (ours.will is None) == (packet.will is None)
    if ours.will is not None and packet.will is not None:
        will, properties = packet.will, ours.will.properties
        assert (
            ours.will.topic,
            ours.will.body,
            ours.will.qos,
            ours.will.retain,
            ours.will.delay,
        ) == (will.topic, will.payload or b"", will.qos, will.retain, will.will_delay_interval)
        assert (
            properties.number(PAYLOAD_FORMAT, 0),
            properties.numbers.get(MESSAGE_EXPIRY),
            properties.text(CONTENT_TYPE),
        ) == (will.payload_format_indicator, will.message_expiry_interval, will.content_type)
        assert (
            properties.text(RESPONSE_TOPIC),
            properties.binary(CORRELATION_DATA),
            properties.user,
        ) == (will.response_topic, will.correlation_data, will.user_properties)


FILTERS = st.builds(
    mqtt5.TopicFilter,
    NAMES.filter(lambda name: not name.startswith("$share/")),
    max_qos=QOS,
    no_local=st.booleans(),
    retain_as_published=st.booleans(),
    retain_handling=st.sampled_from(members(mqtt5.RetainHandling)),
)


@FOREVER
@given(
    IDS, st.lists(FILTERS, min_size=1, max_size=4), st.none() | st.integers(1, 268_435_455), USER
)
def test_subscribe_as_another_codec_writes_it(
    packet_id: int,
    filters: list[mqtt5.TopicFilter],
    identifier: int | None,
    user: list[tuple[str, str]],
) -> None:
    packet = mqtt5.SubscribePacket(
        packet_id, filters, subscription_id=identifier, user_properties=user
    )
    reader = body_of(packet.write())
    ours = packets5.read_subscription_head(reader, SUBSCRIBE)
    requests = []
    while reader.more:
        requests.append(packets5.read_subscribe_request(reader))
    assert (ours.packet_id, ours.identifier, ours.properties.user) == (
        packet_id,
        identifier or 0,
        user,
    )
    assert [
        (one.topic_filter, one.qos, one.no_local, one.retain_as_published, one.retain_handling)
        for one in requests
    ] == [
        (one.pattern, one.max_qos, one.no_local, one.retain_as_published, one.retain_handling)
        for one in filters
    ]


@FOREVER
@given(IDS, st.lists(NAMES, min_size=1, max_size=4), USER)
def test_unsubscribe_as_another_codec_writes_it(
    packet_id: int, filters: list[str], user: list[tuple[str, str]]
) -> None:
    reader = body_of(mqtt5.UnsubscribePacket(packet_id, filters, user_properties=user).write())
    ours = packets5.read_subscription_head(reader, UNSUBSCRIBE)
    assert (ours.packet_id, ours.properties.user) == (packet_id, user)
    assert [reader.text() for _ in filters] == filters and not reader.more


@pytest.mark.parametrize(
    ("kind", "make", "codes"),
    [
        (PUBACK, mqtt5.PubAckPacket, mqtt5.PubAckReasonCode),
        (PUBREC, mqtt5.PubRecPacket, mqtt5.PubRecReasonCode),
        (PUBREL, mqtt5.PubRelPacket, mqtt5.PubRelReasonCode),
        (PUBCOMP, mqtt5.PubCompPacket, mqtt5.PubCompReasonCode),
    ],
)
def test_acknowledgements_both_ways(kind: int, make: Any, codes: Any) -> None:
    for code in members(codes):
        for text in (None, "why"):
            for user in ([], [("a", "b"), ("a", "c")]):
                data = make(7, reason_code=code, reason_str=text, user_properties=user).write()
                ours = packets5.read_acknowledgement(body_of(data), kind)
                assert (
                    ours.packet_id,
                    ours.code,
                    ours.properties.text(REASON),
                    ours.properties.user,
                ) == (7, code, text, user)
                properties = Properties5()
                properties.user += user
                if text is not None:
                    properties.texts[REASON] = text
                for given_properties in (properties if text or user else None, properties):
                    written = packets5.acknowledgement5(data[0], 7, int(code), given_properties)
                    packet = theirs(written)
                    assert (
                        packet.packet_id,
                        packet.reason_code,
                        packet.reason_str,
                        packet.user_properties,
                    ) == (7, code, text, user)


@pytest.mark.parametrize("code", [0, 4, 0x80, 0x81, 0x82, 0x93, 0x99])
def test_disconnect_both_ways(code: int) -> None:
    for expiry in (None, 0, NEVER):
        reason = by_value(mqtt5.DisconnectReasonCode, code)
        packet = mqtt5.DisconnectPacket(
            reason_code=reason, session_expiry_interval=expiry, reason_str="so"
        )
        ours = packets5.read_disconnect(body_of(packet.write()))
        assert (
            ours.code,
            ours.properties.numbers.get(SESSION_EXPIRY),
            ours.properties.text(REASON),
        ) == (code, expiry, "so")
    back = theirs(packets5.disconnect5(code))
    assert (back.reason_code, back.reason_str) == (code, None)


@pytest.mark.parametrize("code", members(mqtt5.AuthReasonCode))
def test_auth_both_ways(code: mqtt5.AuthReasonCode) -> None:
    back = theirs(packets5.auth5(int(code), "SCRAM", b"data"))
    assert (back.reason_code, back.authentication_method, back.authentication_data) == (
        code,
        "SCRAM",
        b"data",
    )
    data = mqtt5.AuthPacket(
        reason_code=code, authentication_method="SCRAM", authentication_data=b"x"
    ).write()
    if int(code) == 0:
        with pytest.raises(MalformedPacket):
            packets5.read_auth(body_of(data))
    else:
        ours = packets5.read_auth(body_of(data))
        assert (
            ours.code,
            ours.properties.text(AUTHENTICATION_METHOD),
            ours.properties.binary(AUTHENTICATION_DATA),
        ) == (code, "SCRAM", b"x")


@FOREVER
@given(
    st.booleans(),
    SECONDS,
    TEXTS,
    IDS,
    IDS,
    st.integers(1, NEVER),
    st.integers(0, 65_535),
    TEXTS,
    USER,
)
def test_connack_as_another_codec_reads_it(
    present: bool,
    expiry: int,
    assigned: str,
    keep_alive: int,
    receive: int,
    size: int,
    aliases: int,
    information: str,
    user: list[tuple[str, str]],
) -> None:
    properties = Properties5()
    properties.numbers = {
        SESSION_EXPIRY: expiry,
        SERVER_KEEP_ALIVE: keep_alive,
        RECEIVE_MAXIMUM: receive,
        MAXIMUM_PACKET_SIZE: size,
        TOPIC_ALIAS_MAXIMUM: aliases,
    }
    properties.texts = {ASSIGNED_CLIENT_IDENTIFIER: assigned, RESPONSE_INFORMATION: information}
    properties.user = user
    packet = theirs(packets5.connack5(present, 0, properties))
    assert (
        packet.session_present,
        packet.session_expiry_interval,
        packet.assigned_client_id,
        packet.server_keep_alive,
    ) == (present, expiry, assigned, keep_alive)
    assert (
        packet.receive_max,
        packet.max_packet_size,
        packet.topic_alias_max,
        packet.response_info,
        packet.user_properties,
    ) == (receive, size, aliases, information, user)


@FOREVER
@given(
    IDS, st.lists(st.sampled_from(members(mqtt5.SubAckReasonCode)), min_size=1, max_size=4), USER
)
def test_suback_and_unsuback_as_another_codec_reads_them(
    packet_id: int, codes: list[int], user: list[tuple[str, str]]
) -> None:
    properties = Properties5()
    properties.user = user
    packet = theirs(packets5.reason_codes5(0x90, packet_id, bytes(map(int, codes)), properties))
    assert (packet.packet_id, packet.reason_codes, packet.user_properties) == (
        packet_id,
        codes,
        user,
    )
    packet = theirs(packets5.reason_codes5(0xB0, packet_id, b"\x00\x11", properties))
    assert (packet.packet_id, packet.reason_codes, packet.user_properties) == (
        packet_id,
        [0, 17],
        user,
    )


@FOREVER
@given(
    st.none() | SECONDS,
    st.none() | TEXTS,
    st.none() | TOPICS,
    st.none() | BINARY,
    st.lists(st.integers(1, 268_435_455), max_size=3),
    st.none() | IDS,
    USER,
)
def test_properties_of_publications_both_ways(
    expiry: int | None,
    content_type: str | None,
    response: str | None,
    correlation: bytes | None,
    identifiers: list[int],
    alias: int | None,
    user: list[tuple[str, str]],
) -> None:
    packet = mqtt5.PublishPacket(
        "a",
        b"body",
        message_expiry_interval=expiry,
        content_type=content_type,
        response_topic=response,
        correlation_data=correlation,
        subscription_ids=identifiers,
        topic_alias=alias,
        user_properties=user,
        payload_format_indicator=1,
    )
    reader = body_of(packet.write())
    assert reader.text() == "a"
    ours = read_properties(reader, 3)
    assert reader.rest() == b"body"
    assert ours.numbers == {PAYLOAD_FORMAT: 1} | (
        {} if expiry is None else {MESSAGE_EXPIRY: expiry}
    ) | ({} if alias is None else {TOPIC_ALIAS: alias})
    assert (
        ours.text(CONTENT_TYPE),
        ours.text(RESPONSE_TOPIC),
        ours.binary(CORRELATION_DATA),
        ours.identifiers,
        ours.user,
    ) == (content_type, response, correlation, identifiers, user)
    rest = b"\x00\x01a" + ours.encoded() + b"body"
    again = theirs(b"\x30" + _length(len(rest)) + rest)
    for field in (
        "message_expiry_interval",
        "content_type",
        "response_topic",
        "correlation_data",
        "subscription_ids",
        "topic_alias",
        "user_properties",
        "payload_format_indicator",
        "payload",
    ):
        assert getattr(again, field) == getattr(packet, field)


def _length(number: int) -> bytes:
    return bytes([number]) if number < 128 else bytes([number & 127 | 128, number >> 7])


@FOREVER
@given(CONNECTS, st.data())
def test_a_connect_with_changed_bytes_is_read_alike_or_refused(
    packet: mqtt5.ConnectPacket, choice: st.DataObject
) -> None:
    """The package mqtt5 accepts every CONNECT that the broker accepts, and reads the same fields.

    The broker also refuses packets that the specification forbids and mqtt5 accepts.
    """
    data = bytearray(packet.write())
    start = 2 if data[1] < 128 else 3
    for _ in range(choice.draw(st.integers(1, 3))):
        data[choice.draw(st.integers(start, len(data) - 1))] = choice.draw(st.integers(0, 255))
    try:
        ours: Connect = read_connect(body_of(bytes(data)))
    except (MalformedPacket, UnacceptableVersion):
        return
    if ours.level == LEVEL_5:
        other = theirs(bytes(data))
        assert (ours.client_id, ours.user, ours.password, ours.properties.user) == (
            other.client_id,
            other.username,
            other.password,
            other.user_properties,
        )


@settings(max_examples=60, deadline=None)
@given(
    TEXTS,
    st.booleans(),
    st.none() | st.builds(Will, TOPICS, BINARY, st.integers(0, 2), st.booleans()),
    st.none() | TEXTS,
    BINARY,
)
def test_connect_of_3_1_1_as_amqtt_reads_it(
    client_id: str, clean: bool, will: Will | None, user: str | None, password: bytes
) -> None:
    data = connect(
        client_id, clean=clean, will=will, user=user, password=None if user is None else password
    )
    ours = read_connect(body_of(data))
    other = asyncio.run(ConnectPacket.from_stream(BufferReader(data)))
    assert (ours.client_id, ours.clean, ours.user, ours.keep_alive) == (client_id, clean, user, 60)
    assert (other.variable_header.clean_session_flag, other.variable_header.keep_alive) == (
        clean,
        60,
    )
    assert (other.payload.client_id or "").startswith(
        "amqtt/"
    ) or other.payload.client_id == client_id
    if will is not None and ours.will is not None:
        assert (ours.will.topic, ours.will.body, ours.will.qos, ours.will.retain) == tuple(will)
        assert (other.payload.will_topic, bytes(other.payload.will_message)) == (
            will.topic,
            will.body,
        )


@settings(max_examples=60, deadline=None)
@given(IDS, st.lists(st.tuples(TEXTS.filter(bool), st.integers(0, 2)), min_size=1, max_size=4))
def test_subscribe_of_3_1_1_as_amqtt_reads_it(
    packet_id: int, wanted: list[tuple[str, int]]
) -> None:
    data = subscribe(packet_id, *wanted)
    other = asyncio.run(SubscribePacket.from_stream(BufferReader(data)))
    reader = body_of(data)
    assert reader.packet_id() == packet_id == other.variable_header.packet_id
    filters = []
    while reader.more:
        filters.append((reader.text(), reader.byte()))
    assert filters == other.payload.topics == wanted
