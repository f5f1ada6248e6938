"""Routing table of the HTTP servers: find the handler for a method and a path.

GET     /metrics                      a literal path
DELETE  /api/queues/{vhost}/{name}    names in braces are path parameters, in which %2F is `/`
"""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar
from urllib.parse import unquote_to_bytes

Target = TypeVar("Target")


class Unrouted(NamedTuple):
    """The result of a search for a handler that does not exist: the status 404 or 405.

    For 405, `allow` has the methods that the path supports.
    """

    status: int
    allow: str = ""


class RouteNode(Generic[Target]):
    """A node of the routing tree: the handlers of one path, and the nodes of longer paths."""

    __slots__ = ("handlers", "literals", "parameter")

    def __init__(self) -> None:
        self.literals: dict[str, RouteNode[Target]] = {}
        self.parameter: RouteNode[Target] | None = None
        self.handlers: dict[str, Target] = {}


class HttpRouter(Generic[Target]):
    """A tree of path parts. A literal part takes precedence over a path parameter."""

    def __init__(self) -> None:
        self._root: RouteNode[Target] = RouteNode()
        self.paths: list[str] = []
        self._methods: set[str] = set()

    def add(self, method: str, template: str, handler: Target) -> None:
        """Add a handler for a method and a path template."""
        node = self._root
        for part in template.split("/")[1:]:
            if part.startswith("{"):
                node.parameter = node.parameter or RouteNode()
                node = node.parameter
            else:
                node = node.literals.setdefault(part, RouteNode())
        assert method not in node.handlers, f"the route {method} {template} has two handlers"
        node.handlers[method] = handler
        self._methods |= {method, "HEAD"} if method == "GET" else {method}
        if template not in self.paths:
            self.paths.append(template)

    def find(self, method: str, path: str) -> tuple[Target, list[str]] | Unrouted:
        """Return the handler and the path parameters for a method and a path.

        Return an Unrouted if there is no handler. Raises UnicodeDecodeError if a path parameter is
        not UTF-8.
        """
        match = self._walk(self._root, path.split("/")[1:], []) if path.startswith("/") else None
        if match is None:
            return (
                Unrouted(404)
                if method in self._methods
                else Unrouted(405, ", ".join(sorted(self._methods)))
            )
        node, parts = match
        handler = node.handlers.get(method)
        if handler is None:
            allowed = sorted([*node.handlers, *(["HEAD"] if "GET" in node.handlers else [])])
            return Unrouted(405, ", ".join(allowed))
        return handler, [unquote_to_bytes(part).decode() for part in parts]

    def _walk(
        self, node: RouteNode[Target], ahead: list[str], parts: list[str]
    ) -> tuple[RouteNode[Target], list[str]] | None:
        if not ahead:
            return (node, parts) if node.handlers else None
        named = node.literals.get(ahead[0])
        match = None if named is None else self._walk(named, ahead[1:], parts)
        if match is None and node.parameter is not None:
            match = self._walk(node.parameter, ahead[1:], [*parts, ahead[0]])
        return match
