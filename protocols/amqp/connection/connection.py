"""One AMQP connection: divides its input into frames, and handles methods like connection.close.

    AmqpConnection -- handshake: Handshake      login and tuning               (handshake.py)
                   |- closing: Closing          close, reject, wait for an end (closing.py)
                   |- channels: ChannelTable    open and closing channels      (channels.py)
                   |- MethodDispatch            methods                        (dispatch.py)
                   |- Reauthorizing             changed permissions            (reauthorizing.py)
                   |- advance                   heartbeats                     (heartbeats.py)
                   `- exclusive_queues          deleted with the connection

`_parse`, the hot path, handles basic.publish with its content, and basic.ack, directly in the
input, without a frame object. Every other frame goes through `_on_frame`.

An AmqpError ends the channel on which it happened (soft error) or the connection (hard error), as
in section 4.2.8 of AMQP 0-9-1. The error concerns `current_channel` and `current_method`.
"""

from __future__ import annotations

from typing import Final

import pamqp.base
import pamqp.commands as spec
from librt.strings import read_i32_be, read_i64_be
from mypy_extensions import i64

from broker.errors import BrokerError
from broker.messages.message import (
    ALWAYS,
    AT_MOST_ONCE,
    NOWHERE,
    PERSISTENCE,
    ROUTE_BITS,
    Message,
)
from broker.routing.publish_context import PublishContext
from protocols.amqp.channel.channel import Channel
from protocols.amqp.channel.connection_interface import ConnectionInterface
from protocols.amqp.channel.publisher import MANDATORY, ChannelPublisher
from protocols.amqp.codec.assembly import Assembly
from protocols.amqp.codec.contents import content_end, property_flags, slow_path_reasons
from protocols.amqp.codec.frames import (
    BODY,
    FRAME_END,
    FRAME_START,
    HEADER,
    HEARTBEAT,
    METHOD,
    OVERHEAD,
    close_channel,
    encode,
)
from protocols.amqp.connection import heartbeats, states
from protocols.amqp.connection.channels import ChannelTable
from protocols.amqp.connection.closing import Closing, closing_error
from protocols.amqp.connection.dispatch import SHORTEST_PUBLISH, MethodDispatch
from protocols.amqp.connection.handshake import Handshake
from protocols.amqp.connection.reauthorizing import Reauthorizing
from protocols.amqp.errors import AmqpError, from_broker
from protocols.amqp.options import AmqpOptions
from protocols.budget import BUDGET, COLD, SEARCHING
from protocols.connection import ConnectionRegistry
from protocols.incomplete_message import INCOMPLETE_MAX
from protocols.listing import row_of
from protocols.peer import Peer
from protocols.refusal_fields import CAUSE

_PUBLISH: Final[i64] = 60 << 16 | 40
_ACK: Final[i64] = 60 << 16 | 80
#: Class id of the basic methods.
BASIC: Final[i64] = 60
#: Cost of a method that is not a basic method, in units of BUDGET, because a declaration takes as
#: long as a hundred publications.
DECLARED: Final[i64] = 100


class AmqpConnection(ConnectionInterface):
    """The connection of one AMQP 0-9-1 client."""

    def __init__(self, front: ConnectionRegistry, peer: Peer, options: AmqpOptions) -> None:
        super().__init__(front, peer, states.GREETING)
        self.handshake = Handshake(options, peer)
        self.closing = Closing()
        #: Size of the largest message body, in bytes.
        self.message_max: i64 = front.broker.limits.message
        self.channels = ChannelTable(self.message_max)
        self.deadline = self.agenda.now + options.handshake_ms
        #: Size of the largest content that may take the fast path, in bytes; -1 if no content may.
        self._fast_max: i64 = self.message_max
        #: A content that came in several chunks, while the search for its destinations pauses; None
        #: at other times.
        self._searching: tuple[ChannelPublisher, Assembly] | None = None
        self._dispatch = MethodDispatch(self.handshake, self.channels)
        self._reauthorizing = Reauthorizing(self.handshake, self.channels)
        #: Position in the input after the frame that is being handled.
        self._cursor: i64 = 0

    @property
    def administrator(self) -> bool:
        identity = self.handshake.identity
        return identity is not None and identity.administrator

    @property
    def impersonator(self) -> bool:
        identity = self.handshake.identity
        return identity is not None and "impersonator" in identity.tags

    def memory_bytes(self) -> int:
        size = super().memory_bytes()
        for channel in self.channels.open.values():
            size += int(channel.receiver.unacked.memory_bytes())
        return size + int(self.channels.unfinished)

    # -- frames

    def consume(self, data: bytes) -> i64:
        """Handle complete frames, up to a BUDGET of work; return the number of bytes handled."""
        if self.state == states.GREETING:
            used = self.handshake.on_header(self, data)
            if used == 0:
                return len(data) if self.finished else 0
            return self._consume_from(data, used)
        return self._consume_from(data, 0)

    def _consume_from(self, data: bytes, start_at: i64) -> i64:
        """Parse frames from `start_at`; after a channel error, continue with the next frame. Return
        the index of the first byte that was not consumed.
        """
        self._cursor = start_at
        while not self.finished:
            if self.state == states.CLOSING:
                return self.closing.await_close_ok(self, data, self._cursor)
            try:
                if not self._resume_search() or self.stalled:
                    return self._cursor  # The search pauses, or an alarm has blocked the client.
                return self._parse(data, self._cursor)
            except AmqpError as error:
                self._fail(error)
            except BrokerError as refusal:
                self._fail(from_broker(refusal))
            if self.stalled:
                return self._cursor
        return len(data)

    def _parse(self, data: bytes, start_at: i64) -> i64:
        """Handle complete frames from `start_at`; return the first unhandled index. Hot path."""
        size: i64 = len(data)
        position: i64 = start_at
        budget: i64 = BUDGET
        context = self.context
        channels = self.channels.open
        channel: Channel | None = None
        publisher: ChannelPublisher | None = None
        number: i64 = -1
        confirming: ChannelPublisher | None = None
        while size - position >= OVERHEAD:
            if budget <= 0:
                self.behind = True
                break
            head: i64 = i64(read_i32_be(data, position)) >> 8 & 0xFF_FFFF
            length: i64 = i64(read_i32_be(data, position + 3))
            if length < 0 or length > self.frame_max:
                self.closing.fail_oversized(self, length)
                return size
            end: i64 = position + length + OVERHEAD
            if end > size:
                self.need = end - position
                break
            if data[end - 1] != FRAME_END:
                self.closing.fail_framing(self, "frame does not end with byte 206")
                return size
            if head & 0xFFFF != number:
                number = head & 0xFFFF
                channel = channels.get(number)
                publisher = None if channel is None else channel.publisher
            if (
                channel is not None
                and publisher is not None
                and head >> 16 == METHOD
                and publisher.assembly is None
            ):
                method: i64 = i64(read_i32_be(data, position + 7)) if length >= 4 else 0
                if method == _PUBLISH:
                    stop = content_end(data, end, number, self.frame_max)
                    if stop > 0 and length >= SHORTEST_PUBLISH and context is not None:
                        cost = self._publish(context, publisher, data, position, end, stop)
                        if cost == SEARCHING:
                            self.behind = True
                            break
                        budget -= cost
                        if publisher.confirms is not None and confirming is not publisher:
                            if confirming is not None:
                                confirming.confirm()
                            confirming = publisher
                        position = stop
                        continue
                elif method == _ACK and length == 13:
                    self._cursor = end
                    self.current_channel = number
                    self.current_method = _ACK
                    channel.receiver.ack(
                        read_i64_be(data, position + 11), data[position + 19] & 1 == 1
                    )
                    budget -= 1 + self.extra_cost
                    self.extra_cost = 0
                    position = end
                    if self.stalled:
                        break
                    continue
            if confirming is not None:
                confirming.confirm()
                confirming = None
            self._cursor = end
            self._on_frame(head >> 16, number, data[position:end])
            if self.finished:
                return size
            position = end
            if self.stalled or self._searching is not None:
                break
            if self.state == states.CLOSING:
                return self.closing.await_close_ok(self, data, position)
            context = self.context
            number = -1
            known = self.current_method >= _PUBLISH and self.current_method >> 16 == BASIC
            budget -= (COLD if known else DECLARED) + self.extra_cost
            self.extra_cost = 0
        else:
            if size - position == FRAME_START:  # A frame whose payload has not begun to arrive.
                announced: i64 = i64(read_i32_be(data, position + 3))
                if announced < 0 or announced > self.frame_max:
                    self.closing.fail_oversized(self, announced)
                    return size
        if confirming is not None:
            confirming.confirm()
        return position

    def _publish(
        self,
        context: PublishContext,
        publisher: ChannelPublisher,
        data: bytes,
        start_at: i64,
        end: i64,
        stop: i64,
    ) -> i64:
        """Publish a message whose frames are all in the input.

        The method is in data[start_at:end], the content in data[end:stop]. Return the cost in
        units of BUDGET, or SEARCHING if the search for the destinations pauses. Hot path.
        """
        address = data[start_at + 13 : end - 2]
        flags: i64 = data[end - 2]
        route = context.routes.get(address)
        slow: i64 = ALWAYS
        if route is not None and flags <= MANDATORY and stop - end <= self._fast_max:
            slow = (property_flags(data, end) | ROUTE_BITS) & route.plan.slow_path_mask
            if flags == MANDATORY:
                slow |= NOWHERE & route.plan.slow_path_mask
            if slow != 0:
                slow = slow_path_reasons(slow, data, end)
        if route is None or slow != 0:
            if route is not None and slow == PERSISTENCE:
                return publisher.publish_persistent(route, data[end:stop])
            self._cursor = stop
            self.current_channel = publisher.number
            self.current_method = _PUBLISH
            if stop - end > self.message_max and read_i64_be(data, end + 11) > self.message_max:
                raise publisher.too_large(read_i64_be(data, end + 11))
            return publisher.publish(address, flags, data[end:stop])
        message = Message(route, data[end:stop], publisher.frames, AT_MOST_ONCE)
        plan = route.plan
        route.deliver(message, plan.queues)
        context.received += 1
        publisher.published += 1
        confirms = publisher.confirms
        if confirms is not None:
            confirms.published += 1
            publisher.tally.received_confirm += 1
        return plan.weight

    def require_slow_path(self) -> None:
        self._fast_max = -1

    def _on_frame(self, kind: i64, number: i64, frame: bytes) -> None:
        """Handle a frame that `_parse` does not handle itself. Raises AmqpError, BrokerError."""
        self.current_channel = number
        self.current_method = 0
        if kind == HEARTBEAT:
            if number != 0:
                raise AmqpError(505, f"a heartbeat must use channel 0, not {number}")
            return
        if kind not in (METHOD, HEADER, BODY):
            raise AmqpError(501, f"unknown frame type {kind}")
        channel = self.channels.open.get(number)
        if kind == METHOD:
            self._dispatch.on_method(self, channel, number, frame)
        elif channel is not None:
            self._on_content(channel.publisher, kind, frame)
        elif number not in self.channels.closing:
            raise AmqpError(505, "a content frame needs a basic.publish before it")

    def _on_content(self, publisher: ChannelPublisher, kind: i64, frame: bytes) -> None:
        """Add a frame to the content of a message; publish the complete message."""
        if publisher.assembly is not None:
            self.current_method = _PUBLISH
        content = self.channels.add_frame(publisher, kind, frame)
        if content is not None:
            self._publish_content(publisher, content)
        else:
            self.limit_incomplete(self.channels.unfinished)

    def _publish_content(self, publisher: ChannelPublisher, content: Assembly) -> None:
        """Publish a content of several chunks, or store it while the route search pauses."""
        self._searching = None
        cost = publisher.publish(content.address, content.flags, content.content)
        if cost == SEARCHING:
            self._searching = (publisher, content)
            self.behind = True
        else:
            publisher.confirm()

    def _resume_search(self) -> bool:
        """Publish the content whose search paused; return False if the search pauses again.

        Raises AmqpError, BrokerError.
        """
        if self._searching is not None:
            publisher, content = self._searching
            self.current_channel = publisher.number
            self.current_method = _PUBLISH
            self._publish_content(publisher, content)
        return self._searching is None

    def resume(self) -> None:
        super().resume()
        if self._searching is not None and not self.behind and not self.stalled:
            self._feed(b"")

    # -- methods

    def send(self, number: i64, method: pamqp.base.Frame) -> None:
        self.out.write(encode(number, method))

    # -- channels

    @property
    def open_channels(self) -> int:
        return len(self.channels.open)

    def close_channel(self, number: i64, error: AmqpError, method: i64) -> None:
        self.end_search()
        if self._searching is not None and self._searching[0].number == number:
            self._searching = None
        self.channels.confirm()
        self.channels.end(number)
        self.channels.closing.add(number)
        self.out.write(close_channel(number, error, method))
        self.touch()
        self._log_error("channel_closed", error, {"channel": int(number)})

    def resume_deliveries(self) -> None:
        self.channels.resume_deliveries()

    # -- errors and closing (closing.py)

    def _fail(self, error: AmqpError) -> None:
        """Close the present channel after a soft error, or the connection after a hard error."""
        if error.hard or self.current_channel not in self.channels.open:
            self.fail_connection(error)
        else:
            self.close_channel(self.current_channel, error, self.current_method)

    def _log_error(self, event: str, error: AmqpError, fields: dict[str, object]) -> None:
        if not error.logged:
            self.front.log_refusal(event, self, error.text, {**fields, CAUSE: error.cause})

    def fail_connection(self, error: AmqpError) -> None:
        self.channels.confirm()
        self._log_error("connection_closed", error, {})
        self.closing.close(self, "protocol_error", error, self.current_method)

    def close(self, reason: str, text: str = "") -> None:
        self.closing.close(self, reason, closing_error(reason, text), 0)

    def reject(self, reason: str) -> None:
        readable = self.handshake.client.can("authentication_failure_close")
        self.closing.reject(self, reason, self.handshake.refusal() if readable else None)

    def _release(self) -> None:
        self.state = states.CLOSED
        self.release_resources()

    def release_resources(self) -> None:
        self.channels.end_all()
        vhost, context = self.vhost, self.context
        if vhost is not None and context is not None:
            self.exclusive_queues.delete(vhost, self)
            vhost.contexts.leave(context)
            self.use_context(None)

    def reauthorize(self) -> None:
        self._reauthorizing.run(self)

    # -- alarms, time, listings

    def block(self) -> None:
        if self.stalled:
            return
        if self.handshake.client.can("connection.blocked"):
            self.send(0, spec.Connection.Blocked(self.front.broker.alarms.reason))
        super().block()
        if self.channels.unfinished > INCOMPLETE_MAX:
            self.limit_block()

    def review_incomplete(self) -> None:
        super().review_incomplete()
        self.limit_incomplete(self.channels.unfinished)

    def unblock(self) -> None:
        if not self.finished and self.handshake.client.can("connection.blocked"):
            self.send(0, spec.Connection.Unblocked())
        super().unblock()

    def advance(self, now: int) -> None:
        heartbeats.advance(self, self.handshake.heartbeat, now)

    def excuse(self, pause: int) -> None:
        """Extend the client's time limits by `pause` ms, but do not delay the next heartbeat.

        A heartbeat that was due during the pause is sent at once.
        """
        heartbeat_at = self.deadline
        super().excuse(pause)
        if self.state == states.RUNNING:
            self.deadline = heartbeat_at

    @property
    def owner(self) -> tuple[str, str]:
        return (self.handshake.user, self.vhost.name) if self.vhost is not None else ("", "")

    def describe(self) -> dict[str, object]:
        client = self.handshake.client
        row = row_of(self)
        row["user"] = self.handshake.user
        row["vhost"] = "" if self.vhost is None else self.vhost.name
        row["state"] = self.state
        row["channels"] = self.open_channels
        row["client"] = client.connection_name or f"{client.product} {client.version}".strip()
        return row
