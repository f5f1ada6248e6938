"""A process with one node of a cluster, whose stop waits only 0.3 s for a handover.

    python -m tests.cluster.hasty_node PORT DIRECTORY TIMES [VERSION [HTTP_PORT [REMOTE_PORT]]]

The arguments are the same as for node_process.py. The node differs from a usual node only in this
limit (`LEAVE_SECONDS` in trellis/switching.py), so that a test of the limit takes less than 20 s.
"""

from __future__ import annotations

import sys
from typing import Any, cast

from tests.cluster.node_process import main
from trellis import switching

if __name__ == "__main__":
    cast(Any, switching).LEAVE_SECONDS = 0.3
    sys.exit(main(int(sys.argv[1]), *sys.argv[2:]))
