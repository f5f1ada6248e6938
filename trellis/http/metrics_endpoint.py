"""The metrics port: metrics, liveness and readiness, for every client that can connect.

With the setting `metrics.login`, metrics are for users with the tag monitoring or administrator.
Health needs no login, because orchestrators request it without one.
"""

from __future__ import annotations

from trellis.http.logins import LoginParts, authenticate, tags_of
from trellis.http.origins import is_direct
from trellis.http.refusals import log_refused_request
from trellis.http.routes import HttpRouter
from trellis.http.server import Handler, Request, Response
from trellis.monitoring import detailed, metrics
from trellis.monitoring.http_counters import HttpCounters
from trellis.monitoring.page import CONTENT_TYPE, OPENMETRICS_TYPE, MetricsPage, wants_openmetrics
from trellis.server.listener_context import peer_of
from trellis.server.node import BrokerNode

#: Tags of the users that may read metrics if `metrics.login` is set.
READERS = frozenset({"administrator", "monitoring"})


def metrics_routes(node: BrokerNode, counters: HttpCounters) -> HttpRouter[Handler]:
    """Return the routes of the metrics port."""
    metrics.load_modules(node)

    async def healthz(request: Request) -> Response:
        return Response(200, b"alive\n")

    async def readyz(request: Request) -> Response:
        return (
            Response(200, b"ready\n")
            if node.ready and node.turn.leased
            else Response(503, b"not ready: starting, stopping or without a lease\n")
        )

    async def aggregated(request: Request) -> Response:
        refusal = await refuse_reader(node, counters, request)
        return refusal or await rendered(request, await metrics.aggregated_metrics(node, counters))

    async def per_object(request: Request) -> Response:
        refusal = await refuse_reader(node, counters, request)
        return refusal or await rendered(request, await metrics.per_object_metrics(node, counters))

    async def by_family(request: Request) -> Response:
        refusal = await refuse_reader(node, counters, request)
        return refusal or await rendered(
            request, await detailed.detailed_metrics(node, counters, request.query)
        )

    async def rendered(request: Request, page: MetricsPage) -> Response:
        if wants_openmetrics(request.headers.get(b"accept", b"")):
            return Response(200, await page.render(in_openmetrics=True), OPENMETRICS_TYPE)
        return Response(200, await page.render(), CONTENT_TYPE)

    router: HttpRouter[Handler] = HttpRouter()
    for path, handler in (
        ("/metrics", aggregated),
        ("/metrics/per-object", per_object),
        ("/metrics/detailed", by_family),
        ("/healthz", healthz),
        ("/readyz", readyz),
    ):
        router.add("GET", path, handler)
    return router


async def refuse_reader(
    node: LoginParts, counters: HttpCounters, request: Request
) -> Response | None:
    """Return the response for a client that may not read metrics; None for other clients.

    With the setting `metrics.login`, a client needs the tag monitoring or administrator.
    """
    if not node.settings.metrics.login:
        return None
    verdict = await authenticate(
        node,
        counters,
        (request.user, request.password, request.token),
        request.address,
        is_direct(request.headers, node.settings.http.host_names),
    )
    if verdict.identity is None:
        return (
            Response(503, f"{verdict.reason}\n".encode())
            if verdict.busy
            else Response(401, f"{verdict.reason}\n".encode(), challenge=True)
        )
    if READERS & tags_of(verdict.identity):
        return None
    name = verdict.identity.name
    reason = f"user '{name}' lacks the tag 'monitoring', which this page requires"
    address, note = peer_of(request.address).address, f"{reason} (metrics.login)"
    log_refused_request(node, address, request.line, 403, note, name)
    return Response(403, f"{reason}\n".encode())
