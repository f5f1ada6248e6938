"""Lists the matching algorithms and creates matchers by name.

The module of an algorithm is imported at its first use. Installed packages can add algorithms with
an entry point of the group `trellis.matchers`: name = "module:Class". The class is a `Matcher`
whose constructor takes only a grammar. A built-in name cannot be redefined.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from matching.grammar import Grammar
from matching.matcher import Matcher

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

S = TypeVar("S")

#: The entry-point group of third-party matchers.
GROUP: Final = "trellis.matchers"


@dataclass(frozen=True)
class Algorithm:
    """The description of a matching algorithm.

    `lookup` and `subscribe` are costs as text, such as "O(L)". In them, L is the number of words of
    a topic, and N the number of patterns.
    """

    name: str
    #: The import path, as "module:Class".
    path: str
    #: A description in a few words.
    idea: str
    #: The cost of a lookup, in terms of L and N.
    lookup: str
    #: The cost of a subscription, in terms of L and N.
    subscribe: str
    #: The source of the idea; `matching` lists the articles.
    origin: str
    #: The package that the algorithm needs, if any.
    requires: str = ""

    def load(self) -> Callable[[Grammar], Matcher[Any]]:
        """Import and return the class.

        Raises ImportError if a required package is not installed, or if the import path names no
        class.
        """
        module, _, attribute = self.path.partition(":")
        package = import_module(module)
        try:
            loaded = attrgetter(attribute)(package)
        except AttributeError:
            loaded = None
        if not callable(loaded):
            problem = (
                f"{module} has no class {attribute!r}"
                if loaded is None
                else f"{attribute} of {module} is not a class"
            )
            raise ImportError(
                f"{problem}, but {self.origin} names it as the matcher {self.name} ({GROUP}); "
                "install a compatible version of that package"
            )
        return cast(Callable[[Grammar], Matcher[Any]], loaded)

    def check(self) -> None:
        """Raise ImportError if the algorithm cannot be loaded.

        A built-in algorithm is not imported; only its required package is searched for. So a broker
        imports pyroaring when a bitmap matcher is first used, not at its start.
        """
        if self.name not in _BUILT_IN:
            self.load()
        elif self.requires and find_spec(self.requires) is None:
            problem = f"the package {self.requires} is not installed; install the package"
            raise ImportError(problem, name=self.requires)


#: The built-in algorithms; the recommended algorithms come first.
ALGORITHMS: Final = (
    Algorithm(
        "auto",
        "matching.auto:Auto",
        "the default: trie, or shapes for many patterns",
        "as trie or shapes",
        "as trie or shapes",
        "own design",
    ),
    Algorithm(
        "trie",
        "matching.trie:Trie",
        "a trie of words, searched without backtracking",
        "O(L x active nodes)",
        "O(L)",
        "articles 1 and 5",
    ),
    Algorithm(
        "shapes",
        "matching.shapes:Shapes",
        "one hash table per set of wildcard positions; a lookup probes each table once",
        "O(shapes x L)",
        "O(L)",
        "own design (tuple space search)",
    ),
    Algorithm(
        "bitmap",
        "matching.bitmap:Bitmap",
        "for each position and word, a bitmap of the patterns that accept it",
        "O(L x N / 64)",
        "O(L)",
        "articles 1, 3 and 4",
        "pyroaring",
    ),
    Algorithm(
        "dfa",
        "matching.dfa:Dfa",
        "a DFA built lazily from the trie, in bounded memory",
        "O(L) for a known topic",
        "O(L)",
        "article 5",
    ),
    Algorithm(
        "snapshot",
        "matching.snapshot:Persistent",
        "an immutable trie, replaced at each change: lookups never wait",
        "O(L x active nodes)",
        "O(L log children)",
        "own design",
        "cereggii",
    ),
    Algorithm(
        "cstrie",
        "matching.cstrie:ConcurrentTrie",
        "a lock-free concurrent trie with snapshots in O(1)",
        "O(L x active nodes), repeated after a concurrent change",
        "O(L log children)",
        "articles 1 and 2",
        "cereggii",
    ),
    Algorithm(
        "bitmap-fixed",
        "matching.bitmap_fixed:BitmapFixed",
        "for each known topic, a bitmap of the patterns that match it",
        "O(1) + matches; a new topic as trie",
        "O(topics with the same beginning), bounded",
        "articles 1 and 4",
        "pyroaring",
    ),
    Algorithm(
        "trie-backtracking",
        "matching.backtracking:Backtracking",
        "a trie with backtracking at wildcards",
        "exponential in #",
        "O(L)",
        "articles 1 and 5",
    ),
    Algorithm(
        "word-sets",
        "matching.word_sets:WordSets",
        "patterns indexed by word and position, as sets; # in a trie",
        "O(L) intersections",
        "O(L)",
        "article 5",
    ),
    Algorithm(
        "word-cache",
        "matching.word_cache:WordCache",
        "for each position and word looked up, the patterns that accept it, as sets",
        "O(L) intersections; a new word O(N)",
        "O(words cached)",
        "article 5",
    ),
    Algorithm(
        "naive",
        "matching.naive:Naive",
        "tries every pattern; the reference for tests",
        "O(N x L)",
        "O(1)",
        "articles 1 and 3",
    ),
)
_BUILT_IN: Final = {algorithm.name: algorithm for algorithm in ALGORITHMS}
NAMES: Final = tuple(_BUILT_IN)


def algorithms() -> list[Algorithm]:
    """Return the built-in algorithms, then the algorithms of installed packages sorted by name."""
    return [*ALGORITHMS, *_installed()]


def create(name: str, grammar: Grammar) -> Matcher[S]:
    """Return an empty matcher of the named algorithm.

    Raises ValueError for an unknown name, and ImportError if a required package is missing.
    """
    algorithm = _BUILT_IN.get(name)
    if algorithm is None:
        installed = {other.name: other for other in _installed()}
        algorithm = installed.get(name)
        if algorithm is None:
            names = (*NAMES, *installed)
            nearest = get_close_matches(name, names, n=1, cutoff=0)[0]
            raise ValueError(
                f"unknown matcher {name!r}; the nearest is {nearest}; known matchers are "
                f"{', '.join(names)}"
            )
    return cast("Matcher[S]", algorithm.load()(grammar))


def _installed() -> tuple[Algorithm, ...]:
    """Return the algorithms of installed packages whose names no built-in algorithm has."""
    return _installed_on(tuple(sys.path))


@functools.lru_cache(1)
def _installed_on(path: tuple[str, ...]) -> tuple[Algorithm, ...]:
    """Return the algorithms of the packages on `path`, which is the module search path.

    The answer is cached until the path changes, because reading the metadata of all installed
    packages takes 9 ms.
    """
    # Imported here, because this import would take a fifth of the start time of each command.
    from importlib.metadata import entry_points

    algorithms = [
        _algorithm_of(point) for point in entry_points(group=GROUP) if point.name not in _BUILT_IN
    ]
    return tuple(sorted(algorithms, key=lambda algorithm: algorithm.name))


def _algorithm_of(point: EntryPoint) -> Algorithm:
    origin = f"package {point.dist.name}" if point.dist is not None else "an installed package"
    # The brackets after the path hold extras: names of optional dependencies, which are not needed.
    path = point.value.partition("[")[0].strip()
    return Algorithm(point.name, path, "", "", "", origin)
