"""A process with one node of a cluster: python -m tests.cluster.node_process PORT DIRECTORY TIMES.

PORT is the port of the LogServer; TIMES is silence,lease,beat in seconds.
"""

from __future__ import annotations

import sys
from typing import Any

import msgspec

from broker.replication.contract import CHUNK_SIZE, Timing
from tests.cluster.log_server import SocketLog
from trellis.app import run
from trellis.cluster.membership import Membership
from trellis.settings import Settings


def main(port: int, directory: str, times: str) -> int:
    listeners = ("amqp", "mqtt", "metrics")
    sections: dict[str, Any] = {name: {"port": 0, "host": "127.0.0.1"} for name in listeners}
    sections["http"] = {"enabled": False}
    sections["data"] = {"dir": directory}
    sections["store"] = {"segment": 1 << 20, "reserve": False}
    sections["shutdown"] = {"grace": 1}
    settings = msgspec.convert(sections, Settings)
    silence, lease, beat = (float(text) for text in times.split(","))
    timing = Timing(silence, lease, beat)
    membership = Membership("broker", timing, lambda: (SocketLog(port), CHUNK_SIZE))
    return run(settings, membership=membership)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2], sys.argv[3]))
