"""The check of the names of virtual hosts, users, exchanges, queues and policies.

Names come in AMQP methods, HTTP paths and JSON, definitions, settings, tokens and commands. All of
them are checked where the object is created, with `checked_name`:

    a name is text that UTF-8 can encode, of 1 to 255 bytes, without the character NUL

A Python string with lone surrogates stands for bytes that are not UTF-8. Such a name cannot be
written as JSON or sent to a client. Routing keys are not names: they may have any bytes.

A client identifier of MQTT is checked when CONNECT is decoded. The same rule applies, except that
the identifier may have up to 65,535 bytes, as the specification allows.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

from broker.errors import PreconditionFailed

#: Greatest length of a name in bytes: an AMQP short string holds no more.
NAME_BYTES_MAX: Final = 255
#: Number of first characters of a name that `nearest` compares. The number is limited, because the
#: time of the comparison grows with the length of the name.
COMPARED: Final = 60


def is_text(name: str) -> bool:
    """True if the name can be encoded in UTF-8, because it has no lone surrogates."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def shown(name: str) -> str:
    """Return the name with an escape sequence, such as `\\xff`, for each byte that is not UTF-8."""
    try:
        return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # A lone surrogate that stands for no byte.
        return name.encode("utf-8", "backslashreplace").decode()


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the name in `known` that resembles `name` most. `known` must not be empty."""
    return get_close_matches(name[:COMPARED], list(known), 1, 0)[0]


def fault_of(name: str) -> str:
    """Return why a name is not valid; an empty string if it is valid."""
    if not name:
        return "the name is empty"
    if not is_text(name):
        return "the name is not valid UTF-8"
    if "\0" in name:
        return "the name contains the character NUL"
    size = len(name.encode())
    if size > NAME_BYTES_MAX:
        return f"the name has {size} bytes in UTF-8, and the limit is {NAME_BYTES_MAX} bytes"
    return ""


def checked_name(kind: str, name: str) -> str:
    """Return the name if it is valid. Raises PreconditionFailed otherwise.

    `kind` says what the name is for, such as "queue".
    """
    fault = fault_of(name)
    if fault:
        raise PreconditionFailed(
            f"invalid {kind} name '{shown(name)[:NAME_BYTES_MAX]}': {fault}; choose a name "
            f"of 1 to {NAME_BYTES_MAX} bytes of UTF-8 without NUL"
        )
    return name
