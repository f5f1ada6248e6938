"""The description of a node in its claims: the addresses at which clients reach the node."""

from __future__ import annotations

import json
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """The name of a node, and the host and ports at which clients reach it."""

    node: str
    host: str
    #: Ports of the listeners by name.
    ports: dict[str, int] = field(default_factory=dict)

    def server(self, listener: str) -> str:
        """Return HOST:PORT of a listener; "" if the node has no such listener."""
        port = self.ports.get(listener)
        if port is None:
            return ""
        return f"[{self.host}]:{port}" if ":" in self.host else f"{self.host}:{port}"

    def encode(self) -> str:
        """Return the description as text."""
        return json.dumps({"node": self.node, "host": self.host, "ports": self.ports})

    @staticmethod
    def decode(text: str) -> NodeAddress | None:
        """Return the description in a text; None if it has none, such as one of a newer version."""
        try:
            found = json.loads(text)
            node, host, ports = found["node"], found["host"], found["ports"]
        except (KeyError, TypeError, ValueError):
            return None
        if not (isinstance(node, str) and isinstance(host, str) and isinstance(ports, dict)):
            return None
        return NodeAddress(
            node, host, {name: port for name, port in ports.items() if isinstance(port, int)}
        )
