"""Tests that the HTTP server of the metrics sends a long response in several turns of the loop."""

from __future__ import annotations

import asyncio

from tests.turn_counter import TurnCounter
from trellis.http.routes import HttpRouter
from trellis.http.server import CHUNK_SIZE, Handler, HttpServer, Request, Response
from trellis.monitoring.http_counters import HttpListenerCounters

CHUNKS = 16


async def test_each_chunk_of_a_long_response_is_sent_in_a_turn_of_its_own() -> None:
    """Check that sending a response of CHUNKS chunks takes at least CHUNKS turns of the event loop.

    The response fits into the socket's buffers, so the turns do not come from waiting writes.
    """
    body = bytearray(b"x" * (CHUNKS * CHUNK_SIZE))
    began = 0
    counter = TurnCounter()

    async def answer(_request: Request) -> Response:
        nonlocal began
        began = counter.turns
        return Response(200, body)

    routes: HttpRouter[Handler] = HttpRouter()
    routes.add("GET", "/page", answer)
    server = HttpServer(routes, 5.0, HttpListenerCounters())
    loop = asyncio.get_running_loop()
    listening = await loop.create_server(server.protocol, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*listening.sockets[0].getsockname()[:2])
    writer.write(b"GET /page HTTP/1.1\r\nHost: x\r\n\r\n")
    with counter:
        answered = await reader.read()
    assert answered.endswith(body)
    assert counter.turns - began >= CHUNKS
    writer.close()
    listening.close()
    await server.close()
