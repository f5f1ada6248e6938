"""A dashboard on MQTT that asks a service on AMQP (service.py) about sensors, every two seconds.

    python examples/dashboard.py kitchen cellar

The dashboard subscribes to answers/<dashboard>/+ and then publishes to
requests/<dashboard>/<sensor>. Dashboard and service do not depend on each other's protocol: the
broker translates between them.
"""

import argparse
import asyncio
import json
import os

import aiomqtt

parser = argparse.ArgumentParser(description="Ask about sensors over MQTT.")
parser.add_argument("sensors", nargs="*", default=["kitchen"], help="names of the sensors")
parser.add_argument("--name", default="hall", help="name of the dashboard")
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
parser.add_argument("--count", type=int, default=0, help="number of rounds; 0 repeats until Ctrl-C")
parser.add_argument("--interval", type=float, default=2.0, help="seconds between two rounds")


async def show(options: argparse.Namespace) -> None:
    """Request the mean of every sensor, print the answers, and repeat."""
    async with aiomqtt.Client(
        options.host, options.port, username=options.user, password=options.password
    ) as client:
        await client.subscribe(f"answers/{options.name}/+", qos=1)
        rounds = 0
        while not options.count or rounds < options.count:
            for sensor in options.sensors:
                await client.publish(f"requests/{options.name}/{sensor}", qos=1)
            for _ in options.sensors:
                try:
                    message = await asyncio.wait_for(anext(client.messages), 10)
                except TimeoutError:
                    raise SystemExit(
                        "no answer from the service within 10 s: check that service.py runs"
                    ) from None
                answer = json.loads(message.payload)
                sensor = str(message.topic).rsplit("/", 1)[1]
                mean = f", mean {answer['mean']} °C" if answer["readings"] else ""
                print(f"{sensor}: {answer['readings']} readings{mean}", flush=True)
            rounds += 1
            await asyncio.sleep(options.interval)


if __name__ == "__main__":
    try:
        asyncio.run(show(parser.parse_args()))
    except KeyboardInterrupt:
        pass
