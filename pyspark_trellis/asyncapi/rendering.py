"""The parts of an AsyncAPI document: names, references, servers, messages and parameters.

Names of channels, messages and servers may have letters, digits, `_`, `.` and `-` only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from matching.grammar import swap
from pyspark_trellis.asyncapi.addresses import Template
from pyspark_trellis.asyncapi.observations import ObservedMessage

Document = dict[str, Any]

_UNNAMED: Final = re.compile(r"[^A-Za-z0-9_.-]+")
#: Largest length of a name in the document.
_NAME_MAX: Final = 100
#: The versions of AsyncAPI's binding specifications.
AMQP_BINDING: Final = "0.3.0"
MQTT_BINDING: Final = "0.2.0"
WS_BINDING: Final = "0.1.0"
#: Name of the security scheme of all servers.
_SCHEME: Final = "login"


class Server(NamedTuple):
    """A listener of the broker; `protocol` is amqp, amqps, mqtt, mqtts, ws or wss."""

    protocol: str
    host: str


class Names:
    """The names that are in use in one part of the document; each name is valid and unique."""

    def __init__(self) -> None:
        self._used: set[str] = set()

    def unique(self, *parts: str) -> str:
        """Return a name made of these parts, with a number if the name is in use."""
        text = ".".join(_UNNAMED.sub("_", part).strip("_.") or "empty" for part in parts)
        base = name = text[:_NAME_MAX]
        number = 1
        while name in self._used:
            number += 1
            name = f"{base}-{number}"
        self._used.add(name)
        return name


def reference(*path: str) -> Document:
    """Return a reference to the part of the document with this path."""
    return {"$ref": "#/" + "/".join(part.replace("~", "~0").replace("/", "~1") for part in path)}


def servers_part(
    servers: list[Server], vhosts: list[str], versions: Mapping[str, str]
) -> tuple[Document, dict[tuple[str, str], list[Document]]]:
    """Return the part `servers`, and references to its servers by vhost and family of protocols.

    An AMQP server has the virtual host as its path, so each virtual host has its own AMQP server.
    `versions` has the version of each protocol.
    """
    part: Document = {}
    names = Names()
    references: dict[tuple[str, str], list[Document]] = {}
    for server in servers:
        kind = "amqp" if server.protocol.startswith("amqp") else "mqtt"
        entry: Document = {
            "host": server.host,
            "protocol": server.protocol,
            "protocolVersion": versions.get(server.protocol.removesuffix("s"), versions[kind]),
            "security": [reference("components", "securitySchemes", _SCHEME)],
        }
        if kind == "amqp":
            for vhost in vhosts:
                name = names.unique(server.protocol, *([] if vhost == "/" else [vhost]))
                part[name] = entry | {"pathname": f"/{quote(vhost, safe='')}"}
                references.setdefault((vhost, kind), []).append(reference("servers", name))
            continue
        name = names.unique(server.protocol)
        if server.protocol in ("ws", "wss"):
            entry["description"] = "MQTT over WebSocket: the subprotocol is mqtt."
            entry["protocolVersion"] = "13"
        else:
            entry["bindings"] = {"mqtt": {"bindingVersion": MQTT_BINDING}}
        part[name] = entry
        for vhost in vhosts:
            references.setdefault((vhost, kind), []).append(reference("servers", name))
    return part, references


def security_part() -> Document:
    """Return the security schemes: user and password."""
    return {_SCHEME: {"type": "userPassword", "description": "Name and password of a user."}}


def parameters_part(template: Template, separator: str, examples: bool) -> Document:
    """Return the parameters of an address, with observed values if `examples` is True."""
    part: Document = {}
    for parameter in template.parameters:
        last = template.more and parameter is template.parameters[-1]
        entry: Document = {}
        if parameter.values:
            entry["description"] = f"Number of different values observed: {parameter.values:,}."
        if last:
            entry["description"] = "One or several levels of the topic."
        if examples and parameter.examples:
            entry["examples"] = [
                swap(text) if separator == "/" else text for text in parameter.examples
            ]
        part[parameter.name] = entry
    return part


def message_part(message: ObservedMessage, name: str) -> Document:
    """Return a message as a part of the document."""
    part: Document = {"name": message.kind or name}
    if message.content_type:
        part["contentType"] = message.content_type
    if message.headers.count:
        part["headers"] = {"type": "object"} | message.headers.schema()
    sampled = message.body.count if message.body is not None else 0
    if message.body is not None and sampled:
        part["payload"] = message.body.schema()
    part["x-trellis-messages"] = message.count
    if sampled:
        part["x-trellis-samples"] = sampled
    return part
