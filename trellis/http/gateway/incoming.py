"""One request to the gateway: its head, its body, and the rules that hold for every request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qsl

from trellis.http import contract
from trellis.http.gateway.bodies import BodyReader
from trellis.http.gateway.connections import HEAD_MAX, Slot
from trellis.http.gateway.link import HttpRefusal, OpenFile, bad_request
from trellis.http.origins import is_cross_origin
from trellis.http.request_head import AmbiguousHead, header_table, origin_form

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class Incoming:
    """One HTTP request to the gateway: its headers, its body, and its connection."""

    def __init__(self, scope: Scope, receive: Receive, slot: Slot | None) -> None:
        self.method: str = scope["method"]
        self._fields: list[tuple[bytes, bytes]] = scope["headers"]
        self._target: bytes = scope["raw_path"]
        self.path = self._target.decode("ascii", "replace")
        self.headers: dict[bytes, bytes] = dict(self._fields)
        #: Size of the path, the query and the headers in bytes.
        self.head_size = len(scope["raw_path"]) + len(scope["query_string"])
        self.head_size += sum(len(name) + len(text) for name, text in scope["headers"])
        self.query = _query(scope["query_string"])
        self.client: tuple[str, int] = scope["client"] or ("", 0)
        self.body = BodyReader(receive, self.headers)
        self.slot = slot
        #: True if the client uses TLS.
        self.secure: bool = scope.get("scheme") == "https"
        #: The file whose range is the response; None for other responses.
        self.file: OpenFile | None = None

    def check_head(self) -> None:
        """Raise HttpRefusal if the request line and the headers are too long or ambiguous.

        If the client sent an absolute URL, also set `path` to the path of this URL.
        """
        # h11 limits only a head that arrives in pieces.
        if self.head_size > HEAD_MAX:
            raise HttpRefusal(
                431,
                "head_too_large",
                f"the request line and the headers together exceed the limit of {HEAD_MAX} bytes",
            )
        try:
            header_table(self._fields)
            self.path = origin_form(self._target, self.headers).decode("ascii", "replace")
        except AmbiguousHead as error:
            raise bad_request(str(error)) from None
        if b"content-length" in self.headers and b"transfer-encoding" in self.headers:
            raise bad_request(
                "the request has both headers Content-Length and Transfer-Encoding; send only one"
            )

    @property
    def reads(self) -> bool:
        """True if the method of the request changes nothing (GET, HEAD)."""
        return self.method in ("GET", "HEAD")

    @property
    def is_of_page(self) -> bool:
        """True if a script of the web page sent the request."""
        return b"x-trellis-page" in self.headers

    @property
    def takes_gzip(self) -> bool:
        """True if the client accepts a compressed response."""
        return _takes_gzip(self.headers.get(b"accept-encoding", b"").lower())

    def check_origin(self) -> None:
        """Raise HttpRefusal if a web page of another site sent a request that may change something.

        Requests with the method GET or HEAD change nothing.
        """
        if not self.reads and is_cross_origin(self.headers):
            raise HttpRefusal(
                403,
                "not_authorised",
                "a web page of another site may not change anything over the HTTP API (the header "
                "Origin or Sec-Fetch-Site shows that such a page sent this request)",
            )


def _takes_gzip(accepted: bytes) -> bool:
    """True if an Accept-Encoding header allows gzip."""
    for entry in accepted.split(b","):
        name, _, quality = entry.replace(b" ", b"").partition(b";q=")
        if name in (b"gzip", b"*"):
            return quality.strip(b"0.") != b"" or quality == b""
    return False


def _query(text: bytes) -> dict[str, str]:
    """Return the parameters of a query string.

    If a parameter is given several times, its last value is used. For a parameter in REPEATED, all
    values are used, joined with line feeds.
    """
    query: dict[str, str] = {}
    for name, value in parse_qsl(text.decode("ascii", "replace"), keep_blank_values=True):
        joined = name in contract.REPEATED and name in query
        query[name] = f"{query[name]}\n{value}" if joined else value
    return query
