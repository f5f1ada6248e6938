"""Blocking MQTT and AMQP clients: log in, subscribe and declare before a run, delete after it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from trellis.bench import amqp, mqtt
from trellis.bench.errors import BenchError, Unreachable
from trellis.bench.target import TIMEOUT, BenchConversation, BrokerTarget

#: Largest AMQP frame that the client offers to accept, in bytes.
FRAME_MAX: Final = 131_072
#: Largest number of bindings that are requested together, before the first answer is read.
_BINDS: Final = 500


class MqttClient(BenchConversation):
    """An MQTT connection that is logged in. The constructor raises Unreachable or BenchError.

    If `persistent`, the session outlives the connection, until `disconnect` ends both.
    """

    _persistent = False

    def __init__(self, target: BrokerTarget, where: str, persistent: bool = False) -> None:
        super().__init__(target, where)
        self._persistent = persistent
        self._name = f"bench{os.urandom(8).hex()}"
        try:
            self._connect(clean=not persistent)
        except BaseException:
            self.close()
            raise

    def _connect(self, clean: bool) -> None:
        """Log in, and check the answer. Raises Unreachable or BenchError.

        `clean` is the flag Clean Session of CONNECT.
        """
        target = self.target
        self.send(mqtt.connect(self._name, target.user, target.password, clean))
        answer = self.read(4, "CONNACK")
        if answer[:2] != bytes([mqtt.CONNACK, 2]):
            raise Unreachable(
                f"{target} answered CONNECT with {answer.hex(' ')}, which is not MQTT; give an "
                "MQTT listener with --mqtt"
            )
        if answer[3] in mqtt.LOGIN_REFUSALS:
            raise self.refused(mqtt.REFUSALS[answer[3]])
        if answer[3]:
            reason = mqtt.REFUSALS.get(answer[3], f"return code {answer[3]}")
            raise Unreachable(f"{target} refused CONNECT: {reason}")

    def subscribe(self, topic_filter: str, qos: int) -> None:
        """Subscribe to a filter. Raises BenchError if the broker grants another QoS."""
        self.send(mqtt.subscribe(topic_filter, qos))
        answer = self.read(5, "SUBACK")
        if answer[:4] != bytes([mqtt.SUBACK, 3, 0, 1]):
            raise BenchError(
                f"{self.where}: {self.target} answered SUBSCRIBE with {answer.hex(' ')}, which is "
                "not the expected SUBACK"
            )
        if answer[4] != qos:
            granted = (
                "refused the subscription"
                if answer[4] == 128
                else f"granted QoS {answer[4]} instead of {qos}"
            )
            raise BenchError(
                f"{self.where}: cannot subscribe to '{topic_filter}': {self.target} {granted}"
            )

    def disconnect(self) -> None:
        """Close the connection as the protocol demands; end a persistent session, too.

        Errors are ignored: the broker may have ended.
        """
        _send_and_close(self, mqtt.DISCONNECT)
        if self._persistent:
            self._persistent, self._unread = False, b""
            with suppress(Unreachable, BenchError):
                self.sock = self.target.connect()
                self._connect(clean=True)
                self.disconnect()


class AmqpClient(BenchConversation):
    """An AMQP connection that is logged in and has channel 1 open.

    `server` is the product and version that the broker reports. The constructor raises Unreachable
    or BenchError.
    """

    def __init__(self, target: BrokerTarget, where: str) -> None:
        super().__init__(target, where)
        try:
            self._login()
        except BaseException:
            self.close()
            raise

    def _login(self) -> None:
        target = self.target
        self.send(amqp.PROTOCOL_HEADER)
        start = self.read(1, "connection.start")
        if start == b"A":
            raise Unreachable(
                f"{target} does not speak AMQP 0-9-1; give an AMQP 0-9-1 listener with --amqp"
            )
        if start != bytes([amqp.METHOD_FRAME]):
            raise Unreachable(
                f"{target} answered the protocol header with {start.hex()}, which is not AMQP; "
                "give an AMQP listener with --amqp"
            )
        self._unread = start + self._unread
        self.server = amqp.read_server(self.answer(amqp.START))
        self.send(amqp.start_ok(target.user or "", target.password or ""))
        try:
            tune = self.answer(amqp.TUNE)
        except BenchError as error:
            # The broker sends connection.close 403 or only closes (AMQP 0-9-1, section 2.2.4).
            raise self.refused(str(error).partition(": ")[2]) from None
        channel_max, frame_max = int.from_bytes(tune[:2], "big"), int.from_bytes(tune[2:6], "big")
        self.frame_max = min(frame_max or FRAME_MAX, FRAME_MAX)
        self.send(amqp.tune_ok(channel_max, self.frame_max))
        self.ask(amqp.connection_open(target.vhost), amqp.OPEN_OK)
        self.ask(amqp.channel_open(), amqp.CHANNEL_OPEN_OK)

    def ask(self, request: bytes, method: amqp.Method, timeout: float = TIMEOUT) -> bytes:
        """Send a request and return the arguments of its answer, which must be `method`.

        Raises BenchError if the broker sends another method, or nothing for `timeout` seconds.
        """
        self.send(request)
        return self.answer(method, timeout)

    def answer(self, method: amqp.Method, timeout: float = TIMEOUT) -> bytes:
        """Return the arguments of the next method, which must be `method`. Raises BenchError."""
        payload = self._frame(amqp.METHOD_FRAME, amqp.method_name(method), timeout)
        got, arguments = amqp.read_method(payload)
        if got == method:
            return arguments
        raise amqp.broker_closed(self.where, payload)

    def delivery(self) -> tuple[int, bytes]:
        """Return the delivery tag and the body of the next delivery. Raises BenchError."""
        tag = amqp.read_delivery_tag(self.answer(amqp.DELIVER))
        header = self._frame(amqp.HEADER_FRAME, "a content header")
        size, body = int.from_bytes(header[4:12], "big"), b""
        while len(body) < size:
            body += self._frame(amqp.BODY_FRAME, "a body")
        return tag, body

    def _frame(self, kind: int, awaited: str, timeout: float = TIMEOUT) -> bytes:
        """Return the payload of the next frame, which must be of type `kind`. Skip heartbeats.

        `awaited` names the expected frame in errors. Raises BenchError.
        """
        while True:
            head = self.read(7, awaited, timeout)
            payload = self.read(int.from_bytes(head[3:7], "big") + 1, awaited, timeout)
            if payload[-1] != 0xCE:
                raise BenchError(
                    f"{self.where}: {self.target} sent a frame without a frame end; "
                    f"waited for {awaited}"
                )
            if head[0] == kind:
                return payload[:-1]
            if head[0] != amqp.HEARTBEAT_FRAME:
                raise BenchError(
                    f"{self.where}: {self.target} sent a frame of type {head[0]}; "
                    f"waited for {awaited}"
                )

    def bind(self, wanted: list[tuple[str, str, Mapping[str, str]]], exchange: str) -> None:
        """Bind queues to an exchange: `wanted` yields (queue, key, arguments) for each binding.

        Up to 500 bindings are requested in one send.
        """
        for at in range(0, len(wanted), _BINDS):
            some = wanted[at : at + _BINDS]
            self.send(
                b"".join(
                    amqp.queue_bind(queue, exchange, key, arguments)
                    for queue, key, arguments in some
                )
            )
            for _ in some:
                self.answer(amqp.QUEUE_BIND_OK)

    def depth(self, queue: str) -> int:
        """Return the number of messages in a queue."""
        return amqp.read_queue_depth(
            self.ask(amqp.queue_declare(queue, passive=True), amqp.QUEUE_DECLARE_OK)
        )

    def disconnect(self) -> None:
        """Close the connection as the protocol demands."""
        _send_and_close(self, amqp.connection_close())


def _send_and_close(client: BenchConversation, request: bytes) -> None:
    """Send a closing request if the socket accepts it, and close."""
    try:
        client.sock.setblocking(False)
        client.sock.send(request)
    except OSError:
        pass
    client.close()
