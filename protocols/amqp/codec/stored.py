"""AMQP contents in the store: frames as they were received, with their channel and frame_max.

    tag   parameters                     content
    1     channel u16, frame_max u32     frames

A dead letter is stored with channel 0, which no client can use. So after a restart, the broker
knows that the broker itself, and not a publisher, wrote the dead letter's header `x-death`. In a
message with another channel number, the header comes from a publisher. Older logs hold dead letters
with channel 1; their `x-death` is treated as written by a publisher.
"""

from __future__ import annotations

import struct
from typing import Final

from broker.messages.message import AT_LEAST_ONCE, AmendedEncoding, Encoding
from broker.store.codecs import Codec, Codecs
from protocols.amqp.codec.contents import (
    DEAD_LETTER_CHANNEL,
    EncodedProperties,
    Frames,
    encoded_content,
    frames_of,
)

TAG: Final = 1
_PARAMETERS: Final = struct.Struct(">HI")
#: Encodings of frames: for a dead letter, and for any other message whose properties the broker has
#: changed.
_DEAD_LETTER: Final = frames_of(DEAD_LETTER_CHANNEL, 128 << 10)
_CHANGED: Final = frames_of(1, 128 << 10)


class FrameCodec(Codec):
    """The codec that encodes AMQP contents, and dead letters of any protocol, for the store."""

    def dump(self, encoding: Encoding, content: bytes) -> tuple[int, bytes, bytes]:
        if isinstance(encoding, (AmendedEncoding, EncodedProperties)):
            frames = _DEAD_LETTER if encoding.is_dead_letter() else _CHANGED
            content = encoded_content(encoding, content, frames, AT_LEAST_ONCE)
            encoding = frames
        assert isinstance(encoding, Frames)
        return TAG, _PARAMETERS.pack(encoding.channel, encoding.frame_max), content

    def load(self, tag: int, parameters: bytes, content: bytes) -> Encoding:
        try:
            channel, frame_max = _PARAMETERS.unpack(parameters)
        except struct.error as error:
            raise ValueError(str(error)) from error
        return frames_of(channel, frame_max)


def register(codecs: Codecs) -> None:
    """Register the codec for AMQP contents in a store."""
    codecs.register(FrameCodec(), [Frames, AmendedEncoding, EncodedProperties], [TAG])
