"""What a concurrent trie is made of: I-nodes that stay, and nodes that never change and are
exchanged in them.

    root -> I -> C -+- a [x] -> I -> C --- b [y]

Drawn and explained in `cstrie`, which does the exchanging.
"""

from __future__ import annotations

from typing import Generic

from matching.cells import Cell
from matching.crowd import SubscriberSet
from matching.grammar import Grammar
from matching.hamt import Hamt, only
from matching.matcher import S


class Generation:
    """The time between two snapshots. Known by its identity."""

    __slots__ = ()


class Branch(Generic[S]):
    """What one word of a pattern leads to: who subscribed to what ends here, and where patterns go
    on.
    """

    __slots__ = ("crowd", "inode")

    def __init__(self, crowd: SubscriberSet[S], inode: INode[S] | None) -> None:
        self.crowd = crowd
        self.inode = inode


class CNode(Generic[S]):
    """The branches of one place.

    `previous` is not None until the exchange that put it there is settled.
    """

    __slots__ = ("children", "many", "one", "previous")

    def __init__(
        self,
        children: Hamt[str, Branch[S]] | None,
        one: Branch[S] | None,
        many: Branch[S] | None,
        previous: Cell[CNode[S] | FailedSwap[S] | None],
    ) -> None:
        self.children = children
        self.one = one
        self.many = many
        self.previous = previous

    def bare(self) -> bool:
        """Whether there is no branch."""
        return self.children is None and self.one is None and self.many is None


class TNode(CNode[S]):
    """The tomb: no branches, and never any again."""

    __slots__ = ()


class FailedSwap(Generic[S]):
    """Marks an exchange that does not count: this node must come back."""

    __slots__ = ("main",)

    def __init__(self, main: CNode[S]) -> None:
        self.main = main


class INode(Generic[S]):
    """A place that stays. Its value is exchanged only while the root has its generation."""

    __slots__ = ("generation", "main")

    def __init__(self, main: Cell[CNode[S]], generation: Generation) -> None:
        self.main = main
        self.generation = generation


class Swap(Generic[S]):
    """Stands at the root while one root is swapped for another, if the old one's value is still the
    expected.
    """

    __slots__ = ("expected", "new", "old", "outcome")

    def __init__(
        self, old: INode[S], expected: CNode[S], new: INode[S], outcome: Cell[bool | None]
    ) -> None:
        self.old = old
        self.expected = expected
        self.new = new
        self.outcome = outcome


def branch_of(main: CNode[S], grammar: Grammar, word: str) -> Branch[S] | None:
    """The branch of a word of a pattern, if it is there."""
    if word == grammar.one:
        return main.one
    if word == grammar.many:
        return main.many
    return None if main.children is None else main.children.get(word)


def branches(main: CNode[S], grammar: Grammar) -> list[tuple[str, Branch[S]]]:
    """All branches, with their words."""
    found: list[tuple[str, Branch[S]]] = []
    if main.one is not None:
        found.append((grammar.one, main.one))
    if main.many is not None:
        found.append((grammar.many, main.many))
    if main.children is not None:
        for leaf in main.children.leaves():
            found.extend(leaf.items())
    return found


def with_branch(
    main: CNode[S],
    grammar: Grammar,
    word: str,
    branch: Branch[S],
    previous: Cell[CNode[S] | FailedSwap[S] | None],
) -> CNode[S]:
    """A C-node with another branch."""
    if word == grammar.one:
        return CNode(main.children, branch, main.many, previous)
    if word == grammar.many:
        return CNode(main.children, main.one, branch, previous)
    children = only(word, branch) if main.children is None else main.children.put(word, branch)
    return CNode(children, main.one, main.many, previous)


def without_branch(
    main: CNode[S], grammar: Grammar, word: str, previous: Cell[CNode[S] | FailedSwap[S] | None]
) -> CNode[S]:
    """A C-node without a branch that it has."""
    if word == grammar.one:
        return CNode(main.children, None, main.many, previous)
    if word == grammar.many:
        return CNode(main.children, main.one, None, previous)
    assert main.children is not None
    return CNode(main.children.without(word), main.one, main.many, previous)
