"""How contents of MQTT are written in the store: as they are.

tag 16    number of the encoding u8    properties and body
"""

from __future__ import annotations

from typing import Final

from broker.messages.message import Encoding
from broker.store.codecs import Codec, Codecs
from protocols.mqtt.codec.content import MqttEncoding, number_of, numbered

#: The tag of these contents in the log: on disks too.
TAG: Final = 16


class MqttCodec(Codec):
    """Parameters are one octet: bit 0 described, bit 1 published with RETAIN, bit 2 exactly once."""

    def dump(self, encoding: Encoding, content: bytes) -> tuple[int, bytes, bytes]:
        assert isinstance(encoding, MqttEncoding)
        return TAG, bytes([number_of(encoding)]), content

    def load(self, tag: int, parameters: bytes, content: bytes) -> Encoding:
        if len(parameters) != 1:
            raise ValueError(f"{len(parameters)} octets of parameters")
        return numbered(parameters[0])


def register(codecs: Codecs) -> None:
    """Let a store know MQTT's contents."""
    codecs.register(MqttCodec(), [MqttEncoding], [TAG])
