"""Counts living objects: a test compares the counts before and after, to find a leak."""

from __future__ import annotations

import gc
from collections import Counter


def living_objects(*packages: str) -> Counter[str]:
    """Return class -> number of living, unfrozen objects, for the classes that `packages`
    define."""
    kinds = Counter(map(type, gc.get_objects()))
    living: Counter[str] = Counter()
    for kind, count in kinds.items():
        if str(kind.__module__).partition(".")[0] in packages:
            living[kind.__qualname__] += count
    return living
