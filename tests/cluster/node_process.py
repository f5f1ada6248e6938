"""A process with one node of a cluster.

    python -m tests.cluster.node_process PORT DIRECTORY TIMES [VERSION [HTTP_PORT [REMOTE_PORT]]]

PORT is the port of the LogServer. TIMES is silence,lease,beat[,keep_time] in seconds: the values of
the settings of these names in the section `cluster`.
With the VERSION "next", the node stands for a later version of Trellis, which reads and writes a
newer format of batches, too. The `http` listener has the port HTTP_PORT, or any free one.
With a REMOTE_PORT, the node has the bridge `b`: it copies the topics in/# of the broker whose MQTT
listener has this port.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec

from broker.replication.contract import Timing
from broker.replication.formats import FORMATS
from tests.cluster.log_server import SocketLog
from tests.replication.new_format import NEXT
from trellis.app import run
from trellis.cluster.membership import Membership
from trellis.settings import Settings


def main(
    port: int,
    directory: str,
    times: str,
    version: str = "",
    http_port: str = "0",
    remote_port: str = "",
) -> int:
    listeners = ("amqp", "mqtt", "ws", "metrics", "http")
    sections: dict[str, Any] = {name: {"port": 0, "host": "127.0.0.1"} for name in listeners}
    sections["ws"]["enabled"] = True
    sections["http"]["port"] = int(http_port)
    sections["node"] = {"name": Path(directory).name}
    sections["cluster"] = {"name": "broker", "advertised": "127.0.0.1"}
    if remote_port:
        remote = f"mqtt://127.0.0.1:{remote_port}"
        sections["bridge"] = [{"name": "b", "remote": remote, "topics": ["in/# in 1"]}]
    sections["data"] = {"dir": directory}
    sections["store"] = {"segment": 1 << 20, "reserve": False}
    sections["shutdown"] = {"grace": 1}
    silence, lease, beat, *keep_time = (float(text) for text in times.split(","))
    if keep_time:
        sections["cluster"]["keep_time"] = keep_time[0]
    settings = msgspec.convert(sections, Settings)
    timing = Timing(silence, lease, beat)
    name = Path(directory).name
    formats = NEXT if version == "next" else FORMATS
    membership = Membership("broker", timing, lambda: SocketLog(port, name), formats)
    return run(settings, membership=membership)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), *sys.argv[2:]))
