"""The properties with which `trellis replay`, the HTTP API and shovels publish a message again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from broker.messages.cc_headers import KEY_HEADERS
from broker.routing.deduplication import NUMBER_HEADERS
from protocols.amqp.codec.properties import amended, read_properties

#: Bytes of a stored content header before the properties: class, weight and size of the body.
HEADER_HEAD: Final = 12
#: The names of the headers that may be removed as bytes of a table; few messages have them.
_ENCODED: Final = tuple(
    bytes([len(name)]) + name.encode() for name in (*NUMBER_HEADERS, *KEY_HEADERS)
)


def without_instructions(properties: bytes, redirected: bool, always: Iterable[str] = ()) -> bytes:
    """Return encoded properties without the headers that would instruct the destination wrongly.

    `redirected` is True if the copy gets another exchange or routing key than the original. Then
    the headers CC and BCC are removed: their routing keys were meant for the former exchange, and
    would bring the copy to other queues, with the permissions of the user who publishes the copy.
    If `redirected` is False, CC and BCC are removed only if their value is no list, because the
    broker would refuse the copy. An MQTT publisher can set such a value as a User Property.

    The headers named in `always`, some of NUMBER_HEADERS, are removed in any case.
    """
    if not any(encoded in properties for encoded in _ENCODED):
        return properties
    headers = read_properties(properties).get("headers")
    if not isinstance(headers, dict):
        return properties
    removed = [name for name in always if name in headers]
    removed += [
        name
        for name in KEY_HEADERS
        if name in headers and (redirected or not isinstance(headers[name], list))
    ]
    return amended(properties, dict.fromkeys(removed), {}) if removed else properties
