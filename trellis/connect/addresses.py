"""The addresses to which a request may go: only public ones, unless a link allows private ones.

The address of each connection is checked when its socket is made, however the URL names the host.
So the check covers a name that later resolves to a private address (DNS rebinding), and each
notation of a private address.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
from typing import Any, Final

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

#: Networks of IPv6 whose addresses contain an address of IPv4, in the last 32 bits.
_TRANSLATED: Final = (ipaddress.IPv6Network("64:ff9b::/96"), ipaddress.IPv6Network("::/96"))
#: The network for translation to IPv4 within a private network (RFC 8215).
_LOCAL_TRANSLATED: Final = ipaddress.IPv6Network("64:ff9b:1::/48")


class PrivateAddress(OSError):
    """Raised if the address of a service is not public."""


def is_public(address: Address) -> bool:
    """True if the address belongs to the public internet.

    Private, loopback, link-local, multicast, reserved and Teredo addresses are not public. An
    IPv6 address that contains an IPv4 address is public only if the IPv4 address is public.
    """
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if inner is None and any(address in network for network in _TRANSLATED):
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(inner)
        if address.teredo is not None or address in _LOCAL_TRANSLATED:
            return False
    return address.is_global and not address.is_multicast


def public_socket(place: tuple[int, int, int, str, tuple[Any, ...]]) -> socket.socket:
    """Return a socket for a connection to a public address. Raises PrivateAddress.

    `place` is a result of `socket.getaddrinfo`.
    """
    family, kind, protocol, _, (host, *_) = place
    try:
        public = is_public(ipaddress.ip_address(str(host).partition("%")[0]))
    except ValueError:
        public = False
    if not public:
        raise PrivateAddress(
            errno.EACCES,
            f"{host} is not a public address: set allow_private = true if the service may be in a "
            "private network",
        )
    return socket.socket(family, kind, protocol)
