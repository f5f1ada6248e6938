"""Measures how much disk the replicated log of a cluster takes on each Kafka node.

    .venv/bin/python benchmarks/kafka_disk.py
        --trellis COMMAND      the broker [.run/bin/trellis]
        --seconds S            length of the measurement [3600]
        --rate R               confirmed persistent messages per second [5000]
        --size BYTES           size of a message body [256]
        --keep BYTES           setting cluster.keep [its default]

Three Kafka nodes (downloaded), an active node and a standby run on this machine. `trellis bench
load` publishes persistent messages to a durable queue, consumes and acknowledges them, and checks
each of them. Once a second, the script adds up the sizes of the files of the log's partition on
each Kafka node. The limit is cluster.keep plus the size of two Kafka segments. The limit has no
room for records that the standby has still to read, so the standby must not be far behind. Needs
the packages of the tests, and Java; see docs/high-availability.md for figures.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from msgspec.structs import replace
from takeover import PATIENCE, ROOT, Node

from tests.cluster.conftest import cluster_on, created
from tests.cluster.programs import KafkaNodes
from trellis.cluster.topic import TOPIC_SETTINGS
from trellis.settings.cluster import RETENTION_BYTES

MB: Final = 1_000_000
NODES: Final = 3
#: Seconds of one round of the load.
ROUND: Final = 60
#: Bytes of one block of `st_blocks`.
BLOCK: Final = 512
SEGMENT: Final = int(TOPIC_SETTINGS["segment.bytes"])


def main() -> int:
    """Measure, print the figures as JSON, and return 1 if the limit was exceeded."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trellis", default=str(ROOT / ".run/bin/trellis"))
    parser.add_argument("--seconds", type=int, default=3_600)
    parser.add_argument("--rate", type=int, default=5_000)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--keep", type=int, default=RETENTION_BYTES)
    given = parser.parse_args()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kafka-disk-")))
        kafka = KafkaNodes(directory, NODES)
        stack.callback(kafka.close)
        cluster = replace(cluster_on(kafka.servers, "disk", 10.0, 8.0, 1.0), keep=given.keep)
        created(cluster)
        nodes: list[Node] = []
        for name in ("one", "two"):
            node = Node(given.trellis, cluster, directory / name)
            stack.callback(node.process.kill)
            node.wait_for("following")
            if not nodes:
                node.wait_for("ready")
            nodes.append(node)
        figures = _measure(given, nodes, [directory / f"node-{at + 1}" for at in range(NODES)])
    print(json.dumps(figures, indent=1))
    return 0 if figures["most_mb"] <= figures["limit_mb"] else 1


def _measure(
    given: argparse.Namespace, nodes: list[Node], homes: list[Path]
) -> dict[str, float | int]:
    """Run the load, and return the sizes of the log on the Kafka nodes and other figures."""
    rounds = max(1, given.seconds // ROUND)
    load = subprocess.Popen(
        [
            *(given.trellis, "bench", "load", "amqp-durable"),
            *("--amqp", f"amqp://guest:guest@{nodes[0].addresses['amqp']}/"),
            *("--rate", str(given.rate), "--size", str(given.size)),
            *("--seconds", str(min(ROUND, given.seconds)), "--rounds", str(rounds)),
        ],
        text=True,
        stdout=subprocess.PIPE,
    )
    most = behind = samples = drops = 0
    before = [0] * len(homes)
    began = time.monotonic()
    try:
        while load.poll() is None:
            sizes = [_log_size(home) for home in homes]
            drops += sum(now < last for now, last in zip(sizes, before, strict=True))
            most, before, samples = max(most, *sizes), sizes, samples + 1
            behind = max(behind, int(nodes[0].figure("batch") - nodes[1].figure("batch")))
            time.sleep(1.0)
        report, _ = load.communicate(timeout=PATIENCE)
    finally:
        load.kill()
    if load.returncode:
        sys.exit(f"kafka_disk: the load failed:\n{report}")
    print(report)
    return {
        "seconds": round(time.monotonic() - began),
        "samples": samples,
        "rate": given.rate,
        "keep_mb": round(given.keep / MB),
        "limit_mb": round((given.keep + 2 * SEGMENT) / MB),
        "most_mb": round(most / MB),
        "last_mb": round(max(before) / MB),
        "shrunk": drops,
        "most_batches_behind": behind,
        "load": round(os.getloadavg()[0], 1),
    }


def _log_size(home: Path) -> int:
    """Return the bytes that the log's partition takes on the disk of a Kafka node.

    Kafka allocates more space for the index of the last segment than the index uses; only used
    blocks count.
    """
    total = 0
    for path in (home / "data").glob("trellis-disk-*/*"):
        try:
            total += path.stat().st_blocks * BLOCK
        except FileNotFoundError:
            continue  # Kafka removed the file meanwhile.
    return total


if __name__ == "__main__":
    sys.exit(main())
