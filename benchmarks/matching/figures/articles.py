"""The figures printed in the articles that matching/__init__.py lists, in nanoseconds, from a
2.6 GHz Core i7 with 8 threads.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class ArticleRow(NamedTuple):
    """One algorithm of article 1, "Fast Topic Matching", with its published figures.

    `same` has the names of the matchers in `trellis bench matching` that use the same algorithm.
    """

    name: str
    same: tuple[str, ...]
    #: Nanoseconds to subscribe, unsubscribe and look up: `cold` in an empty matcher, `hot` with
    #: 1,000 subscriptions.
    cold: tuple[float, float, float]
    hot: tuple[float, float, float]
    rate: float  # matches per second


ROWS: Final = (
    ArticleRow("naive", ("naive", "amqtt"), (172, 51.2, 787), (221, 55, 815_787), 4_053.48),
    ArticleRow(
        "inverted bitmap", ("bitmap-fixed",), (3_795, 198, 380), (3_863, 198, 395), 1_052_315.02
    ),
    ArticleRow(
        "optimized inverted bitmap",
        ("bitmap",),
        (1_053, 330, 2_724),
        (1_076, 371, 3_337),
        130_705.98,
    ),
    ArticleRow(
        "trie",
        ("trie", "trie-backtracking", "go-trie", "paho"),
        (406, 221, 2_145),
        (443, 257, 2_278),
        248_762.10,
    ),
    ArticleRow("CS-trie", ("cstrie", "go-ctrie"), (412, 245, 1_615), (471, 280, 1_637), 340_910.64),
)
#: The memory of article 1's bitmaps: "the optimized version consumes roughly 4.5x less memory for
#: every subscription".
LESS_MEMORY: Final = 4.5
#: Article 3: the speedup of the bitmap over a scan of all keys, at 1,000 subscriptions.
BITMAP_GAIN: Final = 3.0
#: Article 4: nanoseconds per message at 10,000 requests.
BITMAP_GOAL: Final = 10_000.0
#: Article 5: the speedup of a scan by splitting keys once.
SPLITTING_GAIN: Final = 3.0
