"""The pauses between attempts: doubled after each attempt, with a random part."""

from __future__ import annotations

import random
from typing import Final

#: The share of a pause by which it is longer or shorter at most, at random, so that many clients do
#: not return at the same time.
JITTER: Final = 0.2


def pause(attempt: int, first: float, most: float) -> float:
    """Return the seconds to wait after the attempt with this number, the first of which is 1.

    The pause is `first` seconds after the first attempt, twice the last pause after each further
    one, and never more than `most`.
    """
    doubled = min(first * 2.0 ** min(attempt - 1, 60), most)
    return min(doubled * random.uniform(1 - JITTER, 1 + JITTER), most)
