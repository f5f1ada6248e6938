"""Additional routing keys that a publisher names in the headers `CC` and `BCC`, as in RabbitMQ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from broker.errors import PreconditionFailed

#: The names of the two headers. `BCC` is removed before the message is delivered.
CC: Final = "CC"
BCC: Final = "BCC"
KEY_HEADERS: Final = (CC, BCC)


def parse_additional_keys(headers: Mapping[str, object]) -> list[str]:
    """Return the routing keys in the headers `CC` and `BCC`, first the keys of `CC`.

    Raises PreconditionFailed if one of the two headers is not a list.
    """
    for header in KEY_HEADERS:
        if not isinstance(headers.get(header, []), list):
            raise PreconditionFailed(
                f"invalid message: the header '{header}' is not a list of routing keys"
            )
    return additional_keys(headers)


def additional_keys(headers: Mapping[str, object]) -> list[str]:
    """Return the routing keys in the headers `CC` and `BCC`, first the keys of `CC`.

    A header that is not a list counts as empty.
    """
    return [*cc_keys(headers), *bcc_keys(headers)]


def bcc_keys(headers: Mapping[str, object]) -> list[str]:
    """Return the routing keys in the header `BCC`, which consumers do not see."""
    return _texts(headers.get(BCC))


def cc_keys(headers: Mapping[str, object]) -> list[str]:
    """Return the routing keys in the header `CC`, which consumers see."""
    return _texts(headers.get(CC))


def _texts(value: object) -> list[str]:
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []
