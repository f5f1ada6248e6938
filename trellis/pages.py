"""What the HTTP ports serve: metrics and health for everybody there, listings for users."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from broker.access import Credentials, Verdict
from trellis import listings, metrics
from trellis.http import Handler, Request, Response
from trellis.node import Node


def open_pages(node: Node) -> dict[str, Handler]:
    """The metrics port."""

    async def healthz(request: Request) -> Response:
        return Response(200, b"alive\n")

    async def readyz(request: Request) -> Response:
        return Response(200, b"ready\n") if node.ready else Response(503, b"not ready: starting or stopping\n")

    def page(make: Callable[[Node], Awaitable[metrics.Page]]) -> Handler:
        async def show(request: Request) -> Response:
            made = await make(node)
            body = await asyncio.get_running_loop().run_in_executor(None, made.render)
            return Response(200, body, metrics.CONTENT_TYPE)

        return show

    return {"/metrics": page(metrics.aggregated), "/metrics/per-object": page(metrics.per_object), "/healthz": healthz, "/readyz": readyz}


def user_pages(node: Node) -> dict[str, Handler]:
    """The http port: every page asks for a user and a password."""

    def page(kind: str) -> Handler:
        async def show(request: Request) -> Response:
            verdict = await _judge(node, request)
            if verdict.identity is None:
                return Response(503 if verdict.busy else 401, f"{verdict.reason}\n".encode(), challenge=not verdict.busy)
            rows = await listings.rows(node, kind)
            body = await asyncio.get_running_loop().run_in_executor(None, listings.encode, rows)
            return Response(200, body, "application/json")

        return show

    return {f"/api/{kind}": page(kind) for kind in listings.KINDS}


async def _judge(node: Node, request: Request) -> Verdict:
    if request.user is None:
        return Verdict(None, "a user and a password are needed")
    answer: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()

    def heard(verdict: Verdict) -> None:
        if not answer.done():
            answer.set_result(verdict)

    node.accounts.authenticate(Credentials(request.user, request.password, "/", request.address, request.local), heard)
    return await answer
