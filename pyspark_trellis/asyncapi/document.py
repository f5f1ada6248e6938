"""Makes the AsyncAPI document from observations and bindings.

    channel            address of an exchange (AMQP routing key, MQTT topic), or a queue
    operation `send`   observed publishers of a channel
    operation `receive`  consumers of a queue, or MQTT subscriptions to a channel

The same topic is a routing key for AMQP clients and an MQTT topic for MQTT clients. If clients of
both protocols publish or subscribe, the topic has two channels, one in each notation with its own
servers. Both channels refer to the same messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from matching.grammar import MQTT, swap
from pyspark_trellis.asyncapi.addresses import Template, pattern_template, queue_templates
from pyspark_trellis.asyncapi.observations import Observations, ObservedAddress, family
from pyspark_trellis.asyncapi.receivers import Receivers, receivers
from pyspark_trellis.asyncapi.rendering import (
    AMQP_BINDING,
    MQTT_BINDING,
    WS_BINDING,
    Document,
    Names,
    Server,
    message_part,
    parameters_part,
    reference,
    security_part,
    servers_part,
)
from pyspark_trellis.definitions import BoundQueue, DefinitionsFile

#: Largest number of publishers, or of topic filters, that a description names.
_SHOWN: Final = 10
#: The exchange types that AsyncAPI's AMQP binding permits.
_TYPES: Final = ("topic", "direct", "fanout", "headers")
_SEPARATORS: Final = {"amqp": ".", "mqtt": "/"}


class DocumentOptions(NamedTuple):
    """The user's options. `examples` is True if the document may show observed values."""

    title: str
    version: str
    servers: list[Server]
    examples: bool


def document(
    observed: Observations,
    definitions: DefinitionsFile | None,
    options: DocumentOptions,
    sources: Sequence[str],
) -> Document:
    """Return the AsyncAPI document; `sources` are lines that say where the bindings are from."""
    all_receivers = (
        Receivers([], []) if definitions is None else receivers(observed.addresses, definitions)
    )
    return _Writer(observed, definitions, all_receivers, options).document(sources)


class _Writer:
    """A writer of one AsyncAPI document."""

    def __init__(
        self,
        observed: Observations,
        definitions: DefinitionsFile | None,
        receivers: Receivers,
        options: DocumentOptions,
    ) -> None:
        self._observed: Final = observed
        self._definitions: Final = definitions
        self._receivers: Final = receivers
        self._options: Final = options
        self._channels: Document = {}
        self._operations: Document = {}
        self._messages: Document = {}
        self._channel_names: Final = Names()
        self._operation_names: Final = Names()
        self._message_names: Final = Names()
        vhosts = {each.vhost for each in observed.addresses}
        vhosts |= set(definitions.hosts) if definitions is not None else set()
        self._servers, self._server_references = servers_part(
            options.servers, sorted(vhosts) or ["/"], self._versions()
        )
        self._web_socket: Final = any(each.protocol in ("ws", "wss") for each in options.servers)

    def document(self, sources: Sequence[str]) -> Document:
        """Write all parts and return the document."""
        messages = [self._messages_of(each) for each in self._observed.addresses]
        for number, address in enumerate(self._observed.addresses):
            if address.exchange:
                self._add_address(address, self._subscribed(number), messages[number])
        self._add_queues(messages)
        for bound in self._receivers.unobserved:
            self._add_unobserved(bound)
        part: Document = {
            "asyncapi": "3.0.0",
            "info": {
                "title": self._options.title,
                "version": self._options.version,
                "description": self._description(sources),
            },
        }
        if self._servers:
            part["servers"] = self._servers
        part["channels"] = self._channels
        part["operations"] = self._operations
        part["components"] = {"messages": self._messages}
        if self._servers:
            part["components"]["securitySchemes"] = security_part()
        return part

    def _versions(self) -> dict[str, str]:
        protocols = {name for each in self._observed.addresses for name in each.protocols}
        old = protocols & {"mqtt310", "mqtt311"} and "mqtt50" not in protocols
        return {"amqp": "0-9-1", "mqtt": "3.1.1" if old else "5.0"}

    def _description(self, sources: Sequence[str]) -> str:
        observed = self._observed
        addresses = len(observed.addresses) + observed.addresses_left_out
        text = f"Made from {observed.messages:,} published messages with {addresses:,} addresses."
        lines = [text]
        if observed.messages_left_out:
            lines.append(
                f"Left out: {observed.messages_left_out:,} messages with rare topics, and "
                f"{observed.addresses_left_out:,} addresses."
            )
        return "\n".join([*lines, *sources])

    # -- messages

    def _messages_of(self, address: ObservedAddress) -> dict[str, Document]:
        """Add the messages of an address to `components`; return references by short name."""
        short = Names()
        references: dict[str, Document] = {}
        text = address.template.address(".")
        for message in address.messages.values():
            own = short.unique(message.kind or message.content_type or "message")
            parts = [
                address.exchange or "queue",
                text,
                *([own] if len(address.messages) > 1 else []),
            ]
            name = self._message_names.unique(*parts)
            self._messages[name] = message_part(message, name)
            references[own] = reference("components", "messages", name)
        return references

    # -- channels of exchanges

    def _subscribed(self, number: int) -> list[BoundQueue]:
        if self._definitions is None or not self._receivers.of:
            return []
        numbers = sorted(self._receivers.of[number].subscriptions)
        return [self._definitions.bindings[each] for each in numbers]

    def _add_address(
        self, address: ObservedAddress, subscribed: list[BoundQueue], messages: dict[str, Document]
    ) -> None:
        families = {family(protocol) for protocol in address.protocols}
        families |= {"mqtt"} if subscribed else set()
        for protocol in sorted(families):
            name = self._add_channel(
                address.vhost, address.exchange, protocol, address.template, messages
            )
            publishers = list(address.publishers.get(protocol, ()))
            if publishers:
                self._add_operation(
                    "send",
                    name,
                    messages,
                    f"Published by {_shortened(publishers)}.",
                    _delivery(protocol, address.qos[protocol]),
                )
            if protocol == "mqtt" and subscribed:
                self._add_subscriptions(name, messages, subscribed)

    def _add_channel(
        self,
        vhost: str,
        exchange: str,
        protocol: str,
        template: Template,
        messages: dict[str, Document],
    ) -> str:
        separator = _SEPARATORS[protocol]
        bindings: Document = {}
        if protocol == "amqp":
            described: Document = {"name": exchange, "vhost": vhost}
            kind = self._exchange_type(vhost, exchange)
            if kind in _TYPES:
                described["type"] = kind
            bindings["amqp"] = {
                "is": "routingKey",
                "exchange": described,
                "bindingVersion": AMQP_BINDING,
            }
        elif self._web_socket:
            bindings["ws"] = {"method": "GET", "bindingVersion": WS_BINDING}
        source = [exchange] if protocol == "amqp" else []
        name = self._channel_names.unique(
            protocol, *([] if vhost == "/" else [vhost]), *source, template.address(".")
        )
        self._channels[name] = self._channel(
            template.address(separator), vhost, protocol, template, messages, bindings
        )
        return name

    def _channel(
        self,
        address: str,
        vhost: str,
        protocol: str,
        template: Template,
        messages: dict[str, Document],
        bindings: Document,
    ) -> Document:
        channel: Document = {"address": address}
        servers = self._server_references.get((vhost, protocol))
        if servers:
            channel["servers"] = servers
        parameters = parameters_part(template, _SEPARATORS[protocol], self._options.examples)
        if parameters:
            channel["parameters"] = parameters
        if messages:
            channel["messages"] = messages
        if bindings:
            channel["bindings"] = bindings
        return channel

    def _exchange_type(self, vhost: str, exchange: str) -> str | None:
        host = None if self._definitions is None else self._definitions.hosts.get(vhost)
        return None if host is None else host.types.get(exchange)

    # -- channels of queues

    def _add_queues(self, messages: list[dict[str, Document]]) -> None:
        """Add a channel for each queue that observed messages reach, or that has a binding."""
        reached: dict[tuple[str, str], list[int]] = {}
        for number, address in enumerate(self._observed.addresses):
            queues = self._receivers.of[number].queues if self._receivers.of else set()
            own = set() if address.exchange else set(address.topics)
            for queue in queues | own:
                reached.setdefault((address.vhost, queue), []).append(number)
        for bound in self._receivers.unobserved:
            if bound.kind == "queue":
                reached.setdefault((bound.vhost, bound.destination), [])
        for vhost in sorted({vhost for vhost, _ in reached}):
            names = sorted(name for host, name in reached if host == vhost)
            grouped: dict[Template, list[int]] = {}
            for name, template in zip(names, queue_templates(names), strict=True):
                grouped.setdefault(template, []).extend(reached[vhost, name])
            for template, numbers in grouped.items():
                self._add_queue(vhost, template, sorted(set(numbers)), messages)

    def _add_queue(
        self,
        vhost: str,
        template: Template,
        numbers: list[int],
        messages: list[dict[str, Document]],
    ) -> None:
        short = Names()
        refers = {
            short.unique(str(each["$ref"]).rpartition("/")[2]): each
            for number in numbers
            for each in messages[number].values()
        }
        queue: Document = {"vhost": vhost}
        if not template.parameters:
            queue["name"] = template.address(".")
        bindings = {"amqp": {"is": "queue", "queue": queue, "bindingVersion": AMQP_BINDING}}
        name = self._channel_names.unique(
            "queue", *([] if vhost == "/" else [vhost]), template.address(".")
        )
        self._channels[name] = self._channel(
            template.address("."), vhost, "amqp", template, refers, bindings
        )
        self._add_operation("receive", name, refers, "Consumers of the queue.", None)
        for number in numbers:
            address = self._observed.addresses[number]
            publishers = list(address.publishers.get("amqp", ()))
            if not address.exchange and publishers:
                own = {
                    key: each for key, each in refers.items() if each in messages[number].values()
                }
                text = f"Published through the default exchange by {_shortened(publishers)}."
                self._add_operation("send", name, own, text, _delivery("amqp", address.qos["amqp"]))

    # -- bindings without an observed topic

    def _add_unobserved(self, bound: BoundQueue) -> None:
        mqtt = bound.grammar == MQTT.name
        key = swap(bound.key) if mqtt else bound.key
        if mqtt:
            key = ".".join("*" if word == "+" else word for word in key.split("."))
        if self._exchange_type(bound.vhost, bound.source) == "fanout":
            key = "*"  # A fanout exchange ignores the routing key.
        template = pattern_template(key)
        protocol = "mqtt" if mqtt else "amqp"
        name = self._add_channel(bound.vhost, bound.source, protocol, template, {})
        if mqtt:
            self._add_subscriptions(name, {}, [bound])

    # -- operations

    def _add_subscriptions(
        self, channel: str, messages: dict[str, Document], subscribed: list[BoundQueue]
    ) -> None:
        filters = list(dict.fromkeys(f"`{each.key}`" for each in subscribed))
        text = f"MQTT subscriptions: {len(subscribed):,}. Filters: {_shortened(filters)}."
        self._add_operation("receive", channel, messages, text, None)

    def _add_operation(
        self,
        action: str,
        channel: str,
        messages: dict[str, Document],
        text: str,
        bindings: Document | None,
    ) -> None:
        operation: dict[str, Any] = {
            "action": action,
            "channel": reference("channels", channel),
            "description": text,
        }
        if messages:
            operation["messages"] = [
                reference("channels", channel, "messages", name) for name in messages
            ]
        if bindings:
            operation["bindings"] = bindings
        self._operations[self._operation_names.unique(action, channel)] = operation


def _delivery(protocol: str, qos: set[int]) -> Document | None:
    """Return the QoS or delivery mode of an operation as AsyncAPI's binding.

    Return None if the messages of the operation have different QoS or modes.
    """
    if len(qos) != 1:
        return None
    [level] = qos
    if protocol == "mqtt":
        return {"mqtt": {"qos": level, "bindingVersion": MQTT_BINDING}}
    return {"amqp": {"deliveryMode": 2 if level else 1, "bindingVersion": AMQP_BINDING}}


def _shortened(texts: list[str]) -> str:
    """Return at most _SHOWN texts in one line, and how many texts were left out."""
    more = f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return ", ".join(texts[:_SHOWN]) + more
