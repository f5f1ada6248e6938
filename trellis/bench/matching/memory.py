"""How much memory does a subscription take? What the process grows by, over copies enough to be
seen.

Patterns are read one by one and dropped again, as a broker gets them off a wire: whoever keeps the
text pays for it, whoever keeps words pays for these. Subscribers are there before and cost nothing
here: in a broker they are bindings, which it has anyway. Linux.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

#: Matchers are filled until they hold so many subscriptions together: then a page more or less is
#: nothing.
_SUBSCRIPTIONS: Final = 60_000


def octets(make: Callable[[], Any], patterns: bytes) -> float:
    """Octets a subscription, of matchers with these patterns, a line each."""
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
