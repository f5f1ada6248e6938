"""Messages: what was published, under which names, and in whose encoding."""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64, mypyc_attr

#: Aspects of a message which a route may have to look at: see `Plan.attention`. Those below bit 16
#: stand where a front end's own word of property flags has them; those above are properties of a
#: route.
USER_ID: Final[i64] = 1 << 4
EXPIRATION: Final[i64] = 1 << 8
REPLY_TO: Final[i64] = 1 << 9
PRIORITY: Final[i64] = 1 << 11
PERSISTENCE: Final[i64] = 1 << 12
HEADERS: Final[i64] = 1 << 13
ALWAYS: Final[i64] = 1 << 16
#: There are listeners: a front end that cannot relay its octets to them must take care.
SUBSCRIBERS: Final[i64] = 1 << 17
#: Nobody wants it: a publisher who insists must be told.
NOWHERE: Final[i64] = 1 << 18
#: Queues get it whatever its assurance is: a front end that only relays must take care.
QUEUES: Final[i64] = 1 << 30
#: From here on the bits belong to front ends: see `Dialect.apart`.
FRONT_END: Final[i64] = 1 << 19

#: Assurance with which a message travels: at most once, at least once, exactly once.
AT_MOST_ONCE: Final[i64] = 0
AT_LEAST_ONCE: Final[i64] = 1
EXACTLY_ONCE: Final[i64] = 2

Properties = dict[str, object]


class Encoding:
    """How the content of a message is written. Two contents with the same Encoding *object* may be
    relayed to each other's readers without being touched, so front ends intern their encodings."""

    def body(self, content: bytes) -> bytes:
        """The application's payload."""
        raise NotImplementedError

    def properties(self, content: bytes) -> Properties:
        """Neutral properties: content_type, headers, expiration (ms, as text), delivery_mode, ...

        Contents are relayed unread, so garbage may stand there; it has no properties. Never raises.
        """
        raise NotImplementedError

    def size(self, content: bytes) -> i64:
        """Octets of the payload."""
        return len(self.body(content))

    def priority(self, content: bytes) -> i64:
        """The priority that the publisher gave it, 0 to 255. Never raises."""
        priority = self.properties(content).get("priority")
        return priority if isinstance(priority, int) else 0


class PlainEncoding(Encoding):
    """The content is the body itself; properties, where there are any, stand beside it."""

    def __init__(self, properties: Properties) -> None:
        self._properties = properties

    def body(self, content: bytes) -> bytes:
        return content

    def properties(self, content: bytes) -> Properties:
        return self._properties


class AmendedEncoding(Encoding):
    """A content as it came, in its own encoding, but with these headers and these properties: a
    dead letter, a copy that names no blind recipients. What is None is not there any more."""

    def __init__(self, source: Encoding, headers: Properties, changed: Properties) -> None:
        self.source = source
        self.headers = headers
        self.changed = changed

    def body(self, content: bytes) -> bytes:
        return self.source.body(content)

    def properties(self, content: bytes) -> Properties:
        properties = dict(self.source.properties(content))
        headers = properties.get("headers")
        properties["headers"] = _changed(headers if isinstance(headers, dict) else {}, self.headers)
        return _changed(properties, self.changed)

    def size(self, content: bytes) -> i64:
        return self.source.size(content)

    def priority(self, content: bytes) -> i64:
        return self.source.priority(content)


def amend(encoding: Encoding, headers: Properties, changed: Properties) -> AmendedEncoding:
    """The encoding with these changes, on top of those it has."""
    if isinstance(encoding, AmendedEncoding):
        return AmendedEncoding(
            encoding.source, {**encoding.headers, **headers}, {**encoding.changed, **changed}
        )
    return AmendedEncoding(encoding, headers, changed)


def _changed(properties: Properties, changes: Properties) -> Properties:
    return {name: value for name, value in {**properties, **changes}.items() if value is not None}


#: A body without properties.
PLAIN: Final = PlainEncoding({})


class Origin:
    """Where publications come in: who publishes, and in which protocol.

    Octets, as streams write them.
    """

    def __init__(self, publisher: str, protocol: str) -> None:
        self.publisher = publisher.encode("utf-8", "replace")
        self.protocol = protocol.encode()


#: Of what the core itself publishes, or of what was found in the store.
UNKNOWN: Final = Origin("", "")


class Address:
    """What a message was published to, in the spellings that deliveries need.

    `octets` is the exchange name and the routing key as short strings (one octet of length, then
    the name); a key too long for that is cut, and such a route has no destination that would read
    it. `topic` is the key as octets with `/` and `.` exchanged (architecture: one truth about
    topics). Octets of a key that are no UTF-8 are carried as surrogates, so that they come out as
    they went in.
    """

    def __init__(self, exchange: str, key: str) -> None:
        self.exchange = exchange
        self.key = key
        name, words = exchange.encode(), key.encode("utf-8", "surrogateescape")
        self.short_strings = bytes([len(name)]) + name + bytes([min(len(words), 255)]) + words[:255]
        self.topic = words.translate(SWAP_SEPARATORS)
        #: Who publishes there, and how many queues that leads to now: streams write that down.
        self.origin = UNKNOWN
        self.routed: i64 = 0


#: Octets `/` and `.` never occur inside a longer UTF-8 sequence, so octets may be exchanged one by
#: one.
SWAP_SEPARATORS: Final = bytes.maketrans(b"./", b"/.")


@mypyc_attr(acyclic=True)
class Message:
    """One publication. Never changed after publishing, therefore shared by every queue it waits in.

    `expires` is a time in ms (0: never), `position` where the store keeps it (0: nowhere).
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
        """The application's payload."""
        return self.encoding.body(self.content)

    @property
    def properties(self) -> Properties:
        """Neutral properties; never raises."""
        return self.encoding.properties(self.content)

    def cache_recoded(self, encoding: Encoding, content: bytes) -> bytes:
        """Keep the content as written for another kind of reader: encode once, fan out many."""
        self.recoding = encoding
        self.recoded = content
        return content

    def copy(self, qos: i64, retained: bool) -> Message:
        """The same publication, delivered with another assurance, or as a retained one (which no
        queue keeps in the store).
        """
        other = Message(self.address, self.content, self.encoding, qos)
        other.expires = self.expires
        other.position = 0 if retained else self.position
        other.retained = retained
        return other
