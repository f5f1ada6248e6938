"""The criteria of a headers binding. `Criteria.accept` defines which headers meet them.

    {"x-match": "any", "x-trace": "on", "currency": "EUR", "urgent": None}
         any             skipped         currency = EUR      urgent is present

`x-match` has four values. ``all`` (the default) and ``any`` ignore arguments whose names begin with
``x-``; ``all-with-x`` and ``any-with-x`` include them. A criterion without a value (None, AMQP's
void) requires only that the header is present. ``all`` without criteria accepts every message,
``any`` without criteria accepts none.

Values are compared as in RabbitMQ 4, by value and kind, not by wire type. Integers of every width
are one kind, and a timestamp is the integer of its seconds. Strings and bytes are one kind. Floats,
decimals and booleans are separate kinds (1, 1.0 and true are three values; the decimals 1.0 and
1.00 are two). Tables and arrays are compared entry by entry by the same rules; RabbitMQ also
compares their wire types. Source: AMQP 0-9-1 section 3.1.3.4, and article 4 (listed in `matching`).
"""

from __future__ import annotations

from calendar import timegm
from collections.abc import Hashable, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Final

#: The arguments of a binding, or the headers of a message.
Fields = Mapping[str, object]

KINDS: Final = ("all", "any", "all-with-x", "any-with-x")


class InvalidCriteria(ValueError):
    """Raised if the arguments of a binding have an unknown `x-match`."""


class Criteria:
    """The criteria in a binding's arguments.

    `wanted` maps each name to its value in comparable form (see `token`), or to PRESENT.
    """

    __slots__ = ("any", "identity", "wanted")

    def __init__(self, arguments: Fields) -> None:
        """Parse the arguments.

        Raises InvalidCriteria for an unknown `x-match`, and TypeError for an unhashable value of a
        kind that a field table cannot hold.
        """
        kind = arguments.get("x-match", "all")
        if kind not in KINDS:
            raise InvalidCriteria(
                f"invalid x-match field value {kind!r}; expected {', '.join(KINDS)}"
            )
        skip = kind in ("all", "any")
        #: True if a message needs to meet only one of the criteria (`any`, `any-with-x`).
        self.any: Final = kind in ("any", "any-with-x")
        self.wanted: Final[dict[str, Hashable]] = {
            name: PRESENT if value is None else token(value)
            for name, value in arguments.items()
            if name != "x-match" and not (skip and name.startswith("x-"))
        }
        #: A value that is equal for equal arguments, including the arguments that are not criteria.
        self.identity: Final[Hashable] = token(arguments)

    def accept(self, headers: Fields) -> bool:
        """True if the criteria accept a message with these headers.

        This is the definition that all algorithms implement.
        """
        hits = [
            name in headers and (wanted is PRESENT or wanted == token(headers[name]))
            for name, wanted in self.wanted.items()
        ]
        return any(hits) if self.any else all(hits)


class _Kind:
    """A marker in the comparable form of header values, such as PRESENT or the kind of a value.

    A marker equals only itself, so it cannot be confused with a value.
    """


#: Used in `Criteria.wanted` for a criterion without a value.
PRESENT: Final = _Kind()
_TRUE: Final = _Kind()
_FALSE: Final = _Kind()
_FLOAT: Final = _Kind()
_DECIMAL: Final = _Kind()
_ARRAY: Final = _Kind()
_TABLE: Final = _Kind()


def token(value: object) -> Hashable:
    """Return a hashable object for a header's value.

    Two values match in the headers exchange if their objects are equal. Values of different kinds
    never match: 1, 1.0 and True have three different objects.

    A value of a type that a field table cannot hold matches equal values of its own type. Raises
    TypeError if such a value is unhashable.
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


def _text(data: bytes) -> Hashable:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data
