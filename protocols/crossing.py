"""The AMQP headers for MQTT properties of a message that have no equivalent AMQP property.

Both front ends write and read these headers, so a message can cross from one protocol to the other
and back unchanged.

    x-mqtt-retain            True if published with RETAIN; an AMQP publisher may set it, too
    x-mqtt-qos               0, 1 or 2; an AMQP publisher may set it, too
    x-mqtt-payload-format    0 or 1
    x-mqtt-user-properties   [name, value, ...] of all User Properties, if a name is repeated,
                             empty, too long for a header, or the name of one of these headers
    x-mqtt-content-type      a Content Type of more than 255 bytes
    x-reply-to-topic         the Response Topic, converted to a routing key
    x-correlation-id         Correlation Data that has more than 255 bytes, or is not UTF-8
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
#: The prefix of RETAIN and QOS. A content without these bytes has no header RETAIN or QOS.
MARK: Final = b"x-mqtt-"


def wants_retain(properties: Mapping[str, object]) -> bool:
    """True if the message is to be retained, because its header x-mqtt-retain is true.

    `properties` is the result of `Encoding.properties` for the message.
    """
    headers = properties.get("headers")
    return isinstance(headers, dict) and headers.get(RETAIN) is True


def wanted_qos(properties: Mapping[str, object]) -> int:
    """Return the quality of service (QoS) in the header x-mqtt-qos; -1 if the header is missing or
    invalid.

    `properties` is the result of `Encoding.properties` for the message.
    """
    headers = properties.get("headers")
    qos = headers.get(QOS) if isinstance(headers, dict) else None
    return qos if isinstance(qos, int) and not isinstance(qos, bool) and 0 <= qos <= 2 else -1
