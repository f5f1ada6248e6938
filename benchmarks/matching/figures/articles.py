"""What do the articles say? Their figures, in nanoseconds, as printed; their machine was a 2.6 GHz
Core i7 with 8 threads.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Row(NamedTuple):
    """A line of article 1's tables; which contenders do the same here."""

    name: str
    same: tuple[str, ...]
    cold: tuple[float, float, float]  # subscribe, unsubscribe, lookup
    hot: tuple[float, float, float]  # with 1,000 subscriptions
    rate: float  # matches a second


ROWS: Final = (
    Row("naive", ("naive", "amqtt"), (172, 51.2, 787), (221, 55, 815_787), 4_053.48),
    Row("inverted bitmap", ("bitmap-fixed",), (3_795, 198, 380), (3_863, 198, 395), 1_052_315.02),
    Row(
        "optimized inverted bitmap",
        ("bitmap",),
        (1_053, 330, 2_724),
        (1_076, 371, 3_337),
        130_705.98,
    ),
    Row(
        "trie",
        ("trie", "trie-backtracking", "go-trie", "paho"),
        (406, 221, 2_145),
        (443, 257, 2_278),
        248_762.10,
    ),
    Row("CS-trie", ("cstrie", "go-ctrie"), (412, 245, 1_615), (471, 280, 1_637), 340_910.64),
)
#: Its bitmaps' memory: "the optimized version consumes roughly 4.5x less memory for every
#: subscription".
LESS_MEMORY: Final = 4.5
#: Article 3: the bitmap beside the scan over all keys, at 1,000 subscriptions.
BITMAP_GAIN: Final = 3.0
#: Article 4: nanoseconds a message at 10,000 requests.
BITMAP_GOAL: Final = 10_000.0
#: Article 5: what splitting keys once gives to a scan.
SPLITTING_GAIN: Final = 3.0
