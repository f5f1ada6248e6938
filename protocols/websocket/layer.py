"""The WebSocket layer of a connection: first the upgrade from HTTP, then frames in and out."""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64

from protocols.layer import Layer
from protocols.peer import Peer
from protocols.websocket.frames import (
    BINARY,
    CLOSE,
    CONTINUATION,
    CONTROL_MAX,
    GOING_AWAY,
    NORMAL,
    PING,
    POLICY,
    PONG,
    PROTOCOL_ERROR,
    TEXT,
    TOO_LARGE,
    UNSUPPORTED,
    close,
    head,
    read_close,
    unmask,
)
from protocols.websocket.upgrade import REASONS, OriginPolicy, UpgradeRefused, upgrade

#: Reason for the end of a connection -> code of the close frame; NORMAL for other reasons.
_CODES: Final = {
    "shutdown": GOING_AWAY,
    "protocol_error": PROTOCOL_ERROR,
    "too_large": TOO_LARGE,
    "login_refused": POLICY,
}
#: Size in bytes up to which a payload is copied, to be sent together with its frame header.
_SMALL: Final[i64] = 1 << 14


class WebSocketTally:
    """The counters of the WebSocket upgrades at one listener."""

    def __init__(self) -> None:
        #: The number of upgrades, and the number of refused requests by reason.
        self.upgrades = 0
        self.refused = dict.fromkeys(REASONS, 0)


class WebSocketLayer(Layer):
    """The server's end of one WebSocket."""

    def __init__(self, policy: OriginPolicy, peer: Peer, tally: WebSocketTally) -> None:
        super().__init__()
        self._policy = policy
        self._peer = peer
        self._tally = tally
        #: Input that is incomplete: a request, a frame header, or a control frame.
        self._rest = b""
        #: The payload that is being received: number of missing bytes, key of the mask, and index
        #: of the next byte of the key.
        self._left: i64 = 0
        self._key = b""
        self._phase: i64 = 0
        #: True if the WebSocket message continues in another frame.
        self._unfinished = False
        #: Output of the layer itself. `_reply` (HTTP response, pong) goes before the data of the
        #: next `send`, `_close_frame` after it.
        self._reply = b""
        self._close_frame = b""
        #: True once a close frame is sent or is waiting for the next `send`, or the upgrade is
        #: refused.
        self._closed = False

    def receive(self, data: bytes) -> bytes:
        if self._rest:
            data = self._rest + data
            self._rest = b""
        if self.over:
            return b""
        return self._read(data) if self.open else self._upgrade(data)

    def _upgrade(self, data: bytes) -> bytes:
        try:
            answered = upgrade(self._policy, data, self._peer)
        except UpgradeRefused as refused:
            self._tally.refused[refused.reason] += 1
            self._reply = refused.answer()
            self._closed = True
            self.speaks = True
            self.over = "websocket_refused"
            self.refusal = f"the upgrade to WebSocket was refused: {refused}"
            return b""
        if answered is None:
            self._rest = data
            return b""
        self.open = True
        self.speaks = True
        self._tally.upgrades += 1
        self._reply = answered[0]
        return self._read(answered[1])

    def _read(self, data: bytes) -> bytes:
        """Return the payloads of data frames; answer control frames. Hot path, once per chunk."""
        size: i64 = len(data)
        at: i64 = 0
        out = BytesWriter()
        while True:
            if self._left > 0:
                end: i64 = min(at + self._left, size)
                unmask(out, data, at, end, self._key, self._phase)
                self._phase = (self._phase + end - at) & 3
                self._left -= end - at
                at = end
            if size - at < 6:
                # The header of a masked frame has at least six bytes; the first two show whether
                # it is valid.
                if size - at < 2 or self._left > 0 or not self._invalid(data, at):
                    break
                return out.getvalue()
            if self._invalid(data, at):
                return out.getvalue()
            opcode: i64 = i64(data[at]) & 15
            length: i64 = i64(data[at + 1]) & 127
            start: i64 = at + 6
            if length >= 126:
                start += 2 if length == 126 else 8
                if start > size:
                    break
                length = self._length(data, at, start - 4)
                if length < 0:
                    return out.getvalue()
            if opcode >= CLOSE:
                if start + length > size:
                    break
                self._on_control(opcode, data, start, length)
                if self.over:
                    return out.getvalue()
                at = start + length
                continue
            self._unfinished = data[at] < 128
            self._left = length
            self._key = data[start - 4 : start]
            self._phase = 0
            at = start
        if at < size:
            self._rest = data[at:]
        return out.getvalue()

    def _invalid(self, data: bytes, at: i64) -> bool:
        """Check the first two bytes of the frame that begins at `at`.

        Close the WebSocket and return True if the frame is invalid, or must not follow the frame
        before it.
        """
        first: i64 = data[at]
        second: i64 = data[at + 1]
        opcode: i64 = first & 15
        if first & 0x70 or second < 128:
            # An extension that was not agreed on, or a frame without a mask (section 5.1).
            self._fail(PROTOCOL_ERROR)
        elif opcode == TEXT:
            self._fail(UNSUPPORTED)  # [MQTT-6.0.0-1]
        elif opcode >= CLOSE:
            if opcode > PONG or first < 128 or second & 127 > CONTROL_MAX:
                self._fail(PROTOCOL_ERROR)
        elif opcode > BINARY or (opcode == CONTINUATION) != self._unfinished:
            self._fail(PROTOCOL_ERROR)
        return self._closed

    def _length(self, data: bytes, at: i64, end: i64) -> i64:
        """Return the extended payload length of the frame that begins at `at`.

        The field of this length is data[at + 2 : end], 2 or 8 bytes. Return -1 and close the
        WebSocket if a shorter field could hold the length, or if the length's highest bit is set
        (section 5.2).
        """
        length = int.from_bytes(data[at + 2 : end], "big")
        if length >> 63 or length < (126 if end - at == 4 else 1 << 16):
            self._fail(PROTOCOL_ERROR)
            return -1
        return length

    def _on_control(self, opcode: i64, data: bytes, start: i64, length: i64) -> None:
        out = BytesWriter()
        unmask(out, data, start, start + length, data[start - 4 : start], 0)
        payload = out.getvalue()
        if opcode == PING:
            # Only the last of several pings is answered (section 5.5.3), so that a client cannot
            # make the output grow.
            self._reply = head(int(PONG), len(payload)) + payload
            self.speaks = True
        elif opcode == CLOSE:
            self._close(read_close(payload))
            self.over = "websocket_closed"

    def _fail(self, code: int) -> None:
        self._close(code)
        self.over = "websocket_error"
        self.refusal = (
            "the client sent a text frame, and MQTT needs binary frames"
            if code == UNSUPPORTED
            else "the client sent an invalid WebSocket frame"
        )

    def _close(self, code: int) -> None:
        if not self._closed:
            self._closed = True
            self._close_frame = close(code)
            self.speaks = True

    def send(self, parts: list[bytes]) -> list[bytes]:
        """Return the bytes to write: the parts as one binary frame, and waiting control frames.

        The layer's reply (the upgrade response or a PONG) comes first, its CLOSE frame last.

        Hot path.
        """
        self.speaks = False
        first, self._reply = self._reply, b""
        last, self._close_frame = self._close_frame, b""
        if not parts or not self.open or self._closed and not last:
            first += last
            return [first] if first else []
        size: i64 = 0
        for part in parts:
            size += len(part)
        first += head(int(BINARY), int(size))
        if last or size <= _SMALL:
            return [b"".join([first, *parts, last])]
        return [first, *parts]

    def close(self, reason: str) -> None:
        if self.open:
            self._close(_CODES.get(reason, NORMAL))
        else:
            self.on_closed(reason)

    def on_closed(self, reason: str) -> None:
        if not self.open and not self.over:
            self.over = "websocket_refused"
            self._tally.refused["timeout" if reason == "handshake_timeout" else "lost"] += 1
