"""Divides the methods of a client between the handshake, the channels, and METHODS (methods.py)."""

from __future__ import annotations

from typing import Any, Final

import pamqp.commands as spec
from mypy_extensions import i64

from protocols.amqp.channel.channel import Channel
from protocols.amqp.channel.connection_interface import ConnectionInterface
from protocols.amqp.codec.assembly import Assembly
from protocols.amqp.codec.frames import (
    ACCESS_REQUEST,
    ACCESS_REQUEST_OK,
    OVERHEAD,
    decode,
    method_frame,
)
from protocols.amqp.connection import states
from protocols.amqp.connection.channels import ChannelTable
from protocols.amqp.connection.handshake import Handshake
from protocols.amqp.connection.methods import METHODS
from protocols.amqp.errors import AmqpError

_PUBLISH: Final[i64] = 60 << 16 | 40
_CHANNEL_CLOSE: Final[i64] = 20 << 16 | 40
_CHANNEL_CLOSE_OK: Final[i64] = 20 << 16 | 41
#: Methods that a client may send on a running connection, and that the broker ignores.
_IGNORED: Final = ("Connection.Blocked", "Connection.Unblocked")
#: Size of the payload of a basic.publish with an empty exchange name and routing key, in bytes.
SHORTEST_PUBLISH: Final[i64] = 9


class MethodDispatch:
    """The part of a connection that handles its methods.

    The connection is a parameter of each method, so that the two objects form no reference cycle.
    """

    def __init__(self, handshake: Handshake, channels: ChannelTable) -> None:
        self._handshake = handshake
        self._channels = channels

    def on_method(
        self, connection: ConnectionInterface, channel: Channel | None, number: i64, frame: bytes
    ) -> None:
        """Pass the method in a frame to the handshake, the connection, or the handler in METHODS.

        `channel` is the open channel `number`, or None. Raises AmqpError and BrokerError.
        """
        method_id = int.from_bytes(frame[7:11], "big") if len(frame) >= 4 + OVERHEAD else 0
        connection.current_method = method_id
        if number in self._channels.closing:
            self._on_closing_channel(connection, number)
            return
        if channel is not None and channel.publisher.assembly is not None:
            raise AmqpError(505, "a method frame interrupts the content of a basic.publish")
        if (
            channel is not None
            and method_id == _PUBLISH
            and len(frame) >= SHORTEST_PUBLISH + OVERHEAD
        ):
            channel.publisher.assembly = Assembly(frame[13:-2], frame[-2], connection.frame_max)
            return
        if channel is not None and method_id == ACCESS_REQUEST:
            connection.out.write(method_frame(number, ACCESS_REQUEST_OK))
            return
        method: Any = decode(frame)
        name: str = method.name
        if number == 0 or name.startswith("Connection."):
            if number != 0:
                raise AmqpError(504, f"{name} must use channel 0, not {number}")
            self._on_connection_method(connection, name, method)
        elif connection.state != states.RUNNING:
            raise AmqpError(504, f"{name} is not allowed before connection.open")
        elif name == "Channel.Open":
            self._channels.open_channel(connection, self._handshake, number)
        elif channel is None:
            raise AmqpError(504, "expected 'channel.open'")
        elif name == "Channel.Close":
            self._channels.end(number)
            connection.send(number, spec.Channel.CloseOk())
        elif name in METHODS:
            channel.ticket = connection.ticket()
            METHODS[name](channel, method)
        elif name not in ("Channel.CloseOk", "Channel.FlowOk", "Basic.CancelOk"):
            raise AmqpError(503, f"unimplemented method {name}")

    def _on_connection_method(
        self, connection: ConnectionInterface, name: str, method: Any
    ) -> None:
        """Handle a method of the class connection: connection.close, or a method of the handshake.

        Raises AmqpError.
        """
        if name == "Connection.Close":
            connection.send(0, spec.Connection.CloseOk())
            connection.answers_last = True
            connection.on_closed("client")
        elif connection.state != states.RUNNING or name not in _IGNORED:
            self._handshake.on_method(connection, name, method)

    def _on_closing_channel(self, connection: ConnectionInterface, number: i64) -> None:
        """Handle a method on a channel that waits for channel.close-ok (section 1.5.2.5).

        Every method other than channel.close-ok and channel.close is ignored.
        """
        if connection.current_method == _CHANNEL_CLOSE_OK:
            self._channels.closing.discard(number)
        elif connection.current_method == _CHANNEL_CLOSE:
            connection.send(number, spec.Channel.CloseOk())
