"""Runs `python benchmarks/peers` (or `python -m benchmarks.peers`): compares Trellis with other
brokers.
"""

import sys
from pathlib import Path

_BENCHMARKS = Path(__file__).resolve().parent.parent
sys.path[:0] = [
    str(_BENCHMARKS),
    str(_BENCHMARKS.parent),
]  # Add the directories in which Python finds this package, and the workloads in trellis.bench.

from peers.command import main  # noqa: E402  (needs the new path)

if __name__ == "__main__":
    sys.exit(main())
