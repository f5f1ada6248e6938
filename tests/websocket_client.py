"""The bytes that a WebSocket client sends: the opening request, and frames, valid or not."""

from __future__ import annotations

from typing import Final

from websockets.utils import apply_mask

#: The header that offers the subprotocol of MQTT.
MQTT: Final = "Sec-WebSocket-Protocol: mqtt"


def upgrade(path: str = "/ws", *headers: str) -> bytes:
    """Return a request to open a WebSocket at `path`, with these headers besides the usual ones."""
    key = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13"
    usual = f"Host: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n{key}"
    return "\r\n".join([f"GET {path} HTTP/1.1", usual, *headers, "", ""]).encode()


def frame(
    opcode: int,
    payload: bytes,
    fin: bool = True,
    rsv: int = 0,
    masked: bool = True,
    length: int = -1,
    wide: int = 0,
    key: bytes = b"\x01\x82\x00\xff",
) -> bytes:
    """Return a frame with these header fields, valid or not.

    `length`, if not negative, replaces the size of the payload in the header. `wide` is the size of
    the extended length field in bytes: 2, 8, or 0 for the shortest.
    """
    size = len(payload) if length < 0 else length
    short = 127 if wide == 8 or size > 0xFFFF else 126 if wide == 2 or size > 125 else size
    data = bytes([fin << 7 | rsv << 4 | opcode, masked << 7 | short])
    data += size.to_bytes({126: 2, 127: 8}[short], "big") if short > 125 else b""
    if not masked:
        return data + payload
    return data + key + apply_mask(payload, key)
