"""Further routing keys that a publisher names in the headers `CC` and `BCC` (an extension of
RabbitMQ's).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from broker.errors import PreconditionFailed

#: The headers; the second one is not told to those who receive the message.
CC: Final = "CC"
BCC: Final = "BCC"


def further_keys(headers: Mapping[str, object]) -> list[str]:
    """The keys, in order. Raises PreconditionFailed."""
    for header in (CC, BCC):
        if not isinstance(headers.get(header, []), list):
            raise PreconditionFailed(
                f"invalid message: the header '{header}' is no list of routing keys"
            )
    return all_keys(headers)


def all_keys(headers: Mapping[str, object]) -> list[str]:
    """The keys, in order; what is no list of keys names none."""
    return [*open_keys(headers), *blind_keys(headers)]


def blind_keys(headers: Mapping[str, object]) -> list[str]:
    """Those that nobody sees."""
    return _texts(headers.get(BCC))


def open_keys(headers: Mapping[str, object]) -> list[str]:
    """Those that everybody may see."""
    return _texts(headers.get(CC))


def _texts(value: object) -> list[str]:
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []
