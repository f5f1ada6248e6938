"""The clients of all libraries, by name.

A library is imported at its first use. Without the library's runtime the test is skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from tests.broker import BrokerProcess
from tests.interop.amqp_client import AmqpClient
from tests.interop.mqtt_client import Login, MqttClient
from tests.interop.node import Node

AMQP: Final = ("pika", "aio-pika", "kombu", "amqplib")
#: Names of MQTT clients. Those that end with 5, and gmqtt, use MQTT 5; the others MQTT 3.1.1.
MQTT: Final = (
    "paho",
    "aiomqtt",
    "amqtt",
    "mqttjs",
    "mosquitto",
    "paho5",
    "aiomqtt5",
    "mqttjs5",
    "mosquitto5",
    "gmqtt",
)


def connect_amqp(name: str, url: str, node: Callable[[], Node], heartbeat: int = 60) -> AmqpClient:
    """Return a connected client of the AMQP library `name`; `heartbeat` is in seconds.

    `node` starts the process for Node.js libraries.
    """
    match name:
        case "pika":
            from tests.interop.amqp_with_pika import PikaClient

            return PikaClient(url, heartbeat)
        case "aio-pika":
            from tests.interop.amqp_with_aio_pika import AioPikaClient

            return AioPikaClient(url, heartbeat)
        case "kombu":
            from tests.interop.amqp_with_kombu import KombuClient

            return KombuClient(url, heartbeat)
        case "amqplib":
            from tests.interop.amqp_with_amqplib import AmqplibClient

            return AmqplibClient(url, heartbeat, node())
    raise ValueError(name)


def connect_mqtt(
    name: str, broker: BrokerProcess, login: Login, node: Callable[[], Node]
) -> MqttClient:
    """Return a connected client of the MQTT library `name`, such as "paho".

    With a 5 at the end of the name, the client uses MQTT 5. `node` starts the process for Node.js
    libraries.
    """
    if name.endswith("5"):
        name, login = name.removesuffix("5"), replace(login, version=5)
    match name:
        case "gmqtt":
            from tests.interop.mqtt_with_gmqtt import GmqttClient

            return GmqttClient(broker.mqtt, login)
        case "paho":
            from tests.interop.mqtt_with_paho import PahoClient

            return PahoClient(broker.mqtt, login)
        case "aiomqtt":
            from tests.interop.mqtt_with_aiomqtt import AiomqttClient

            return AiomqttClient(broker.mqtt, login)
        case "amqtt":
            from tests.interop.mqtt_with_amqtt import AmqttClient

            return AmqttClient(broker.mqtt, login)
        case "mqttjs":
            from tests.interop.mqtt_with_mqttjs import MqttjsClient

            return MqttjsClient(broker.mqtt, login, node())
        case "mosquitto":
            from tests.interop.mqtt_with_mosquitto import MosquittoClient

            return MosquittoClient(broker.mqtt, login)
    raise ValueError(name)
