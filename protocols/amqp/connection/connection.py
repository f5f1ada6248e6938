"""One AMQP connection: frames out of chunks of input, and the methods of the connection itself.

    AmqpConnection -- handshake: Handshake      login and tuning               (handshake.py)
                   |- closing: Closing          the four verbs, waiting        (closing.py)
                   |- channels: Channel         publisher and receiver sides   (channel/)
                   |- exclusive_queues          deleted with the connection
                   `- METHODS                   table of the channel methods   (methods.py)

`_parse` is the hot path. It takes basic.publish with its content, and basic.ack, straight from the
input, without a frame object. Every other frame goes through `_on_frame`.

An AmqpError ends the channel on which it happened (soft error) or the connection (hard error), as
in section 4.2.8 of AMQP 0-9-1; `current_channel` and `current_method` say where it happened.
"""

from __future__ import annotations

from typing import Any, Final

import pamqp.base
import pamqp.commands as spec
from librt.strings import read_i32_be, read_i64_be
from mypy_extensions import i64

from broker.access.identity import Verdict
from broker.errors import BrokerError
from broker.messages.message import ALWAYS, AT_MOST_ONCE, NOWHERE, SUBSCRIBERS, Message
from broker.routing.publish_context import PublishContext
from broker.vhost.vhost import VirtualHost
from protocols.amqp.channel.channel import Channel
from protocols.amqp.channel.connection_interface import ChannelConnection
from protocols.amqp.channel.publisher import MANDATORY, ChannelPublisher
from protocols.amqp.codec.assembly import Assembly
from protocols.amqp.codec.contents import content_end, needs_care, property_flags
from protocols.amqp.codec.frames import (
    ACCESS_REQUEST,
    ACCESS_REQUEST_OK,
    BODY,
    FRAME_END,
    HEADER,
    HEARTBEAT,
    HEARTBEAT_FRAME,
    METHOD,
    OVERHEAD,
    close_channel,
    close_connection,
    decode,
    encode,
    method_frame,
)
from protocols.amqp.connection import states
from protocols.amqp.connection.closing import (
    CLOSE,
    CLOSING_MS,
    END,
    REFUSAL_MS,
    REJECT,
    SEND_CLOSE,
    SEND_HEADER,
    SEND_REFUSAL,
    Closing,
    action,
)
from protocols.amqp.connection.handshake import GREETING, GREETING_8, Handshake
from protocols.amqp.connection.methods import METHODS
from protocols.amqp.errors import AmqpError, from_broker
from protocols.amqp.options import AmqpOptions
from protocols.connection import (
    BUDGET,
    COLD,
    EXPELLED,
    HELD_MAX,
    TOO_FAST,
    ConnectionRegistry,
    Peer,
)

_START_OK: Final[i64] = 10 << 16 | 11
_PUBLISH: Final[i64] = 60 << 16 | 40
_ACK: Final[i64] = 60 << 16 | 80
_CHANNEL_CLOSE: Final[i64] = 20 << 16 | 40
_CHANNEL_CLOSE_OK: Final[i64] = 20 << 16 | 41
#: Class id of the basic methods.
BASIC: Final[i64] = 60
#: Cost of a method in units of BUDGET, unless it is a basic method: a declaration takes as long as
#: a hundred publications.
DECLARED: Final[i64] = 100
#: Size of all incomplete contents on one connection, in messages of the largest size, plus some
#: bytes, so that a small limit for messages leaves room for small frames.
UNFINISHED: Final[i64] = 4
UNFINISHED_LEAST: Final[i64] = 1 << 20
#: Size of a basic.publish with an empty exchange name and routing key, in bytes.
_SHORTEST_PUBLISH: Final[i64] = 9


class AmqpConnection(ChannelConnection):
    """The connection of one AMQP 0-9-1 client."""

    def __init__(self, front: ConnectionRegistry, peer: Peer, options: AmqpOptions) -> None:
        super().__init__(front, peer)
        #: One of the constants in states.py.
        self.state = states.GREETING
        self.handshake = Handshake(options, peer)
        self.closing = Closing()
        #: Open channels by number.
        self.channels: dict[int, Channel] = {}
        #: Virtual host and publish context, None until connection.open.
        self.vhost: VirtualHost | None = None
        self.context: PublishContext | None = None
        #: Limits in bytes: a frame with its header and end, and the body of a message.
        self.frame_max: i64 = HELD_MAX
        self.message_max: i64 = front.broker.limits.message
        #: Channel, and class and method id, of the frame that is being handled.
        self.current_channel: i64 = 0
        self.current_method: i64 = 0
        self.deadline = self.agenda.now + options.handshake_ms
        #: Size of the largest content that may take the fast path, in bytes; -1 for none.
        self._fast_max: i64 = self.message_max
        #: Position in the input behind the frame that is being handled.
        self._cursor: i64 = 0
        #: Size of the incomplete contents on all channels, in bytes, frames included.
        self._unfinished: i64 = 0

    # -- frames

    def consume(self, data: bytes) -> i64:
        """Handle all complete frames; return the number of bytes that they take."""
        if self.state == states.GREETING:
            return self._on_header(data)
        return self._consume_from(data, 0)

    def _consume_from(self, data: bytes, start_at: i64) -> i64:
        """Parse from `start_at`, and go on behind each frame that caused a soft error."""
        self._cursor = start_at
        while not self.finished:
            if self.state == states.CLOSING:
                return self._await_close_ok(data, self._cursor)
            try:
                return self._parse(data, self._cursor)
            except AmqpError as error:
                self._fail(error)
            except BrokerError as refusal:
                self._fail(from_broker(refusal))
            if self.stalled:
                return self._cursor
        return len(data)

    def _parse(self, data: bytes, start_at: i64) -> i64:
        """Handle every complete frame from `start_at`; return where the rest begins. Hot path."""
        size: i64 = len(data)
        position: i64 = start_at
        budget: i64 = BUDGET
        context = self.context
        channels = self.channels
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
            if length < 0 or length > self.frame_max - OVERHEAD:
                self._fail_framing(
                    f"frame of {length & 0xFFFF_FFFF} bytes; the most is {self.frame_max - OVERHEAD}"
                )
                return size
            end: i64 = position + length + OVERHEAD
            if end > size:
                self.need = end - position
                break
            if data[end - 1] != FRAME_END:
                self._fail_framing("frame does not end with octet 206")
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
                    if stop > 0 and length >= _SHORTEST_PUBLISH and context is not None:
                        budget -= self._publish(context, publisher, data, position, end, stop)
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
            if self.state == states.CLOSING:
                return self._await_close_ok(data, position)
            context = self.context
            number = -1
            known = self.current_method >= _PUBLISH and self.current_method >> 16 == BASIC
            budget -= COLD if known else DECLARED
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

        The method is in data[start_at:end], the content in data[end:stop]. Return the cost in units
        of BUDGET. Hot path.
        """
        address = data[start_at + 13 : end - 2]
        flags: i64 = data[end - 2]
        route = context.routes.get(address)
        slow: i64 = ALWAYS
        if route is not None and flags <= MANDATORY and stop - end <= self._fast_max:
            slow = (property_flags(data, end) | ALWAYS | SUBSCRIBERS) & route.plan.slow_path_mask
            if flags == MANDATORY:
                slow |= NOWHERE & route.plan.slow_path_mask
            if slow != 0:
                slow = needs_care(slow, data, end)
        if route is None or slow != 0:
            self._cursor = stop
            self.current_channel = publisher.number
            self.current_method = _PUBLISH
            if stop - end > self.message_max and read_i64_be(data, end + 11) > self.message_max:
                raise publisher.too_large(read_i64_be(data, end + 11))
            return publisher.publish(address, flags, data[end:stop])
        message = Message(route, data[end:stop], publisher.frames, AT_MOST_ONCE)
        plan = route.plan
        for queue in plan.queues:
            queue.put(message)
        route.count += 1
        context.received += 1
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
                raise AmqpError(505, f"heartbeat on channel {number}")
            return
        if kind not in (METHOD, HEADER, BODY):
            raise AmqpError(501, f"unknown frame type {kind}")
        channel = self.channels.get(number)
        if kind == METHOD:
            self._on_method(channel, number, frame)
        elif channel is not None:
            self._on_content(channel.publisher, kind, frame)
        elif number not in self.closing.channels:
            raise AmqpError(505, "content without a method")

    def _on_content(self, publisher: ChannelPublisher, kind: i64, frame: bytes) -> None:
        """Add a frame to the content of a publication, and publish it when it is complete."""
        assembly = publisher.assembly
        if assembly is None:
            raise AmqpError(505, "content without a method")
        self.current_method = _PUBLISH
        before: i64 = assembly.held
        complete = assembly.add(kind, frame)
        self._unfinished += assembly.held - before
        if complete or assembly.size > self.message_max:
            self._drop_assembly(publisher)
        if assembly.size > self.message_max:
            raise publisher.too_large(assembly.size)
        if complete:
            publisher.publish(assembly.address, assembly.flags, assembly.content)
            publisher.confirm()
        elif self._unfinished > UNFINISHED * self.message_max + UNFINISHED_LEAST:
            raise AmqpError(506, f"incomplete messages take {self._unfinished} bytes")

    def _drop_assembly(self, publisher: ChannelPublisher) -> None:
        """Remove the incomplete content of a channel, if there is one."""
        if publisher.assembly is not None:
            self._unfinished -= publisher.assembly.held
            publisher.assembly = None

    # -- methods

    def _on_method(self, channel: Channel | None, number: i64, frame: bytes) -> None:
        """Handle a method frame. Raises AmqpError and BrokerError."""
        method_id = int.from_bytes(frame[7:11], "big") if len(frame) >= 4 + OVERHEAD else 0
        self.current_method = method_id
        if number in self.closing.channels:
            self._on_closing_channel(number)
            return
        if channel is not None and channel.publisher.assembly is not None:
            raise AmqpError(505, "expected content header or body, got a method")
        if (
            channel is not None
            and method_id == _PUBLISH
            and len(frame) >= _SHORTEST_PUBLISH + OVERHEAD
        ):
            channel.publisher.assembly = Assembly(frame[13:-2], frame[-2])
            return
        if channel is not None and method_id == ACCESS_REQUEST:
            self.out.write(method_frame(number, ACCESS_REQUEST_OK))
            return
        method: Any = decode(frame)
        name: str = method.name
        if number == 0 or name.startswith("Connection."):
            if number != 0:
                raise AmqpError(504, f"{name} on channel {number}")
            self._on_connection_method(name, method)
        elif self.state != states.RUNNING:
            raise AmqpError(504, f"{name} before connection.open")
        elif name == "Channel.Open":
            self._open_channel(channel, number)
        elif channel is None:
            raise AmqpError(504, "expected 'channel.open'")
        elif name == "Channel.Close":
            self._end_channel(number)
            self.send(number, spec.Channel.CloseOk())
        elif name in METHODS:
            channel.ticket = self.ticket()
            METHODS[name](channel, method)
        elif name not in ("Channel.CloseOk", "Channel.FlowOk", "Basic.CancelOk"):
            raise AmqpError(503, f"unimplemented method {name}")

    def _on_connection_method(self, name: str, method: Any) -> None:
        """Handle a method of the class connection. Raises AmqpError."""
        if name == "Connection.Close":
            self.send(0, spec.Connection.CloseOk())
            self.answers_last = True
            self.on_closed("client")
            return
        if self.state == states.RUNNING and name in ("Connection.Blocked", "Connection.Unblocked"):
            return
        if self.state == states.RUNNING and name == "Connection.UpdateSecret":
            self.stall()
            credentials = self.handshake.on_update_secret(method)
            self.front.broker.authenticator.authenticate(credentials, self._on_secret_verdict)
            return
        self.state = states.after(self.state, name)
        if name == "Connection.StartOk":
            credentials = self.handshake.on_start_ok(method)
            self.stall()
            self.front.broker.authenticator.authenticate(credentials, self._on_verdict)
        elif name == "Connection.TuneOk":
            self.handshake.on_tune_ok(method)
            self.frame_max = self.handshake.frame_max
        else:
            self._open(method)

    def send(self, number: i64, method: pamqp.base.Frame) -> None:
        self.out.write(encode(number, method))

    # -- the handshake (states.py)

    def _on_header(self, data: bytes) -> i64:
        """Handle the protocol header, as soon as it is complete."""
        if len(data) < len(GREETING) and (GREETING.startswith(data) or GREETING_8.startswith(data)):
            return 0
        if data[: len(GREETING)] not in (GREETING, GREETING_8):
            self.reject("protocol_error")
            return len(data)
        self.state = states.START
        self.send(0, self.handshake.start(self.front.broker.name))
        return self._consume_from(data, len(GREETING))

    def _on_verdict(self, verdict: Verdict) -> None:
        """Continue or reject a login whose credentials have been checked."""
        if self.finished or self.state != states.VERDICT:
            return  # The broker is shutting down, or the client has gone.
        identity = verdict.identity
        if identity is None:
            self.front.count_login("busy" if verdict.busy else "refused")
            self.reject("login_refused")
        else:
            self.front.count_login("accepted")
            self.admitted = True
            self.remember(identity)
            self.state = states.TUNE
            self.frame_max = self.handshake.options.frame_max
            self.send(0, self.handshake.accept(identity))
        self.resume_input()

    def _on_secret_verdict(self, verdict: Verdict) -> None:
        """Take over the permissions of a renewed token or password, or fail."""
        if self.finished or self.state != states.RUNNING:
            return
        if self.handshake.renew(verdict.identity):
            self.remember(verdict.identity)
            self.send(0, spec.Connection.UpdateSecretOk())
            self.review()
        else:
            self._fail_connection(AmqpError(530, "New secret was refused by one of the backends"))
        self.resume_input()

    def _open(self, method: spec.Connection.Open) -> None:
        """Open the virtual host. Raises AmqpError."""
        name = method.virtual_host
        user = self.handshake.user
        vhost = self.front.broker.vhosts.get(name)
        known = self.handshake.identity
        identity = None if known is None else known.for_vhost(name)
        self.state = states.OPEN
        if vhost is None or vhost.closing:
            raise AmqpError(530, f"vhost {name} not found")
        if identity is None:
            raise AmqpError(530, f"access to vhost '{name}' refused for user '{user}'")
        refusal = self.front.broker.connection_refusal(identity.name, vhost)
        if refusal:
            raise AmqpError(530, refusal)
        self.state = states.RUNNING
        self.vhost = vhost
        self.context = vhost.contexts.enter(identity, self.front.name)
        heartbeat = self.handshake.heartbeat
        self.deadline = self.agenda.now + heartbeat * 500 if heartbeat else 0
        self.send(0, spec.Connection.OpenOk())

    # -- channels

    def _open_channel(self, channel: Channel | None, number: i64) -> None:
        """Open a channel. Raises AmqpError."""
        channel_max = self.handshake.channel_max
        if channel is not None:
            raise AmqpError(504, "second 'channel.open' seen")
        if number > channel_max:
            raise AmqpError(
                530,
                f"number of channels opened ({number}) has reached the negotiated channel_max ({channel_max})",
            )
        limit = self.front.broker.limits.user_channels
        if limit and limit <= self._user_channels():
            raise AmqpError(
                530,
                f"number of channels opened for user '{self.handshake.user}' has reached the maximum allowed limit of ({limit})",
            )
        assert self.vhost is not None and self.context is not None
        client = self.handshake.client
        self.channels[number] = Channel(
            self.vhost,
            self.context,
            self,
            number,
            self.frame_max,
            client.can("consumer_cancel_notify"),
            client.product,
        )
        self.send(number, spec.Channel.OpenOk())

    def _user_channels(self) -> int:
        """Return the number of channels that all connections of the user have open."""
        return sum(
            len(connection.channels)
            for connection in self.front.connections
            if isinstance(connection, AmqpConnection)
            and connection.handshake.user == self.handshake.user
        )

    def close_channel(self, number: i64, error: AmqpError, method: i64) -> None:
        self._confirm_all()
        self._end_channel(number)
        self.closing.channels.add(number)
        self.out.write(close_channel(number, error, method))
        self.touch()

    def _on_closing_channel(self, number: i64) -> None:
        """Handle a method on a channel that waits for channel.close-ok (section 1.5.2.5)."""
        if self.current_method == _CHANNEL_CLOSE_OK:
            self.closing.channels.discard(number)
        elif self.current_method == _CHANNEL_CLOSE:
            self.send(number, spec.Channel.CloseOk())

    def _end_channel(self, number: i64) -> None:
        """Remove a channel, if it is open, and release what it holds."""
        channel = self.channels.pop(number, None)
        if channel is not None:
            self._drop_assembly(channel.publisher)
            channel.on_closed()

    def _confirm_all(self) -> None:
        """Send the confirms of all channels that are ready."""
        for channel in self.channels.values():
            channel.publisher.confirm()

    def resume_deliveries(self) -> None:
        for channel in self.channels.values():
            channel.receiver.resume_deliveries()

    # -- errors and closing (closing.py)

    def _fail(self, error: AmqpError) -> None:
        """Close the channel after a soft error, the connection after a hard one."""
        if error.hard or self.current_channel not in self.channels:
            self._fail_connection(error)
        else:
            self.close_channel(self.current_channel, error, self.current_method)

    def _fail_connection(self, error: AmqpError) -> None:
        self._confirm_all()
        self._close("protocol_error", error, self.current_method)

    def _fail_framing(self, text: str) -> None:
        """Close a connection whose input cannot be divided into frames; ignore all further input."""
        self.current_method = 0
        self.closing.unreadable = True
        self._fail_connection(AmqpError(501, text))

    def close(self, reason: str, text: str = "") -> None:
        text = text or f"broker forced connection closure with reason '{reason}'"
        self._close(reason, AmqpError(506 if reason == TOO_FAST else 320, text), 0)

    def _close(self, reason: str, error: AmqpError, method: i64) -> None:
        """Close with an error that is about a method, or about none (0)."""
        todo = action(self.state, CLOSE)
        if todo == SEND_CLOSE:
            self.out.write(close_connection(error, method))
            self._enter_closing(reason, CLOSING_MS)
            self._release_resources()
            if self.stalled:
                self.resume_input()  # The input that waits may contain the client's close.
            self.touch()
        elif todo == END:
            self.abort(reason)
            self.touch()

    def reject(self, reason: str) -> None:
        """Refuse a client that has not logged in: its protocol header, or its credentials."""
        todo = action(self.state, REJECT)
        if todo == SEND_HEADER:
            self.out.write(GREETING)
            self.abort(reason)
        elif todo == SEND_REFUSAL:
            if self.handshake.client.can("authentication_failure_close"):
                self._close(reason, self.handshake.refusal(), _START_OK)
            else:
                self._enter_closing(reason, REFUSAL_MS)

    def _enter_closing(self, reason: str, wait_ms: i64) -> None:
        self.state = states.CLOSING
        self.reason = reason
        self.deadline = self.agenda.now + wait_ms

    def _await_close_ok(self, data: bytes, position: i64) -> i64:
        """Ignore all input of a closing connection but connection.close and connection.close-ok."""
        closing = self.closing
        position = closing.read(data, position, self.frame_max)
        self.need = closing.need
        if closing.close_received:
            self.send(0, spec.Connection.CloseOk())
        if closing.close_received or closing.close_ok_received:
            self.on_closed(self.reason)
        return position

    def _release(self) -> None:
        self.state = states.CLOSED
        self._release_resources()

    def _release_resources(self) -> None:
        """End all channels, delete the exclusive queues, and leave the publish context."""
        for number in list(self.channels):
            self._end_channel(number)
        self.closing.channels.clear()
        vhost, context = self.vhost, self.context
        if vhost is not None and context is not None:
            self.exclusive_queues.delete(vhost, self)
            vhost.contexts.leave(context)
            self.context = None

    # -- changed permissions

    def review(self) -> None:
        known, vhost, context = self.handshake.identity, self.vhost, self.context
        if self.state in (states.CLOSING, states.CLOSED) or known is None:
            return
        user = self.handshake.user
        renewed = self.handshake.identity = self.front.broker.authenticator.renew(known)
        if renewed is None:
            self.close(
                EXPELLED,
                "the token has expired"
                if known.expires
                else f"user '{user}' is deleted, or may not log in any more",
            )
            return
        if vhost is None or context is None:
            return  # connection.open will check the permissions.
        identity = renewed.for_vhost(vhost.name)
        if vhost.closing:
            self.close(EXPELLED, f"vhost '{vhost.name}' is deleted")
        elif identity is None:
            self.close(EXPELLED, f"access to vhost '{vhost.name}' refused for user '{user}'")
        elif identity is not context.identity:
            fresh = self.context = vhost.contexts.enter(identity, self.front.name)
            vhost.contexts.leave(context)
            lost = AmqpError(403, f"user '{user}' may not read any more what it reads")
            for number, channel in list(self.channels.items()):
                if not channel.reauthorize(fresh):
                    self.close_channel(number, lost, 0)

    # -- alarms, time, listings

    def block(self) -> None:
        if not self.stalled and self.handshake.client.can("connection.blocked"):
            self.send(0, spec.Connection.Blocked(self.front.broker.alarms.reason))
        super().block()

    def unblock(self) -> None:
        if not self.finished and self.handshake.client.can("connection.blocked"):
            self.send(0, spec.Connection.Unblocked())
        super().unblock()

    def advance(self, now: int) -> None:
        """Send a heartbeat, or end a connection whose client has been silent for too long.

        Two heartbeats are sent in each interval; two intervals without input end the connection
        (section 4.2.7). Before it runs, the deadline is that of the handshake.
        """
        if self.state != states.RUNNING:
            self.abort("handshake_timeout")
            self.touch()
            return
        interval: i64 = self.handshake.heartbeat * 1000
        if self.stalled:
            self.heard_at = now  # The broker does not read, so the client is not silent.
        if now - self.heard_at > 2 * interval:
            self.abort("heartbeat_timeout")
        else:
            self.out.write(HEARTBEAT_FRAME)
            self.deadline = now + interval // 2
        self.touch()

    @property
    def published(self) -> int:
        return 0 if self.context is None else int(self.context.received)

    @property
    def owner(self) -> tuple[str, str]:
        return (self.handshake.user, self.vhost.name) if self.vhost is not None else ("", "")

    def describe(self) -> dict[str, object]:
        client = self.handshake.client
        row = super().describe()
        row["user"] = self.handshake.user
        row["vhost"] = "" if self.vhost is None else self.vhost.name
        row["state"] = self.state
        row["channels"] = len(self.channels)
        row["client"] = client.connection_name or f"{client.product} {client.version}".strip()
        return row
