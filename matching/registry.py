"""Which algorithms are there? One line each, loaded when first asked for.

Installed packages add their own by the entry-point group `trellis.matchers`: name = "module:Class",
a `Matcher` made from a grammar alone. A name of ours cannot be taken.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from operator import attrgetter
from typing import Any, Final, TypeVar, cast

from matching.grammar import Grammar
from matching.matcher import Matcher

S = TypeVar("S")

#: The entry points of third-party matchers.
GROUP: Final = "trellis.matchers"


@dataclass(frozen=True)
class Algorithm:
    """One way to find the patterns that match. Costs are in words L of a topic and patterns N."""

    name: str
    #: Where it is: "module:Class".
    place: str
    #: What it does, in a few words.
    idea: str
    #: What a lookup and a subscription cost.
    lookup: str
    subscribe: str
    #: Where the idea comes from.
    origin: str
    #: What must be installed besides, if anything.
    requires: str = ""

    def load(self) -> Callable[[Grammar], Matcher[Any]]:
        """The class.

        Raises ImportError when what it requires is not installed, or nothing of use is where it
        should be.
        """
        module, _, attribute = self.place.partition(":")
        home = import_module(module)
        try:
            found = attrgetter(attribute)(home)
        except AttributeError:
            found = None
        if not callable(found):
            lacks = (
                f"{module} has nothing called {attribute!r}"
                if found is None
                else f"{attribute} of {module} is no class"
            )
            raise ImportError(
                f"{lacks}, which the {self.origin} names as its matcher {self.name} ({GROUP}); "
                f"install a version of it that fits"
            )
        return cast(Callable[[Grammar], Matcher[Any]], found)

    def check(self) -> None:
        """Raise ImportError if `load` would.

        An algorithm of this package is not imported, only the package it requires is looked for: a
        broker loads pyroaring when a bitmap matcher is asked for, and not at its start.
        """
        if self.name not in _OURS:
            self.load()
        elif self.requires and find_spec(self.requires) is None:
            raise ImportError(f"No module named {self.requires!r}", name=self.requires)


#: Ours, the recommended ones first.
ALGORITHMS: Final = (
    Algorithm(
        "auto",
        "matching.auto:Auto",
        "chooses by the form and the number of the patterns",
        "as chosen",
        "as chosen",
        "our own",
    ),
    Algorithm(
        "trie",
        "matching.trie:Trie",
        "a trie of words, walked as an NFA without backtracking",
        "O(L x active nodes)",
        "O(L)",
        "articles 1 and 5",
    ),
    Algorithm(
        "shapes",
        "matching.shapes:Shapes",
        "patterns grouped by which words are literal: one dict probe a group",
        "O(shapes x L)",
        "O(L)",
        "our own (tuple space search)",
    ),
    Algorithm(
        "bitmap",
        "matching.bitmap:Bitmap",
        "per position and word the set of patterns that agree, intersected",
        "O(L x N / 64)",
        "O(L)",
        "articles 1, 3 and 4",
        "pyroaring",
    ),
    Algorithm(
        "dfa",
        "matching.dfa:Dfa",
        "a DFA built lazily from the trie, in bounded memory; beyond it the trie",
        "O(L) hot",
        "O(L)",
        "article 5",
    ),
    Algorithm(
        "snapshot",
        "matching.snapshot:Persistent",
        "a persistent trie whose root is exchanged: lookups never wait",
        "O(L x active nodes)",
        "O(L log children)",
        "our own",
        "cereggii",
    ),
    Algorithm(
        "cstrie",
        "matching.cstrie:ConcurrentTrie",
        "a lock-free concurrent trie with snapshots in O(1)",
        "O(L x active nodes), again when it changed meanwhile",
        "O(L log children)",
        "articles 1 and 2",
        "cereggii",
    ),
    Algorithm(
        "bitmap-fixed",
        "matching.bitmap_fixed:BitmapFixed",
        "the patterns of every topic, learned when first asked for",
        "O(1) + matches; a new topic as trie",
        "O(topics that begin alike); # at 46,000 topics: 180 ms",
        "articles 1 and 4",
        "pyroaring",
    ),
    Algorithm(
        "trie-backtracking",
        "matching.backtracking:Backtracking",
        "the articles' own walk of the trie",
        "exponential in #",
        "O(L)",
        "articles 1 and 5",
    ),
    Algorithm(
        "word-sets",
        "matching.word_sets:WordSets",
        "patterns indexed by word and position, as sets; # in a trie beside",
        "O(L) intersections",
        "O(L)",
        "article 5",
    ),
    Algorithm(
        "word-cache",
        "matching.word_cache:WordCache",
        "for each word asked at a position the patterns that agree, as sets",
        "O(L) intersections; a new word O(N)",
        "O(words cached)",
        "article 5",
    ),
    Algorithm(
        "naive",
        "matching.naive:Naive",
        "tries every pattern by the definition; what the tests compare with",
        "O(N x L)",
        "O(1)",
        "articles 1 and 3",
    ),
)
_OURS: Final = {algorithm.name: algorithm for algorithm in ALGORITHMS}
NAMES: Final = tuple(_OURS)


def algorithms() -> list[Algorithm]:
    """Ours, then those of installed packages by name."""
    return [*ALGORITHMS, *_others()]


def create(name: str, grammar: Grammar) -> Matcher[S]:
    """An empty matcher by the name of its algorithm.

    Raises ValueError for a name nobody has, and ImportError when a package is missing that it
    needs.
    """
    algorithm = _OURS.get(name)
    if algorithm is None:
        others = {other.name: other for other in _others()}
        algorithm = others.get(name)
        if algorithm is None:
            names = (*NAMES, *others)
            nearest = get_close_matches(name, names, n=1, cutoff=0)[0]
            raise ValueError(
                f"unknown matcher {name!r}; known: {', '.join(names)}; nearest: {nearest}"
            )
    return cast("Matcher[S]", algorithm.load()(grammar))


def _others() -> list[Algorithm]:
    """Those of installed packages; one that takes a name of ours is left out."""
    found = [_described(point) for point in entry_points(group=GROUP) if point.name not in _OURS]
    return sorted(found, key=lambda algorithm: algorithm.name)


def _described(point: EntryPoint) -> Algorithm:
    origin = f"package {point.dist.name}" if point.dist is not None else "an installed package"
    place = point.value.partition("[")[
        0
    ].strip()  # extras in brackets say what to install, not what to load
    return Algorithm(point.name, place, "", "", "", origin)
