"""The pauses between attempts: doubled after each attempt, with a random part."""

from __future__ import annotations

import random
from typing import Final

#: Largest random change of a pause, as a share of the pause. Because of the change, many clients do
#: not connect again at the same time.
JITTER: Final = 0.2


def pause(attempt: int, first: float, most: float) -> float:
    """Return the seconds to wait after attempt number `attempt`, counted from 1.

    The pause is `first` seconds after the first attempt, and doubles with each further attempt. A
    random part of the pause, up to the share JITTER, is added or subtracted. The pause is never
    longer than `most` seconds.
    """
    doubled = min(first * 2.0 ** min(attempt - 1, 60), most)
    return min(doubled * random.uniform(1 - JITTER, 1 + JITTER), most)
