"""A service on AMQP that answers dashboards on MQTT: how many readings of a sensor came, and their
mean.

python examples/service.py

request    requests/<dashboard>/<sensor>    seen here as the routing key
requests.<dashboard>.<sensor> answer     answers/<dashboard>/<sensor>     published here as
answers.<dashboard>.<sensor>
"""

import argparse
import asyncio
import json
import os
from collections import Counter, defaultdict

import aio_pika

parser = argparse.ArgumentParser(description="Answer dashboards over AMQP.")
parser.add_argument(
    "--url", default=os.environ.get("AMQP_URL", "amqp://guest:guest@localhost:5672/")
)


async def serve(url: str) -> None:
    counts: Counter[str] = Counter()
    sums: defaultdict[str, float] = defaultdict(float)

    connection = await aio_pika.connect_robust(
        url
    )  # It connects again when the connection is lost.
    async with connection:
        channel = await connection.channel()
        topics = await channel.get_exchange("amq.topic")
        # One queue for both, so that a request is answered with all readings that came before it.
        queue = await channel.declare_queue(exclusive=True)
        await queue.bind(topics, "sensors.*.temperature")
        await queue.bind(topics, "requests.*.*")
        print("waiting for requests", flush=True)

        async with queue.iterator() as messages:
            async for message in messages:
                async with (
                    message.process()
                ):  # acknowledges at the end, or gives back after an error
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
                    print(f"told {dashboard} about {sensor}: {answer}", flush=True)


if __name__ == "__main__":
    try:
        asyncio.run(serve(parser.parse_args().url))
    except KeyboardInterrupt:
        pass
