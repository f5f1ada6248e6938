"""The connection: frames out of chunks, and the three methods that come per message."""

from __future__ import annotations

from typing import Any, Final

import pamqp.commands as spec
from librt.strings import read_i32_be, read_i64_be
from mypy_extensions import i64

from broker.access import Credentials, Verdict
from broker.errors import BrokerError
from broker.gate import Gate
from broker.message import ALWAYS, AT_MOST_ONCE, LISTENERS, NOWHERE, PERSISTENCE, Message
from broker.vhost import VirtualHost
from protocols.amqp.channel import MANDATORY, Assembly, Channel
from protocols.amqp.client import Client
from protocols.amqp.contents import content_end, persistent, property_flags
from protocols.amqp.errors import AmqpError, from_broker
from protocols.amqp.frames import (
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
from protocols.amqp.handshake import (
    CLOSING_MS,
    FRAME_LEAST,
    GREETING,
    GREETING_8,
    REFUSAL_MS,
    STEPS,
    AmqpOptions,
    credentials,
    negotiate,
    start,
    tune,
)
from protocols.amqp.methods import HANDLERS
from protocols.connection import BUDGET, COLD, HELD_MAX, Peer
from protocols.front import Front

_PUBLISH: Final[i64] = 60 << 16 | 40
_ACK: Final[i64] = 60 << 16 | 80
_CHANNEL_CLOSE: Final[i64] = 20 << 16 | 40
_CHANNEL_CLOSE_OK: Final[i64] = 20 << 16 | 41
#: Octets of a basic.publish with an empty exchange name and routing key.
_SHORTEST_PUBLISH: Final[i64] = 9


class AmqpConnection(Client):
    """One AMQP client."""

    def __init__(self, front: Front, peer: Peer, options: AmqpOptions) -> None:
        super().__init__(front, peer)
        self.options = options
        self.vhost: VirtualHost | None = None
        self.gate: Gate | None = None
        self.channels: dict[int, Channel] = {}
        self.frame_max: i64 = HELD_MAX
        self.channel_max: i64 = 0
        self.heartbeat: i64 = 0
        self.message_max: i64 = front.broker.bounds.message
        self.user = ""
        self.deadline = self.agenda.now + options.handshake_ms
        self._state = "greeting"
        self._ending: set[int] = set()
        #: The peer's frames are lost to us: nothing that comes now can be told apart.
        self._deaf = False
        self._cursor: i64 = 0
        #: The channel, and the class and method, that an error now would be about.
        self._channel: i64 = 0
        self._about: i64 = 0

    # -- frames

    def consume(self, data: bytes) -> i64:
        if self._state == "greeting":
            if len(data) < len(GREETING) and (GREETING.startswith(data) or GREETING_8.startswith(data)):
                return 0
            return self._greet(data)
        return self._consume_from(data, 0)

    def _consume_from(self, data: bytes, start_at: i64) -> i64:
        """Parse, and go on behind whatever a peer got wrong."""
        self._cursor = start_at
        while not self.finished:
            if self._state == "closing":
                return self._await_close_ok(data, self._cursor)
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
        gate = self.gate
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
                self._lose(f"frame of {length & 0xFFFF_FFFF} octets; the most is {self.frame_max - OVERHEAD}")
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
                    if stop > 0 and length >= _SHORTEST_PUBLISH and gate is not None:
                        budget -= self._publish(gate, channel, data, position, end, stop)
                        if channel.confirms is not None and confirming is not channel:
                            if confirming is not None:
                                confirming.confirm()
                            confirming = channel
                        position = stop
                        continue
                elif method == _ACK and length == 13:
                    self._cursor = end
                    self._channel = number
                    self._about = _ACK
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
            if self._state == "closing":
                return self._await_close_ok(data, position)
            gate = self.gate
            number = -1
            budget -= COLD
        if confirming is not None:
            confirming.confirm()
        return position

    def _publish(self, gate: Gate, channel: Channel, data: bytes, start_at: i64, end: i64, stop: i64) -> i64:
        """A complete publication: method from start to end, content from end to stop. Returns its weight. Hot path."""
        address = data[start_at + 13:end - 2]
        flags: i64 = data[end - 2]
        route = gate.routes.get(address)
        care: i64 = ALWAYS
        if route is not None and flags <= MANDATORY and stop - end <= self.message_max:
            care = (property_flags(data, end) | ALWAYS | LISTENERS) & route.plan.attention
            if flags == MANDATORY:
                care |= NOWHERE & route.plan.attention
            if care == PERSISTENCE and not persistent(data, end):
                care = 0
        if route is None or care != 0:
            self._cursor = stop
            self._channel = channel.number
            self._about = _PUBLISH
            if stop - end > self.message_max and read_i64_be(data, end + 11) > self.message_max:
                raise channel.too_large(read_i64_be(data, end + 11))
            return channel.publish(address, flags, data[end:stop])
        message = Message(route, data[end:stop], channel.frames, AT_MOST_ONCE)
        plan = route.plan
        for queue in plan.queues:
            queue.put(message)
        route.count += 1
        gate.received += 1
        confirms = channel.confirms
        if confirms is not None:
            confirms.published += 1
            channel.tally.received_confirm += 1
        return plan.weight

    def _on_frame(self, kind: i64, number: i64, frame: bytes) -> None:
        """A frame that is no complete publication and no ack. Raises AmqpError and BrokerError."""
        self._channel = number
        self._about = 0
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
        elif number not in self._ending:
            raise AmqpError(505, "content without a method")

    def _on_content(self, channel: Channel, kind: i64, frame: bytes) -> None:
        assembly = channel.assembly
        if assembly is None:
            raise AmqpError(505, "content without a method")
        self._about = _PUBLISH
        complete = assembly.add(kind, frame)
        if assembly.size > self.message_max:
            channel.assembly = None
            raise channel.too_large(assembly.size)
        if complete:
            channel.assembly = None
            channel.publish(assembly.address, assembly.flags, assembly.content)
            channel.confirm()

    def _on_method(self, channel: Channel | None, number: i64, frame: bytes) -> None:
        self._about = int.from_bytes(frame[7:11], "big") if len(frame) >= 4 + OVERHEAD else 0
        if number in self._ending:
            self._on_ending_channel(number)
            return
        if channel is not None and channel.assembly is not None:
            raise AmqpError(505, "expected content header or body, got a method")
        if channel is not None and self._about == _PUBLISH and len(frame) >= _SHORTEST_PUBLISH + OVERHEAD:
            channel.assembly = Assembly(frame[13:-2], frame[-2])
            return
        if channel is not None and self._about == ACCESS_REQUEST:
            self.out.write(method_frame(number, ACCESS_REQUEST_OK))
            return
        method: Any = decode(frame)
        name: str = method.name
        if number == 0 or name.startswith("Connection."):
            if number != 0:
                raise AmqpError(504, f"{name} on channel {number}")
            self._on_connection_method(name, method)
        elif self._state != "running":
            raise AmqpError(504, f"{name} before connection.open")
        elif name == "Channel.Open":
            self._open_channel(channel, number)
        elif channel is None:
            raise AmqpError(504, "expected 'channel.open'")
        elif name == "Channel.Close":
            self._end_channel(number)
            self.send(number, spec.Channel.CloseOk())
        elif name in HANDLERS:
            channel.ticket = self.ticket()
            HANDLERS[name](channel, method)
        elif name not in ("Channel.CloseOk", "Channel.FlowOk", "Basic.CancelOk"):
            raise AmqpError(503, f"unimplemented method {name}")

    # -- channels

    def _open_channel(self, channel: Channel | None, number: i64) -> None:
        if channel is not None:
            raise AmqpError(504, "second 'channel.open' seen")
        if number > self.channel_max:
            raise AmqpError(530, f"number of channels opened ({number}) has reached the negotiated channel_max ({self.channel_max})")
        assert self.vhost is not None and self.gate is not None
        self.channels[number] = Channel(self.vhost, self.gate, self, number, self.frame_max,
                                        self.capabilities.get("consumer_cancel_notify") is True)
        self.send(number, spec.Channel.OpenOk())

    def _end_channel(self, number: i64) -> None:
        channel = self.channels.pop(number, None)
        if channel is not None:
            channel.close()

    def _on_ending_channel(self, number: i64) -> None:
        """A channel that we closed says nothing any more but that it knows (section 1.5.2.5)."""
        if self._about == _CHANNEL_CLOSE_OK:
            self._ending.discard(number)
        elif self._about == _CHANNEL_CLOSE:
            self.send(number, spec.Channel.CloseOk())

    def _refuse(self, error: AmqpError) -> None:
        """Soft errors end the channel, hard ones the connection."""
        if error.hard or self._channel not in self.channels:
            self._hang_up(error)
            return
        for channel in self.channels.values():
            channel.confirm()
        self._end_channel(self._channel)
        self._ending.add(self._channel)
        self.out.write(close_channel(self._channel, error, self._about))

    def _lose(self, why: str) -> None:
        """Frames cannot be told apart any more: hang up and hear nothing, whatever comes in which chunks."""
        self._about = 0
        self._deaf = True
        self._hang_up(AmqpError(501, why))

    def _hang_up(self, error: AmqpError) -> None:
        """Tell the client, and wait for its close-ok."""
        for channel in self.channels.values():
            channel.confirm()
        self.close(error, self._about, "protocol_error")

    def close(self, error: AmqpError, about: i64, reason: str) -> None:
        """Say connection.close, and let go of everything."""
        self.out.write(close_connection(error, about))
        self._state = "closing"
        self.reason = reason
        self._let_go()
        self.deadline = self.agenda.now + CLOSING_MS
        if self.stalled:
            self.go_on()  # There may be a close among what was kept.
        self.touch()

    def _await_close_ok(self, data: bytes, at: i64) -> i64:
        """Everything but close-ok is ignored; what cannot be parsed is not worth waiting for."""
        size: i64 = len(data)
        position: i64 = at
        while size - position >= OVERHEAD and not self._deaf:
            length: i64 = i64(read_i32_be(data, position + 3))
            end: i64 = position + length + OVERHEAD
            if length < 0 or length > self.frame_max - OVERHEAD or end <= size and data[end - 1] != FRAME_END:
                self._deaf = True
                break
            if end > size:
                self.need = end - position
                return position
            if data[position] == METHOD and data[position + 7:position + 11] in (b"\x00\x0a\x00\x33", b"\x00\x0a\x00\x32"):
                if data[position + 10] == 50:
                    self.send(0, spec.Connection.CloseOk())
                self.end(self.reason)
                return size
            position = end
        return size if self._deaf else position

    # -- the connection's own methods

    def _greet(self, data: bytes) -> i64:
        if data[:len(GREETING)] not in (GREETING, GREETING_8):
            self.out.write(GREETING)
            self.end("protocol_error")
            return len(data)
        self._state = "start"
        self.send(0, start(self.options, self.front.broker.name))
        return self._consume_from(data, len(GREETING))

    def _on_connection_method(self, name: str, method: Any) -> None:
        if name == "Connection.Close":
            self.send(0, spec.Connection.CloseOk())
            self.end("client")
        elif name == "Connection.UpdateSecret" and self._state == "running":
            self._update_secret(method)
        elif name not in ("Connection.Blocked", "Connection.Unblocked") or self._state != "running":
            state = STEPS.get((self._state, name))
            if state is None:
                raise AmqpError(504, f"{name} in connection state '{self._state}'")
            self._state = state
            if name == "Connection.StartOk":
                self._log_in(method)
            elif name == "Connection.TuneOk":
                self._tune(method)
            else:
                self._open(method)

    def _log_in(self, method: Any) -> None:
        properties: Any = method.client_properties or {}
        capabilities = properties.get("capabilities")
        self.capabilities = capabilities if isinstance(capabilities, dict) else {}
        self.product = str(properties.get("product", ""))
        self.version = str(properties.get("version", ""))
        response: Any = method.response  # Octets, whatever pamqp declares.
        login = credentials(method.mechanism, response, self.peer)
        self.user = login.user or ""
        self._ask(login, lambda verdict: self._judge(verdict, method.mechanism))

    def _ask(self, login: Credentials, judge: Any) -> None:
        """Stop reading until the verdict comes; it may come at once."""
        self.stall()
        self.front.broker.authenticator.authenticate(login, judge)

    def _judge(self, verdict: Verdict, mechanism: str) -> None:
        if self.finished or self._state != "verdict":
            return  # The broker stops, or the client is gone.
        if verdict.identity is None:
            self.front.count_login("busy" if verdict.busy else "refused")
            text = f"Login was refused using authentication mechanism {mechanism}. For details see the broker logfile."
            if self.capabilities.get("authentication_failure_close") is True:
                self.close(AmqpError(403, text), 10 << 16 | 11, "login_refused")
            else:
                self._state = "closing"
                self.reason = "login_refused"
                self.deadline = self.agenda.now + REFUSAL_MS
            self.go_on()
            return
        self.front.count_login("accepted")
        self.admitted = True
        self._state = "tune"
        self.vhost = self.front.broker.vhosts["/"]
        self.gate = self.vhost.gates.enter(verdict.identity, self.front.name)
        self.frame_max = self.options.frame_max
        self.send(0, tune(self.options))
        self.go_on()

    def _tune(self, method: spec.Connection.TuneOk) -> None:
        options = self.options
        self.frame_max = negotiate(method.frame_max, options.frame_max, "frame_max", FRAME_LEAST)
        self.channel_max = negotiate(method.channel_max, options.channel_max, "channel_max", 1)
        self.heartbeat = method.heartbeat

    def _open(self, method: spec.Connection.Open) -> None:
        if method.virtual_host not in self.front.broker.vhosts:
            self._state = "open"
            raise AmqpError(530, f"vhost {method.virtual_host} not found")
        self.deadline = self.agenda.now + self.heartbeat * 500 if self.heartbeat else 0
        self.send(0, spec.Connection.OpenOk())

    def _update_secret(self, method: Any) -> None:
        """The client renews its credentials; the new ones must be good."""
        password: Any = method.new_secret  # Octets, whatever pamqp declares.
        self._ask(Credentials(self.user, password, "/", self.peer.address, self.peer.local), self._judge_secret)

    def _judge_secret(self, verdict: Verdict) -> None:
        if self.finished or self._state != "running":
            return
        if verdict.identity is None:
            self._hang_up(AmqpError(530, "New secret was refused by one of the backends"))
        else:
            self.send(0, spec.Connection.UpdateSecretOk())
        self.go_on()

    def send(self, number: i64, method: Any) -> None:
        self.out.write(encode(number, method))

    # -- time, and the end

    def advance(self, now: int) -> None:
        """Heartbeats: two out per interval; two intervals of silence end the connection (section 4.2.7)."""
        if self._state != "running":
            self.end("handshake_timeout")
            self.touch()
            return
        interval: i64 = self.heartbeat * 1000
        if self.stalled:
            self.heard_at = now  # It is we who do not listen.
        if now - self.heard_at > 2 * interval:
            self.end("heartbeat_timeout")
        else:
            self.out.write(HEARTBEAT_FRAME)
            self.deadline = now + interval // 2
        self.touch()

    def shut_down(self) -> None:
        if self._state == "greeting":
            self.end("shutdown")
            self.touch()
        elif self._state != "closing":
            self.close(AmqpError(320, "broker forced connection closure with reason 'shutdown'"), 0, "shutdown")

    def released(self) -> None:
        self._let_go()

    def _let_go(self) -> None:
        """Channels end, exclusive queues go, the gate is left."""
        for number in list(self.channels):
            self._end_channel(number)
        self._ending.clear()
        vhost, gate = self.vhost, self.gate
        if vhost is not None and gate is not None:
            for queue in list(self.exclusive):
                if vhost.queues.get(queue.name) is queue:
                    vhost.delete_queue(queue)
            self.exclusive.clear()
            vhost.gates.leave(gate)
            self.gate = None

    def unchoke(self) -> None:
        for channel in self.channels.values():
            channel.unchoke()

    def describe(self) -> dict[str, object]:
        row = super().describe()
        row["user"] = self.user
        row["state"] = self._state
        row["channels"] = len(self.channels)
        row["client"] = f"{self.product} {self.version}".strip()
        return row
