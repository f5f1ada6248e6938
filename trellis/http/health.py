"""Health of a node that follows its cluster: it lives, and serves no clients."""

from __future__ import annotations

from collections.abc import Callable

from trellis.http.routes import HttpRouter
from trellis.http.server import Handler, HttpServer, Request, Response
from trellis.monitoring.http_counters import HttpListenerCounters


class StandbyHealth:
    """The server of the metrics port until the node is active: /healthz and /readyz."""

    def __init__(self, limit: float, state: Callable[[], str]) -> None:
        """`limit` is the time limit of a request in seconds; `state` returns the node's state."""
        self._state = state
        router: HttpRouter[Handler] = HttpRouter()
        router.add("GET", "/healthz", self._healthz)
        router.add("GET", "/readyz", self._readyz)
        self.server = HttpServer(router, limit, HttpListenerCounters())

    async def _healthz(self, request: Request) -> Response:
        return Response(200, b"alive\n")

    async def _readyz(self, request: Request) -> Response:
        return Response(503, f"not ready: this node is {self._state()}\n".encode())
