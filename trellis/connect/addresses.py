"""The addresses to which a request may go: only public ones, unless a link allows private ones.

A name is resolved for each connection, and the connection goes to the address that was checked. So
a name that later resolves to a private address (DNS rebinding) does not lead there.
"""

from __future__ import annotations

import ipaddress
import socket
from typing import Final

from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

#: Networks of IPv6 whose addresses contain an address of IPv4, in the last 32 bits.
_TRANSLATED: Final = (
    ipaddress.IPv6Network("64:ff9b::/96"),
    ipaddress.IPv6Network("64:ff9b:1::/48"),
    ipaddress.IPv6Network("::/96"),
)


class PrivateAddress(OSError):
    """The name of a service resolves to addresses that are not public."""


def is_public(address: Address) -> bool:
    """True if the address belongs to the public internet.

    Private, loopback, link-local, multicast and reserved addresses are not public. Neither are
    Teredo addresses, and addresses of IPv6 that contain an address of IPv4 that is not public.
    """
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if inner is None and any(address in network for network in _TRANSLATED):
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(inner)
        if address.teredo is not None:
            return False
    return address.is_global and not address.is_multicast


class PublicResolver(AbstractResolver):
    """A resolver of names that returns public addresses only."""

    def __init__(self) -> None:
        self._resolver: Final = ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return the public addresses of a name. Raises PrivateAddress if it has none."""
        found = await self._resolver.resolve(host, port, family)
        public = [each for each in found if is_public(_address(each["host"]))]
        if not public:
            raise PrivateAddress(
                f"{host} has no public address; set allow_private = true if the service may be in "
                "a private network"
            )
        return public

    async def close(self) -> None:
        """Release the resolver."""
        await self._resolver.close()


def _address(text: str) -> Address:
    return ipaddress.ip_address(text.partition("%")[0])
