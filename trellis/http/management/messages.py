"""Messages over HTTP: fetch messages of a queue, publish a message to an exchange.

Each request uses an AMQP connection of its own, inside the process and without a socket. So the
same permissions, limits and effects apply as for an AMQP client. These requests are for operators
that look into a queue, not for applications.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import pamqp.commands as spec

from broker.errors import AccessRefused
from broker.messages.outlet import FunctionSender
from broker.names import NAME_BYTES_MAX, shown
from broker.vhost.vhost import VirtualHost
from protocols.amqp.codec.contents import frames_of, split_content
from protocols.amqp.codec.frames import decode, encode, method_frame
from protocols.amqp.codec.properties import LAYOUT, read_properties, write_properties
from protocols.amqp.connection.connection import AmqpConnection
from protocols.amqp.connection.direct import open_directly
from protocols.amqp.errors import AmqpError
from protocols.peer import Peer
from trellis.http import contract
from trellis.http.management.answers import (
    DURABLE_SECONDS,
    ApiRefusal,
    Call,
    Listing,
    Row,
    bad_request,
    table,
    text,
)
from trellis.http.management.topology import exchange_name
from trellis.http.slices import Slice

#: Largest number of messages that one `get` request fetches.
FETCHED_MAX: Final = 10_000
#: Total size of properties and bodies, in bytes, after which a request fetches no further message.
FETCHED_BYTES_MAX: Final = 8 << 20
#: The values of the field `ackmode` with which the queue keeps the fetched messages.
KEEPING: Final = ("ack_requeue_true", "reject_requeue_true")
#: The values of `ackmode` that remove the fetched messages from the queue, with the AMQP method
#: that settles them. A rejected message may become a dead letter.
SETTLING: Final[dict[str, Any]] = {
    "ack_requeue_false": spec.Basic.Ack(0, True),
    "reject_requeue_false": spec.Basic.Nack(0, True, requeue=False),
}
#: By type of a property in LAYOUT: its valid values, for errors.
_PROPERTY_VALUES: Final = {
    "text": "a text of at most 255 bytes",
    "table": "an object that AMQP can encode",
    "byte": "a number from 0 to 255",
    "time": "a number of seconds since 1970",
}
#: Sizes in bytes: of a frame's head, and of a frame's head and end together.
_HEAD: Final = 7
_OVERHEAD: Final = 8
_METHOD, _HEADER = 1, 2
#: The beginning of basic.publish (class, method, reserved) and the bit `mandatory` at its end.
#: pamqp would refuse names of exchanges above 127 bytes.
_PUBLISH: Final = b"\x00\x3c\x00\x28\x00\x00"
_MANDATORY: Final = b"\x01"
#: The HTTP status and name of an AMQP error, by its reply code. Errors with other codes are bad
#: requests.
_ERRORS: Final = {403: (403, "not_authorised"), 404: (404, "Object Not Found")}
_CHANNEL: Final = 1


class DirectClient:
    """An AMQP client of the HTTP API: one connection with one channel, for one request.

    `work` is the request's present slice of the event loop's time. When the time of the slice is
    used, or when the client must wait for the broker, the client ends the slice and begins another.
    """

    def __init__(self, call: Call, vhost: VirtualHost, work: Slice) -> None:
        self._turn = call.node.turn
        self._work = work
        self._turn.schedule()
        peer = Peer("http", 0, True)
        peer.listener = "http"
        peer.http_client = call.request.address
        connection = call.node.amqp.connect(peer)
        assert isinstance(connection, AmqpConnection)
        self.connection = connection
        self._awake = asyncio.Event()
        #: Output of the broker to this client, and the number of its bytes that the client has
        #: read.
        self._output = b""
        self._read = 0
        connection.sender = FunctionSender(self._awake.set)
        try:
            open_directly(connection, call.identity, vhost)
        except AccessRefused:
            connection.on_closed("login_refused")
            raise
        except AmqpError as error:  # The user may open no further channel.
            connection.on_closed("login_refused")
            raise bad_request(error.text) from None

    def send(self, data: bytes) -> None:
        """Send AMQP frames to the broker, as a client would."""
        self._turn.schedule()
        self.connection.receive_data(data)

    async def frame(self) -> bytes:
        """Wait for the next AMQP frame of the broker, and return it.

        Raises TimeoutError, and ApiRefusal if the broker closes the connection.
        """
        if self._work.over:
            await self._work.pause()
        async with asyncio.timeout(DURABLE_SECONDS):
            while True:
                frame = self._next_frame()
                if frame:
                    return frame
                if self.connection.finished:
                    raise ApiRefusal(
                        503,
                        "busy",
                        "the broker closed the AMQP connection of this request before the answer "
                        "came; try the request again",
                    )
                self._awake.clear()
                if self.connection.behind and not self.connection.stalled:
                    await self._work.pause()
                    self._turn.schedule()
                    self.connection.resume()
                elif not self.connection.dirty:
                    await self._work.pause(self._awake)

    def _next_frame(self) -> bytes:
        """Return the next complete frame of the broker's output; b"" if there is none yet."""
        if self._read == len(self._output):
            self._output, self._read = self.connection.data_to_send(), 0
        if not self._output:
            return b""
        start = self._read
        size = int.from_bytes(self._output[start + 3 : start + 7], "big")
        self._read = start + size + _OVERHEAD
        return self._output[start : self._read]

    async def method(self) -> Any:
        """Wait for the broker's next AMQP method, and return it; skip the contents of messages.

        Raises TimeoutError, and ApiRefusal if the broker refuses the request.
        """
        while True:
            frame = await self.frame()
            if frame[0] != _METHOD:
                continue
            method: Any = decode(frame)
            if isinstance(method, spec.Channel.Close | spec.Connection.Close):
                status, error = _ERRORS.get(method.reply_code or 0, (400, "bad_request"))
                raise ApiRefusal(status, error, method.reply_text)
            if not isinstance(method, spec.Channel.OpenOk):
                return method

    async def content(self) -> tuple[bytes, list[bytes]]:
        """Return the next message content: encoded flags and properties, and parts of the body.

        The parts are not joined here: joining 16 MB takes several milliseconds of one turn.
        """
        header = await self.frame()
        while header[0] != _HEADER:
            header = await self.frame()
        left, parts = int.from_bytes(header[11:19], "big"), []
        while left:
            parts.append((await self.frame())[_HEAD:-1])
            left -= len(parts[-1])
        return header[19:-1], parts

    def reached(self, publication: bytes) -> int:
        """Return how many queues and subscribers the message of this client reached.

        The client must have published one message only, whose basic.publish frame is `publication`.
        """
        publisher = self.connection.channels.open[_CHANNEL].publisher
        if publisher.reached >= 0:
            return int(publisher.reached)
        # The publication took the fast path, which publishes by a cached route.
        route = publisher.context.routes.get(publication[len(_PUBLISH) : -len(_MANDATORY)])
        return 0 if route is None else int(route.plan.reached)

    def close(self) -> None:
        """End the connection; messages that were fetched and not settled return to their queue."""
        self._turn.schedule()
        self.connection.on_closed("client")


async def get(call: Call) -> Listing:
    """Fetch messages of the queue that the path names; `ackmode` says if the queue keeps them.

    The audit trail records a request that removes messages.
    """
    vhost, name, row = call.vhost(call.path_parameters[0]), call.path_parameters[1], call.body()
    mode, encoding = text(row, "ackmode", "ack_requeue_true"), text(row, "encoding", "auto")
    if mode not in KEEPING and mode not in SETTLING:
        known = ", ".join([*KEEPING, *SETTLING])
        raise bad_request(f"the field 'ackmode' must be one of {known}, not '{mode}'")
    check_encoding(encoding)
    count = whole_number(row, "count", 1, FETCHED_MAX)
    truncate = whole_number(row, "truncate", 1 << 31, 1 << 31)
    fetched: list[tuple[Row, list[bytes]]] = []
    size = 0
    async with call.slice() as work:
        client = DirectClient(call, vhost, work)
        try:
            while len(fetched) < count and size < FETCHED_BYTES_MAX:
                client.send(encode(_CHANNEL, spec.Basic.Get(queue=name)))
                answer = await client.method()
                if isinstance(answer, spec.Basic.GetEmpty):
                    break
                properties, parts = await client.content()
                body_size = sum(map(len, parts))
                size += len(properties) + body_size
                row = _message_row(answer, properties, body_size, encoding)
                fetched.append((row, _first_bytes(parts, truncate)))
            if fetched and mode in SETTLING:
                # The answer to basic.qos arrives after the settlements are durable.
                client.send(encode(_CHANNEL, SETTLING[mode]) + encode(_CHANNEL, spec.Basic.Qos()))
                call.audit(
                    "get", "queue", vhost.name, name, {"messages": len(fetched), "ackmode": mode}
                )
                await client.method()
        finally:
            client.close()
    return Listing(_with_payloads(fetched), contract.MESSAGES)


def check_encoding(encoding: str) -> None:
    """Raise ApiRefusal unless `encoding` is a known encoding of payloads: auto or base64."""
    if encoding not in ("auto", "base64"):
        raise bad_request(f"'encoding' must be auto or base64, not '{encoding}'")


async def _with_payloads(fetched: list[tuple[Row, list[bytes]]]) -> AsyncIterator[Row | bytes]:
    """Yield the row of each fetched message, with the payload.

    If a payload has several parts, the parts are yielded before the row, which then has no field
    `payload`.
    """
    for row, parts in fetched:
        if len(parts) > 1:
            for part in parts:
                yield part
            yield row
        else:
            yield {**row, "payload": b"".join(parts)}


def _first_bytes(parts: list[bytes], size: int) -> list[bytes]:
    """Return the first `size` bytes of a body that is given in parts."""
    kept: list[bytes] = []
    for part in parts:
        if size <= 0:
            break
        kept.append(part[:size])
        size -= len(part)
    return kept


def whole_number(row: Mapping[str, Any], field: str, default: int, most: int) -> int:
    """Return the whole number in a field, or `default`. Some tools write the number as text.

    Raises ApiRefusal for a number below 0 or above `most`, or a value that is no whole number.
    """
    value = row.get(field, default)
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise bad_request(f"'{field}' must be a whole number from 0 to {most}")
    return value


def _message_row(answer: Any, encoded: bytes, size: int, encoding: str) -> Row:
    """Return a message without its payload; the gateway encodes the payload as `encoding`.

    `answer` is the method basic.get-ok, `encoded` the encoded flags and properties, and `size` the
    size of the payload in bytes.
    """
    return {
        "payload_bytes": size,
        "redelivered": answer.redelivered,
        "exchange": answer.exchange,
        "routing_key": answer.routing_key,
        "message_count": answer.message_count,
        "properties": json_properties(read_properties(encoded)),
        "payload_encoding": encoding,
    }


def json_properties(properties: Mapping[str, Any]) -> Row:
    """Return the properties of a message for JSON: the timestamp as seconds since the epoch."""
    moment = properties.get("timestamp")
    if isinstance(moment, datetime):
        return {**properties, "timestamp": int(moment.timestamp())}
    return dict(properties)


async def publish(call: Call) -> Row:
    """Publish a message to an exchange; the answer says how many queues received the message."""
    vhost, row = call.vhost(call.path_parameters[0]), call.body()
    exchange = exchange_name(call.path_parameters[1])
    key, payload = text(row, "routing_key"), text(row, "payload")
    content = split_content(
        _encoded_properties(table(row, "properties")),
        _body(payload, text(row, "payload_encoding", "string")),
        frames_of(_CHANNEL, call.node.amqp.options.frame_max),
    )
    if call.broker.alarms.on:
        reason = call.broker.alarms.reason
        raise ApiRefusal(
            503, "busy", f"publishers are blocked, because the broker is {reason}; try again later"
        )
    publication = _PUBLISH + _name("exchange", exchange) + _name("routing key", key) + _MANDATORY
    async with call.slice() as work:
        client = DirectClient(call, vhost, work)
        try:
            client.send(
                encode(_CHANNEL, spec.Confirm.Select())
                + method_frame(_CHANNEL, publication)
                + content
            )
            routed = True
            while True:
                answer = await client.method()
                if isinstance(answer, spec.Basic.Return):
                    routed = False
                elif isinstance(answer, spec.Basic.Ack):
                    return {"routed": routed, "queues": client.reached(publication)}
                elif isinstance(answer, spec.Basic.Nack):
                    raise bad_request(
                        f"a full queue refused the message with routing key '{shown(key)}' to "
                        f"exchange '{exchange}'"
                    )
        finally:
            client.close()


def _name(kind: str, name: str) -> bytes:
    """Return a name encoded as an AMQP short string. `kind` is its kind, for the error.

    Raises ApiRefusal if the name is too long, and ValueError if the name cannot be encoded in
    UTF-8.
    """
    data = name.encode()
    if len(data) > NAME_BYTES_MAX:
        raise bad_request(
            f"the {kind} '{shown(name)}' has {len(data)} bytes; the limit is {NAME_BYTES_MAX} bytes"
        )
    return bytes([len(data)]) + data


def _body(payload: str, encoding: str) -> bytes:
    if encoding == "string":
        return payload.encode("utf-8", "surrogateescape")
    if encoding != "base64":
        raise bad_request(f"'payload_encoding' must be string or base64, not '{encoding}'")
    try:
        return base64.b64decode(payload, validate=True)
    except (binascii.Error, ValueError):
        raise bad_request(
            "'payload' must be base64, because 'payload_encoding' is base64"
        ) from None


def _encoded_properties(given: Row) -> bytes:
    """Return message properties in JSON as an AMQP content header encodes them.

    Raises ApiRefusal for an invalid property.
    """
    known = [name for name, _ in LAYOUT]
    properties: dict[str, Any] = {}
    for name, value in given.items():
        if name not in known:
            raise bad_request(f"unknown property '{name}'; known are {', '.join(known)}")
        properties[name] = value
    moment = properties.get("timestamp")
    if isinstance(moment, int) and not isinstance(moment, bool):
        try:
            properties["timestamp"] = datetime.fromtimestamp(moment, UTC)
        except (ValueError, OverflowError, OSError):
            raise bad_request(
                f"the property 'timestamp' must be {_PROPERTY_VALUES['time']}, not {moment}"
            ) from None
    data = write_properties(properties)
    for name in properties.keys() - read_properties(data).keys():
        expected = _PROPERTY_VALUES[dict(LAYOUT)[name]]
        raise bad_request(f"the property '{name}' must be {expected}, not {given[name]!r}")
    return data
