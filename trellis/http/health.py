"""Health and metrics of a node that follows its cluster: it lives, but serves no clients."""

from __future__ import annotations

from collections.abc import Callable

from broker.replication.figures import ClusterFigures
from trellis.http.routes import HttpRouter
from trellis.http.server import Handler, HttpServer, Request, Response
from trellis.monitoring.cluster_metrics import add_cluster
from trellis.monitoring.http_counters import HttpListenerCounters
from trellis.monitoring.page import CONTENT_TYPE, MetricsPage


class StandbyHealth:
    """The server of the metrics port until the node is active: /healthz, /readyz and /metrics."""

    def __init__(self, limit: float, figures: Callable[[], ClusterFigures]) -> None:
        """`limit` is the time limit of a request in seconds."""
        self._figures = figures
        router: HttpRouter[Handler] = HttpRouter()
        router.add("GET", "/healthz", self._healthz)
        router.add("GET", "/readyz", self._readyz)
        router.add("GET", "/metrics", self._metrics)
        self.server = HttpServer(router, limit, HttpListenerCounters())

    async def _healthz(self, request: Request) -> Response:
        return Response(200, b"alive\n")

    async def _readyz(self, request: Request) -> Response:
        return Response(503, f"not ready: this node is {self._figures().state}\n".encode())

    async def _metrics(self, request: Request) -> Response:
        page = MetricsPage()
        add_cluster(page, self._figures())
        return Response(200, await page.render(), CONTENT_TYPE)
