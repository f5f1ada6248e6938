"""A small AMQP client that publishes messages and waits for their confirms.

Content headers and bodies are sent unchanged, as the stream stores them.
"""

from __future__ import annotations

import socket
from typing import Any, Final, Self

import pamqp.commands as spec
import pamqp.frame
from pamqp.exceptions import PAMQPException

from trellis.cli.parsing import CommandError

#: Largest number of unconfirmed messages.
WINDOW: Final = 1_000
#: Seconds to wait for a connection and for each frame.
TIMEOUT: Final = 30.0
_FRAME_MAX: Final = 131_072
_ACCESS_REFUSED: Final = 403
_GREETING: Final = b"AMQP\x00\x00\x09\x01"


class ReplayPublisher:
    """An AMQP connection with one channel in confirm mode. Its methods raise CommandError."""

    def __init__(self, host: str, port: int, user: str, password: str, vhost: str) -> None:
        self.published = 0
        self.refused = 0
        self._place = f"{host}:{port}"
        self._input = b""
        #: Offsets of messages that are neither confirmed nor refused, by delivery tag.
        self._unconfirmed: dict[int, int] = {}
        try:
            self._socket = socket.create_connection((host.strip("[]"), port), TIMEOUT)
        except OSError as error:
            raise CommandError(
                f"no answer from {self._place} ({error.strerror or error}); give --amqp HOST:PORT"
            ) from None
        self._send(_GREETING)
        self._expect(spec.Connection.Start)
        self._send_method(
            0,
            spec.Connection.StartOk(
                {
                    "product": "trellis replay",
                    "capabilities": {"authentication_failure_close": True},
                },
                "PLAIN",
                f"\0{user}\0{password}",
                "en_US",
            ),
        )
        tune: Any = self._expect(spec.Connection.Tune)
        self._body_max = min(tune.frame_max or _FRAME_MAX, _FRAME_MAX) - 8
        self._send_method(0, spec.Connection.TuneOk(tune.channel_max, self._body_max + 8, 0))
        self._send_method(0, spec.Connection.Open(vhost))
        self._expect(spec.Connection.OpenOk)
        self._send_method(1, spec.Channel.Open())
        self._expect(spec.Channel.OpenOk)
        self._send_method(1, spec.Confirm.Select())
        self._expect(spec.Confirm.SelectOk)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def publish(
        self, exchange: bytes, key: bytes, header: bytes, body: bytes, offset: int = 0
    ) -> None:
        """Publish the message of the row at `offset`; wait while WINDOW messages are unconfirmed.

        `header` is the encoded payload of the content header's frame. `exchange` and `key` have at
        most 255 bytes each.
        """
        method = (
            b"\x00\x3c\x00\x28\x00\x00"
            + bytes([len(exchange)])
            + exchange
            + bytes([len(key)])
            + key
            + b"\x00"
        )
        parts = [_frame(1, method), _frame(2, header)]
        parts += [
            _frame(3, body[at : at + self._body_max]) for at in range(0, len(body), self._body_max)
        ]
        self._send(b"".join(parts))
        self.published += 1
        self._unconfirmed[self.published] = offset
        while len(self._unconfirmed) >= WINDOW:
            self._receive()

    @property
    def confirmed(self) -> int:
        """The number of confirmed messages.

        The number is computed from the number of unconfirmed messages, so that both numbers agree
        even if the user interrupts the command.
        """
        return self.published - len(self._unconfirmed) - self.refused

    def summary(self, end: int) -> str:
        """Return a text with the number of confirmed messages and the offset to continue from.

        The text names the offset of the first message that the broker has not answered yet. If the
        broker has answered all messages, the text names `end`, the first unpublished offset.
        """
        first = min(self._unconfirmed.values(), default=end)
        return f"the broker has confirmed {self.confirmed} messages; continue with --from {first}"

    def wait_for_confirms(self) -> None:
        """Wait until every message is confirmed or refused."""
        while self._unconfirmed:
            self._receive()

    def _receive(self) -> None:
        frame = self._read()
        if isinstance(frame, (spec.Basic.Ack, spec.Basic.Nack)):
            tag = frame.delivery_tag or 0
            done = {one for one in self._unconfirmed if one <= tag} if frame.multiple else {tag}
            if isinstance(frame, spec.Basic.Nack):
                self.refused += len(done)
            for one in done:
                self._unconfirmed.pop(one, None)
        elif isinstance(frame, (spec.Channel.Close, spec.Connection.Close)):
            raise CommandError(
                f"{self._place} refused message {self.confirmed + self.refused + 1}: "
                f"{frame.reply_code} {frame.reply_text}"
            )

    def _expect(self, kind: type[Any]) -> object:
        frame = self._read()
        if isinstance(frame, kind):
            return frame
        if isinstance(frame, (spec.Channel.Close, spec.Connection.Close)):
            hint = " (give --user and --password)" if frame.reply_code == _ACCESS_REFUSED else ""
            raise CommandError(
                f"{self._place} answered {frame.reply_code} {frame.reply_text}{hint}"
            )
        raise CommandError(
            f"{self._place} does not answer as an AMQP 0-9-1 broker does; give the broker's AMQP "
            "listener with --amqp HOST:PORT"
        )

    def _read(self) -> object:
        while True:
            try:
                size, _, frame = pamqp.frame.unmarshal(self._input)
            except PAMQPException:
                size, frame = 0, None
            if size:
                self._input = self._input[size:]
                return frame
            try:
                data = self._socket.recv(65_536)
            except OSError as error:
                raise CommandError(
                    f"cannot read from {self._place}: {error.strerror or error}"
                ) from None
            if not data:
                raise CommandError(
                    f"{self._place} closed the connection; the log of the broker has the reason"
                )
            self._input += data

    def _send_method(self, channel: int, method: Any) -> None:
        self._send(pamqp.frame.marshal(method, channel))

    def _send(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise CommandError(f"cannot send to {self._place}: {error.strerror or error}") from None


def _frame(kind: int, payload: bytes) -> bytes:
    return bytes([kind]) + b"\x00\x01" + len(payload).to_bytes(4, "big") + payload + b"\xce"
