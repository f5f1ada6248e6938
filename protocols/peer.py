"""The client of a connection: its address, listener and certificate."""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from typing import Final

from mypy_extensions import mypyc_attr

#: Size in bytes of the network part of an IPv6 address (RFC 4291 section 2.5.4).
_NETWORK_BYTES: Final = 8


@mypyc_attr(acyclic=True)
class Peer:
    """The client at the other end of a connection.

    `local` is True if the client runs on this machine and is not a proxy for clients on other
    machines. Some users may log in only from this machine.
    """

    def __init__(self, address: str = "127.0.0.1", port: int = 0, local: bool = True) -> None:
        self.address = address
        self.port = port
        self.local = local
        #: True while the limits on connections from one address count the client's connection.
        self.counted = False
        #: True for a browser that shows a page of another site. Its user may not know that the page
        #: connects to this broker.
        self.cross_site = False
        #: Name of the listener to which the client has connected.
        self.listener = ""
        #: Name in the client's certificate; "" if the client has no trusted certificate.
        self.certificate = ""
        #: Address of the client of the HTTP API whose request the connection serves; "" for the
        #: connection of a client of AMQP or MQTT.
        self.http_client = ""

    def __str__(self) -> str:
        if self.http_client:
            return self.http_client
        if self.port == 0 and self.address == "unix":
            return self.address
        return (
            f"[{self.address}]:{self.port}"
            if ":" in self.address
            else f"{self.address}:{self.port}"
        )


@lru_cache(maxsize=1_024)
def network_of(address: str) -> str:
    """Return the key under which limits per address count a client with this address.

    The key of an IPv6 address is its network `.../64`, because one machine can usually take each
    address of such a network. The key of an IPv4 address, also in IPv6 form, is the IPv4 address.
    """
    if ":" not in address:
        return address
    try:
        known = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    if known.ipv4_mapped is not None:
        return str(known.ipv4_mapped)
    start = known.packed[:_NETWORK_BYTES] + bytes(16 - _NETWORK_BYTES)
    return f"{ipaddress.IPv6Address(start)}/{8 * _NETWORK_BYTES}"
