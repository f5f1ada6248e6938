"""HAProxy with the configuration of docker-compose.ha.yml, in front of two nodes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.addresses import free_port, own_address
from tests.cluster.nodes import NodeProcess
from tests.haproxy import HaproxyProcess

#: HAProxy's configuration file, the names of the two nodes in it, and its ports by listener.
CONFIGURATION: Final = Path(__file__).parents[2] / "config" / "ha" / "haproxy.cfg"
NODES: Final = ("trellis-1", "trellis-2")
PORTS: Final[Mapping[str, int]] = {"amqp": 5672, "mqtt": 1883, "http": 15672}
METRICS_PORT: Final = 15692


def flags_behind() -> dict[str, str]:
    """Return flags of a node that gets its connections from the load balancer.

    The node trusts the PROXY headers of the load balancer. It listens on own_address(), so that
    after the node's end, HAProxy reaches no program of another test at the node's ports.
    """
    return {
        **{f"{listener}-host": own_address() for listener in (*PORTS, "metrics")},
        **{f"{listener}-proxies": "127.0.0.1" for listener in ("amqp", "mqtt")},
    }


class LoadBalancer:
    """A HAProxy process. `addresses` has the host and port on which it serves each listener."""

    def __init__(self, nodes: tuple[NodeProcess, NodeProcess], directory: Path) -> None:
        host = own_address()
        self.addresses = {name: (host, free_port(host)) for name in PORTS}
        text = CONFIGURATION.read_text()
        for listener, port in PORTS.items():
            own = ":".join(map(str, self.addresses[listener]))
            text = _replaced(text, f"bind :{port}\n", f"bind {own}\n")
            for name, node in zip(NODES, nodes, strict=True):
                text = _replaced(text, f"{name}:{port} ", f"{node.addresses[listener]} ")
        for number, node in enumerate(nodes, 1):
            check = node.addresses["metrics"].rpartition(":")[2]
            text, count = re.subn(
                rf"(server node-{number} .* check port ){METRICS_PORT}", rf"\g<1>{check}", text
            )
            assert count == 1
        self._process = HaproxyProcess(text, directory)

    def wait_for_port(self, listener: str) -> None:
        """Wait until the load balancer accepts connections for this listener."""
        host, port = self.addresses[listener]
        self._process.wait_for_port(port, host)

    def close(self) -> None:
        """End the HAProxy process."""
        self._process.close()


def _replaced(text: str, old: str, new: str) -> str:
    """Return the text with `old` replaced by `new`; `old` must be in the text exactly once."""
    assert text.count(old) == 1, (old, text)
    return text.replace(old, new)
