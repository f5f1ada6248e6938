"""Counts living objects: a test compares the counts before and after, to find a leak."""

from __future__ import annotations

import gc
from collections import Counter


def living_objects(*packages: str) -> Counter[str]:
    """Return the number of living objects by class name, for the classes of `packages`.

    Objects that gc.freeze has frozen are not counted.
    """
    kinds = Counter(map(type, gc.get_objects()))
    living: Counter[str] = Counter()
    for kind, count in kinds.items():
        if str(kind.__module__).partition(".")[0] in packages:
            living[kind.__qualname__] += count
    return living
