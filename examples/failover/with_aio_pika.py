"""aio-pika: a publisher and a consumer that continue at the other node after a failover.

python with_aio_pika.py HOST:PORT HOST:PORT
"""

from __future__ import annotations

import asyncio
import sys

import aio_pika
from aio_pika.exceptions import AMQPError

URLS = [f"amqp://guest:guest@{address}/?heartbeat=10" for address in sys.argv[1:]]


async def connected() -> aio_pika.abc.AbstractConnection:
    """Return a connection to the active node."""
    while True:
        for url in URLS:
            try:
                return await aio_pika.connect(url, timeout=10)
            except (AMQPError, OSError):
                await asyncio.sleep(0.2)


async def publish() -> None:
    """Publish numbers; publish a number again if the connection was lost before its confirm."""
    number = 0
    while True:
        try:
            async with await connected() as connection:
                channel = await connection.channel(publisher_confirms=True)
                await channel.declare_queue("work", durable=True)
                while True:
                    message = aio_pika.Message(b"%d" % number, delivery_mode=2)
                    await channel.default_exchange.publish(message, "work", timeout=30)
                    print("confirmed", number, flush=True)
                    number += 1
        except (AMQPError, OSError):
            await asyncio.sleep(0.2)


async def consume() -> None:
    """Print and acknowledge numbers. The broker may deliver a number more than once."""
    while True:
        try:
            async with await connected() as connection:
                channel = await connection.channel()
                await channel.set_qos(prefetch_count=100)
                queue = await channel.declare_queue("work", durable=True)
                async with queue.iterator() as messages:
                    async for message in messages:
                        print("received", int(message.body), flush=True)
                        await message.ack()
        except (AMQPError, OSError):
            await asyncio.sleep(0.2)


async def main() -> None:
    """Publish and consume at the same time, until the program is ended."""
    await asyncio.gather(publish(), consume())


asyncio.run(main())
