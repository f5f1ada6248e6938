"""Converts a PUBLISH to a message, and the fate of the message to the reason code of the answer."""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from broker.messages.fates import DENIED, REFUSED, REPEATED, ROUTED, UNROUTABLE
from broker.messages.message import EXACTLY_ONCE, Message
from broker.routing.route import Route
from protocols.mqtt.codec.content import encoding_of
from protocols.mqtt.codec.publish_properties import PublishProperties
from protocols.mqtt.codec.reasons import (
    NO_MATCHING_SUBSCRIBERS,
    NOT_AUTHORISED,
    QUOTA_EXCEEDED,
    SUCCESS,
    UNSPECIFIED,
)

#: Reason codes that publishers of level 5 receive, by fate.
_CODES: Final[dict[int, int]] = {
    int(ROUTED): SUCCESS,
    int(UNROUTABLE): NO_MATCHING_SUBSCRIBERS,
    int(REPEATED): SUCCESS,
    int(REFUSED): QUOTA_EXCEEDED,
    int(DENIED): NOT_AUTHORISED,
}


def reason_of(fate: i64, has_properties: bool) -> i64:
    """Return the reason code of the answer to a PUBLISH whose message had this fate.

    `has_properties` is True at level 5. At the levels below, answers have no reason code, and the
    result is always SUCCESS.
    """
    return _CODES.get(int(fate), UNSPECIFIED) if has_properties else SUCCESS


def message_of(route: Route, properties: PublishProperties, body: bytes, first: i64) -> Message:
    """Convert a PUBLISH to a message. `first`, the first byte of the packet, has RETAIN and QoS."""
    qos: i64 = first >> 1 & 3
    has_properties = properties.relayed != b""
    encoding = encoding_of(has_properties, bool(first & 1), qos == EXACTLY_ONCE)
    return Message(route, properties.relayed + body if has_properties else body, encoding, qos)


def is_text(payload: bytes) -> bool:
    """True if the payload is valid UTF-8."""
    try:
        payload.decode()
    except UnicodeDecodeError:
        return False
    return True
