"""Serves MQTT on loopback with amqtt's broker: `amqtt_serve.py PORT`.

benchmarks/peers runs this program with the Python of a virtual environment that has amqtt and
uvloop.
"""

import asyncio
import logging
import sys

import uvloop
from amqtt.broker import Broker


async def serve(port: int) -> None:
    """Run amqtt's broker on this port until the task is cancelled."""
    broker = Broker(
        {
            "listeners": {"default": {"type": "tcp", "bind": f"127.0.0.1:{port}"}},
            "plugins": {
                "amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}
            },
        }
    )
    await broker.start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR)
    uvloop.run(serve(int(sys.argv[1])))
