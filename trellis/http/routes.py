"""Routing table of the HTTP servers: find the handler for a method and a path.

GET     /metrics                      a literal path
DELETE  /api/queues/{vhost}/{name}    names in braces are path parameters, in which %2F is `/`
"""

from __future__ import annotations

from urllib.parse import unquote

from trellis.http.server import Handler, Response, RouteTable


class RouteNode:
    """A node of the routing tree: the handlers of one path, and the nodes of longer paths."""

    __slots__ = ("handlers", "literals", "parameter")

    def __init__(self) -> None:
        self.literals: dict[str, RouteNode] = {}
        self.parameter: RouteNode | None = None
        self.handlers: dict[str, Handler] = {}


class HttpRouter(RouteTable):
    """A tree of path parts. A literal part takes precedence over a path parameter."""

    def __init__(self) -> None:
        self._root = RouteNode()
        self.paths: list[str] = []
        self._methods: set[str] = set()

    def add(self, method: str, template: str, handler: Handler) -> None:
        """Add a handler for a method and a path template."""
        node = self._root
        for part in template.split("/")[1:]:
            if part.startswith("{"):
                node.parameter = node.parameter or RouteNode()
                node = node.parameter
            else:
                node = node.literals.setdefault(part, RouteNode())
        assert method not in node.handlers, f"two handlers for {method} {template}"
        node.handlers[method] = handler
        self._methods |= {method, "HEAD"} if method == "GET" else {method}
        if template not in self.paths:
            self.paths.append(template)

    def find(self, method: str, path: str) -> tuple[Handler, list[str]] | Response:
        match = self._walk(self._root, path.split("/")[1:], []) if path.startswith("/") else None
        if match is None:
            return (
                self.not_found(path)
                if method in self._methods
                else self.method_not_allowed(method, ", ".join(sorted(self._methods)))
            )
        node, parts = match
        handler = node.handlers.get(method)
        if handler is None:
            allowed = sorted([*node.handlers, *(["HEAD"] if "GET" in node.handlers else [])])
            return self.method_not_allowed(method, ", ".join(allowed))
        return handler, parts

    def _walk(
        self, node: RouteNode, ahead: list[str], parts: list[str]
    ) -> tuple[RouteNode, list[str]] | None:
        if not ahead:
            return (node, parts) if node.handlers else None
        named = node.literals.get(ahead[0])
        match = None if named is None else self._walk(named, ahead[1:], parts)
        if match is None and node.parameter is not None:
            match = self._walk(
                node.parameter, ahead[1:], [*parts, unquote(ahead[0], errors="surrogateescape")]
            )
        return match

    # -- responses without a handler

    def not_found(self, path: str) -> Response:
        """Return the response for an unknown path."""
        return Response(404, f"no such path; there are {', '.join(sorted(self.paths))}\n".encode())

    def method_not_allowed(self, method: str, allowed: str) -> Response:
        """Return the response for an unsupported method of a path; `allowed` lists its methods."""
        return Response(
            405, f"only {allowed.replace(', ', ' and ')} are served here\n".encode(), allow=allowed
        )
