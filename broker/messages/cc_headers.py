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


def parse_additional_keys(headers: Mapping[str, object]) -> list[str]:
    """The keys, in order. Raises PreconditionFailed."""
    for header in (CC, BCC):
        if not isinstance(headers.get(header, []), list):
            raise PreconditionFailed(
                f"invalid message: the header '{header}' is no list of routing keys"
            )
    return additional_keys(headers)


def additional_keys(headers: Mapping[str, object]) -> list[str]:
    """The keys, in order; what is no list of keys names none."""
    return [*cc_keys(headers), *bcc_keys(headers)]


def bcc_keys(headers: Mapping[str, object]) -> list[str]:
    """Those that nobody sees."""
    return _texts(headers.get(BCC))


def cc_keys(headers: Mapping[str, object]) -> list[str]:
    """Those that everybody may see."""
    return _texts(headers.get(CC))


def _texts(value: object) -> list[str]:
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []
