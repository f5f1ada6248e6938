"""A trie that any number of threads change at once, each where it works, without a lock.

    root -> I -> C -+- a [x] -> I -> C --- b [y]           a -> x, a.b -> y
                    |- * ------> I -> C --- # [z]          *.# -> z
                    `- b ------> I -> T                    b.c was here, and `b` is about to go

A C-node holds branches: of each word, the crowd of the pattern that ends here and an I-node where
patterns go on. C-nodes never change; to subscribe is to make a new one and exchange it in the
I-node above it. I-nodes stay, so that changes above and below one of them do not lose each other.
Two things are in the way of that:

- An emptied node must be cut off, and meanwhile someone may subscribe below it. Its I-node's last
value is
  therefore a T-node (tomb): once there it is never exchanged. Who meets one helps to cut it off, and starts again.
- A snapshot, in O(1), gives the root a new generation. I-nodes of an older one belong to snapshots:
who wants to
  change one makes his own copy on the way down (of that I-node alone, never of one of the present generation: its
  value may still change). And a change counts only if, when it is there to be seen, the root still has the
  generation of its I-node. That is GCAS: the new node carries the `previous` one until that is settled. Whoever
  reads it settles it: `previous` becomes None, or a mark that it failed and the previous one must come back.

**Lookups collect twice.** A lookup reads several I-nodes, one after the other, and what it saw of
them need never have been true together: the articles' lookup is not linearizable (docs/matching.md
shows the history). So a lookup keeps what it read, and reads it again when it is done; unchanged,
it was all true between the two collects, and otherwise everything begins anew. A pattern has one
way through the trie, which subscribing and unsubscribing follow: they have no need of that.

Costs: a lookup that of `trie` and twice the reads, or more while others change just what it reads;
a subscription O(words) reads and one new C-node (log16 n short lists: see `hamt`), and after a
snapshot one new node a word, once.

From articles 1 and 2, after Prokopec, Bronson, Bagwell, Odersky: Concurrent Tries with Efficient
Non-Blocking Snapshots. Unlike there, a snapshot's swap of the root has its outcome decided in a
cell of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

from matching.cells import AtomicCell, Cell
from matching.cnodes import (
    Branch,
    CNode,
    FailedSwap,
    Generation,
    INode,
    Swap,
    TNode,
    branch_of,
    branches,
    with_branch,
    without_branch,
)
from matching.crowd import SubscriberSet, holds, members, merged, with_added, without
from matching.cwalk import ConcurrentWalk
from matching.grammar import Grammar
from matching.matcher import Matcher, S, Snapshot

try:
    from mypy_extensions import mypyc_attr
except ImportError:  # pragma: no cover - the tests' environment can compile
    from matching.uncompiled import mypyc_attr


#: The I-nodes from the root to a place, and what is there.
_Way: TypeAlias = tuple[list[INode[S]], CNode[S]]


@mypyc_attr(allow_interpreted_subclasses=True)
class ConcurrentTrie(Matcher[S]):
    """Any number of threads may use it at once; needs the package cereggii."""

    def __init__(self, grammar: Grammar, cell: type[Cell[Any]] = AtomicCell) -> None:
        super().__init__(grammar)
        self._cell = cell
        #: The `previous` of nodes that are there from the beginning of their I-node.
        self._settled: Cell[CNode[S] | FailedSwap[S] | None] = cell(None)
        self._root: Cell[INode[S] | Swap[S]] = cell(self._empty())

    def subscribe(self, pattern: str, subscriber: S) -> bool:
        hash(subscriber)  # what cannot be hashed is refused before anything changes
        self.grammar.check(pattern)
        words = self._words(pattern)
        while True:
            path, main = self._way(words)
            if isinstance(main, TNode):
                self._cut(words, path)
                continue
            at = len(path) - 1
            branch = branch_of(main, self.grammar, words[at])
            crowd: SubscriberSet[S] = None if branch is None else branch.crowd
            if at == len(words) - 1:
                if crowd is not None and holds(crowd, subscriber):
                    return False
                changed = Branch(
                    with_added(crowd, subscriber), None if branch is None else branch.inode
                )
            else:
                changed = Branch(crowd, self._chain(words, at + 1, subscriber, path[at].generation))
            if self._gcas(path[at], main, self._with(main, words[at], changed)):
                return True

    def unsubscribe(self, pattern: str, subscriber: S) -> bool:
        words = self._words(pattern)
        while True:
            path, main = self._way(words)
            at = len(path) - 1
            branch = branch_of(main, self.grammar, words[at])
            if at < len(words) - 1 or branch is None or not holds(branch.crowd, subscriber):
                return False
            changed = self._contracted(
                main, words[at], Branch(without(branch.crowd, subscriber), branch.inode), at
            )
            if self._gcas(path[at], main, changed):
                if at and changed.bare():
                    while not self._cut(words, path):
                        path, main = self._way(words)
                        if not isinstance(main, TNode):
                            break
                return True

    def match(self, topic: str) -> list[S]:
        return merged(self._found(topic, False))

    def matches_any(self, topic: str) -> bool:
        return len(self._found(topic, True)) > 0

    def subscriptions(self) -> Iterator[tuple[str, S]]:
        """All pairs as they are when the first is asked for, in no order, whatever changes
        meanwhile.
        """
        separator = self.grammar.separator
        words: list[str] = []
        kept = self._kept()
        waiting = kept._below(kept._present(False), 0)
        while waiting:
            word, branch, depth = waiting.pop()
            del words[depth:]
            words.append(word)
            for subscriber in members(branch.crowd):
                yield "" if word == separator else separator.join(words), subscriber
            if branch.inode is not None:
                waiting += kept._below(branch.inode, depth + 1)

    def snapshot(self) -> Matcher[S]:
        return Snapshot(self._kept())

    def clear(self) -> None:
        while True:
            root = self._present(False)
            if self._root.compare_and_set(root, self._empty()):
                return

    def stats(self) -> dict[str, int]:
        """Of one moment, and counted anew each time."""
        pairs = 0
        patterns = 0
        inodes = 1
        kept = self._kept()
        waiting = kept._below(kept._present(False), 0)
        while waiting:
            _, branch, depth = waiting.pop()
            subscribers = len(members(branch.crowd))
            pairs += subscribers
            patterns += subscribers > 0
            if branch.inode is not None:
                inodes += 1
                waiting += kept._below(branch.inode, depth + 1)
        return {"subscriptions": pairs, "patterns": patterns, "inodes": inodes}

    def __len__(self) -> int:
        return self.stats()["subscriptions"]

    def __contains__(self, pair: tuple[str, S]) -> bool:
        pattern, subscriber = pair
        inode: INode[S] | None = self._present(False)
        branch: Branch[S] | None = None
        for word in self._words(pattern):
            if inode is None:
                return False
            branch = branch_of(self.read(inode), self.grammar, word)
            inode = None if branch is None else branch.inode
        return branch is not None and holds(branch.crowd, subscriber)

    def read(self, inode: INode[S]) -> CNode[S]:
        """The value of an I-node, settled."""
        main = inode.main.get()
        return main if main.previous.get() is None else self._settle(inode, main)

    # What patterns are, and what is made of them.

    def _words(self, pattern: str) -> list[str]:
        """The words of a pattern.

        The empty one has none: what no word can be, a separator, stands for them.
        """
        words = self.grammar.split(pattern)
        return words if words else [self.grammar.separator]

    def _empty(self) -> INode[S]:
        """A root without branches, of a generation of its own."""
        return INode(self._cell(CNode(None, None, None, self._settled)), Generation())

    def _chain(self, words: list[str], at: int, subscriber: S, generation: Generation) -> INode[S]:
        """An I-node that leads along these words, from there on, to the subscriber alone."""
        depth = len(words) - 1
        nothing: CNode[S] = CNode(None, None, None, self._settled)
        branch = Branch(with_added(None, subscriber), None)
        while True:
            inode = INode(
                self._cell(with_branch(nothing, self.grammar, words[depth], branch, self._settled)),
                generation,
            )
            if depth == at:
                return inode
            branch = Branch(None, inode)
            depth -= 1

    def _with(self, main: CNode[S], word: str, branch: Branch[S]) -> CNode[S]:
        """What to exchange a C-node for, to give it this branch."""
        return with_branch(main, self.grammar, word, branch, self._cell(main))

    def _contracted(self, main: CNode[S], word: str, branch: Branch[S], depth: int) -> CNode[S]:
        """What to exchange a C-node for, to give it this branch, or none if it leads nowhere; a
        tomb for an empty one.
        """
        if branch.crowd is not None or branch.inode is not None:
            return self._with(main, word, branch)
        rest = without_branch(main, self.grammar, word, self._cell(main))
        return self._tomb(rest) if depth and rest.bare() else rest

    def _tomb(self, emptied: CNode[S]) -> CNode[S]:
        """What stands for an emptied C-node below the root."""
        return TNode(None, None, None, emptied.previous)

    # The way to a place, and how it is changed.

    def _way(self, words: list[str]) -> _Way[S]:
        """The I-nodes along a pattern's words as far as they go, of the root's generation, and what
        the last one holds.

        Only the last may be tombed, and older than the root.
        """
        last = len(words) - 1
        while True:
            inode = self._present(False)
            generation = inode.generation
            path = [inode]
            while True:
                main = self.read(inode)
                at = len(path) - 1
                branch = None if at == last else branch_of(main, self.grammar, words[at])
                if branch is None or branch.inode is None:
                    return path, main
                child = branch.inode
                if child.generation is not generation:
                    below = self.read(child)
                    if not isinstance(below, TNode):
                        renewed = Branch(branch.crowd, INode(self._cell(below), generation))
                        if not self._gcas(inode, main, self._with(main, words[at], renewed)):
                            break
                        continue
                inode = child
                path.append(inode)

    def _cut(self, words: list[str], path: list[INode[S]]) -> bool:
        """Cut off the tombed I-node at the end of the path, and those above it that become empty by
        that.

        False when a snapshot came between and these I-nodes cannot be changed any more.
        """
        dead = path.pop()
        while True:
            inode = path[-1]
            at = len(path) - 1
            main = self.read(inode)
            if not isinstance(main, TNode):
                branch = branch_of(main, self.grammar, words[at])
                if branch is None or branch.inode is not dead:
                    return True
                changed = self._contracted(main, words[at], Branch(branch.crowd, None), at)
                if not self._gcas(inode, main, changed):
                    if self._present(True).generation is not inode.generation:
                        return False
                    continue
                if not at or not changed.bare():
                    return True
            dead = path.pop()

    def _gcas(self, inode: INode[S], main: CNode[S], changed: CNode[S]) -> bool:
        """Exchange an I-node's value, if it is still this one and the root has the I-node's
        generation.
        """
        if not inode.main.compare_and_set(main, changed):
            return False
        self._settle(inode, changed)
        return changed.previous.get() is None

    def _settle(self, inode: INode[S], main: CNode[S]) -> CNode[S]:
        """Decide whether the exchange that put a value into an I-node counts.

        Returns the settled value of the I-node.
        """
        while True:
            previous = main.previous.get()
            if previous is None:
                return main
            if isinstance(previous, FailedSwap):
                if inode.main.compare_and_set(main, previous.main):
                    return previous.main
                main = inode.main.get()
            elif self._present(True).generation is inode.generation:
                if main.previous.compare_and_set(previous, None):
                    return main
            else:
                main.previous.compare_and_set(previous, FailedSwap(previous))

    # The root, and snapshots.

    def _present(self, impatient: bool) -> INode[S]:
        """The root. A swap that is on its way is completed first, or, by the impatient, stopped if
        it is undecided.

        Impatient is who settles an exchange: on that the swap itself may be waiting.
        """
        while True:
            root = self._root.get()
            if isinstance(root, INode):
                return root
            outcome = root.outcome.get()
            if outcome is None:
                fits = not impatient and self.read(root.old) is root.expected
                root.outcome.compare_and_set(None, fits)
                outcome = root.outcome.get()
            self._root.compare_and_set(root, root.new if outcome else root.old)

    def _kept(self) -> ConcurrentTrie[S]:
        """A trie of what is in this one now, and stays in it.

        Only for reading: its I-nodes are older than its root.
        """
        while True:
            root = self._present(False)
            main = self.read(root)
            swap = Swap(root, main, INode(self._cell(main), Generation()), self._cell(None))
            if self._root.compare_and_set(root, swap):
                self._present(False)
                if swap.outcome.get():
                    kept: ConcurrentTrie[S] = ConcurrentTrie(self.grammar, self._cell)
                    kept._root = self._cell(INode(self._cell(main), Generation()))
                    return kept

    def _below(self, inode: INode[S], depth: int) -> list[tuple[str, Branch[S], int]]:
        """The branches of an I-node, with their words and this depth."""
        return [(word, branch, depth) for word, branch in branches(self.read(inode), self.grammar)]

    # Lookups.

    def _found(self, topic: str, enough: bool) -> list[SubscriberSet[S]]:
        """The crowds of all patterns that match; those of the first found only, if that is enough."""
        words = self.grammar.split(topic)
        hidden = self.grammar.hides and self.grammar.hidden(topic)
        while True:
            root = self._present(False)
            collect: _Collect[S] = _Collect(self, words)
            collect.walk(root, hidden, enough)
            if self._unchanged(root, collect.inodes, collect.mains):
                return collect.found

    def _unchanged(self, root: INode[S], inodes: list[INode[S]], mains: list[CNode[S]]) -> bool:
        """Whether all that a lookup read was there when it read the last of it.

        (One read alone is one moment.)
        """
        last = len(inodes) - 1
        if last == 0:
            return True
        if self._present(False) is not root:
            return False
        for at in range(last):
            if inodes[at].main.get() is not mains[at]:
                return False
        return True


class _Collect(ConcurrentWalk[S]):
    """One walk of a lookup: also what it read of which I-nodes."""

    __slots__ = ("_trie", "inodes", "mains")

    def __init__(self, trie: ConcurrentTrie[S], words: list[str]) -> None:
        super().__init__(trie.grammar, words)
        self._trie = trie
        self.inodes: list[INode[S]] = []
        self.mains: list[CNode[S]] = []

    def read(self, inode: INode[S]) -> CNode[S]:
        """The value of an I-node, kept for the second collect."""
        main = self._trie.read(inode)
        self.inodes.append(inode)
        self.mains.append(main)
        return main
