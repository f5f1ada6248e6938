"""HAProxy with the configuration of docker-compose.ha.yml, in front of two nodes."""

from __future__ import annotations

import re
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.cluster.nodes import PATIENCE, NodeProcess
from tests.foreign import require

#: HAProxy's configuration file, the names of the two nodes in it, and its ports by listener.
CONFIGURATION: Final = Path(__file__).parents[2] / "config" / "ha" / "haproxy.cfg"
NODES: Final = ("trellis-1", "trellis-2")
PORTS: Final[Mapping[str, int]] = {"amqp": 5672, "mqtt": 1883, "http": 15672}
METRICS_PORT: Final = 15692
#: Flags of a node that gets its connections from the load balancer, and trusts its PROXY headers.
BEHIND: Final = {"amqp-proxies": "127.0.0.1", "mqtt-proxies": "127.0.0.1"}


class LoadBalancer:
    """A HAProxy process. `addresses` has the host and port on which it serves each listener."""

    def __init__(self, nodes: tuple[NodeProcess, NodeProcess], directory: Path) -> None:
        self.addresses = {name: ("127.0.0.1", _free_port()) for name in PORTS}
        text = CONFIGURATION.read_text()
        for listener, port in PORTS.items():
            own = ":".join(map(str, self.addresses[listener]))
            text = _replaced(text, f"bind :{port}\n", f"bind {own}\n")
            for host, node in zip(NODES, nodes, strict=True):
                text = _replaced(text, f"{host}:{port} ", f"{node.addresses[listener]} ")
        for number, node in enumerate(nodes, 1):
            check = node.addresses["metrics"].rpartition(":")[2]
            text, count = re.subn(
                rf"(server node-{number} .* check port ){METRICS_PORT}", rf"\g<1>{check}", text
            )
            assert count == 1
        path = directory / "haproxy.cfg"
        path.write_text(text)
        command = [require("haproxy"), "-f", str(path), "-db", "-n", "100"]
        with (directory / "haproxy.log").open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    def wait_for_port(self, listener: str) -> None:
        """Wait until the load balancer accepts connections for this listener."""
        end = time.monotonic() + PATIENCE
        while True:
            try:
                socket.create_connection(self.addresses[listener], PATIENCE).close()
                return
            except ConnectionRefusedError:
                assert time.monotonic() < end
                assert self._process.poll() is None

    def close(self) -> None:
        """End the HAProxy process."""
        self._process.kill()
        self._process.wait(PATIENCE)


def _replaced(text: str, old: str, new: str) -> str:
    """Return the text with `old` replaced by `new`; `old` must be in the text exactly once."""
    assert text.count(old) == 1, (old, text)
    return text.replace(old, new)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
