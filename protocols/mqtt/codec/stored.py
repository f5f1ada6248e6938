"""MQTT contents in the store: a content is stored unchanged, after the number of its encoding.

tag   parameters                          content
16    number of the encoding (1 byte)     properties and payload
"""

from __future__ import annotations

from typing import Final

from broker.messages.message import Encoding
from broker.store.codecs import Codec, Codecs
from protocols.mqtt.codec.content import MqttEncoding, number_of, numbered

#: The tag of MQTT contents in the log. Files on disk contain this tag, so it must not change.
TAG: Final = 16


class MqttCodec(Codec):
    """Converts MQTT contents to their form in the store's log, and back.

    The parameters in the log are one byte, the code of the encoding, which is a bit mask. Bit 0:
    the content begins with properties; bit 1: the message was published with RETAIN; bit 2: with
    QoS 2.
    """

    def dump(self, encoding: Encoding, content: bytes) -> tuple[int, bytes, bytes]:
        assert isinstance(encoding, MqttEncoding)
        return TAG, bytes([number_of(encoding)]), content

    def load(self, tag: int, parameters: bytes, content: bytes) -> Encoding:
        if len(parameters) != 1:
            raise ValueError(f"a stored MQTT message has {len(parameters)} parameter bytes, not 1")
        return numbered(parameters[0])


def register(codecs: Codecs) -> None:
    """Register the codec of MQTT contents with a store."""
    codecs.register(MqttCodec(), [MqttEncoding], [TAG])
