"""The properties with which `trellis replay` and the HTTP API publish a stream's row again."""

from __future__ import annotations

from typing import Final

from broker.messages.cc_headers import KEY_HEADERS
from protocols.amqp.codec.properties import amended, read_properties

#: The names of the headers with further routing keys as bytes of a table; few messages have them.
_ENCODED: Final = tuple(bytes([len(name)]) + name.encode() for name in KEY_HEADERS)


def replayed_properties(properties: bytes, redirected: bool) -> bytes:
    """Return the encoded properties with which a row is published again.

    If the row is `redirected`, it is published to another exchange than before. Then the headers CC
    and BCC are removed: their keys were meant for the exchange of the row. At the other exchange,
    they would bring the message to queues to which it is not replayed, with the permissions of the
    user who replays. A row that keeps its exchange keeps the headers. The broker refuses such a
    header if it is no list, which MQTT's User Properties make, so it is always removed.
    """
    if not any(encoded in properties for encoded in _ENCODED):
        return properties
    headers = read_properties(properties).get("headers")
    if not isinstance(headers, dict):
        return properties
    removed = [
        name
        for name in KEY_HEADERS
        if name in headers and (redirected or not isinstance(headers[name], list))
    ]
    return amended(properties, dict.fromkeys(removed), {}) if removed else properties
