"""Memory of a subscription: how much the process grows while many matchers are filled (Linux only).

Each pattern is decoded, subscribed and then released by the caller, as in a broker. So the text and
the words of a pattern count if the algorithm stores them. The subscribers are created before the
measurement and cost nothing here: in a broker they are bindings, which exist anyway.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

#: Subscriptions of all matchers together, enough to make the size of a page negligible.
_SUBSCRIPTIONS: Final = 60_000


def subscription_size(make: Callable[[], Any], patterns: bytes) -> float:
    """Return bytes per subscription, measured in matchers that hold all patterns.

    `patterns` has one pattern per line.
    """
    count = patterns.count(b"\n") + 1
    subscribers = list(range(count))
    matchers: list[Any] = [make() for _ in range(-(-_SUBSCRIPTIONS // count))]
    gc.collect()
    before = _resident()
    for matcher in matchers:
        start = 0
        for subscriber in subscribers:
            end = patterns.find(b"\n", start)
            matcher.subscribe(
                patterns[start : end if end >= 0 else len(patterns)].decode(), subscriber
            )
            start = end + 1
    gc.collect()
    return max(0, _resident() - before) / (count * len(matchers))


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
