"""paho-mqtt: a publisher and a subscriber that continue at the other node after a failover.

python with_paho.py HOST:PORT HOST:PORT
"""

from __future__ import annotations

import itertools
import sys
import threading
from typing import Any

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

NODES = itertools.cycle(address.rsplit(":", 1) for address in sys.argv[1:])


def client(name: str) -> mqtt.Client:
    """Return a client with a persistent session, which tries the nodes in turn."""
    mqtt_client = mqtt.Client(CallbackAPIVersion.VERSION2, name, clean_session=False)
    mqtt_client.reconnect_delay_set(1, 1)
    mqtt_client.on_disconnect = next_node
    mqtt_client.on_connect_fail = next_node
    return mqtt_client


def next_node(client: mqtt.Client, *_: Any) -> None:
    """Make the next connection attempt go to the other node."""
    host, port = next(NODES)
    client.connect_async(host, int(port), keepalive=10)


def on_connect(client: mqtt.Client, _: Any, __: Any, reason: Any, ___: Any) -> None:
    """Subscribe to the numbers after each successful connect."""
    if not reason.is_failure:
        client.subscribe("work/#", qos=1)
        subscribed.set()


def on_message(_: mqtt.Client, __: Any, message: mqtt.MQTTMessage) -> None:
    """Print a number. The broker may deliver a number more than once."""
    print("received", int(message.payload), flush=True)


def on_publish(*_: Any) -> None:
    """Tell the publisher that its message is acknowledged, so that the next one can be
    published."""
    published.release()


subscribed = threading.Event()
published = threading.Semaphore(0)
subscriber = client("subscriber")
subscriber.on_connect = on_connect
subscriber.on_message = on_message
publisher = client("publisher")
publisher.on_publish = on_publish
for one in (subscriber, publisher):
    next_node(one)
    one.loop_start()
subscribed.wait()
for number in itertools.count():
    # The library publishes a message again if the connection is lost before its confirm.
    publisher.publish("work/numbers", b"%d" % number, qos=1)
    published.acquire()
    print("confirmed", number, flush=True)
