"""Is `benchmarks/peers` right about what it measures? Its package is found in the folder
`benchmarks`.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent.parent / "benchmarks"))
