"""An HTTP service for tests, as a process that can be killed: `python -m tests.connectors.target`.

The service checks each signature with the library of Standard Webhooks, and writes the body as one
line of JSON into a file before it answers. So a body whose request was answered is in the file,
also after a kill.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from aiohttp import web
from standardwebhooks import Webhook


async def serve(port: int, record: Path, secret: str) -> None:
    webhook = Webhook(secret)
    file = record.open("a")

    async def receive(request: web.Request) -> web.Response:
        body = await request.read()
        webhook.verify(body, dict(request.headers), json_parse=False)
        headers = {name.lower(): value for name, value in request.headers.items()}
        file.write(json.dumps({"body": body.decode(), "headers": headers}) + "\n")
        file.flush()
        return web.Response()

    application = web.Application()
    application.router.add_post("/", receive)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, reuse_address=True).start()
    sys.stdout.write(f"{runner.addresses[0][1]}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]))
