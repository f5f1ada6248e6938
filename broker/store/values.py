"""Definitions as JSON text, with tagged objects for the values that JSON does not have.

    None, bool, int, str, float, list, dict     as they are
    bytes                                       {"$bytes": "in base64"}
    Decimal                                     {"$decimal": "1.50"}
    datetime                                    {"$time": "2024-02-29T12:00:00+00:00"}
    nan, inf                                    {"$float": "8 bytes in hexadecimal"}
    a dict that looks like one of these         {"$table": [[name, value], ...]}

The text is ASCII: bytes of a routing key that are not UTF-8 (lone surrogates in a str) become
escape sequences.
"""

from __future__ import annotations

import base64
import json
import math
import struct
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Final

Definition = dict[str, object]


def dump(definition: Mapping[str, object]) -> str:
    """Return a definition as JSON text. Raises TypeError for a value that AMQP cannot represent."""
    return _ENCODER.encode(_plain(definition))


def load(text: str) -> Definition:
    """Return the definition in a text that `dump` made. Raises ValueError for an invalid text."""
    try:
        definition = (_TAGGED if '{"$' in text else _UNTAGGED).decode(text)
    except (ValueError, ArithmeticError, TypeError, struct.error, RecursionError) as error:
        raise ValueError(f"the stored definition cannot be decoded: {error}") from error
    if not isinstance(definition, dict):
        raise ValueError("the stored definition must be a JSON object")
    return definition


def is_same(first: Mapping[str, object], second: Mapping[str, object]) -> bool:
    """True if two definitions have equal values of the same types.

    Python's `==` is not enough: 1, 1.0 and True are equal in Python, and differ in JSON.
    """
    return first == second and dump(first) == dump(second)


def _plain(value: object) -> object:
    """Return a value of a definition, converted to the types that JSON has."""
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": struct.pack(">d", value).hex()}
    if isinstance(value, Mapping):
        if len(value) == 1 and str(next(iter(value))).startswith("$"):
            return {"$table": [[name, _plain(inner)] for name, inner in value.items()]}
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if isinstance(value, bytes):
        return {"$bytes": base64.b64encode(value).decode()}
    if isinstance(value, Decimal):
        return {"$decimal": str(value)}
    if isinstance(value, datetime):
        return {"$time": value.isoformat()}
    raise TypeError(f"a definition cannot hold a value of type {type(value).__name__}")


def _tagged(table: Definition) -> object:
    """Return the value that a tagged JSON object encodes; return any other object unchanged."""
    if len(table) != 1:
        return table
    [(tag, value)] = table.items()
    if not tag.startswith("$"):
        return table
    if tag == "$table" and isinstance(value, list):
        return dict(value)
    if not isinstance(value, str):
        raise ValueError(f"a value of type '{tag}' must be a string")
    if tag == "$bytes":
        return base64.b64decode(value, validate=True)
    if tag == "$decimal":
        return Decimal(value)
    if tag == "$time":
        return datetime.fromisoformat(value)
    if tag == "$float":
        number: float = struct.unpack(">d", bytes.fromhex(value))[0]
        return number
    raise ValueError(f"a value has the unknown type '{tag}'")


_ENCODER: Final = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
_UNTAGGED: Final = json.JSONDecoder()
#: The decoder of texts with tagged objects, which takes twice as long as the plain decoder.
_TAGGED: Final = json.JSONDecoder(object_hook=_tagged)
