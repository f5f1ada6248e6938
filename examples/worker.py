"""A worker on AMQP: consumes the readings of all sensors from a durable queue, one after another.

    python examples/worker.py

The queue is bound to amq.topic, the exchange of all MQTT publications. A slash in the topic is a
dot in the routing key: sensors/kitchen/temperature becomes sensors.kitchen.temperature. Several
workers share the readings. While no worker runs, the queue stores the readings.
"""

import argparse
import json
import os

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.spec import Basic, BasicProperties

parser = argparse.ArgumentParser(description="Consume readings over AMQP.")
parser.add_argument(
    "--url",
    default=os.environ.get("AMQP_URL", "amqp://guest:guest@localhost:5672/"),
    help="AMQP URL of the broker, with user and password",
)
parser.add_argument(
    "--count", type=int, default=0, help="number of readings; 0 repeats until Ctrl-C"
)


def main() -> None:
    """Consume readings until the count is reached or Ctrl-C is pressed."""
    options = parser.parse_args()
    consumed = 0

    def on_reading(
        channel: BlockingChannel, method: Basic.Deliver, _properties: BasicProperties, body: bytes
    ) -> None:
        nonlocal consumed
        sensor = method.routing_key.split(".")[1]
        print(f"{sensor}: {json.loads(body)['celsius']} °C", flush=True)
        # If the connection ended before this acknowledgement, the broker would requeue the reading.
        channel.basic_ack(method.delivery_tag)
        consumed += 1
        if consumed == options.count:
            channel.stop_consuming()

    connection = pika.BlockingConnection(pika.URLParameters(options.url))
    channel = connection.channel()
    channel.queue_declare("readings", durable=True)
    channel.queue_bind("readings", "amq.topic", "sensors.#")
    # The most unacknowledged readings that the broker sends to this worker. Further readings go to
    # other workers, or wait in the queue.
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
