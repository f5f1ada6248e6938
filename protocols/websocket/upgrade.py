"""The upgrade from HTTP to WebSocket (RFC 6455, section 4.2): check the request, and answer it.

A browser lets every page open a WebSocket to every host, and sends the Origin of the page. So a
page of another host must be allowed by name (OriginPolicy), and is never treated as local, even if
the browser runs on this machine.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from typing import Final

import h11

from protocols.peer import Peer

#: Size of the largest request, in bytes.
REQUEST_MAX: Final = 16 << 10
#: Names of the MQTT subprotocol that clients offer: the name in the specification, and the name
#: that clients of version 3.1 use.
SUBPROTOCOLS: Final = ("mqtt", "mqttv3.1")

#: Reasons to refuse an upgrade. request: the request is not a valid upgrade; path, origin,
#: subprotocol: the request has a wrong path, Origin or subprotocol; too_large: the request is too
#: large; lost: the client disconnected before its request was complete; timeout: the client took
#: too long.
REASONS: Final = ("request", "path", "origin", "subprotocol", "too_large", "lost", "timeout")

_MAGIC: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
#: Names that always refer to this machine, whatever a name server answers.
_HERE: Final = ("localhost", "127.0.0.1", "[::1]")


#: The default path of the WebSocket, as in RabbitMQ, and a second path, as in other MQTT brokers:
#: clients that were made for these brokers connect without a changed URL.
DEFAULT_PATH: Final = "/ws"
ALSO_SERVED: Final = "/mqtt"


class OriginPolicy:
    """The path of the WebSocket, and the origins of the pages that may open it.

    If `path` is the default path, the WebSocket is served at ALSO_SERVED too. `origins` are the
    origins, in lowercase, of pages of other hosts that may open it; `*` allows all. Pages of the
    broker's own host may always open it.
    """

    def __init__(self, path: str, origins: list[str]) -> None:
        self.path = path
        self.paths = (path, ALSO_SERVED) if path == DEFAULT_PATH else (path,)
        self.origins = origins

    def allows(self, origin: str) -> bool:
        """True if pages of this origin may open the WebSocket."""
        return origin in self.origins or "*" in self.origins


class UpgradeRefused(Exception):
    """Raised if the upgrade from HTTP to WebSocket is refused.

    The response to the client has the HTTP `status` and the error's text. Metrics count the refusal
    under `reason`, which is one of REASONS.
    """

    def __init__(self, reason: str, status: int, text: str) -> None:
        super().__init__(text)
        self.reason = reason
        self.status = status

    def answer(self) -> bytes:
        """Return the HTTP response that tells the client why the upgrade is refused."""
        body = f"{self}\n".encode()
        headers = f"HTTP/1.1 {self.status} {_PHRASES[self.status]}\r\n"
        headers += "Content-Type: text/plain; charset=utf-8\r\n"
        headers += f"Content-Length: {len(body)}\r\nConnection: close\r\n"
        if self.status == 405:
            headers += "Allow: GET\r\n"
        if self.status == 426:
            headers += "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        return headers.encode() + b"\r\n" + body


_PHRASES: Final = {
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    426: "Upgrade Required",
    431: "Request Header Fields Too Large",
}


def upgrade(policy: OriginPolicy, data: bytes, peer: Peer) -> tuple[bytes, bytes] | None:
    """Return the HTTP response and the input that follows the request, or None if the request is
    incomplete.

    Also update `peer`, because a proxy or a page of another site may have sent the request.
    Raises UpgradeRefused.
    """
    http = h11.Connection(h11.SERVER, max_incomplete_event_size=REQUEST_MAX)
    try:
        http.receive_data(data)
        request = http.next_event()
    except h11.RemoteProtocolError as error:
        error.__traceback__ = None  # h11 makes the traceback part of a reference cycle.
        status = 431 if error.error_status_hint == 431 else 400
        raise UpgradeRefused(
            "too_large" if status == 431 else "request",
            status,
            f"the request cannot be read: {error}",
        ) from None
    if not isinstance(request, h11.Request):
        return None
    headers = _fields(request)
    if request.method != b"GET":
        raise UpgradeRefused("request", 405, "the method must be GET, to open a WebSocket")
    if request.target.decode("ascii", "replace").partition("?")[0] not in policy.paths:
        raise UpgradeRefused(
            "path", 404, f"the path is unknown: MQTT over WebSocket is served at {policy.path}"
        )
    key = _key(request, headers)
    _check_origin(policy, headers, peer)
    subprotocol = _subprotocol(headers)
    accept = base64.b64encode(hashlib.sha1(key + _MAGIC, usedforsecurity=False).digest())
    answer = (
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Accept: "
        + accept
        + b"\r\nSec-WebSocket-Protocol: "
        + subprotocol.encode()
        + b"\r\n\r\n"
    )
    return answer, http.trailing_data[0]


def _fields(request: h11.Request) -> dict[bytes, bytes]:
    """Return the header fields by lowercase name; the values of a repeated field are joined."""
    fields: dict[bytes, bytes] = {}
    for name, value in request.headers:
        fields[name] = fields[name] + b"," + value if name in fields else value
    return fields


def _words(fields: dict[bytes, bytes], name: bytes) -> list[str]:
    """Return the words of a header field that is a comma-separated list."""
    return [word.strip() for word in fields.get(name, b"").decode("latin-1").split(",")]


def _key(request: h11.Request, fields: dict[bytes, bytes]) -> bytes:
    """Return the Sec-WebSocket-Key of a request for a WebSocket of version 13.

    Raises UpgradeRefused for any other request.
    """
    if "websocket" not in [
        word.lower() for word in _words(fields, b"upgrade")
    ] or "upgrade" not in [word.lower() for word in _words(fields, b"connection")]:
        raise UpgradeRefused(
            "request", 426, "only WebSocket is served here: send Upgrade and Connection headers"
        )
    if request.http_version < b"1.1":
        raise UpgradeRefused(
            "request", 400, "WebSocket needs HTTP/1.1; the request has an older version"
        )
    if fields.get(b"sec-websocket-version", b"") != b"13":
        raise UpgradeRefused(
            "request", 426, "only WebSocket version 13 is supported: send Sec-WebSocket-Version: 13"
        )
    key = fields.get(b"sec-websocket-key", b"")
    try:
        if len(base64.b64decode(key, validate=True)) != 16:
            raise ValueError
    except (binascii.Error, ValueError):
        raise UpgradeRefused(
            "request", 400, "Sec-WebSocket-Key must be 16 bytes in base64"
        ) from None
    return key


def _check_origin(policy: OriginPolicy, fields: dict[bytes, bytes], peer: Peer) -> None:
    """Check that the page that sent the request may connect; update `peer.local` and
    `peer.cross_site`.

    Raises UpgradeRefused if the page may not connect.
    """
    host = _host(fields.get(b"host", b"").decode("latin-1").lower())
    if host not in _HERE or b"forwarded" in fields or b"x-forwarded-for" in fields:
        # The client used another name of this machine: it may be behind a proxy, or a name server
        # may have been made to point to this machine.
        peer.local = False
    if b"origin" not in fields:
        return  # Without an Origin, the client is not a browser.
    origin = fields[b"origin"].decode("latin-1").lower()
    page = _host(origin.partition("://")[2])
    if page and page == host or page in _HERE and host in _HERE:
        return
    if not policy.allows(origin):
        raise UpgradeRefused(
            "origin",
            403,
            f"pages of {origin} may not connect: to allow them, add this origin to the setting "
            "ws.origins or wss.origins",
        )
    peer.cross_site = True
    peer.local = False


def _host(authority: str) -> str:
    """Return the host of an authority, without the port."""
    if authority.startswith("["):
        return authority.partition("]")[0] + "]"
    return authority.partition(":")[0]


def _subprotocol(fields: dict[bytes, bytes]) -> str:
    """Return the first of SUBPROTOCOLS that the client offers [MQTT-6.0.0-3], [MQTT-6.0.0-4].

    Raises UpgradeRefused if the client offers none of SUBPROTOCOLS.
    """
    offered = list(_words(fields, b"sec-websocket-protocol"))
    for word in SUBPROTOCOLS:
        if word in offered:
            return word
    raise UpgradeRefused(
        "subprotocol",
        400,
        "the request offers no subprotocol of MQTT: send Sec-WebSocket-Protocol: mqtt",
    )
