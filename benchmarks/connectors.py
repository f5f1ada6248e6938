"""Measures `trellis connect`: messages per second, and CPU time of the connector per message.

    python -m benchmarks.connectors [--messages N]

A broker, an HTTP service and kfake run on the same machine. Each link begins with a full queue.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path

import aio_pika
from aiohttp import web

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.broker import BrokerProcess
from tests.cluster.programs import Kfake
from tests.connectors.test_kafka import created
from trellis.connect import settings
from trellis.connect.link import ConnectorLink
from trellis.connect.service import links_of

SECRET = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="
BODY = b"x" * 200


async def main(messages: int) -> None:
    """Measure each kind of link with `messages` messages, and print the rate and the CPU time."""
    with tempfile.TemporaryDirectory() as directory:
        broker, kfake = BrokerProcess("--data-dir", directory), Kfake()
        url, process = await _service()
        try:
            created(kfake.servers, "bench")
            hook = f'url = "{url}"\nallow_private = true\nsecrets = ["{SECRET}"]'
            kafka = f'servers = "{kfake.servers}"'
            for name, kind, text in (
                ("webhook, 8 in flight", "webhook", hook),
                ("webhook, batches of 100", "webhook", f"{hook}\nbatch = 100"),
                ("to Kafka", "to_kafka", f'{kafka}\ntopic = "bench"'),
            ):
                await _fill(broker.amqp_url, messages)
                source = 'name = "b"\nqueue = "bench"\ndead_letter = "failed"'
                await _measure(name, broker, f"[[{kind}]]\n{source}\n{text}", messages)
            text = f'name = "f"\n{kafka}\ntopics = ["bench"]\ngroup = "g"\nexchange = ""'
            text += '\nrouting_key = "bench"'
            await _measure("from Kafka", broker, f"[[from_kafka]]\n{text}", messages)
        finally:
            process.kill()
            kfake.close()
            broker.kill()


async def _measure(name: str, broker: BrokerProcess, text: str, messages: int) -> None:
    connector_settings = settings.parse(f'[broker]\nurl = "{broker.amqp_url}"\n{text}', "bench")
    [link] = links_of(connector_settings)
    began, used = time.perf_counter(), time.process_time()
    task = asyncio.create_task(link.run())
    while link.status.delivered < messages:  # noqa: ASYNC110  (a link sets no event)
        await asyncio.sleep(0.005)
    seconds, cpu = time.perf_counter() - began, time.process_time() - used
    await _stop(link, task)
    print(
        f"{name}: {messages / seconds:,.0f} messages/s, {cpu / messages * 1e6:,.0f} us of CPU time "
        "per message"
    )


async def _stop(link: ConnectorLink, task: asyncio.Task[None]) -> None:
    link.stopping.set()
    await task


async def _fill(url: str, messages: int) -> None:
    connection = await aio_pika.connect(url)
    async with connection:
        channel = await connection.channel()
        await channel.declare_queue("bench", durable=True)
        for _ in range(messages // 1_000):
            await asyncio.gather(
                *(
                    channel.default_exchange.publish(
                        aio_pika.Message(BODY, delivery_mode=aio_pika.DeliveryMode.PERSISTENT),
                        "bench",
                    )
                    for _ in range(1_000)
                )
            )


async def _service() -> tuple[str, asyncio.subprocess.Process]:
    """Start the HTTP service in a process of its own; return its URL and the process."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, __file__, "--serve", stdout=asyncio.subprocess.PIPE, env=dict(os.environ)
    )
    assert process.stdout is not None
    return f"http://127.0.0.1:{int(await process.stdout.readline())}/", process


async def serve() -> None:
    """Run the HTTP service; print its port."""

    async def receive(request: web.Request) -> web.Response:
        await request.read()
        return web.Response()

    application = web.Application()
    application.router.add_post("/", receive)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--serve", action="store_true")
    arguments = parser.parse_args()
    asyncio.run(serve() if arguments.serve else main(arguments.messages))
