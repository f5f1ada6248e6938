"""Checks for cross-site and proxied HTTP requests, which never count as local requests.

A local request comes from a client on this machine, and may do more than other requests.

A web page of another site can send requests to the broker through the browser of a user on this
machine. With DNS rebinding, the host name of the page resolves to 127.0.0.1, and the browser sends
this name as `Host`. A proxy on this machine forwards requests from other machines. Both kinds of
requests arrive over loopback, so the address alone is no proof that a request is local.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Mapping
from typing import Final

#: A Host header: an IPv6 address in brackets or another name, and perhaps a port.
_HOST: Final = re.compile(r"(?:\[([^\[\]]+)\]|([^:\[\]@/]+))(?::\d{1,5})?")


def is_direct(headers: Mapping[bytes, bytes], hosts: Collection[str]) -> bool:
    """True if a request over loopback may count as a request of a client on this machine.

    Three conditions must hold. The header `Host` names localhost, a loopback address or one of
    `hosts`. No web page of another site sent the request (`is_cross_origin`). No proxy has added
    `Forwarded` or `X-Forwarded-For`.
    """
    if b"forwarded" in headers or b"x-forwarded-for" in headers:
        return False
    if is_cross_origin(headers):
        return False
    name = _name_of(headers.get(b"host", b"").decode("latin-1"))
    if name == "localhost" or name in hosts:
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def is_cross_origin(headers: Mapping[bytes, bytes]) -> bool:
    """True if a web page of another site sent the request."""
    origin = headers.get(b"origin", b"").lower()
    if origin:
        return origin.rpartition(b"//")[2] != headers.get(b"host", b"").lower()
    return headers.get(b"sec-fetch-site", b"") in (b"cross-site", b"same-site")


def _name_of(host: str) -> str:
    """Return the name or address in a Host header, in lowercase and without the port.

    Return "" if the header is malformed.
    """
    match = _HOST.fullmatch(host.strip().lower())
    return "" if match is None else (match[1] or match[2]).removesuffix(".")
