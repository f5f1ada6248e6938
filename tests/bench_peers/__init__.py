"""Tests of `benchmarks/peers`, whose package is imported from the folder `benchmarks`."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent.parent / "benchmarks"))
