"""Contents: the header frame and body frames that follow a basic.publish or basic.deliver.

    header frame    class(2) weight(2) body size(8) property flags(2) properties
    body frames     as many as the body needs

A content is relayed as it was received: one slice of the input with all its frames. A content is
encoded again only for another channel number, a smaller frame_max, or a message of another
protocol.
"""

from __future__ import annotations

from typing import Final

from librt.strings import read_i16_be, read_i32_be, read_i64_be
from mypy_extensions import i64

from broker.messages.message import (
    HEADERS,
    PERSISTENCE,
    PLAIN,
    PRIORITY,
    REPLY_TO,
    TRACEPARENT_HEADER,
    AmendedEncoding,
    Encoding,
    Message,
    Properties,
    PropertyCodec,
)
from protocols.amqp.codec.frames import BODY, FRAME_END, HEADER, OVERHEAD
from protocols.amqp.codec.properties import amended, read_properties, write_properties
from protocols.amqp.codec.special_headers import TRACED, special_headers
from protocols.amqp.errors import AmqpError

#: Size of the payload of a header frame before the properties, in bytes.
FIXED_HEADER: Final[i64] = 14

#: Name that stands for direct replies: in the property reply_to of a request, and as the name of
#: the queue from which the client consumes the replies.
DIRECT: Final = b"amq.rabbitmq.reply-to"

#: Channel number in the frames of dead letters in the store. Clients cannot publish on it.
DEAD_LETTER_CHANNEL: Final[i64] = 0
_TIMESTAMP: Final[i64] = 1 << 6


class Frames(Encoding):
    """The encoding of a content in frames of one channel, at most frame_max bytes each."""

    def __init__(self, channel: i64, frame_max: i64) -> None:
        self.channel: i64 = channel
        self.frame_max: i64 = frame_max

    def body(self, content: bytes) -> bytes:
        at: i64 = i64(read_i32_be(content, 3)) + OVERHEAD
        if read_i64_be(content, 11) == len(content) - at - OVERHEAD:
            return content[at + 7 : -1]
        parts: list[bytes] = []
        while at < len(content):
            end: i64 = at + i64(read_i32_be(content, at + 3)) + OVERHEAD
            parts.append(content[at + 7 : end - 1])
            at = end
        return b"".join(parts)

    def first_bytes(self, content: bytes, size: i64) -> bytes:
        at: i64 = i64(read_i32_be(content, 3)) + OVERHEAD
        parts: list[bytes] = []
        while at < len(content) and size > 0:
            end: i64 = at + i64(read_i32_be(content, at + 3)) + OVERHEAD
            parts.append(content[at + 7 : min(end - 1, at + 7 + size)])
            size -= len(parts[-1])
            at = end
        return b"".join(parts)

    def properties(self, content: bytes) -> Properties:
        return read_properties(self.header(content))

    def size(self, content: bytes) -> i64:
        return read_i64_be(content, 11)

    def priority(self, content: bytes) -> i64:
        at = _property_at(content, 0, PRIORITY) if property_flags(content, 0) & PRIORITY else 0
        return content[at] if at > 0 else 0

    def may_be_traced(self, content: bytes) -> bool:
        return special_names(content, 0) & TRACED != 0

    def is_dead_letter(self) -> bool:
        return self.channel == DEAD_LETTER_CHANNEL

    def header(self, content: bytes) -> bytes:
        """Return the property flags and properties of a content, as they were received."""
        end: i64 = 7 + i64(read_i32_be(content, 3))
        return content[19:end]

    def whole_header(self, content: bytes) -> bytes:
        """Return the content header of an encoded content: the payload of its header frame."""
        end: i64 = 7 + i64(read_i32_be(content, 3))
        return content[7:end]


class EncodedProperties(Encoding):
    """The encoding of a dead letter: the published body, with new properties.

    The message of the dead letter keeps the content as it was published; `source` is the encoding
    of that content. `header` has the property flags and properties that receivers get instead of
    the published ones.
    """

    __slots__ = ("header", "source")

    def __init__(self, source: Encoding, header: bytes) -> None:
        self.source = source
        self.header = header

    def body(self, content: bytes) -> bytes:
        return self.source.body(content)

    def first_bytes(self, content: bytes, size: i64) -> bytes:
        return self.source.first_bytes(content, size)

    def properties(self, content: bytes) -> Properties:
        return read_properties(self.header)

    def size(self, content: bytes) -> i64:
        return self.source.size(content)

    def priority(self, content: bytes) -> i64:
        return self.source.priority(content)

    def is_dead_letter(self) -> bool:
        return True


class AmqpPropertyCodec(PropertyCodec):
    """The codec that encodes the properties of dead letters of any protocol as AMQP properties.

    Messages that a queue discards together often have equal properties and equal deaths, so the
    codec keeps its last result. Such dead letters also share the bytes of their properties.
    """

    def __init__(self) -> None:
        #: The properties and the changes of the last dead letter, and the result.
        self._before = b""
        self._headers: Properties = {}
        self._changed: Properties = {}
        self._after = b""

    def encoded(self, encoding: AmendedEncoding, content: bytes, qos: i64) -> Encoding:
        source = encoding.source
        if not isinstance(source, (Frames, EncodedProperties)):
            return EncodedProperties(source, written_properties(encoding, content, qos))
        before = written_properties(source, content, qos)
        headers, changed = encoding.headers, encoding.changed
        if before != self._before or headers != self._headers or changed != self._changed:
            self._after = amended(before, headers, changed)
            self._before, self._headers, self._changed = before, headers, changed
        return EncodedProperties(
            source.source if isinstance(source, EncodedProperties) else source, self._after
        )


#: Largest number of cached encodings. Once so many are cached, each request for a further encoding
#: makes a new object.
_KNOWN_MAX: Final = 4_096
_known: Final[dict[tuple[int, int], Frames]] = {}


def frames_of(channel: i64, frame_max: i64) -> Frames:
    """Return the encoding for a channel number and a frame_max.

    Equal arguments return the same object. So encodings are compared with `is`: a content's frames
    can be relayed unchanged if its encoding is also the encoding of the receiving channel. The
    cache has at most _KNOWN_MAX encodings. When the cache is full, a call with other arguments
    returns a new object.
    """
    known = _known.get((channel, frame_max))
    if known is None:
        known = Frames(channel, frame_max)
        if len(_known) < _KNOWN_MAX:
            _known[channel, frame_max] = known
    return known


def content_end(data: bytes, start: i64, number: i64, frame_max: i64) -> i64:
    """Return the end of the content whose header frame begins at `start`. Hot path.

    `number` is the channel number that all its frames must have, `frame_max` the largest size of a
    frame. Return 0 if the content must be handled frame by frame, because it is incomplete or
    invalid or has an empty body frame. (Empty body frames are not relayed.)
    """
    size: i64 = len(data)
    if (
        size - start < FIXED_HEADER + OVERHEAD
        or i64(read_i32_be(data, start)) >> 8 != HEADER << 16 | number
    ):
        return 0
    length: i64 = i64(read_i32_be(data, start + 3))
    stop: i64 = start + length + OVERHEAD
    if (
        length < FIXED_HEADER
        or length > frame_max - OVERHEAD
        or stop > size
        or data[stop - 1] != FRAME_END
    ):
        return 0
    if i64(read_i32_be(data, start + 7)) != 60 << 16:
        return 0
    left: i64 = read_i64_be(data, start + 11)
    while left > 0:
        if size - stop < OVERHEAD or i64(read_i32_be(data, stop)) >> 8 != BODY << 16 | number:
            return 0
        length = i64(read_i32_be(data, stop + 3))
        if length <= 0 or length > left or length > frame_max - OVERHEAD:
            return 0
        stop += length + OVERHEAD
        if stop > size or data[stop - 1] != FRAME_END:
            return 0
        left -= length
    return stop if left == 0 else 0


def property_flags(content: bytes, start: i64) -> i64:
    """Return the property flags of the content whose header frame begins at `start`."""
    return i64(read_i16_be(content, start + 19)) & 0xFFFF


def persistent(data: bytes, start: i64) -> bool:
    """True if the content whose header frame begins at `start` has delivery_mode 2.

    Hot path for durable queues.
    """
    if not property_flags(data, start) & PERSISTENCE:
        return False
    at = _property_at(data, start, PERSISTENCE)
    return at > 0 and data[at] == 2


def slow_path_reasons(reasons: i64, data: bytes, start: i64) -> i64:
    """Return the reasons for which a content must take the slow path; 0 for the fast path.

    `reasons` is a mask of the possible reasons (bits of Plan.slow_path_mask), found by the property
    flags alone. The result keeps the bits that the values of the properties confirm.
    `start` is the position of the content's header frame in `data`.
    """
    if reasons & PERSISTENCE and not persistent(data, start):
        reasons -= PERSISTENCE
    if reasons & HEADERS:
        special = special_names(data, start)
        if special == 0 or (special == TRACED and not reasons & TRACEPARENT_HEADER):
            reasons -= HEADERS
    if reasons & REPLY_TO and not asks_directly(data, start):
        reasons -= REPLY_TO
    return reasons & ~TRACEPARENT_HEADER


def special_names(data: bytes, start: i64) -> i64:
    """Return the bits of the special headers (special_headers.py) of a content; 0 without headers.

    The header frame of the content begins at `start`.
    """
    if not property_flags(data, start) & HEADERS:
        return 0
    at = _property_at(data, start, HEADERS)
    if at == 0:
        return 0  # The header frame ends before its headers.
    return special_headers(data, at, start + 7 + i64(read_i32_be(data, start + 3)))


def asks_directly(data: bytes, start: i64) -> bool:
    """True if reply_to is `amq.rabbitmq.reply-to` (DIRECT), which asks for a direct reply.

    The header frame of the content begins at `start`.
    """
    at = _property_at(data, start, REPLY_TO)
    return at > 0 and data[at] == len(DIRECT) and data[at + 1 : at + 1 + len(DIRECT)] == DIRECT


def short_property(content: bytes, wanted: i64) -> bytes:
    """Return the value of the short string property with the flag `wanted`, which must be set.

    Raises AmqpError if the property is cut off.
    """
    at = _property_at(content, 0, wanted)
    if at == 0 or at + content[at] >= 7 + i64(read_i32_be(content, 3)):
        raise AmqpError(501, "a property is longer than its frame")
    return content[at + 1 : at + 1 + content[at]]


def _property_at(data: bytes, start: i64, wanted: i64) -> i64:
    """Return the position of the property with the flag `wanted`, which must be set.

    Return 0 if the header frame ends before the property.
    """
    flags = property_flags(data, start)
    end: i64 = start + 7 + i64(read_i32_be(data, start + 3))
    at: i64 = start + 7 + FIXED_HEADER
    flag: i64 = 1 << 15
    while flag > wanted and at < end:
        if flags & flag:
            if flag & (PERSISTENCE | PRIORITY):
                at += 1
            elif flag == _TIMESTAMP:
                at += 8
            elif flag == HEADERS:
                table: i64 = i64(read_i32_be(data, at)) if at + 4 <= end else -1
                at = at + 4 + table if table >= 0 else end
            else:
                length: i64 = data[at]
                at += 1 + length
        flag >>= 1
    return at if at < end else 0


def content_for(message: Message, frames: Frames) -> bytes:
    """Return the content of a message, encoded in the frames of one receiving channel.

    The message caches the last result. Return b"" if the properties do not fit into one frame,
    because a content header cannot be split.
    """
    source = message.encoding
    if message.recoding is frames:
        return message.recoded
    if isinstance(source, Frames) and source.frame_max <= frames.frame_max:
        if source.channel == frames.channel:
            return message.content
        return message.cache_recoded(frames, _renumber(message.content, frames.channel))
    properties = written_properties(source, message.content, message.qos)
    fits = FIXED_HEADER - 2 + len(properties) <= frames.frame_max - OVERHEAD
    return message.cache_recoded(
        frames, split_content(properties, message.body, frames) if fits else b""
    )


def encoded_content(encoding: Encoding, content: bytes, frames: Frames, qos: i64) -> bytes:
    """Return the content of a message as AMQP frames: a header frame, then body frames.

    `content` has the encoding `encoding`, which may belong to another protocol, such as MQTT.
    `frames` has the channel number and the largest frame size. `qos` is the QoS of the message; it
    determines the delivery_mode if the message was not published through AMQP.
    """
    return split_content(written_properties(encoding, content, qos), encoding.body(content), frames)


def written_properties(encoding: Encoding, content: bytes, qos: i64) -> bytes:
    """Return a message's property flags and properties as bytes of an AMQP content header.

    `content` has the encoding `encoding`, which may belong to another protocol, such as MQTT. `qos`
    is the QoS of the message; it determines the delivery_mode if the message was not published
    through AMQP.
    """
    if isinstance(encoding, Frames):
        return encoding.header(content)
    if isinstance(encoding, EncodedProperties):
        return encoding.header
    if isinstance(encoding, AmendedEncoding):
        source = encoding.source
        if isinstance(source, (Frames, EncodedProperties)):
            return amended(
                written_properties(source, content, qos), encoding.headers, encoding.changed
            )
    elif encoding is PLAIN:
        return b"\x10\x00\x02" if qos else b"\x10\x00\x01"
    return write_properties({"delivery_mode": 2 if qos else 1} | encoding.properties(content))


def split_content(flags_and_properties: bytes, body: bytes, frames: Frames) -> bytes:
    """Return the content of a message as AMQP frames: a header frame, then body frames.

    A body frame has at most `frames.frame_max` bytes and is not empty.
    """
    channel = int(frames.channel).to_bytes(2, "big")
    header = b"\x00\x3c\x00\x00" + len(body).to_bytes(8, "big") + flags_and_properties
    parts = [b"\x02", channel, len(header).to_bytes(4, "big"), header, b"\xce"]
    room = int(frames.frame_max - OVERHEAD)
    for at in range(0, len(body), room):
        part = body[at : at + room]
        parts += [b"\x03", channel, len(part).to_bytes(4, "big"), part, b"\xce"]
    return b"".join(parts)


def _renumber(content: bytes, channel: i64) -> bytes:
    """Return the content with the channel number `channel` in each of its frames."""
    number = int(channel).to_bytes(2, "big")
    out = bytearray(content)
    at: i64 = 0
    while at < len(content):
        out[at + 1 : at + 3] = number
        at += i64(read_i32_be(content, at + 3)) + OVERHEAD
    return bytes(out)
