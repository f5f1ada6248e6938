"""Runs amqtt's broker, which speaks only MQTT 3.1.1: python -m tests.bridge.amqtt_server PORT."""

from __future__ import annotations

import asyncio
import sys

from amqtt.broker import Broker


async def serve(port: int) -> None:
    """Serve on a port of 127.0.0.1 until the process is killed; print "ready" at the start."""
    broker = Broker(
        {
            "listeners": {"default": {"type": "tcp", "bind": f"127.0.0.1:{port}"}},
            "plugins": {
                "amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}
            },
        }
    )
    await broker.start()
    print("ready", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
