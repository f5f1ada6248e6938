"""A sensor on MQTT: publishes its temperature once a second to sensors/<name>/temperature.

    python examples/sensor.py kitchen

Readings have QoS 1: the broker acknowledges each one, and an AMQP queue that is bound to the topic
stores the reading as a persistent message.
"""

import argparse
import json
import os
import random
import sys
import time

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

parser = argparse.ArgumentParser(description="Publish readings over MQTT.")
parser.add_argument("name", nargs="?", default="kitchen", help="name of the sensor")
parser.add_argument(
    "--host", default=os.environ.get("MQTT_HOST", "localhost"), help="host of the MQTT listener"
)
parser.add_argument(
    "--port",
    type=int,
    default=os.environ.get("MQTT_PORT", "1883"),
    help="port of the MQTT listener",
)
parser.add_argument(
    "--user",
    default=os.environ.get("MQTT_USER"),
    help="user name; without this option, connect anonymously",
)
parser.add_argument(
    "--password", default=os.environ.get("MQTT_PASSWORD"), help="password of the user"
)
parser.add_argument(
    "--count", type=int, default=0, help="number of readings; 0 repeats until Ctrl-C"
)
parser.add_argument("--interval", type=float, default=1.0, help="seconds between two readings")


def main() -> None:
    """Publish readings until the count is reached or Ctrl-C is pressed."""
    options = parser.parse_args()
    topic = f"sensors/{options.name}/temperature"

    client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id=f"sensor-{options.name}")
    if options.user:
        client.username_pw_set(options.user, options.password)
    client.on_connect = lambda _client, _data, _flags, answer, _properties: print(
        f"the broker answered CONNECT: {answer}", flush=True
    )
    client.connect(options.host, options.port)
    # The network thread of paho-mqtt reconnects after a lost connection.
    client.loop_start()

    celsius = 21.0
    published = 0
    try:
        while not options.count or published < options.count:
            celsius = round(celsius + random.uniform(-0.5, 0.5), 1)
            reading = client.publish(topic, json.dumps({"celsius": celsius}), qos=1)
            reading.wait_for_publish(10)
            if not reading.is_published():
                sys.exit(
                    "the broker did not acknowledge the reading within 10 s: check that it runs"
                )
            published += 1
            print(f"{topic}: {celsius}", flush=True)
            time.sleep(options.interval)
    except KeyboardInterrupt:
        pass
    finally:
        client.disconnect()
        client.loop_stop()


if __name__ == "__main__":
    main()
