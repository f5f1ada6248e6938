"""A worker: takes the readings of all sensors from a durable AMQP queue, one after another.

    python examples/worker.py

The queue is bound to amq.topic, where MQTT publications arrive, with their slashes as dots:
sensors/kitchen/temperature has the routing key sensors.kitchen.temperature. Start several workers,
and they share the work; stop them all, and the queue keeps the readings until one comes back.
"""

import argparse
import json
import os

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.spec import Basic, BasicProperties

parser = argparse.ArgumentParser(description="Consume readings over AMQP.")
parser.add_argument(
    "--url", default=os.environ.get("AMQP_URL", "amqp://guest:guest@localhost:5672/")
)
parser.add_argument("--count", type=int, default=0, help="readings to take; 0: until Ctrl-C")


def main() -> None:
    options = parser.parse_args()
    taken = 0

    def on_reading(
        channel: BlockingChannel, method: Basic.Deliver, _properties: BasicProperties, body: bytes
    ) -> None:
        nonlocal taken
        sensor = method.routing_key.split(".")[1]
        print(f"{sensor}: {json.loads(body)['celsius']} °C", flush=True)
        channel.basic_ack(
            method.delivery_tag
        )  # Done: before this, the broker would give it to another worker.
        taken += 1
        if taken == options.count:
            channel.stop_consuming()

    connection = pika.BlockingConnection(pika.URLParameters(options.url))
    channel = connection.channel()
    channel.queue_declare("readings", durable=True)
    channel.queue_bind("readings", "amq.topic", "sensors.#")
    # At most this many readings are out to this worker: the others are free for its colleagues.
    channel.basic_qos(prefetch_count=options.count or 10)
    channel.basic_consume("readings", on_reading)
    print("waiting for readings", flush=True)
    try:
        channel.start_consuming()
    except KeyboardInterrupt:
        pass
    finally:
        connection.close()


if __name__ == "__main__":
    main()
