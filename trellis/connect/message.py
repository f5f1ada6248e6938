"""A message of the broker, and its form in HTTP requests and in Kafka."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote

from aio_pika import DeliveryMode, Message
from aio_pika.abc import AbstractIncomingMessage

from broker.messages.cc_headers import KEY_HEADERS
from broker.routing.deduplication import NUMBER_HEADERS
from protocols.amqp.codec.contents import DIRECT
from trellis.connect.signing import safe_identifier

#: The header with the offset of a stream's row.
OFFSET_HEADER: Final = "x-stream-offset"
#: Content type of a batch of CloudEvents in JSON.
BATCH_TYPE: Final = "application/cloudevents-batch+json"
#: Prefix of the headers that a link adds.
PREFIX: Final = "x-connect-"
#: Headers with which a publisher makes the broker send the message to further queues, or drop it as
#: a repeat. A link publishes as its own user, so it leaves them out: CC would reach queues to which
#: the publisher may not publish, and a dead letter would be dropped as a repeat of its message.
_INSTRUCTIONS: Final = frozenset({*KEY_HEADERS, *NUMBER_HEADERS})
#: The reply_to of a request whose channel gets the reply. The channel of a link gets no replies, so
#: the broker would refuse each such message.
_DIRECT_REPLY: Final = DIRECT.decode()
#: Headers of Kafka in which a link says where a message was published.
_EXCHANGE: Final = "amqp-exchange"
_ROUTING_KEY: Final = "amqp-routing-key"
#: Headers of a message that become headers of a request, to continue a trace (W3C).
_TRACE: Final = ("traceparent", "tracestate")
#: Names of Kafka headers, and the message properties that are copied to and from these headers.
_PROPERTIES: Final = {
    "content-type": "content_type",
    "content-encoding": "content_encoding",
    "message-id": "message_id",
    "correlation-id": "correlation_id",
    "reply-to": "reply_to",
    "type": "type",
    "app-id": "app_id",
}
KafkaHeaders = Sequence[tuple[str, bytes | str | None]]


class BrokerMessage:
    """A message that a queue or a stream has delivered, until it is settled.

    `place` is the name of the queue or stream. `offset` is None for a message of a queue.
    """

    __slots__ = ("identifier", "incoming", "offset", "place", "tag")

    def __init__(self, incoming: AbstractIncomingMessage, place: str) -> None:
        self.incoming: Final = incoming
        self.place: Final = place
        self.tag: Final = int(incoming.delivery_tag or 0)
        offset = incoming.headers.get(OFFSET_HEADER)
        self.offset: Final = offset if isinstance(offset, int) else None
        #: Identifies the message to a receiver: the message_id, else stream and offset, else a
        #: random identifier, which differs after a redelivery.
        self.identifier: Final = self._identifier()

    @property
    def routing_key(self) -> str:
        """The routing key with which the message was published."""
        return self.incoming.routing_key or ""

    @property
    def topic(self) -> str:
        """The routing key in MQTT's notation, with dots and slashes exchanged."""
        return self.routing_key.translate(_EXCHANGED)

    @property
    def headers(self) -> dict[str, Any]:
        """The headers of the publisher, without the offset that the broker adds for a stream."""
        return {
            name: value for name, value in self.incoming.headers.items() if name != OFFSET_HEADER
        }

    def fields(self) -> dict[str, str]:
        """Return the message's values for the fields of a key template, by name."""
        return {
            "routing_key": self.routing_key,
            "topic": self.topic,
            "exchange": self.incoming.exchange or "",
            "message_id": self.incoming.message_id or "",
            "type": self.incoming.type or "",
        }

    def dead_letter(self, link: str, reason: str, attempts: int) -> Message:
        """Return the message for the dead letter queue.

        Its headers have the name of the link, the reason and the number of failed attempts.
        """
        about: dict[str, Any] = {
            f"{PREFIX}link": link,
            f"{PREFIX}reason": reason,
            f"{PREFIX}attempts": attempts,
            f"{PREFIX}source": self.place,
            f"{PREFIX}exchange": self.incoming.exchange or "",
            f"{PREFIX}routing-key": self.routing_key,
        }
        if self.offset is not None:
            about[f"{PREFIX}offset"] = self.offset
        given = self.incoming
        kept = {name: each for name, each in self.headers.items() if name not in _INSTRUCTIONS}
        letter = Message(
            given.body,
            headers={**kept, **about},
            content_type=given.content_type,
            content_encoding=given.content_encoding,
            delivery_mode=DeliveryMode.PERSISTENT,
            priority=given.priority,
            correlation_id=given.correlation_id,
            reply_to=given.reply_to,
            timestamp=given.timestamp,
            type=given.type,
            app_id=given.app_id,
        )
        letter.message_id = given.message_id
        return letter

    def _identifier(self) -> str:
        if self.incoming.message_id:
            return safe_identifier(self.incoming.message_id)
        if self.offset is not None:
            return safe_identifier(f"{self.place}-{self.offset}")
        return f"msg_{uuid.uuid4().hex}"


_EXCHANGED: Final = str.maketrans("./", "/.")


# -- HTTP


def request_of(message: BrokerMessage) -> tuple[bytes, dict[str, str]]:
    """Return the body and the headers of a request with one message."""
    headers = {
        "content-type": _header_text(message.incoming.content_type or "application/octet-stream"),
        "x-trellis-routing-key": quote(message.routing_key, safe="/.-_~"),
        "x-trellis-exchange": quote(message.incoming.exchange or "", safe="/.-_~"),
    }
    if message.incoming.content_encoding:
        headers["content-encoding"] = _header_text(message.incoming.content_encoding)
    if message.incoming.type:
        headers["x-trellis-type"] = quote(message.incoming.type, safe="/.-_~")
    for name in _TRACE:
        value = message.incoming.headers.get(name)
        if isinstance(value, str):
            headers[name] = _header_text(value)
    return message.incoming.body, headers


def batch_of(messages: Sequence[BrokerMessage]) -> tuple[bytes, dict[str, str]]:
    """Return the body and the headers of a request with several messages, as CloudEvents 1.0."""
    body = json.dumps([_event(each) for each in messages], ensure_ascii=False).encode(
        errors="replace"
    )
    return body, {"content-type": BATCH_TYPE}


def _event(message: BrokerMessage) -> dict[str, Any]:
    given = message.incoming
    event: dict[str, Any] = {
        "specversion": "1.0",
        "id": message.identifier,
        "source": "/" + quote(message.place, safe=""),
        "type": given.type or "trellis.message",
        "subject": message.routing_key,
    }
    if not message.routing_key:
        del event["subject"]  # An empty subject is not permitted.
    if given.timestamp is not None:
        event["time"] = _utc(given.timestamp).isoformat().replace("+00:00", "Z")
    if given.content_type:
        event["datacontenttype"] = given.content_type
    return event | _data(given.body, given.content_type or "")


def _data(body: bytes, content_type: str) -> dict[str, Any]:
    try:
        if "json" in content_type.lower():
            return {"data": json.loads(body)}
        if content_type.lower().startswith("text/"):
            return {"data": body.decode()}
    except (ValueError, RecursionError):
        pass  # The content type does not describe the body: it is sent as bytes.
    return {"data_base64": base64.b64encode(body).decode()}


def _header_text(text: str) -> str:
    """Return the printable ASCII characters of the text, at most 1,000."""
    return "".join(char for char in text if " " <= char <= "~")[:1_000]


def _utc(at: datetime) -> datetime:
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)


# -- Kafka


def kafka_headers(message: BrokerMessage) -> list[tuple[str, bytes]]:
    """Return the headers of the record for a message, made from its headers and properties.

    Text becomes UTF-8, bytes are unchanged, and other values, such as numbers or tables, are JSON.
    Two headers have the message's exchange and routing key; headers of the publisher with the names
    of these two are left out, so that the publisher cannot forge them.
    """
    headers = [
        (name, bytes(value) if isinstance(value, bytes | bytearray) else _kafka_text(value))
        for name, value in message.headers.items()
        if name not in (_EXCHANGE, _ROUTING_KEY)
    ]
    for header, name in _PROPERTIES.items():
        value = getattr(message.incoming, name)
        if value:
            headers.append((header, str(value).encode(errors="replace")))
    headers.append((_EXCHANGE, (message.incoming.exchange or "").encode(errors="replace")))
    headers.append((_ROUTING_KEY, message.routing_key.encode(errors="replace")))
    return headers


def _kafka_text(value: Any) -> bytes:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text.encode(errors="replace")


def kafka_timestamp(message: BrokerMessage) -> int:
    """Return the publisher's timestamp in milliseconds since 1970; 0 if there is none."""
    at = message.incoming.timestamp
    return 0 if at is None else max(0, int(_utc(at).timestamp() * 1000))


def message_of_record(
    value: bytes | None,
    headers: KafkaHeaders | None,
    about: Mapping[str, Any],
    timestamp: float,
    identifier: str,
) -> Message:
    """Return the message for a record of Kafka.

    Headers of Kafka that `kafka_headers` makes from properties become properties again. `about` are
    further headers; `timestamp` is in seconds since 1970, 0 if the record has none. `identifier` is
    the message_id for a record without the header `message-id`.

    Headers that instruct the broker are left out:

    - `CC` and `BCC`: they are text in Kafka, so the broker would refuse the message each time;
    - a `reply-to` that asks for a direct reply: the broker would refuse the message, too;
    - producer and sequence number: records may arrive out of order, and the broker would drop a
      message with a lower number than the last one as a duplicate.
    """
    own: dict[str, Any] = {}
    properties: dict[str, str] = {"message_id": identifier}
    for name, raw in headers or ():
        text = _text(raw)
        if text == _DIRECT_REPLY and name == "reply-to":
            continue
        if name in _PROPERTIES and isinstance(text, str) and len(text.encode()) < 256:
            properties[_PROPERTIES[name]] = text
        elif name and len(name.encode()) < 256 and name not in _INSTRUCTIONS:
            own[name] = text
    return Message(
        value or b"",
        headers={**own, **about},
        delivery_mode=DeliveryMode.PERSISTENT,
        timestamp=datetime.fromtimestamp(timestamp, UTC) if timestamp else None,
        **properties,  # type: ignore[arg-type]
    )


def _text(raw: bytes | str | None) -> Any:
    """Return a header's value as text if it is UTF-8, else as bytes for an AMQP table."""
    if raw is None:
        return ""
    if isinstance(raw, str):
        return raw
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return bytearray(raw)
