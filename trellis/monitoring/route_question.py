"""The question to `GET /api/route` and `trellis route`, and the names in its answer.

A command imports this module without the core of the broker.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from broker.errors import PreconditionFailed
from broker.names import shown

#: The sections of an answer, in the order of its rows.
SECTIONS: Final = ("rights", "exchanges", "bindings", "queues", "near_misses")
#: Types of a destination other than `queue` and `stream`: an MQTT session or a group of sessions;
#: an exchange; a queue that an exchange itself uses.
SESSION, EXCHANGE_KIND, INTERNAL_KIND = "session", "exchange", "internal"


class RouteQuestion(msgspec.Struct):
    """The question where a message would go.

    The question names exchange, key, headers and publisher. If `mqtt` is not None, it is the topic
    of an MQTT client's publication, and `exchange` and `key` are not used. If `user` is None, no
    rights are checked. `client_id` replaces {client_id} in the user's topic rules.
    """

    exchange: str = ""
    key: str = ""
    headers: dict[str, Any] = {}
    user: str | None = None
    mqtt: str | None = None
    client_id: str = ""


def header_of(text: str) -> tuple[str, Any]:
    """Return the name and the value of a header `NAME=VALUE`. Raises PreconditionFailed.

    A value that is JSON has JSON's type: `n=3` is a number, `n="3"` a text. Any other value is a
    text.
    """
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise PreconditionFailed(f"header '{shown(text)}' must have the form NAME=VALUE")
    try:
        return name, msgspec.json.decode(value.encode("utf-8", "surrogateescape"))
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return name, value


def header_text(name: str, value: object) -> str:
    """Return a header in the form that `header_of` reads, in one line."""
    return f"{name}={msgspec.json.encode(value).decode()}"


def headers_of_lines(lines: str) -> Mapping[str, Any]:
    """Return the headers in lines of the form `NAME=VALUE`. Raises PreconditionFailed."""
    return dict(header_of(line) for line in lines.split("\n") if line)
