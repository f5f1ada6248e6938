"""pika: a publisher and a consumer that continue at the other node after a failover.

python with_pika.py HOST:PORT HOST:PORT
"""

from __future__ import annotations

import sys
import threading
import time

import pika
from pika.exceptions import AMQPError

NODES = [
    pika.ConnectionParameters(host, int(port), heartbeat=10)
    for host, port in (address.rsplit(":", 1) for address in sys.argv[1:])
]


def publish() -> None:
    """Publish numbers; publish a number again if the connection was lost before its confirm."""
    number = 0
    while True:
        try:
            channel = pika.BlockingConnection(NODES).channel()
            channel.queue_declare("work", durable=True)
            channel.confirm_delivery()
            while True:
                persistent = pika.BasicProperties(delivery_mode=2)
                channel.basic_publish("", "work", b"%d" % number, persistent, mandatory=True)
                print("confirmed", number, flush=True)
                number += 1
        except AMQPError:
            time.sleep(0.2)


def consume() -> None:
    """Print and acknowledge numbers. The broker may deliver a number more than once."""
    while True:
        try:
            channel = pika.BlockingConnection(NODES).channel()
            channel.queue_declare("work", durable=True)
            channel.basic_qos(prefetch_count=100)
            for method, _, body in channel.consume("work"):
                print("received", int(body), flush=True)
                channel.basic_ack(method.delivery_tag)
        except AMQPError:
            time.sleep(0.2)


threading.Thread(target=publish, daemon=True).start()
consume()
