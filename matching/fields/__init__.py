"""Which bindings accept a message's headers? Article 4's field matching, beside topic patterns.

    naive         asks every row by the definition in `Criteria.accept`; what the tests compare the others with
    hit-counts    article 4: counts how many criteria of a row the message meets
    rarest        stands each row under its rarest criterion and verifies the others; the default
    roaring       the counts of all rows at once, in bitmaps (needs the package pyroaring)

Read `criteria`, `matcher`, `naive`, then the others.
"""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from typing import Final, TypeVar, cast

from matching.fields.criteria import KINDS, Criteria, Fields, InvalidCriteria
from matching.fields.matcher import HeadersMatcher

S = TypeVar("S")

DEFAULT: Final = "rarest"
#: Where each algorithm is, loaded when first asked for.
_PLACES: Final = {
    "rarest": "rarest:Rarest",
    "hit-counts": "hit_counts:HitCounts",
    "roaring": "roaring:Roaring",
    "naive": "naive:Naive",
}
NAMES: Final = tuple(_PLACES)


def create(name: str = DEFAULT) -> HeadersMatcher[S]:
    """An empty matcher by the name of its algorithm.

    Raises ValueError for a name nobody has, and ImportError when a package is missing that it
    needs.
    """
    place = _PLACES.get(name)
    if place is None:
        nearest = get_close_matches(name, NAMES, n=1, cutoff=0)[0]
        raise ValueError(
            f"unknown headers matcher {name!r}; known: {', '.join(NAMES)}; nearest: {nearest}"
        )
    module, _, attribute = place.partition(":")
    return cast(
        "HeadersMatcher[S]", getattr(import_module(f"matching.fields.{module}"), attribute)()
    )


__all__ = [
    "DEFAULT",
    "KINDS",
    "NAMES",
    "Criteria",
    "Fields",
    "HeadersMatcher",
    "InvalidCriteria",
    "create",
]
