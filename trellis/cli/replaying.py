"""Publishing rows again: a small AMQP client that waits for its confirms.

Headers and bodies go out as they stand in the rows.
"""

from __future__ import annotations

import socket
from typing import Any, Final, Self

import pamqp.commands as spec
import pamqp.frame
from pamqp.exceptions import PAMQPException

from trellis.cli.parsing import CommandError

#: Messages that may wait for their confirm.
WINDOW: Final = 1_000
TIMEOUT: Final = 30.0
_FRAME_MAX: Final = 131_072
_ACCESS_REFUSED: Final = 403
_GREETING: Final = b"AMQP\x00\x00\x09\x01"


class ReplayPublisher:
    """One connection, one channel in confirm mode. Raises CommandError."""

    def __init__(self, host: str, port: int, user: str, password: str, vhost: str) -> None:
        self.published = 0
        self.confirmed = 0
        self.refused = 0
        self._place = f"{host}:{port}"
        self._input = b""
        #: By delivery tag, what the caller calls the message.
        self._waiting: dict[int, int] = {}
        try:
            self._socket = socket.create_connection((host.strip("[]"), port), TIMEOUT)
        except OSError as error:
            raise CommandError(
                f"no answer from {self._place} ({error.strerror or error}); give --amqp HOST:PORT"
            ) from None
        self._send(_GREETING)
        self._expect(spec.Connection.Start)
        self._say(
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
        self._room = min(tune.frame_max or _FRAME_MAX, _FRAME_MAX) - 8
        self._say(0, spec.Connection.TuneOk(tune.channel_max, self._room + 8, 0))
        self._say(0, spec.Connection.Open(vhost))
        self._expect(spec.Connection.OpenOk)
        self._say(1, spec.Channel.Open())
        self._expect(spec.Channel.OpenOk)
        self._say(1, spec.Confirm.Select())
        self._expect(spec.Confirm.SelectOk)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def publish(
        self, exchange: bytes, key: bytes, header: bytes, body: bytes, place: int = 0
    ) -> None:
        """Octets as they stand in a row, which is at that offset.

        Waits when too many are unconfirmed.
        """
        method = (
            b"\x00\x3c\x00\x28\x00\x00"
            + bytes([len(exchange)])
            + exchange
            + bytes([min(len(key), 255)])
            + key[:255]
            + b"\x00"
        )
        parts = [_frame(1, method), _frame(2, header)]
        parts += [_frame(3, body[at : at + self._room]) for at in range(0, len(body), self._room)]
        self._send(b"".join(parts))
        self.published += 1
        self._waiting[self.published] = place
        while len(self._waiting) >= WINDOW:
            self._hear()

    def standing(self, reached: int) -> str:
        """How far it is, where `reached` is the first offset that was not published."""
        return f"{self.confirmed} messages are confirmed, and --from {min(self._waiting.values(), default=reached)} goes on behind them"

    def wait_for_confirms(self) -> None:
        """Until nothing is unconfirmed."""
        while self._waiting:
            self._hear()

    def _hear(self) -> None:
        frame = self._read()
        if isinstance(frame, (spec.Basic.Ack, spec.Basic.Nack)):
            tag = frame.delivery_tag or 0
            done = {one for one in self._waiting if one <= tag} if frame.multiple else {tag}
            for one in done:
                self._waiting.pop(one, None)
            if isinstance(frame, spec.Basic.Ack):
                self.confirmed += len(done)
            else:
                self.refused += len(done)
        elif isinstance(frame, (spec.Channel.Close, spec.Connection.Close)):
            raise CommandError(
                f"{self._place} refused message {self.confirmed + self.refused + 1}: {frame.reply_code} {frame.reply_text}"
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
            f"{self._place} answered something else than expected; does it speak AMQP 0-9-1?"
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
                octets = self._socket.recv(65_536)
            except OSError as error:
                raise CommandError(f"{self._place}: {error.strerror or error}") from None
            if not octets:
                raise CommandError(f"{self._place} hung up")
            self._input += octets

    def _say(self, channel: int, method: Any) -> None:
        self._send(pamqp.frame.marshal(method, channel))

    def _send(self, octets: bytes) -> None:
        try:
            self._socket.sendall(octets)
        except OSError as error:
            raise CommandError(f"{self._place}: {error.strerror or error}") from None


def _frame(kind: int, payload: bytes) -> bytes:
    return bytes([kind]) + b"\x00\x01" + len(payload).to_bytes(4, "big") + payload + b"\xce"
