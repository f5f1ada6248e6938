"""Parsing of the request line and headers, which refuses ambiguous requests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

#: Headers that decide about rights. If one of them is repeated, two programs on the request's way
#: could use different values.
SINGLE_HEADERS: Final = frozenset((b"authorization", b"host", b"origin", b"sec-fetch-site"))


class AmbiguousHead(ValueError):
    """Raised if two programs could read a request differently: the request is refused.

    The text names the ambiguous header.
    """


def header_table(fields: Iterable[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Return headers by their lowercase names. The last value of a repeated header is returned.

    Raises AmbiguousHead if one of SINGLE_HEADERS is repeated.
    """
    table: dict[bytes, bytes] = {}
    for name, value in fields:
        if name in SINGLE_HEADERS and name in table:
            raise AmbiguousHead(f"the request has two headers '{name.decode()}'; send one")
        table[name] = value
    return table


def origin_form(target: bytes, headers: dict[bytes, bytes]) -> bytes:
    """Return the path of a request target, also if the target is an absolute URL.

    Proxies send absolute URLs, and servers must accept them (RFC 9112 section 3.2.2). Raises
    AmbiguousHead if the URL and the Host header name different hosts.
    """
    scheme, separator, rest = target.partition(b"://")
    if not separator or scheme.lower() not in (b"http", b"https"):
        return target
    host, slash, path = rest.partition(b"/")
    if host.lower() != headers.get(b"host", b"").lower():
        raise AmbiguousHead(
            f"the URL of the request names the host '{host.decode('ascii', 'replace')}', and the "
            "header 'Host' names another host; both must be equal"
        )
    return slash + path or b"/"
