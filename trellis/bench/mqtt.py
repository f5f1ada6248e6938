"""MQTT 3.1.1 octets that are not in the hot path: the packets a load generator says, and the
answers it understands.

Written for this tool and apart from the broker's own front end: what checks the broker may not
share its mistakes.
"""

from __future__ import annotations

from typing import Final

CONNACK: Final = 0x20
SUBACK: Final = 0x90

#: Return codes of CONNACK, 3.2.2.3.
REFUSALS: Final = {
    1: "unacceptable protocol version",
    2: "identifier rejected",
    3: "server unavailable",
    4: "bad user name or password",
    5: "not authorised",
}
#: Those that another user could mend.
LOGIN_REFUSALS: Final = (4, 5)


def string(text: str) -> bytes:
    octets = text.encode()
    return len(octets).to_bytes(2, "big") + octets


def remaining_length(length: int) -> bytes:
    octets = b""
    while length >= 128:
        octets += bytes([length & 127 | 128])
        length >>= 7
    return octets + bytes([length])


def packet(first: int, rest: bytes) -> bytes:
    return bytes([first]) + remaining_length(len(rest)) + rest


def connect(client_id: str, user: str | None, password: str | None) -> bytes:
    """A clean session without keep-alive."""
    flags = 2 | (user is not None) << 7 | (password is not None) << 6
    login = b"".join(string(text) for text in (user, password) if text is not None)
    return packet(0x10, string("MQTT") + bytes([4, flags, 0, 0]) + string(client_id) + login)


def subscribe(topic_filter: str, qos: int) -> bytes:
    return packet(0x82, b"\x00\x01" + string(topic_filter) + bytes([qos]))


def publish(topic: str, body: bytes, qos: int = 0, packet_id: int = 0) -> bytes:
    return packet(
        0x30 | qos << 1, string(topic) + (packet_id.to_bytes(2, "big") if qos else b"") + body
    )


DISCONNECT: Final = b"\xe0\x00"
