"""Infers a JSON Schema from observed JSON values. The schema contains none of the values.

A schema names the types of the values, the properties of objects, and which of the properties
every object has. Strings that are all times or all UUIDs have a format. The memory of a schema
is limited by the constants of this module.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final

#: Levels of objects and lists that a schema describes; deeper values are not described.
DEPTH_MAX: Final = 16
#: Largest number of properties of an object. An object with more properties is described as a map,
#: with one schema for all values.
PROPERTIES_MAX: Final = 100
#: Largest number of schemas inside one schema, and inside all schemas of a document. Beyond this
#: number, new properties and the items of new lists are not described.
SCHEMAS_MAX: Final = 2_000
ALL_SCHEMAS_MAX: Final = 200_000
#: Number of items at the beginning of a list that are examined.
ITEMS_MAX: Final = 20
#: Name of a property that is not described, because readers of a schema take it for a reference.
REFERENCE: Final = "$ref"
#: Largest length of a property's name in characters. Properties with longer names are not
#: described.
NAME_MAX: Final = 200

_FORMATS: Final[tuple[tuple[str, Callable[[str], object]], ...]] = (
    (
        "date-time",
        re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)").fullmatch,
    ),
    ("uuid", re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}").fullmatch),
)


class NotJson(ValueError):
    """Raised if a text is not JSON, or is nested too deeply."""


def decoded(data: bytes | str) -> Any:
    """Return the value of a JSON text.

    Raises NotJson if the text is invalid or nested too deeply.
    """
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise NotJson(str(error)) from None


class SchemaBudget:
    """The number of further schemas that all instances of InferredSchema together may make."""

    def __init__(self, room: int = ALL_SCHEMAS_MAX) -> None:
        self.room = room


class InferredSchema:
    """A JSON Schema of all values that were passed to `add`."""

    def __init__(self, budget: SchemaBudget) -> None:
        self._root: Final = _Node()
        self._room = SCHEMAS_MAX
        self._budget: Final = budget
        #: Number of values that were passed to `add`.
        self.count = 0

    def add(self, value: Any) -> None:
        """Take a decoded JSON value into account."""
        self.count += 1
        self._add(self._root, value, 0)

    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema of all values so far."""
        return self._root.schema()

    def _add(self, node: _Node, value: Any, depth: int) -> None:
        kind = _kind(value)
        node.types[kind] = node.types.get(kind, 0) + 1
        if kind == "string":
            node.see_text(value)
        if depth >= DEPTH_MAX:
            return
        if kind == "object":
            self._add_properties(node, value, depth)
        elif kind == "array" and value:
            if node.items is None:
                node.items = self._node()
            if node.items is not None:
                for item in value[:ITEMS_MAX]:
                    self._add(node.items, item, depth + 1)

    def _add_properties(self, node: _Node, value: dict[str, Any], depth: int) -> None:
        for name, inside in value.items():
            if name == REFERENCE:
                continue
            if node.values is None and name not in node.properties and len(name) <= NAME_MAX:
                if len(node.properties) >= PROPERTIES_MAX:
                    node.values = node.merged()
                elif (child := self._node()) is not None:
                    node.properties[name] = child
            target = node.values or node.properties.get(name)
            if target is not None:
                self._add(target, inside, depth + 1)

    def _node(self) -> _Node | None:
        if not self._room or not self._budget.room:
            return None
        self._room -= 1
        self._budget.room -= 1
        return _Node()


class _Node:
    """The observed values at one position of the JSON: their types, properties and items."""

    def __init__(self) -> None:
        self.types: dict[str, int] = {}
        self.properties: dict[str, _Node] = {}
        self.items: _Node | None = None
        #: The schema of all values of a map; None if the objects have properties.
        self.values: _Node | None = None
        #: The formats that all strings so far have; None before the first string.
        self._formats: set[str] | None = None

    def see_text(self, text: str) -> None:
        """Update the formats that all strings have in common: remove those that `text` lacks."""
        if self._formats is None:
            self._formats = {name for name, _ in _FORMATS}
        if self._formats:
            self._formats &= {name for name, fits in _FORMATS if fits(text)}

    def merged(self) -> _Node:
        """Return one node that stands for the values of all properties; remove the properties.

        The new node has the types of the values so far, but no properties, items or formats. These
        come only from values that are added to the new node later.
        """
        node = _Node()
        node._formats = set()
        for inside in self.properties.values():
            for kind, count in inside.types.items():
                node.types[kind] = node.types.get(kind, 0) + count
        self.properties.clear()
        return node

    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema of this node."""
        kinds = sorted(self.types)
        if "number" in kinds and "integer" in kinds:
            kinds.remove("integer")
        schema: dict[str, Any] = {}
        if kinds:
            schema["type"] = kinds[0] if len(kinds) == 1 else kinds
        if self._formats and "string" in kinds:
            schema["format"] = min(self._formats)
        if self.values is not None:
            schema["additionalProperties"] = self.values.schema()
        elif self.properties:
            schema["properties"] = {
                name: node.schema() for name, node in sorted(self.properties.items())
            }
            required = [
                name
                for name, node in sorted(self.properties.items())
                if sum(node.types.values()) == self.types["object"]
            ]
            if required:
                schema["required"] = required
        if self.items is not None:
            schema["items"] = self.items.schema()
        return schema


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer"
    if isinstance(value, float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"
