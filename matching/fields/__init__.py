"""Finds the bindings that accept a message's headers: the matching of the headers exchange.

    rarest        indexes each binding under its rarest criterion, then verifies its other criteria;
                  the default
    hit-counts    counts how many criteria of each binding the message meets (article 4)
    roaring       the counts of all bindings at once, in bitmaps; needs pyroaring
    naive         tests every binding; the reference that the tests compare with

Reading order: `criteria`, `matcher`, `naive`, `search`, then the others. `matching` lists the
articles.
"""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from typing import Final, TypeVar, cast

from matching.fields.criteria import KINDS, Criteria, Fields, InvalidCriteria
from matching.fields.matcher import HeadersMatcher

S = TypeVar("S")

DEFAULT: Final = "rarest"
#: The class of each algorithm, imported at its first use.
_CLASSES: Final = {
    "rarest": "rarest:Rarest",
    "hit-counts": "hit_counts:HitCounts",
    "roaring": "roaring:Roaring",
    "naive": "naive:NaiveFields",
}
NAMES: Final = tuple(_CLASSES)


def create(name: str = DEFAULT) -> HeadersMatcher[S]:
    """Return an empty matcher of the named algorithm.

    Raises ValueError for an unknown name, and ImportError if a required package is missing.
    """
    path = _CLASSES.get(name)
    if path is None:
        nearest = get_close_matches(name, NAMES, n=1, cutoff=0)[0]
        raise ValueError(
            f"unknown headers matcher {name!r}; the nearest is {nearest}; known matchers are "
            f"{', '.join(NAMES)}"
        )
    module, _, attribute = path.partition(":")
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
