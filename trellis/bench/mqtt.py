"""MQTT 3.1.1 packets that the load generator sends and reads outside the measured loop.

This code shares nothing with the broker's front end, so that it finds mistakes of the front end.
"""

from __future__ import annotations

from typing import Final

CONNACK: Final = 0x20
SUBACK: Final = 0x90

#: Return codes of CONNACK (MQTT 3.1.1, section 3.2.2.3).
REFUSALS: Final = {
    1: "unacceptable protocol version",
    2: "identifier rejected",
    3: "server unavailable",
    4: "bad user name or password",
    5: "not authorised",
}
#: Return codes of CONNACK that mean a refused login.
LOGIN_REFUSALS: Final = (4, 5)


def string(text: str) -> bytes:
    """Encode a string: its length in two bytes, then the text."""
    data = text.encode()
    return len(data).to_bytes(2, "big") + data


def remaining_length(length: int) -> bytes:
    """Encode a remaining length in one to four bytes."""
    data = b""
    while length >= 128:
        data += bytes([length & 127 | 128])
        length >>= 7
    return data + bytes([length])


def packet(first: int, rest: bytes) -> bytes:
    """Encode a packet: its first byte, its remaining length, and the bytes `rest`."""
    return bytes([first]) + remaining_length(len(rest)) + rest


def connect(client_id: str, user: str | None, password: str | None, clean: bool = True) -> bytes:
    """Encode CONNECT without keep-alive; the session is persistent unless `clean` is True."""
    flags = 2 * clean | (user is not None) << 7 | (password is not None) << 6
    login = b"".join(string(text) for text in (user, password) if text is not None)
    return packet(0x10, string("MQTT") + bytes([4, flags, 0, 0]) + string(client_id) + login)


def subscribe(topic_filter: str, qos: int) -> bytes:
    """Encode SUBSCRIBE with one topic filter."""
    return packet(0x82, b"\x00\x01" + string(topic_filter) + bytes([qos]))


def publish(topic: str, body: bytes, qos: int = 0, packet_id: int = 0) -> bytes:
    """Encode PUBLISH; the packet identifier is left out for QoS 0."""
    return packet(
        0x30 | qos << 1, string(topic) + (packet_id.to_bytes(2, "big") if qos else b"") + body
    )


DISCONNECT: Final = b"\xe0\x00"
