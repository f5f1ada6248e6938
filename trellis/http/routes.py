"""Which handler answers which method and path.

GET     /metrics                        a path as it is
DELETE  /api/queues/{vhost}/{name}      names in braces stand for any text; in it `%2F` is a `/`
"""

from __future__ import annotations

from urllib.parse import unquote

from trellis.http.server import Handler, Response, RouteTable


class RouteNode:
    """What may follow one part of a path."""

    __slots__ = ("handlers", "literals", "parameter")

    def __init__(self) -> None:
        self.literals: dict[str, RouteNode] = {}
        self.parameter: RouteNode | None = None
        self.handlers: dict[str, Handler] = {}


class HttpRouter(RouteTable):
    """A tree of the parts of paths. A part as it is goes before one that is left open."""

    def __init__(self) -> None:
        self._root = RouteNode()
        self.paths: list[str] = []
        self._methods: set[str] = set()

    def add(self, method: str, template: str, handler: Handler) -> None:
        node = self._root
        for part in template.split("/")[1:]:
            if part.startswith("{"):
                node.parameter = node.parameter or RouteNode()
                node = node.parameter
            else:
                node = node.literals.setdefault(part, RouteNode())
        assert method not in node.handlers, f"two answers to {method} {template}"
        node.handlers[method] = handler
        self._methods |= {method, "HEAD"} if method == "GET" else {method}
        if template not in self.paths:
            self.paths.append(template)

    def find(self, method: str, path: str) -> tuple[Handler, list[str]] | Response:
        found = self._walk(self._root, path.split("/")[1:], []) if path.startswith("/") else None
        if found is None:
            return (
                self.not_found(path)
                if method in self._methods
                else self.method_not_allowed(method, ", ".join(sorted(self._methods)))
            )
        node, parts = found
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
        found = None if named is None else self._walk(named, ahead[1:], parts)
        if found is None and node.parameter is not None:
            found = self._walk(
                node.parameter, ahead[1:], [*parts, unquote(ahead[0], errors="surrogateescape")]
            )
        return found

    # -- what is answered where nobody answers

    def not_found(self, path: str) -> Response:
        return Response(404, f"no such page; there are {', '.join(sorted(self.paths))}\n".encode())

    def method_not_allowed(self, method: str, allowed: str) -> Response:
        return Response(
            405, f"only {allowed.replace(', ', ' and ')} are served here\n".encode(), allow=allowed
        )
