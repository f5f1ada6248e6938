"""The description of a node in its claims: its addresses, its settings, and its log."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True, slots=True)
class NodeDescription:
    """The name, addresses and settings of a node that owns the replicated log or claims it."""

    #: Name of the node.
    node: str = ""
    #: Host at which clients reach the node, and the ports of its listeners by name.
    host: str = ""
    ports: dict[str, int] = field(default_factory=dict)
    #: Digest of the settings that must be the same on all nodes, in hexadecimal; "" if not known.
    settings: str = ""
    #: Identity of the replicated log (`ReplicatedLog.identity`).
    log: str = ""

    def server(self, listener: str) -> str:
        """Return HOST:PORT of a listener; "" if the node has no such listener."""
        port = self.ports.get(listener)
        if port is None:
            return ""
        return f"[{self.host}]:{port}" if ":" in self.host else f"{self.host}:{port}"

    def encode(self) -> str:
        """Return the description as a text, which `decode` reads."""
        return json.dumps(asdict(self))

    @staticmethod
    def decode(text: str) -> NodeDescription:
        """Return the description in a text of `encode`; an empty description if the text has
        another form.
        """
        try:
            document = json.loads(text)
        except ValueError:
            document = None
        if not isinstance(document, dict):
            return NodeDescription()
        ports = document.get("ports")
        known = ports.items() if isinstance(ports, dict) else ()
        return NodeDescription(
            _text(document.get("node")),
            _text(document.get("host")),
            {name: port for name, port in known if isinstance(port, int)},
            _text(document.get("settings")),
            _text(document.get("log")),
        )


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
