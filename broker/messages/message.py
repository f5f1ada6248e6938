"""Messages: the body and properties that were published, the address, and the encoding."""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64, mypyc_attr

#: Properties of a message, and of a route, that may require the slow path: bits of
#: `Plan.slow_path_mask`. Bits below 16 equal the property flags of an AMQP content header; bits
#: from 16 on are properties of a route.
USER_ID: Final[i64] = 1 << 4
EXPIRATION: Final[i64] = 1 << 8
REPLY_TO: Final[i64] = 1 << 9
PRIORITY: Final[i64] = 1 << 11
PERSISTENCE: Final[i64] = 1 << 12
HEADERS: Final[i64] = 1 << 13
#: Every message of the route takes the slow path.
ALWAYS: Final[i64] = 1 << 16
#: The route leads to subscribers: a front end that cannot relay the message's bytes to them must
#: take the slow path.
SUBSCRIBERS: Final[i64] = 1 << 17
#: The route has no destination: a publisher that set `mandatory` must get the message back.
NOWHERE: Final[i64] = 1 << 18
#: The route leads to queues, which get messages of any QoS. A front end that can only relay a
#: message must take the slow path.
QUEUES: Final[i64] = 1 << 30
#: Messages with the header `traceparent` take the slow path, because the broker samples messages
#: for distributed tracing. A front end whose fast path takes messages with headers tests this bit.
TRACEPARENT_HEADER: Final[i64] = 1 << 31
#: The bits that a front end tests for each message that it receives as a whole. The bits are
#: properties of the route, not of the message.
ROUTE_BITS: Final[i64] = ALWAYS | SUBSCRIBERS | TRACEPARENT_HEADER
#: Bits 19 to 29 belong to front ends, for `RelayFormat.apart`. FRONT_END is the first of these
#: bits.
FRONT_END: Final[i64] = 1 << 19

#: Name of the header with the trace id, the publisher's span id and the flags (trace_context.py).
TRACEPARENT: Final = "traceparent"

#: Quality of service (QoS) of a message: at most once, at least once, exactly once.
AT_MOST_ONCE: Final[i64] = 0
AT_LEAST_ONCE: Final[i64] = 1
EXACTLY_ONCE: Final[i64] = 2

Properties = dict[str, object]


def headers_of(properties: Properties) -> Properties:
    """Return the headers among the properties of a message; an empty dict if it has none."""
    headers = properties.get("headers")
    return headers if isinstance(headers, dict) else {}


class Encoding:
    """The format in which a message's content (body and properties) is written.

    A content is relayed unchanged only to readers that use the same Encoding *object*. Therefore
    front ends intern their encodings: one object for each format.
    """

    def body(self, content: bytes) -> bytes:
        """Return the body: the application's payload."""
        raise NotImplementedError

    def first_bytes(self, content: bytes, size: i64) -> bytes:
        """Return the first `size` bytes of the body."""
        return self.body(content)[:size]

    def properties(self, content: bytes) -> Properties:
        """Return the properties by AMQP's names: content_type, headers, expiration (ms, as text)...

        All encodings use these names. Never raises: contents are relayed unread, so their bytes may
        be malformed. Properties that cannot be read are left out.
        """
        raise NotImplementedError

    def size(self, content: bytes) -> i64:
        """Return the size of the body in bytes."""
        return len(self.body(content))

    def priority(self, content: bytes) -> i64:
        """Return the priority, 0 to 255; 0 if the publisher set no priority. Never raises."""
        priority = self.properties(content).get("priority")
        return priority if isinstance(priority, int) else 0

    def may_be_traced(self, content: bytes) -> bool:
        """False if the properties have no header `traceparent`; True if they may have one.

        Encodings override this method to search the encoded properties without parsing them.
        """
        return TRACEPARENT in headers_of(self.properties(content))

    def is_dead_letter(self) -> bool:
        """True if the broker has dead-lettered the message and so wrote its header `x-death`.

        A publisher can send the header `x-death` too, with any value.
        """
        return False


class PlainEncoding(Encoding):
    """An encoding whose content is the body itself; the encoding object has the properties."""

    def __init__(self, properties: Properties) -> None:
        self._properties = properties

    def body(self, content: bytes) -> bytes:
        return content

    def properties(self, content: bytes) -> Properties:
        return self._properties


class AmendedEncoding(Encoding):
    """An encoding with changed headers and properties around an unchanged content.

    The broker uses this encoding for a copy of a message without the header `BCC`, and for a dead
    letter until a PropertyCodec encodes its properties. A change to None removes the header or
    property.
    """

    def __init__(self, source: Encoding, headers: Properties, changed: Properties) -> None:
        self.source = source
        self.headers = headers
        self.changed = changed

    def body(self, content: bytes) -> bytes:
        return self.source.body(content)

    def first_bytes(self, content: bytes, size: i64) -> bytes:
        return self.source.first_bytes(content, size)

    def properties(self, content: bytes) -> Properties:
        properties = dict(self.source.properties(content))
        headers = properties.get("headers")
        properties["headers"] = _changed(headers if isinstance(headers, dict) else {}, self.headers)
        return _changed(properties, self.changed)

    def size(self, content: bytes) -> i64:
        return self.source.size(content)

    def priority(self, content: bytes) -> i64:
        return self.source.priority(content)

    def is_dead_letter(self) -> bool:
        return self.source.is_dead_letter()


def amend(encoding: Encoding, headers: Properties, changed: Properties) -> AmendedEncoding:
    """Return an encoding with changed headers and properties.

    `headers` are the changes of headers, `changed` the changes of other properties. A change to
    None removes the header or property. If `encoding` has changes already, the new changes are
    added.
    """
    if isinstance(encoding, AmendedEncoding):
        return AmendedEncoding(
            encoding.source, {**encoding.headers, **headers}, {**encoding.changed, **changed}
        )
    return AmendedEncoding(encoding, headers, changed)


class PropertyCodec:
    """Encoder of the properties of dead letters, set by a front end.

    A queue may hold millions of dead letters; as bytes, their properties take a fifth of the memory
    that dicts take.
    """

    def encoded(self, encoding: AmendedEncoding, content: bytes, qos: i64) -> Encoding:
        """Return an encoding of the same properties and body that keeps the properties as bytes.

        `content` and `qos` are attributes of the message. This default, used until a front end sets
        its own codec, returns `encoding`.
        """
        return encoding


def _changed(properties: Properties, changes: Properties) -> Properties:
    """Return the properties with these changes; a property that becomes None is removed."""
    return {name: value for name, value in {**properties, **changes}.items() if value is not None}


#: The encoding of a body without properties.
PLAIN: Final = PlainEncoding({})


class Origin:
    """The publisher of a message and its protocol, as bytes that streams write into their rows."""

    def __init__(self, publisher: str, protocol: str) -> None:
        self.publisher = publisher.encode("utf-8", "replace")
        self.protocol = protocol.encode()


#: The origin of messages that the broker itself publishes, or restores from the store.
UNKNOWN: Final = Origin("", "")


class Address:
    """The exchange and the routing key of a message, in the forms that consumers need.

    `short_strings` is the exchange name and the routing key as AMQP short strings (one byte of
    length, then the name). A key longer than 255 bytes is cut to 255 bytes, because messages with
    such a key are not routed to queues. `topic` is the MQTT form of the key: its bytes, with `.`
    and `/` swapped (see docs/architecture.md). Bytes of a key that are not UTF-8 are kept as
    surrogates, so that they leave the broker as they came.
    """

    def __init__(self, exchange: str, key: str) -> None:
        self.exchange = exchange
        self.key = key
        name, words = exchange.encode(), key.encode("utf-8", "surrogateescape")
        self.short_strings = bytes([len(name)]) + name + bytes([min(len(words), 255)]) + words[:255]
        self.topic = words.translate(SWAP_SEPARATORS)
        #: `origin` is the publisher. `routed` is the number of queues to which the route leads.
        #: Streams record these two values.
        self.origin = UNKNOWN
        self.routed: i64 = 0
        #: True for a TracedAddress: the steps of the message are reported to its trace
        #: (tracing.py).
        self.traced = False
        #: Virtual host, exchange and routing key with their lengths, as the log writes them; empty
        #: until the first message of this address is stored.
        self.stored_names = b""


def topic_of(key: str) -> bytes:
    """Return the MQTT form of a routing key: its bytes with `.` and `/` swapped (see `Address`)."""
    return key.encode("utf-8", "surrogateescape").translate(SWAP_SEPARATORS)


#: Swaps `/` and `.`. Neither of the two bytes occurs inside a character of several bytes in UTF-8,
#: so a text can be translated byte by byte.
SWAP_SEPARATORS: Final = bytes.maketrans(b"./", b"/.")


@mypyc_attr(acyclic=True)
class Message:
    """One published message.

    All queues that hold the message share this object. So the object does not change once the
    message is in a queue, except for the cache of `cache_recoded`. A queue with a time to live
    holds a copy that expires when the message's or the queue's time to live is over, whichever is
    earlier.

    `expires` is a time of the agenda's clock in ms (0: never). `position` is the message's position
    in the store (0: not stored).
    """

    __slots__ = (
        "address",
        "content",
        "encoding",
        "expires",
        "position",
        "qos",
        "recoded",
        "recoding",
        "retained",
    )

    def __init__(self, address: Address, content: bytes, encoding: Encoding, qos: i64) -> None:
        self.address = address
        self.content = content
        self.encoding = encoding
        self.qos: i64 = qos
        self.expires: i64 = 0
        self.position: i64 = 0
        self.retained = False
        self.recoding: Encoding | None = None
        self.recoded = b""

    @property
    def body(self) -> bytes:
        """The body: the application's payload."""
        return self.encoding.body(self.content)

    @property
    def properties(self) -> Properties:
        """The properties by AMQP's names, for any encoding; never raises."""
        return self.encoding.properties(self.content)

    def cache_recoded(self, encoding: Encoding, content: bytes) -> bytes:
        """Cache `content`, which is the message's content in another `encoding`, and return it.

        So a message with many readers of another protocol is encoded once for all of them.
        """
        self.recoding = encoding
        self.recoded = content
        return content

    def copy(self, qos: i64, retained: bool) -> Message:
        """Return a copy with this QoS, marked as a retained message if `retained` is True.

        A copy marked as retained has position 0, because no queue stores a retained message.
        """
        other = Message(self.address, self.content, self.encoding, qos)
        other.expires = self.expires
        other.position = 0 if retained else self.position
        other.retained = retained
        return other
