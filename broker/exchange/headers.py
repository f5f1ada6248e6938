"""The headers exchange: a binding's arguments are compared with the message's headers.

x-match is `all` (default) or `any`, which skip arguments beginning with `x-`, or `all-with-x` or
`any-with-x`, which do not. An argument without a value asks only whether the header is there. `all`
with nothing to compare takes everything, `any` nothing (AMQP 0-9-1 section 3.1.3.4; RabbitMQ).
"""

from __future__ import annotations

from typing import ClassVar, Final

from broker.binding import Arguments, Binding
from broker.errors import PreconditionFailed
from broker.exchange.base import Exchange

MATCHES: Final = ("all", "any", "all-with-x", "any-with-x")


class HeadersExchange(Exchange):
    """Asks every binding."""

    kind: ClassVar[str] = "headers"
    by_headers: ClassVar[bool] = True

    def match(self, key: str, headers: Arguments) -> list[Binding]:
        return [binding for binding in self if fits(binding.arguments, headers)]


def check(arguments: Arguments) -> None:
    """Raises PreconditionFailed for an x-match that nobody knows."""
    kind = arguments.get("x-match", "all")
    if kind not in MATCHES:
        raise PreconditionFailed(f"invalid x-match field value {kind!r}; expected {', '.join(MATCHES)}")


def fits(wanted: Arguments, headers: Arguments) -> bool:
    """Whether a message with these headers is one of those wanted."""
    kind = str(wanted.get("x-match", "all"))
    skip = not kind.endswith("-with-x")
    names = [name for name in wanted if name != "x-match" and not (skip and name.startswith("x-"))]
    hits = [name in headers and _equal(wanted[name], headers[name]) for name in names]
    return any(hits) if kind.startswith("any") else all(hits)


def _equal(wanted: object, carried: object) -> bool:
    """Integers of every width are one type; a bool is no integer and 1.0 is not 1."""
    if wanted is None:
        return True
    return type(wanted) is type(carried) and wanted == carried
