"""A service on AMQP that tells dashboards on MQTT the number and the mean of a sensor's readings.

    python examples/service.py

Each request and each answer has two names, one for each protocol:

              MQTT topic                       AMQP routing key
    request   requests/<dashboard>/<sensor>    requests.<dashboard>.<sensor>
    answer    answers/<dashboard>/<sensor>     answers.<dashboard>.<sensor>
"""

import argparse
import asyncio
import json
import os
from collections import Counter, defaultdict

import aio_pika

parser = argparse.ArgumentParser(description="Answer dashboards over AMQP.")
parser.add_argument(
    "--url",
    default=os.environ.get("AMQP_URL", "amqp://guest:guest@localhost:5672/"),
    help="AMQP URL of the broker, with user and password",
)


async def serve(url: str) -> None:
    """Count readings and answer requests until the program is ended."""
    counts: Counter[str] = Counter()
    sums: defaultdict[str, float] = defaultdict(float)

    # A robust connection reconnects after it is lost.
    connection = await aio_pika.connect_robust(url)
    async with connection:
        channel = await connection.channel()
        topics = await channel.get_exchange("amq.topic")
        # One queue for readings and requests: an answer covers all readings before its request.
        queue = await channel.declare_queue(exclusive=True)
        await queue.bind(topics, "sensors.*.temperature")
        await queue.bind(topics, "requests.*.*")
        print("waiting for requests", flush=True)

        async with queue.iterator() as messages:
            async for message in messages:
                # process() acknowledges the message at the end, or rejects it after an error.
                async with message.process():
                    kind, *rest = (message.routing_key or "").split(".")
                    if kind == "sensors":
                        counts[rest[0]] += 1
                        sums[rest[0]] += json.loads(message.body)["celsius"]
                        continue
                    dashboard, sensor = rest
                    count = counts[sensor]
                    answer = {
                        "readings": count,
                        "mean": round(sums[sensor] / count, 2) if count else None,
                    }
                    await topics.publish(
                        aio_pika.Message(json.dumps(answer).encode()),
                        f"answers.{dashboard}.{sensor}",
                    )
                    print(f"answered {dashboard}, sensor {sensor}: {answer}", flush=True)


if __name__ == "__main__":
    try:
        asyncio.run(serve(parser.parse_args().url))
    except KeyboardInterrupt:
        pass
