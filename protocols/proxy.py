"""The PROXY protocol, versions 1 and 2: a proxy first sends the address of its client.

Source: https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt, sections 2.1 and 2.2.

    1   "PROXY " TCP4|TCP6|UNKNOWN " " source " " destination " " port " " port CR LF, at most 107
        bytes
    2   signature(12)  version and command(1)  family(1)  length(2)  addresses and more(length)
"""

from __future__ import annotations

import ipaddress
from typing import Final

#: Size of the longest header that is accepted, in bytes. A header of version 2 may contain long
#: fields about the client's certificate.
HEADER_MAX: Final = 4_096

_LINE_MAX: Final = 107
_SIGNATURE: Final = b"\r\n\r\n\0\r\nQUIT\n"
_WORD: Final = b"PROXY "
_LOCAL, _PROXY = 0x20, 0x21
#: Size in bytes of an IP address in version 2, by address family. Other families have no IP
#: address.
_LENGTHS: Final = {0x11: 4, 0x21: 16}

Address = tuple[str, int]

#: The address of a client whose proxy does not know the address, or does not pass it on.
UNKNOWN: Final[Address] = ("", 0)


class BadHeader(Exception):
    """Raised if a connection does not begin with a valid PROXY header."""


def read_header(data: bytes) -> tuple[int, Address | None]:
    """Return the size of the header in bytes, and the address and port of the proxy's client.

    The size is 0 if the header is incomplete. The address is None for a connection of the proxy
    itself, such as a health check (the command LOCAL of version 2). The address is UNKNOWN for a
    client without an IP address. Raises BadHeader if the header is invalid.
    """
    if data[: len(_SIGNATURE)] == _SIGNATURE[: len(data)]:
        return _read_binary(data)
    if data[: len(_WORD)] == _WORD[: len(data)]:
        return _read_line(data)
    raise BadHeader


def _read_line(data: bytes) -> tuple[int, Address | None]:
    end = data[:_LINE_MAX].find(b"\r\n")
    if end < 0:
        if len(data) >= _LINE_MAX:
            raise BadHeader
        return 0, None
    words = data[:end].split(b" ")
    if words[1] == b"UNKNOWN":
        return end + 2, UNKNOWN
    if len(words) != 6 or words[1] not in (b"TCP4", b"TCP6"):
        raise BadHeader
    try:
        source, destination = (ipaddress.ip_address(word.decode("ascii")) for word in words[2:4])
    except ValueError as error:
        raise BadHeader from error
    version = 4 if words[1] == b"TCP4" else 6
    port = _port(words[4])
    _port(words[5])
    if source.version != version or destination.version != version:
        raise BadHeader
    return end + 2, (str(source), port)


def _port(word: bytes) -> int:
    if (
        not word.isdigit()
        or len(word) > 5
        or int(word) > 65_535
        or word[:1] == b"0"
        and len(word) > 1
    ):
        raise BadHeader
    return int(word)


def _read_binary(data: bytes) -> tuple[int, Address | None]:
    if len(data) >= 13 and data[12] not in (_LOCAL, _PROXY):
        raise BadHeader
    if len(data) < 16:
        return 0, None
    size = 16 + int.from_bytes(data[14:16], "big")
    if size > HEADER_MAX:
        raise BadHeader
    length = _LENGTHS.get(data[13], 0) if data[12] == _PROXY else 0
    if size < 16 + 2 * length + 4 * bool(length):
        raise BadHeader
    if len(data) < size:
        return 0, None
    if length == 0:
        return size, UNKNOWN if data[12] == _PROXY else None
    source = str(ipaddress.ip_address(data[16 : 16 + length]))
    return size, (source, int.from_bytes(data[16 + 2 * length : 18 + 2 * length], "big"))
