"""The connection: frames out of chunks, and the three methods that come per message."""

from __future__ import annotations

from typing import Any, Final

import pamqp.commands as spec
from librt.strings import read_i32_be, read_i64_be
from mypy_extensions import i64

from broker.errors import BrokerError
from broker.messages.message import ALWAYS, AT_MOST_ONCE, NOWHERE, SUBSCRIBERS, Message
from broker.routing.publish_context import PublishContext
from protocols.amqp.channel.channel import MANDATORY, Channel
from protocols.amqp.codec.assembly import Assembly
from protocols.amqp.codec.contents import content_end, needs_care, property_flags
from protocols.amqp.codec.frames import (
    ACCESS_REQUEST,
    ACCESS_REQUEST_OK,
    BODY,
    FRAME_END,
    HEADER,
    HEARTBEAT,
    METHOD,
    OVERHEAD,
    close_channel,
    decode,
    method_frame,
)
from protocols.amqp.connection.handshake import (
    GREETING,
    GREETING_8,
    start,
)
from protocols.amqp.connection.lifecycle import Lifecycle
from protocols.amqp.connection.methods import HANDLERS
from protocols.amqp.errors import AmqpError, from_broker
from protocols.amqp.options import AmqpOptions
from protocols.connection import BUDGET, COLD, ConnectionRegistry, Peer

_PUBLISH: Final[i64] = 60 << 16 | 40
_ACK: Final[i64] = 60 << 16 | 80
_CHANNEL_CLOSE: Final[i64] = 20 << 16 | 40
_CHANNEL_CLOSE_OK: Final[i64] = 20 << 16 | 41
#: The class of methods that come with messages, from publish on; and what any other costs of the
#: budget: a declaration takes as long as a hundred publications.
BASIC: Final[i64] = 60
DECLARED: Final[i64] = 100
#: How many messages of the largest size may be unfinished on one connection, in octets, frames and
#: all; and some octets more, so that a small limit leaves room for small frames.
UNFINISHED: Final[i64] = 4
UNFINISHED_LEAST: Final[i64] = 1 << 20
#: Octets of a basic.publish with an empty exchange name and routing key.
_SHORTEST_PUBLISH: Final[i64] = 9


class AmqpConnection(Lifecycle):
    """One AMQP client."""

    def __init__(self, front: ConnectionRegistry, peer: Peer, options: AmqpOptions) -> None:
        super().__init__(front, peer, options)
        self.message_max: i64 = front.broker.limits.message
        #: Octets of the largest publication that may take the short way.
        self._short_max: i64 = self.message_max
        self._cursor: i64 = 0
        #: Octets of contents that are not complete, on all channels.
        self._unfinished: i64 = 0

    # -- frames

    def consume(self, data: bytes) -> i64:
        if self.state == "greeting":
            if len(data) < len(GREETING) and (
                GREETING.startswith(data) or GREETING_8.startswith(data)
            ):
                return 0
            return self._greet(data)
        return self._consume_from(data, 0)

    def _consume_from(self, data: bytes, start_at: i64) -> i64:
        """Parse, and go on behind whatever a peer got wrong."""
        self._cursor = start_at
        while not self.finished:
            if self.state == "closing":
                return self.await_close_ok(data, self._cursor)
            try:
                return self._parse(data, self._cursor)
            except AmqpError as error:
                self._refuse(error)
            except BrokerError as refusal:
                self._refuse(from_broker(refusal))
            if self.stalled:
                return self._cursor
        return len(data)

    def _parse(self, data: bytes, start_at: i64) -> i64:
        """Handle every complete frame from `start_at`; returns where the rest begins. Hot path."""
        size: i64 = len(data)
        position: i64 = start_at
        budget: i64 = BUDGET
        context = self.context
        channels = self.channels
        channel: Channel | None = None
        number: i64 = -1
        confirming: Channel | None = None
        while size - position >= OVERHEAD:
            if budget <= 0:
                self.behind = True
                break
            head: i64 = i64(read_i32_be(data, position)) >> 8 & 0xFF_FFFF
            length: i64 = i64(read_i32_be(data, position + 3))
            if length < 0 or length > self.frame_max - OVERHEAD:
                self._lose(
                    f"frame of {length & 0xFFFF_FFFF} octets; the most is {self.frame_max - OVERHEAD}"
                )
                return size
            end: i64 = position + length + OVERHEAD
            if end > size:
                self.need = end - position
                break
            if data[end - 1] != FRAME_END:
                self._lose("frame does not end with octet 206")
                return size
            if head & 0xFFFF != number:
                number = head & 0xFFFF
                channel = channels.get(number)
            if channel is not None and head >> 16 == METHOD and channel.assembly is None:
                method: i64 = i64(read_i32_be(data, position + 7)) if length >= 4 else 0
                if method == _PUBLISH:
                    stop = content_end(data, end, number, self.frame_max)
                    if stop > 0 and length >= _SHORTEST_PUBLISH and context is not None:
                        budget -= self._publish(context, channel, data, position, end, stop)
                        if channel.confirms is not None and confirming is not channel:
                            if confirming is not None:
                                confirming.confirm()
                            confirming = channel
                        position = stop
                        continue
                elif method == _ACK and length == 13:
                    self._cursor = end
                    self.about_channel = number
                    self.about = _ACK
                    channel.ack(read_i64_be(data, position + 11), data[position + 19] & 1 == 1)
                    budget -= 1
                    position = end
                    continue
            if confirming is not None:
                confirming.confirm()
                confirming = None
            self._cursor = end
            self._on_frame(head >> 16, number, data[position:end])
            if self.finished:
                return size
            position = end
            if self.stalled:
                break
            if self.state == "closing":
                return self.await_close_ok(data, position)
            context = self.context
            number = -1
            budget -= COLD if self.about >= _PUBLISH and self.about >> 16 == BASIC else DECLARED
        if confirming is not None:
            confirming.confirm()
        return position

    def _publish(
        self,
        context: PublishContext,
        channel: Channel,
        data: bytes,
        start_at: i64,
        end: i64,
        stop: i64,
    ) -> i64:
        """A complete publication: method from start to end, content from end to stop.

        Returns its weight. Hot path.
        """
        address = data[start_at + 13 : end - 2]
        flags: i64 = data[end - 2]
        route = context.routes.get(address)
        care: i64 = ALWAYS
        if route is not None and flags <= MANDATORY and stop - end <= self._short_max:
            care = (property_flags(data, end) | ALWAYS | SUBSCRIBERS) & route.plan.slow_path_mask
            if flags == MANDATORY:
                care |= NOWHERE & route.plan.slow_path_mask
            if care != 0:
                care = needs_care(care, data, end)
        if route is None or care != 0:
            self._cursor = stop
            self.about_channel = channel.number
            self.about = _PUBLISH
            if stop - end > self.message_max and read_i64_be(data, end + 11) > self.message_max:
                raise channel.too_large(read_i64_be(data, end + 11))
            return channel.publish(address, flags, data[end:stop])
        message = Message(route, data[end:stop], channel.frames, AT_MOST_ONCE)
        plan = route.plan
        for queue in plan.queues:
            queue.put(message)
        route.count += 1
        context.received += 1
        confirms = channel.confirms
        if confirms is not None:
            confirms.published += 1
            channel.tally.received_confirm += 1
        return plan.weight

    def publish_slowly(self) -> None:
        self._short_max = -1

    def _on_frame(self, kind: i64, number: i64, frame: bytes) -> None:
        """A frame that is no complete publication and no ack. Raises AmqpError and BrokerError."""
        self.about_channel = number
        self.about = 0
        if kind == HEARTBEAT:
            if number != 0:
                raise AmqpError(505, f"heartbeat on channel {number}")
            return
        if kind not in (METHOD, HEADER, BODY):
            raise AmqpError(501, f"unknown frame type {kind}")
        channel = self.channels.get(number)
        if kind == METHOD:
            self._on_method(channel, number, frame)
        elif channel is not None:
            self._on_content(channel, kind, frame)
        elif number not in self.ending:
            raise AmqpError(505, "content without a method")

    def _on_content(self, channel: Channel, kind: i64, frame: bytes) -> None:
        assembly = channel.assembly
        if assembly is None:
            raise AmqpError(505, "content without a method")
        self.about = _PUBLISH
        complete = assembly.add(kind, frame)
        self._unfinished += len(frame)
        if assembly.size > self.message_max:
            self._finish(channel, assembly)
            raise channel.too_large(assembly.size)
        if complete:
            self._finish(channel, assembly)
            channel.publish(assembly.address, assembly.flags, assembly.content)
            channel.confirm()

        elif self._unfinished > UNFINISHED * self.message_max + UNFINISHED_LEAST:
            self._recount()

    def _finish(self, channel: Channel, assembly: Assembly) -> None:
        channel.assembly = None
        self._unfinished -= assembly.held

    def _recount(self) -> None:
        """Channels that ended took what they held with them.

        Raises AmqpError when the rest is still too much.
        """
        self._unfinished = 0
        for channel in self.channels.values():
            if channel.assembly is not None:
                self._unfinished += channel.assembly.held
        if self._unfinished > UNFINISHED * self.message_max + UNFINISHED_LEAST:
            raise AmqpError(506, f"messages that are not complete hold {self._unfinished} octets")

    def _on_method(self, channel: Channel | None, number: i64, frame: bytes) -> None:
        self.about = int.from_bytes(frame[7:11], "big") if len(frame) >= 4 + OVERHEAD else 0
        if number in self.ending:
            self._on_ending_channel(number)
            return
        if channel is not None and channel.assembly is not None:
            raise AmqpError(505, "expected content header or body, got a method")
        if (
            channel is not None
            and self.about == _PUBLISH
            and len(frame) >= _SHORTEST_PUBLISH + OVERHEAD
        ):
            channel.assembly = Assembly(frame[13:-2], frame[-2])
            return
        if channel is not None and self.about == ACCESS_REQUEST:
            self.out.write(method_frame(number, ACCESS_REQUEST_OK))
            return
        method: Any = decode(frame)
        name: str = method.name
        if number == 0 or name.startswith("Connection."):
            if number != 0:
                raise AmqpError(504, f"{name} on channel {number}")
            self.on_connection_method(name, method)
        elif self.state != "running":
            raise AmqpError(504, f"{name} before connection.open")
        elif name == "Channel.Open":
            self._open_channel(channel, number)
        elif channel is None:
            raise AmqpError(504, "expected 'channel.open'")
        elif name == "Channel.Close":
            self.end_channel(number)
            self.send(number, spec.Channel.CloseOk())
        elif name in HANDLERS:
            channel.ticket = self.ticket()
            HANDLERS[name](channel, method)
        elif name not in ("Channel.CloseOk", "Channel.FlowOk", "Basic.CancelOk"):
            raise AmqpError(503, f"unimplemented method {name}")

    def _greet(self, data: bytes) -> i64:
        if data[: len(GREETING)] not in (GREETING, GREETING_8):
            self.out.write(GREETING)
            self.abort("protocol_error")
            return len(data)
        self.state = "start"
        self.send(0, start(self.options, self.front.broker.name, self.peer))
        return self._consume_from(data, len(GREETING))

    # -- channels

    def _open_channel(self, channel: Channel | None, number: i64) -> None:
        if channel is not None:
            raise AmqpError(504, "second 'channel.open' seen")
        if number > self.channel_max:
            raise AmqpError(
                530,
                f"number of channels opened ({number}) has reached the negotiated channel_max ({self.channel_max})",
            )
        self._check_channels()
        assert self.vhost is not None and self.context is not None
        self.channels[number] = Channel(
            self.vhost,
            self.context,
            self,
            number,
            self.frame_max,
            self.capabilities.get("consumer_cancel_notify") is True,
        )
        self.send(number, spec.Channel.OpenOk())

    def _check_channels(self) -> None:
        """Raises AmqpError when the user has as many channels as one may have."""
        most = self.front.broker.limits.user_channels
        if most and most <= self._user_channels():
            raise AmqpError(
                530,
                f"number of channels opened for user '{self.user}' has reached the maximum allowed limit of ({most})",
            )

    def _user_channels(self) -> int:
        """Return the number of channels that all connections of the user have open."""
        return sum(
            len(connection.channels)
            for connection in self.front.connections
            if isinstance(connection, AmqpConnection) and connection.user == self.user
        )

    def _on_ending_channel(self, number: i64) -> None:
        """A channel that we closed says nothing any more but that it knows (section 1.5.2.5)."""
        if self.about == _CHANNEL_CLOSE_OK:
            self.ending.discard(number)
        elif self.about == _CHANNEL_CLOSE:
            self.send(number, spec.Channel.CloseOk())

    def _refuse(self, error: AmqpError) -> None:
        """Soft errors end the channel, hard ones the connection."""
        if error.hard or self.about_channel not in self.channels:
            self.fail(error)
            return
        self.close_channel(self.about_channel, error, self.about)

    def close_channel(self, number: i64, error: AmqpError, about: i64) -> None:
        for channel in self.channels.values():
            channel.confirm()
        self.end_channel(number)
        self.ending.add(number)
        self.out.write(close_channel(number, error, about))
        self.touch()

    def _lose(self, why: str) -> None:
        """Frames cannot be told apart any more: hang up and hear nothing, whatever comes in which
        chunks.
        """
        self.about = 0
        self.deaf = True
        self.fail(AmqpError(501, why))
