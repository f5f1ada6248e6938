"""The metrics port: metrics, liveness and readiness, for every client that can connect."""

from __future__ import annotations

from trellis.http.routes import HttpRouter
from trellis.http.server import Request, Response
from trellis.monitoring import metrics
from trellis.monitoring.http_counters import HttpCounters
from trellis.server.node import BrokerNode


def metrics_routes(node: BrokerNode, counters: HttpCounters) -> HttpRouter:
    """Return the routes of the metrics port: metrics and health, open to every client."""

    async def healthz(request: Request) -> Response:
        return Response(200, b"alive\n")

    async def readyz(request: Request) -> Response:
        return (
            Response(200, b"ready\n")
            if node.ready
            else Response(503, b"not ready: starting or stopping\n")
        )

    async def aggregated(request: Request) -> Response:
        return await rendered(await metrics.aggregated_metrics(node, counters))

    async def per_object(request: Request) -> Response:
        return await rendered(await metrics.per_object_metrics(node))

    async def rendered(page: metrics.MetricsPage) -> Response:
        return Response(200, await page.render(), metrics.CONTENT_TYPE)

    router = HttpRouter()
    for path, handler in (
        ("/metrics", aggregated),
        ("/metrics/per-object", per_object),
        ("/healthz", healthz),
        ("/readyz", readyz),
    ):
        router.add("GET", path, handler)
    return router
