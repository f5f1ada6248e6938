"""The messages between the broker and the gateway, the child process that serves the HTTP API.

    gateway -> broker                     broker -> gateway
    ApiCall   a request without its body  Greeting  settings and routes, once
    Body      a body of up to 64 KiB      Accepted  the user may make the call: send the body
    Part      some rows of a document     Taken     the rows were handled: send the next Part
    Finish    the document is complete    Rows      some rows of a listing
    Cancel    the client disconnected     Answer    the last message of a successful call
    Tally     counts for the metrics      FileRange a range of a file, whose descriptor was passed
    Ping      does the broker run?        PayloadPart  a part of a large payload of the next row
    Denied    a refusal of the gateway    Refused   the last message of a refused call
    Bye       the gateway ends            Pong      the broker runs: the answer to a Ping
                                          Drain     end after the present requests

A message is a frame: its length in 4 bytes, then the message as MessagePack. The broker
authenticates the user of each call and checks the user's permissions. The gateway never sends a
frame larger than FRAME_MAX, which bounds the work that a frame causes in one turn of the broker's
event loop.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec
from msgspec import Raw, Struct

from trellis.settings import Http, Tls

#: Largest frame that the broker accepts, in bytes.
FRAME_MAX: Final = 1 << 18
#: Largest body of a request, in bytes, unless its route permits more.
BODY_MAX: Final = 64 << 10
#: Largest definitions document, in bytes.
DOCUMENT_MAX: Final = 64 << 20
#: Largest row of a definitions document, in bytes of JSON.
ROW_MAX: Final = 64 << 10
#: Largest number of open calls of the gateway: more than the number of connections, because a
#: call ends later than its connection.
CALLS_MAX: Final = 512

#: Number of rows in a page of a list, if the query has no `page_size`.
PAGE_SIZE: Final = 100
#: Query parameters that a request may give several times.
REPEATED: Final = frozenset({"header"})

#: Kinds of a request body. SMALL_BODY: one JSON value of at most BODY_MAX bytes. DOCUMENT: a
#: definitions document.
SMALL_BODY, DOCUMENT = 1, 2

#: Shapes of an answer. EMPTY: no body. VALUE: a JSON value. PAGED: a list that the gateway filters,
#: sorts and pages by the query. PLAIN: a list that the gateway sends unchanged. SECTIONS: a
#: definitions document, whose rows stand in sections. MESSAGES: a list of messages, whose payloads
#: the gateway encodes.
EMPTY, VALUE, PAGED, PLAIN, SECTIONS, MESSAGES = range(6)


class RouteInfo(Struct, array_like=True):
    """A route of the API. The number of a route is its index in `Greeting.routes`."""

    method: str
    path: str
    summary: str
    #: User tags that permit the call: the user needs one of them. Empty if every user may make the
    #: call.
    tags: list[str]
    #: Kind of the body, SMALL_BODY or DOCUMENT.
    body: int


class ApiCall(Struct, array_like=True, tag=1):
    """The request of an HTTP client, without its body.

    `direct` is False if the headers of the request show that a proxy or a web page of another site
    sent the request.
    """

    number: int
    route: int
    path: str
    parts: list[str]
    query: dict[str, str]
    user: str | None
    password: bytes
    token: bytes
    address: str
    port: int
    direct: bool
    has_body: bool
    #: The token of the web page's session that made the request; "" for other requests.
    session: str = ""


class Body(Struct, array_like=True, tag=2):
    """The complete body of a call: one JSON value of at most BODY_MAX bytes.

    `number` is the number of the call, as in the other messages.
    """

    number: int
    data: bytes


class Part(Struct, array_like=True, tag=3):
    """A batch of rows of one section of a definitions document, each row as JSON.

    If the section is invalid, `fault` says why, such as "not a list", and `rows` is empty. For a
    valid section, `fault` is "".
    """

    number: int
    section: str
    fault: str
    rows: list[bytes]


class Finish(Struct, array_like=True, tag=4):
    """The end of a definitions document: all its rows were sent."""

    number: int


class Cancel(Struct, array_like=True, tag=5):
    """A request to stop a call, because the client that waited for the answer disconnected."""

    number: int


class Tally(Struct, array_like=True, tag=6):
    """HTTP responses by status and closed connections by reason, counted since the last Tally.

    `segment_bytes` is the number of bytes of stream segments sent since the last Tally.
    """

    responses: dict[int, int]
    closed: dict[str, int]
    segment_bytes: int


class Bye(Struct, array_like=True, tag=7):
    """The gateway's notice that it accepts no more connections and ends.

    The gateway ends when it is idle, or when the broker has sent a Drain.
    """


class Ping(Struct, array_like=True, tag=8):
    """A request for a Pong, by which the gateway tests whether the broker still runs.

    The gateway sends a Ping while it waits for the answer to a change.
    """


class Denied(Struct, array_like=True, tag=9):
    """The gateway's notice that it has refused a client itself, for the log of refusals.

    `request` has the method and the path; "" if the input was no request. `status` is the HTTP
    status of the response; 0 if the gateway has refused the connection.
    """

    address: str
    request: str
    status: int
    note: str


class Greeting(Struct, array_like=True, tag=20):
    """The first message to a new gateway: the gateway's settings, and the routes of the API."""

    log_level: str
    #: Time limit in seconds for each of four steps of a request: receiving its head, receiving its
    #: body, waiting for the broker, sending the response.
    seconds: float
    version: str
    http: Http
    tls: Tls
    routes: list[RouteInfo]
    #: Sections of a definitions document, in the order in which they must come.
    sections: list[str]
    #: Contents of the files that `tls` names, by file name; empty without TLS.
    files: dict[str, bytes]


class Accepted(Struct, array_like=True, tag=21):
    """The broker's notice that the user may make the call: the gateway may read the body."""

    number: int
    administrator: bool


class Taken(Struct, array_like=True, tag=22):
    """The broker's notice that the last Part was handled: the gateway may send the next Part."""

    number: int


class Rows(Struct, array_like=True, tag=23):
    """A batch of rows of an answer, each as MessagePack.

    `section` is the section of the rows if the answer is a definitions document; otherwise "".
    """

    number: int
    section: str
    rows: list[Raw]


class PayloadPart(Struct, array_like=True, tag=29):
    """A piece of a message's payload that is too large for one frame.

    The pieces together are the field `payload` of the first row in the next Rows.
    """

    number: int
    data: bytes


class Answer(Struct, array_like=True, tag=24):
    """The last message of a successful call: the status, shape and value of the answer.

    `shape` is EMPTY, VALUE, PAGED, PLAIN, SECTIONS or MESSAGES, and says how the gateway makes the
    body of the response. Only VALUE and SECTIONS use `value`. `location` is the header Location of
    the response; "" for none.
    """

    number: int
    status: int
    shape: int
    value: Raw = Raw(b"\xc0")
    location: str = ""


class Refused(Struct, array_like=True, tag=25):
    """The last message of a refused call: status, RabbitMQ's name of the error, and the reason."""

    number: int
    status: int
    error: str
    reason: str
    challenge: bool = False


class FileRange(Struct, array_like=True, tag=26):
    """The last message of a call that reads a stream segment: the range of the file to send.

    Before this message, the broker passes the file's descriptor through another socket. `start` and
    `end` are offsets in the file, in bytes. `durable` is in rows: the stream offset after the last
    durable row.
    """

    number: int
    start: int
    end: int
    durable: int


class Drain(Struct, array_like=True, tag=27):
    """A request to the gateway to end after the present HTTP requests.

    The broker sends a Drain after a reload: the next gateway has the new settings.
    """


class Pong(Struct, array_like=True, tag=28):
    """The broker's answer to a Ping."""


FromGateway = ApiCall | Body | Part | Finish | Cancel | Tally | Bye | Ping | Denied
FromBroker = (
    Greeting | Accepted | Taken | Rows | PayloadPart | Answer | Refused | FileRange | Drain | Pong
)

Message = TypeVar("Message")

_HEAD: Final = 4


class ContractError(Exception):
    """Raised if a frame between broker and gateway is too large, or is not a valid message."""


def encode_other(value: object) -> object:
    """Return the text of a value whose type MessagePack cannot encode.

    Such values occur in arguments, into which clients may put any AMQP type.
    """
    return str(value)


_encoder: Final = msgspec.msgpack.Encoder(enc_hook=encode_other)


def pack(value: object) -> Raw:
    """Encode a row or another value as MessagePack.

    Text that is not UTF-8, and numbers that MessagePack cannot represent, are encoded as printable
    text.
    """
    try:
        return Raw(_encoder.encode(value))
    except (UnicodeEncodeError, OverflowError):
        return Raw(_encoder.encode(_representable(value)))


def _representable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    if isinstance(value, dict):
        return {_representable(key): _representable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_representable(item) for item in value]
    return str(value) if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64 else value


def frame(message: object) -> bytes:
    """Return the frame of a message: its length in 4 bytes, and the message as MessagePack."""
    data = _encoder.encode(message)
    return len(data).to_bytes(_HEAD, "big") + data


class FrameReader:
    """Divides received bytes into frames, and decodes each frame as one of the given types."""

    def __init__(self, types: Any, frame_max: int) -> None:
        self._decoder = msgspec.msgpack.Decoder(types)
        self._frame_max = frame_max
        self._data = bytearray()

    def feed(self, data: bytes) -> list[Any]:
        """Return the messages that the data completes. Raises ContractError."""
        self._data += data
        at, messages = 0, []
        with memoryview(self._data) as view:
            while len(view) - at >= _HEAD:
                size = int.from_bytes(view[at : at + _HEAD], "big")
                if size > self._frame_max:
                    raise ContractError(
                        f"a frame between the broker and the HTTP gateway has {size} bytes; the "
                        f"limit is {self._frame_max} bytes"
                    )
                if len(view) - at - _HEAD < size:
                    break
                try:
                    messages.append(
                        self._decoder.decode(bytes(view[at + _HEAD : at + _HEAD + size]))
                    )
                except msgspec.MsgspecError as error:
                    raise ContractError(
                        "a frame between the broker and the HTTP gateway holds no valid message: "
                        f"{error}"
                    ) from None
                at += _HEAD + size
        del self._data[:at]
        return messages
