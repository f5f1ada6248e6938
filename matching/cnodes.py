"""The nodes of the concurrent trie (I-nodes), and their contents (C-nodes).

    root -> I -> C -+- a [x] -> I -> C --- b [y]

An I-node is a node of the trie: a cell that stays, while threads replace its content by
compare-and-set. A C-node is such a content: an immutable object with the branches of the node. The
module `cstrie` explains the algorithm.
"""

from __future__ import annotations

from typing import Generic

from matching.cells import Cell
from matching.grammar import Grammar
from matching.hamt import Hamt, only
from matching.matcher import S
from matching.subscriber_set import SubscriberSet


class Generation:
    """A marker for the time between two snapshots of a trie, compared by object identity."""

    __slots__ = ()


class Branch(Generic[S]):
    """A branch of a trie node for one word: subscribers, and the node below.

    `subscribers` are the subscribers of the pattern that ends with this word. `inode` is the node
    for longer patterns, or None.
    """

    __slots__ = ("inode", "subscribers")

    def __init__(self, subscribers: SubscriberSet[S], inode: INode[S] | None) -> None:
        self.subscribers = subscribers
        self.inode = inode


class CNode(Generic[S]):
    """The content of a trie node (INode): its branches, immutable except for `previous`.

    A CNode is made to replace another CNode. While the outcome is undecided, `previous` holds the
    other CNode. Afterwards `previous` holds None if the replacement is valid, or a FailedSwap if
    the replacement must be undone.
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
        """True if the trie node with this content has no branches."""
        return self.children is None and self.one is None and self.many is None


class TNode(CNode[S]):
    """A tomb: the last content of an emptied trie node (INode). No thread replaces a tomb."""

    __slots__ = ()


class FailedSwap(Generic[S]):
    """The mark of a failed replacement of the content of a trie node (INode).

    `main` is the content that the node had before the replacement, and must get back.
    """

    __slots__ = ("main",)

    def __init__(self, main: CNode[S]) -> None:
        self.main = main


class INode(Generic[S]):
    """A node of the concurrent trie. The cell `main` has its content, which threads replace.

    The content can be replaced only while the root of the trie has the generation of this node.
    """

    __slots__ = ("generation", "main")

    def __init__(self, main: Cell[CNode[S]], generation: Generation) -> None:
        self.main = main
        self.generation = generation


class RootSwap(Generic[S]):
    """A pending replacement of the root node, with which a snapshot of the trie begins.

    The replacement succeeds only if the content of the old root is still `expected`.
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
    """Return the branch for a word of the trie node with the content `main`; None if missing."""
    if word == grammar.one:
        return main.one
    if word == grammar.many:
        return main.many
    return None if main.children is None else main.children.get(word)


def branches(main: CNode[S], grammar: Grammar) -> list[tuple[str, Branch[S]]]:
    """Return all branches of a trie node, each with its word; `main` is the node's content."""
    pairs: list[tuple[str, Branch[S]]] = []
    if main.one is not None:
        pairs.append((grammar.one, main.one))
    if main.many is not None:
        pairs.append((grammar.many, main.many))
    if main.children is not None:
        for leaf in main.children.leaves():
            pairs.extend(leaf.items())
    return pairs


def with_branch(
    main: CNode[S],
    grammar: Grammar,
    word: str,
    branch: Branch[S],
    previous: Cell[CNode[S] | FailedSwap[S] | None],
) -> CNode[S]:
    """Return a copy of `main`, the content of a trie node, with this branch for the word.

    A branch that `main` has for the word is replaced. `previous` becomes the copy's `previous`.
    """
    if word == grammar.one:
        return CNode(main.children, branch, main.many, previous)
    if word == grammar.many:
        return CNode(main.children, main.one, branch, previous)
    children = only(word, branch) if main.children is None else main.children.put(word, branch)
    return CNode(children, main.one, main.many, previous)


def without_branch(
    main: CNode[S], grammar: Grammar, word: str, previous: Cell[CNode[S] | FailedSwap[S] | None]
) -> CNode[S]:
    """Return a copy of `main`, the content of a trie node, without its branch for the word.

    `main` must have this branch. `previous` becomes the copy's `previous`.
    """
    if word == grammar.one:
        return CNode(main.children, None, main.many, previous)
    if word == grammar.many:
        return CNode(main.children, main.one, None, previous)
    assert main.children is not None
    return CNode(main.children.without(word), main.one, main.many, previous)
