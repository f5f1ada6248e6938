"""Rules for requests that a browser may have been tricked into, or that came through a proxy.

A page of another site can reach this machine with the browser of its user, and it can make its own
host name mean 127.0.0.1 (DNS rebinding). The browser then sends that name as `Host`. A proxy on
this machine passes requests of other machines on. Neither has the privileges of this machine.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Mapping


def is_direct(headers: Mapping[bytes, bytes], hosts: Collection[str]) -> bool:
    """True if a request over loopback may have the privileges of this machine.

    Its `Host` is localhost, a loopback address or one of `hosts`, its `Origin`, if any, is the
    same, and no proxy has added a header.
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
    """Return the name or address in a Host header, in lowercase and without the port."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].removesuffix(".")
