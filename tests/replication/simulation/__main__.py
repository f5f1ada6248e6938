"""Print the events of one simulation: python -m tests.replication.simulation SEED [real]."""

from __future__ import annotations

import sys

from tests.replication.simulation.cluster import Cluster
from tests.replication.simulation.node import Node
from tests.replication.simulation.real import RealNode

cluster = Cluster(int(sys.argv[1]), RealNode if "real" in sys.argv[2:] else Node)
complaints = cluster.run()
print("\n".join(cluster.world.story))
print(dict(complaints) or "all promises were kept")
