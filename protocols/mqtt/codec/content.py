"""Encodings of the contents of MQTT messages, and the conversion of properties to AMQP and back.

    PLAIN          the content is the payload: most messages have no properties
    MqttEncoding   the content is the payload, or properties and then the payload; the encoding
                   has two flags: published with RETAIN, published with QoS 2

    property of MQTT          property of AMQP, which the core uses too
    Content Type              content_type, or header x-mqtt-content-type if it is too long
    User Properties           headers; if a table of headers cannot hold one of the properties,
                              header x-mqtt-user-properties has all: [name, value, name, ...]
    Response Topic            header x-reply-to-topic, as a routing key
    Correlation Data          correlation_id, or header x-correlation-id if the data do not fit
    Message Expiry Interval   expiration, in ms; towards MQTT, the remaining time
    Payload Format            header x-mqtt-payload-format
    RETAIN, QoS 2             headers x-mqtt-retain, x-mqtt-qos

Other properties of AMQP, such as message_id and type, become User Properties of the same name. A
message that goes back from AMQP to MQTT gets its properties back from the headers, so it is
unchanged.
"""

from __future__ import annotations

import json
from datetime import datetime
from decimal import Decimal
from typing import Final

from broker.messages.message import PLAIN, TRACEPARENT, Encoding, Properties
from matching.grammar import swap
from protocols.crossing import ALL, CORRELATION, FORMAT, QOS, REPLY_TO, RETAIN, TYPE, USER
from protocols.mqtt.codec.packets import PUBLISH, MalformedPacket, PacketReader
from protocols.mqtt.codec.properties import (
    CONTENT_TYPE,
    CORRELATION_DATA,
    MESSAGE_EXPIRY,
    PAYLOAD_FORMAT,
    RESPONSE_TOPIC,
    Properties5,
    read_properties,
)

#: Size of the longest short string (AMQP 0-9-1 section 4.2.5.3), in bytes.
_SHORT: Final = 255
#: Largest size of a name in a field table (AMQP 0-9-1 section 4.2.5.5), in bytes.
_NAME: Final = 128
_TRACEPARENT: Final = TRACEPARENT.encode()
#: Properties of AMQP without a counterpart in MQTT. They become User Properties.
_FOREIGN: Final = (
    "content_encoding",
    "priority",
    "reply_to",
    "message_id",
    "timestamp",
    "type",
    "user_id",
    "app_id",
    "cluster_id",
)


class MqttEncoding(Encoding):
    """The encoding of a content from MQTT that has properties, or was sent with RETAIN or QoS 2.

    If `described` is True, the content begins with properties, encoded as in a PUBLISH, with the
    message expiry first. `encoding_of` returns one shared object for each combination of flags.
    """

    def __init__(self, described: bool, retain: bool, exactly_once: bool) -> None:
        self.described = described
        self.retain = retain
        self.exactly_once = exactly_once

    def body(self, content: bytes) -> bytes:
        return content[properties_end(content) :] if self.described else content

    def properties(self, content: bytes) -> Properties:
        if not self.described:
            return self._with_flags({}, {})
        try:
            given = read_properties(PacketReader(content), PUBLISH)
        except MalformedPacket:
            # This cannot happen: the properties were checked when the PUBLISH was read.
            return self._with_flags({}, {})
        properties: Properties = {}
        headers: dict[str, object] = {}
        content_type = given.text(CONTENT_TYPE)
        if content_type is not None:
            if len(content_type.encode()) <= _SHORT:
                properties["content_type"] = content_type
            else:
                headers[TYPE] = content_type
        _write_user(given.user, headers)
        response = given.text(RESPONSE_TOPIC)
        if response is not None:
            headers[REPLY_TO] = swap(response)
        correlation = given.binary(CORRELATION_DATA)
        if correlation is not None:
            text = _short_text(correlation)
            if text is None:
                headers[CORRELATION] = correlation
            else:
                properties["correlation_id"] = text
        expiry = given.number(MESSAGE_EXPIRY, -1)
        if expiry >= 0:
            properties["expiration"] = str(expiry * 1000)
        if PAYLOAD_FORMAT in given.numbers:
            headers[FORMAT] = given.numbers[PAYLOAD_FORMAT]
        return self._with_flags(properties, headers)

    def may_be_traced(self, content: bytes) -> bool:
        return self.described and content.find(_TRACEPARENT, 0, properties_end(content)) >= 0

    def _with_flags(self, properties: Properties, headers: dict[str, object]) -> Properties:
        if self.retain:
            headers[RETAIN] = True
        if self.exactly_once:
            headers[QOS] = 2
        if headers:
            properties["headers"] = headers
        return properties


_ENCODINGS: Final = [
    MqttEncoding(bool(number & 1), bool(number & 2), bool(number & 4)) for number in range(8)
]


def encoding_of(described: bool, retain: bool, exactly_once: bool) -> Encoding:
    """Return the shared object for an encoding with these flags; PLAIN if all are False."""
    number = (1 if described else 0) | (2 if retain else 0) | (4 if exactly_once else 0)
    return _ENCODINGS[number] if number else PLAIN


def number_of(encoding: MqttEncoding) -> int:
    """Return the code (1 to 7) that stands for this encoding in the store's log.

    The code is the sum of 1 for `described`, 2 for `retain` and 4 for `exactly_once`.
    """
    return (
        (1 if encoding.described else 0)
        | (2 if encoding.retain else 0)
        | (4 if encoding.exactly_once else 0)
    )


def numbered(number: int) -> Encoding:
    """Return the encoding for which the code `number` stands in the store's log.

    Raises ValueError if no encoding has this code.
    """
    if not 0 < number < len(_ENCODINGS):
        raise ValueError(f"no encoding of MQTT messages has the number {number}")
    return _ENCODINGS[number]


def properties_end(content: bytes) -> int:
    """Return the size in bytes of the properties at the beginning of a content.

    The size includes the length field before the properties.
    """
    size, shift, at = 0, 0, 0
    while content[at] >= 128:
        size |= (content[at] & 127) << shift
        shift += 7
        at += 1
    return at + 1 + (size | content[at] << shift)


def described_by(properties: Properties, expires: bool) -> Properties5:
    """Convert the properties of a message, as `Encoding.properties` returns them, to properties of
    MQTT.

    `expires` is True if the message has an expiry. The result then has a message expiry of 0, which
    the writer replaces by the remaining time.
    """
    given = Properties5()
    headers = properties.get("headers")
    table: dict[str, object] = headers if isinstance(headers, dict) else {}
    if expires:
        given.numbers[MESSAGE_EXPIRY] = 0
    payload_format = table.get(FORMAT)
    if payload_format in (0, 1) and isinstance(payload_format, int):
        given.numbers[PAYLOAD_FORMAT] = int(payload_format)
    content_type = _text(table.get(TYPE, properties.get("content_type")))
    if content_type is not None:
        given.texts[CONTENT_TYPE] = content_type
    response = table.get(REPLY_TO)
    topic = _text(swap(response) if isinstance(response, str) else None)
    if topic and "+" not in topic and "#" not in topic:
        given.texts[RESPONSE_TOPIC] = topic
    correlation = table.get(CORRELATION, properties.get("correlation_id"))
    data = correlation.encode() if isinstance(correlation, str) else correlation
    if isinstance(data, bytes) and len(data) <= 65_535:
        given.binaries[CORRELATION_DATA] = data
    _read_user(table, given.user)
    names = {name for name, _ in given.user}
    for name in _FOREIGN:
        value = (
            _text(_as_text(properties[name])) if name in properties and name not in names else None
        )
        if value is not None:
            given.user.append((name, value))
    return given


def _write_user(user: list[tuple[str, str]], headers: dict[str, object]) -> None:
    """Add each User Property to `headers` as a header.

    If a User Property cannot be a header, also add the header x-mqtt-user-properties, which lists
    all User Properties.
    """
    needs_list = False
    for name, value in user:
        if not name or name in headers or name in ALL or len(name.encode()) > _NAME:
            needs_list = True
        else:
            headers[name] = value
    if needs_list:
        headers[USER] = [text for pair in user for text in pair]


def _read_user(headers: dict[str, object], user: list[tuple[str, str]]) -> None:
    """Append the User Properties that are in the headers to `user`."""
    listed = headers.get(USER)
    names: set[str] = set()
    if isinstance(listed, list) and len(listed) % 2 == 0:
        texts = [_text(one) for one in listed]
        if None not in texts:
            for at in range(0, len(texts), 2):
                name, value = texts[at], texts[at + 1]
                assert name is not None and value is not None
                user.append((name, value))
                names.add(name)
    for header, content in headers.items():
        if header in names or header in ALL:
            continue
        key, text = _text(header), _text(_as_text(content))
        if key is not None and text is not None:
            user.append((key, text))


def _as_text(value: object) -> str:
    """Return a header's value as text: a string unchanged, bytes decoded, a time in ISO 8601, a
    decimal number without an exponent, other types as JSON.

    For a list or table, `json.dumps` calls this function (its `default`) for each value of a type
    that JSON lacks. `_as_text` converts each of these types itself, without `json.dumps`, so that
    the two functions do not call each other without end.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Decimal):
        return format(value, "f")
    return json.dumps(value, default=_as_text, ensure_ascii=False, separators=(",", ":"))


def _text(value: object) -> str | None:
    """Return the value if it is a valid string of MQTT, otherwise None."""
    if not isinstance(value, str) or "\0" in value:
        return None
    try:
        return value if len(value.encode()) <= 65_535 else None
    except UnicodeEncodeError:
        return None


def _short_text(data: bytes) -> str | None:
    """Return binary data as a short string; None if the data are too long or not UTF-8."""
    if len(data) > _SHORT:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None
