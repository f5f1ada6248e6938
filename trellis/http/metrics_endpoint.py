"""What the metrics port serves to everybody there: metrics and health."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from trellis.http.routes import HttpRouter
from trellis.http.server import Handler, Request, Response
from trellis.monitoring import metrics
from trellis.server.node import BrokerNode


def open_pages(node: BrokerNode) -> HttpRouter:
    """The metrics port."""

    async def healthz(request: Request) -> Response:
        return Response(200, b"alive\n")

    async def readyz(request: Request) -> Response:
        return (
            Response(200, b"ready\n")
            if node.ready
            else Response(503, b"not ready: starting or stopping\n")
        )

    def page(make: Callable[[BrokerNode], Awaitable[metrics.MetricsPage]]) -> Handler:
        async def show(request: Request) -> Response:
            made = await make(node)
            body = await asyncio.get_running_loop().run_in_executor(None, made.render)
            return Response(200, body, metrics.CONTENT_TYPE)

        return show

    router = HttpRouter()
    for path, handler in (
        ("/metrics", page(metrics.aggregated)),
        ("/metrics/per-object", page(metrics.per_object)),
        ("/healthz", healthz),
        ("/readyz", readyz),
    ):
        router.add("GET", path, handler)
    return router
