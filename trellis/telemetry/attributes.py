"""Attributes of spans, by OpenTelemetry's semantic conventions for messaging."""

from __future__ import annotations

from typing import Final

from trellis.telemetry.contract import StepOrigin

Attributes = dict[str, str | int | tuple[str, ...]]

SYSTEM: Final = "trellis"
#: Network protocol and version by the name of a front end.
PROTOCOLS: Final = {
    "amqp091": ("amqp", "0.9.1"),
    "mqtt310": ("mqtt", "3.1"),
    "mqtt311": ("mqtt", "3.1.1"),
    "mqtt50": ("mqtt", "5.0"),
    "http": ("http", ""),
}
_SWAP: Final = str.maketrans("./", "/.")


def message_attributes(origin: StepOrigin) -> Attributes:
    """Return the attributes that all spans of a message have."""
    attributes: Attributes = {
        "messaging.system": SYSTEM,
        "messaging.message.body.size": origin.size,
        "messaging.rabbitmq.destination.routing_key": origin.key,
        "trellis.vhost": origin.vhost,
    }
    if origin.message_id:
        attributes["messaging.message.id"] = origin.message_id
    if origin.correlation_id:
        attributes["messaging.message.conversation_id"] = origin.correlation_id
    return attributes


def operation(name: str, kind: str, destination: str) -> Attributes:
    """Return the attributes of an operation; `kind` is a value of messaging.operation.type."""
    return {
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
        "messaging.destination.name": destination,
    }


def destination_of(origin: StepOrigin, queue: str = "") -> str:
    """Return the name of a destination: exchange, routing key and queue, joined by colons.

    As the conventions for RabbitMQ say, empty parts are left out, and the queue is left out if its
    name equals the routing key. A message from MQTT has its topic in place of exchange and key.
    """
    if origin.protocol.startswith("mqtt"):
        topic = origin.key.translate(_SWAP)
        return f"{topic}:{queue}" if queue else topic
    parts = [origin.exchange, origin.key, "" if queue == origin.key else queue]
    return ":".join(part for part in parts if part) or "amq.default"


def publisher_attributes(origin: StepOrigin) -> Attributes:
    """Return the attributes of the publishing client."""
    attributes: Attributes = dict(client_attributes(origin.client))
    if origin.user:
        attributes["user.name"] = origin.user
    name, version = PROTOCOLS.get(origin.protocol, ("", ""))
    if name:
        attributes["network.protocol.name"] = name
    if version:
        attributes["network.protocol.version"] = version
    return attributes


def client_attributes(names: tuple[str, ...]) -> Attributes:
    """Return the attributes of a client with these names: its identifier first, its address last.

    An address is HOST:PORT.
    """
    attributes: Attributes = {}
    if len(names) > 1:
        attributes["messaging.client.id"] = names[0]
    host, colon, port = (names[-1] if names else "").rpartition(":")
    if colon and port.isdecimal():
        attributes["network.peer.address"] = host.strip("[]")
        attributes["network.peer.port"] = int(port)
    return attributes
