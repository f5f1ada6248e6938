"""What the HTTP ports serve: metrics and health for everybody there, listings for users."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from broker.access import Credentials, Identity, Verdict
from trellis import defining, listings, metrics, segments
from trellis.http import Handler, RangeResponse, Request, Response
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
    """The http port: every page asks for a user and a password, and what changes something for an administrator."""

    def guarded(handler: Handler, administrator: bool) -> Handler:
        async def ask(request: Request) -> Response:
            verdict = await _judge(node, request)
            if verdict.identity is None:
                return Response(503 if verdict.busy else 401, f"{verdict.reason}\n".encode(), challenge=not verdict.busy)
            if administrator and not verdict.identity.administrator:
                return Response(403, f"user '{request.user}' is no administrator\n".encode())
            return await handler(request)

        return ask

    def page(kind: str) -> Handler:
        async def show(request: Request) -> Response:
            rows = await listings.rows(node, kind)
            body = await asyncio.get_running_loop().run_in_executor(None, listings.encode, rows)
            return Response(200, body, "application/json")

        return guarded(show, False)

    async def give_out(request: Request) -> Response:
        return Response(200, defining.give_out(node.broker), "application/json")

    async def take_in(request: Request) -> Response:
        try:
            imported = defining.take_in(node.broker, request.body)
        except ValueError as error:
            return Response(400, f"{error}\n".encode())
        return Response(200, msgspec.json.encode({"taken": imported.taken, "refused": imported.refused}), "application/json")

    async def cancel(request: Request) -> Response:
        vhost, name, order = (request.query.get(field, "") for field in ("vhost", "exchange", "id"))
        waiting = node.broker.vhosts[vhost].delays.get(name) if vhost in node.broker.vhosts else None
        if waiting is None or not order.isdecimal() or not waiting.withdraw(int(order)):
            return Response(404, f"no message {order} is delayed by exchange '{name}' in vhost '{vhost}'\n".encode())
        return Response(200, b"[]", "application/json")

    def streaming(answer: Callable[[Identity, Request], Response]) -> Handler:
        async def show(request: Request) -> Response:
            verdict = await _judge(node, request)
            if verdict.identity is None:
                return Response(503 if verdict.busy else 401, f"{verdict.reason}\n".encode(), challenge=not verdict.busy)
            try:
                return answer(verdict.identity, request)
            except segments.Refusal as refusal:
                return Response(refusal.status, f"{refusal}\n".encode())

        return show

    def as_json(rows: list[dict[str, object]]) -> Response:
        return Response(200, msgspec.json.encode(rows), "application/json")

    broker = node.broker
    streams = {
        "/api/streams": streaming(lambda identity, request: as_json(segments.streams(broker, identity))),
        "/api/streams/segments": streaming(lambda identity, request: as_json(segments.segments(broker, identity, request.query))),
        "/api/streams/segment": streaming(lambda identity, request: RangeResponse(
            segments.open_range(broker, identity, request.query), node.sender, segments.CONTENT_TYPE))}
    pages = streams | {f"/api/{kind}": page(kind) for kind in listings.KINDS}
    return pages | {"/api/definitions": guarded(give_out, True), "POST /api/definitions": guarded(take_in, True),
                    "DELETE /api/delayed": guarded(cancel, True)}


async def _judge(node: Node, request: Request) -> Verdict:
    if request.user is None:
        return Verdict(None, "a user and a password are needed")
    answer: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()

    def heard(verdict: Verdict) -> None:
        if not answer.done():
            answer.set_result(verdict)

    node.accounts.authenticate(Credentials(request.user, request.password, "/", request.address, request.local), heard)
    return await answer
