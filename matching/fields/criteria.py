"""What a headers binding asks of a message: its criteria, and the definition that every algorithm
must equal.

    {"x-match": "any", "x-trace": "on", "currency": "EUR", "urgent": None}
         any             skipped         currency = EUR      urgent is there

`x-match` is ``all`` (default) or ``any``, for which arguments that begin with ``x-`` are no
criteria, or ``all-with-x`` or ``any-with-x``, for which they are. A criterion without a value
(None, AMQP's void) asks only whether the header is there. ``all`` of no criteria takes every
message, ``any`` of none takes none.

Values are compared as RabbitMQ 4 compares them, by value and kind, not by the type on the wire:
integers of every width are one kind, and a timestamp is the integer of its seconds; strings and
octets are one kind; floats, decimals and booleans are kinds of their own (1, 1.0 and true are three
values, and the decimals 1.0 and 1.00 two). Tables and arrays are compared entry by entry by the
same rule, which in RabbitMQ looks at their wire types also. From AMQP 0-9-1 section 3.1.3.4, and
article 4's fields, values and presence.
"""

from __future__ import annotations

from calendar import timegm
from collections.abc import Hashable, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Final

#: What a binding was made with, or what a message carries.
Fields = Mapping[str, object]

KINDS: Final = ("all", "any", "all-with-x", "any-with-x")


class InvalidCriteria(ValueError):
    """Arguments whose x-match nobody knows."""


class Criteria:
    """What the arguments of a binding ask for.

    `wanted` is name -> token of the value, or PRESENT.
    """

    __slots__ = ("any", "identity", "wanted")

    def __init__(self, arguments: Fields) -> None:
        """Raises InvalidCriteria, or TypeError for a value that no token stands for."""
        kind = arguments.get("x-match", "all")
        if kind not in KINDS:
            raise InvalidCriteria(
                f"invalid x-match field value {kind!r}; expected {', '.join(KINDS)}"
            )
        skip = kind in ("all", "any")
        #: Whether one criterion is enough.
        self.any: Final = kind in ("any", "any-with-x")
        self.wanted: Final[dict[str, Hashable]] = {
            name: PRESENT if value is None else token(value)
            for name, value in arguments.items()
            if name != "x-match" and not (skip and name.startswith("x-"))
        }
        #: Equal for equal arguments, those included that are no criteria.
        self.identity: Final[Hashable] = token(arguments)

    def accept(self, headers: Fields) -> bool:
        """Whether a message with these headers is one of those wanted: the definition."""
        hits = [
            name in headers and (wanted is PRESENT or wanted == token(headers[name]))
            for name, wanted in self.wanted.items()
        ]
        return any(hits) if self.any else all(hits)


class _Kind:
    """A mark that is equal to itself alone, so that no value can be mistaken for it."""


#: Stands where a criterion has no value.
PRESENT: Final = _Kind()
_TRUE: Final = _Kind()
_FALSE: Final = _Kind()
_FLOAT: Final = _Kind()
_DECIMAL: Final = _Kind()
_ARRAY: Final = _Kind()
_TABLE: Final = _Kind()


def token(value: object) -> Hashable:
    """Something hashable that is equal for two values if they count as equal.

    Values of kinds that no field table holds are equal when they have one type and say so
    themselves. Raises TypeError when they cannot be hashed.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return _TRUE if value else _FALSE
    if isinstance(value, int) or value is None:
        return value
    if isinstance(value, float):
        return (_FLOAT, value) if value == value else _Kind()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _text(bytes(value))
    if isinstance(value, datetime):
        return timegm(value.utctimetuple())
    if isinstance(value, Decimal):
        return (_DECIMAL, value.as_tuple())
    if isinstance(value, (list, tuple)):
        return (_ARRAY, tuple([token(entry) for entry in value]))
    if isinstance(value, Mapping):
        return (_TABLE, frozenset([(name, token(entry)) for name, entry in value.items()]))
    hash(value)
    return (type(value), value)


def _text(octets: bytes) -> Hashable:
    try:
        return octets.decode()
    except UnicodeDecodeError:
        return octets
