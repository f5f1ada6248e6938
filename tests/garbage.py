"""Living objects: tests compare their numbers before and after, to find leaks."""

from __future__ import annotations

import gc
from collections import Counter


def living_objects(*packages: str) -> Counter[str]:
    """Return the number of objects that live and are not frozen, by class of these packages."""
    kinds = Counter(map(type, gc.get_objects()))
    living: Counter[str] = Counter()
    for kind, count in kinds.items():
        if str(kind.__module__).partition(".")[0] in packages:
            living[kind.__qualname__] += count
    return living
