"""Headers in which publications keep, beyond AMQP's properties, what MQTT says of them. Both front
ends write and read these.

x-mqtt-retain            published with RETAIN; an AMQP publisher who sets it has its message
retained x-mqtt-qos               0, 1 or 2; an AMQP publisher may choose it
x-mqtt-payload-format    0 or 1
x-mqtt-user-properties   [name, value, ...], where a table cannot hold them: repeated or empty
names, long ones, ours x-mqtt-content-type      of more than 255 octets
x-reply-to-topic         the Response Topic, as a routing key
x-correlation-id         Correlation Data that is no short string
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

RETAIN: Final = "x-mqtt-retain"
QOS: Final = "x-mqtt-qos"
FORMAT: Final = "x-mqtt-payload-format"
USER: Final = "x-mqtt-user-properties"
TYPE: Final = "x-mqtt-content-type"
REPLY_TO: Final = "x-reply-to-topic"
CORRELATION: Final = "x-correlation-id"
ALL: Final = (RETAIN, QOS, FORMAT, USER, TYPE, REPLY_TO, CORRELATION)
#: Octets without which none of the first two is in a content.
MARK: Final = b"x-mqtt-"


def wants_retain(properties: Mapping[str, object]) -> bool:
    """Whether the neutral properties of a message ask for it to be retained."""
    headers = properties.get("headers")
    return isinstance(headers, dict) and headers.get(RETAIN) is True


def wanted_qos(properties: Mapping[str, object]) -> int:
    """The quality of service that they ask for; -1 for none."""
    headers = properties.get("headers")
    quality = headers.get(QOS) if isinstance(headers, dict) else None
    return (
        quality
        if isinstance(quality, int) and not isinstance(quality, bool) and 0 <= quality <= 2
        else -1
    )
