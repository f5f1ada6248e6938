"""Print the events of one simulation: python -m tests.replication.simulation SEED."""

from __future__ import annotations

import sys

from tests.replication.simulation.cluster import Cluster

cluster = Cluster(int(sys.argv[1]))
complaints = cluster.run()
print("\n".join(cluster.world.story))
print(dict(complaints) or "all promises were kept")
