"""A lock-free concurrent trie with snapshots in O(1): threads change different parts independently.

    root -> I -> C -+- a [x] -> I -> C --- b [y]           a -> x, a.b -> y
                    |- * ------> I -> C --- # [z]          *.# -> z
                    `- b ------> I -> T                    b.c was removed; branch b is cut off next

A C-node holds the branches of one node: for each word, the subscribers of the pattern that ends
there and the I-node below. C-nodes are immutable. A subscription makes a new C-node, which replaces
the old C-node in the I-node above by compare-and-set. I-nodes are permanent, so changes above and
below an I-node cannot overwrite each other. Two cases need more:

- **Removal.** An emptied node must be cut off while another thread may subscribe below it. Its last
  content is therefore a T-node (tomb), which is never replaced. A thread that meets a tomb helps to
  cut it off and restarts.
- **Snapshots.** A snapshot gives the root a new generation. I-nodes of an older generation belong
  to snapshots; a change first replaces each such I-node on its path by a copy of the present
  generation. A change is valid only if the root still has the generation of the I-node after the
  new C-node was set. This operation is called GCAS: the new C-node refers to the `previous` one
  until the outcome is decided. A thread that reads an undecided C-node decides the outcome:
  `previous` becomes None, or a FailedSwap, which means that the previous C-node must be restored.

**Lookups collect twice.** A lookup reads several I-nodes one after the other, and the contents it
saw may never have existed at the same time. The published lookup has this flaw and is not
linearizable (docs/matching.md shows the history). Here, a lookup records all contents that it
reads, and checks at the end that none of them was replaced. If a content was replaced, the lookup
restarts. Subscribing and unsubscribing follow a single path and need no such check.

Costs: a lookup visits the same nodes as in `trie`, and reads each of them twice; it restarts if
other threads change these nodes. A subscription costs O(words) reads and one new C-node (log16 n
short lists, see `hamt`). The first subscription on a path after a snapshot also copies one node per
word. Choose this matcher when many threads change subscriptions at once; when lookups dominate,
`snapshot` is faster.

Source: articles 1 and 2 (listed in `matching`), after Prokopec, Bronson, Bagwell, Odersky:
"Concurrent Tries with Efficient Non-Blocking Snapshots". Unlike in their paper, the outcome of
replacing the root is decided in a separate cell.
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
    RootSwap,
    TNode,
    branch_of,
    branches,
    with_branch,
    without_branch,
)
from matching.cwalk import ConcurrentWalk
from matching.grammar import Grammar
from matching.matcher import Matcher, S, Snapshot
from matching.subscriber_set import SubscriberSet, holds, members, merged, with_added, without

try:
    from mypy_extensions import mypyc_attr
except ImportError:  # pragma: no cover - the tests' environment can compile
    from matching.uncompiled import mypyc_attr


#: The I-nodes from the root to a node, and the content of the last I-node.
_Path: TypeAlias = tuple[list[INode[S]], CNode[S]]


@mypyc_attr(allow_interpreted_subclasses=True)
class ConcurrentTrie(Matcher[S]):
    """A trie that any number of threads may use at once; needs the package cereggii."""

    def __init__(self, grammar: Grammar, cell: type[Cell[Any]] = AtomicCell) -> None:
        super().__init__(grammar)
        self._cell = cell
        #: A shared `previous` cell that always holds None, for each C-node that is the first
        #: content of its I-node.
        self._no_previous: Cell[CNode[S] | FailedSwap[S] | None] = cell(None)
        self._root: Cell[INode[S] | RootSwap[S]] = cell(self._empty())

    def subscribe(self, pattern: str, subscriber: S) -> bool:
        hash(subscriber)  # raise TypeError for an unhashable subscriber before anything changes
        self.grammar.check(pattern)
        words = self._words(pattern)
        while True:
            path, main = self._descend(words)
            if isinstance(main, TNode):
                self._cut_off(words, path)
                continue
            at = len(path) - 1
            branch = branch_of(main, self.grammar, words[at])
            subscribers: SubscriberSet[S] = None if branch is None else branch.subscribers
            if at == len(words) - 1:
                if subscribers is not None and holds(subscribers, subscriber):
                    return False
                changed = Branch(
                    with_added(subscribers, subscriber), None if branch is None else branch.inode
                )
            else:
                changed = Branch(
                    subscribers, self._chain(words, at + 1, subscriber, path[at].generation)
                )
            if self._gcas(path[at], main, self._with_branch(main, words[at], changed)):
                return True

    def unsubscribe(self, pattern: str, subscriber: S) -> bool:
        words = self._words(pattern)
        while True:
            path, main = self._descend(words)
            at = len(path) - 1
            branch = branch_of(main, self.grammar, words[at])
            if at < len(words) - 1 or branch is None or not holds(branch.subscribers, subscriber):
                return False
            changed = self._contracted(
                main, words[at], Branch(without(branch.subscribers, subscriber), branch.inode), at
            )
            if self._gcas(path[at], main, changed):
                if at and changed.bare():
                    while not self._cut_off(words, path):
                        path, main = self._descend(words)
                        if not isinstance(main, TNode):
                            break
                return True

    def match(self, topic: str) -> list[S]:
        return merged(self._collect_sets(topic, False))

    def matches_any(self, topic: str) -> bool:
        return len(self._collect_sets(topic, True)) > 0

    def subscriptions(self) -> Iterator[tuple[str, S]]:
        """Iterate over the pairs present at the first step, in no particular order.

        Later changes to the matcher do not affect the iteration.
        """
        separator = self.grammar.separator
        words: list[str] = []
        frozen = self._frozen()
        waiting = frozen._below(frozen._current_root(False), 0)
        while waiting:
            word, branch, depth = waiting.pop()
            del words[depth:]
            words.append(word)
            for subscriber in members(branch.subscribers):
                yield "" if word == separator else separator.join(words), subscriber
            if branch.inode is not None:
                waiting += frozen._below(branch.inode, depth + 1)

    def snapshot(self) -> Matcher[S]:
        return Snapshot(self._frozen())

    def clear(self) -> None:
        while True:
            root = self._current_root(False)
            if self._root.compare_and_set(root, self._empty()):
                return

    def stats(self) -> dict[str, int]:
        """Return the sizes of the trie, all counted in one snapshot."""
        pairs = 0
        patterns = 0
        inodes = 1
        frozen = self._frozen()
        waiting = frozen._below(frozen._current_root(False), 0)
        while waiting:
            _, branch, depth = waiting.pop()
            subscribers = len(members(branch.subscribers))
            pairs += subscribers
            patterns += subscribers > 0
            if branch.inode is not None:
                inodes += 1
                waiting += frozen._below(branch.inode, depth + 1)
        return {"subscriptions": pairs, "patterns": patterns, "inodes": inodes}

    def __len__(self) -> int:
        return self.stats()["subscriptions"]

    def __contains__(self, pair: tuple[str, S]) -> bool:
        pattern, subscriber = pair
        inode: INode[S] | None = self._current_root(False)
        branch: Branch[S] | None = None
        for word in self._words(pattern):
            if inode is None:
                return False
            branch = branch_of(self.read(inode), self.grammar, word)
            inode = None if branch is None else branch.inode
        return branch is not None and holds(branch.subscribers, subscriber)

    def read(self, inode: INode[S]) -> CNode[S]:
        """Return the content of a trie node.

        If a replacement of the content is pending, first complete or undo it.
        """
        main = inode.main.get()
        return main if main.previous.get() is None else self._decide(inode, main)

    # -- words of patterns, and new nodes for the words

    def _words(self, pattern: str) -> list[str]:
        """Return the words of a pattern.

        For the empty pattern, which has no words, return a list with the separator, which cannot be
        a word of another pattern.
        """
        words = self.grammar.split(pattern)
        return words if words else [self.grammar.separator]

    def _empty(self) -> INode[S]:
        """Return a new root node without branches, with a new generation."""
        return INode(self._cell(CNode(None, None, None, self._no_previous)), Generation())

    def _chain(self, words: list[str], at: int, subscriber: S, generation: Generation) -> INode[S]:
        """Return a new node, with further nodes below, for `words[at:]` and one subscriber."""
        depth = len(words) - 1
        nothing: CNode[S] = CNode(None, None, None, self._no_previous)
        branch = Branch(with_added(None, subscriber), None)
        while True:
            inode = INode(
                self._cell(
                    with_branch(nothing, self.grammar, words[depth], branch, self._no_previous)
                ),
                generation,
            )
            if depth == at:
                return inode
            branch = Branch(None, inode)
            depth -= 1

    def _with_branch(self, main: CNode[S], word: str, branch: Branch[S]) -> CNode[S]:
        """Return a copy of `main` with `branch` for `word`; the copy's `previous` is `main`."""
        return with_branch(main, self.grammar, word, branch, self._cell(main))

    def _contracted(self, main: CNode[S], word: str, branch: Branch[S], depth: int) -> CNode[S]:
        """Return a copy of `main`, the content of a node, with `branch` as the branch for `word`.

        If `branch` has no subscribers and no node below, the copy has no branch for `word`. If this
        copy has no branches at all, and the node is not the root (`depth` is not 0), return a tomb
        in place of the copy.
        """
        if branch.subscribers is not None or branch.inode is not None:
            return self._with_branch(main, word, branch)
        rest = without_branch(main, self.grammar, word, self._cell(main))
        return self._tomb(rest) if depth and rest.bare() else rest

    def _tomb(self, emptied: CNode[S]) -> CNode[S]:
        """Return a tomb in place of `emptied`, the content of a node that has lost all branches.

        The caller then removes the node from its parent. No thread replaces a tomb, so none can
        add a subscription to the node before its removal, which would lose the subscription.
        """
        return TNode(None, None, None, emptied.previous)

    # -- paths, and changes at the end of a path

    def _descend(self, words: list[str]) -> _Path[S]:
        """Return the existing trie nodes along a pattern's words, and the last node's content.

        A node of an older generation than the root's belongs to a snapshot, and is first replaced
        by a copy. If the content of such a node is a tomb, the node is not replaced, and is the
        last node of the result.
        """
        last = len(words) - 1
        while True:
            inode = self._current_root(False)
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
                        renewed = Branch(branch.subscribers, INode(self._cell(below), generation))
                        if not self._gcas(inode, main, self._with_branch(main, words[at], renewed)):
                            break
                        continue
                inode = child
                path.append(inode)

    def _cut_off(self, words: list[str], path: list[INode[S]]) -> bool:
        """Remove the emptied node at the end of the path, then each parent that becomes empty.

        Return False if a snapshot was made meanwhile: the nodes of the path then belong to an older
        generation, and cannot be changed.
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
                changed = self._contracted(main, words[at], Branch(branch.subscribers, None), at)
                if not self._gcas(inode, main, changed):
                    if self._current_root(True).generation is not inode.generation:
                        return False
                    continue
                if not at or not changed.bare():
                    return True
            dead = path.pop()

    def _gcas(self, inode: INode[S], main: CNode[S], changed: CNode[S]) -> bool:
        """Replace the content `main` of a trie node by `changed`; return True if this succeeds.

        The replacement succeeds if the content was still `main`, and the root has the generation of
        the node. If the replacement fails, the node has its former content again, or a
        content that another thread has set.
        """
        if not inode.main.compare_and_set(main, changed):
            return False
        self._decide(inode, changed)
        return changed.previous.get() is None

    def _decide(self, inode: INode[S], main: CNode[S]) -> CNode[S]:
        """Complete or undo the pending replacement of a node's content, and return the content.

        `main` is the new content, and `main.previous` holds the former content. The replacement is
        undone if it failed: the node gets the former content back.
        """
        while True:
            previous = main.previous.get()
            if previous is None:
                return main
            if isinstance(previous, FailedSwap):
                if inode.main.compare_and_set(main, previous.main):
                    return previous.main
                main = inode.main.get()
            elif self._current_root(True).generation is inode.generation:
                if main.previous.compare_and_set(previous, None):
                    return main
            else:
                main.previous.compare_and_set(previous, FailedSwap(previous))

    # -- the root, and snapshots

    def _current_root(self, refuse_pending: bool) -> INode[S]:
        """Return the root, after deciding a pending snapshot (a RootSwap in the root cell).

        A pending snapshot fails if `refuse_pending` is True, or if the content of the old root is
        no longer the expected content. Otherwise the snapshot succeeds. `_decide` must pass True,
        because the snapshot could wait for the replacement that `_decide` is about to decide.
        """
        while True:
            root = self._root.get()
            if isinstance(root, INode):
                return root
            outcome = root.outcome.get()
            if outcome is None:
                fits = not refuse_pending and self.read(root.old) is root.expected
                root.outcome.compare_and_set(None, fits)
                outcome = root.outcome.get()
            self._root.compare_and_set(root, root.new if outcome else root.old)

    def _frozen(self) -> ConcurrentTrie[S]:
        """Return a read-only copy of the trie, which shares the nodes of this trie.

        The copy must not be changed, because its nodes belong to this trie as well.
        """
        while True:
            root = self._current_root(False)
            main = self.read(root)
            swap = RootSwap(root, main, INode(self._cell(main), Generation()), self._cell(None))
            if self._root.compare_and_set(root, swap):
                self._current_root(False)
                if swap.outcome.get():
                    frozen: ConcurrentTrie[S] = ConcurrentTrie(self.grammar, self._cell)
                    frozen._root = self._cell(INode(self._cell(main), Generation()))
                    return frozen

    def _below(self, inode: INode[S], depth: int) -> list[tuple[str, Branch[S], int]]:
        """Return a tuple (word, branch, depth) for each branch of a trie node.

        `depth` is the same in all tuples: the depth of the node.
        """
        return [(word, branch, depth) for word, branch in branches(self.read(inode), self.grammar)]

    # -- lookups

    def _collect_sets(self, topic: str, stop_at_first: bool) -> list[SubscriberSet[S]]:
        """Return the subscriber sets of all matching patterns.

        With `stop_at_first`, return only the first set found.
        """
        words = self.grammar.split(topic)
        hidden = self.grammar.hides and self.grammar.hidden(topic)
        while True:
            root = self._current_root(False)
            collect: _Collect[S] = _Collect(self, words)
            collect.walk(root, hidden, stop_at_first)
            if self._unchanged(root, collect.inodes, collect.mains):
                return collect.sets

    def _unchanged(self, root: INode[S], inodes: list[INode[S]], mains: list[CNode[S]]) -> bool:
        """True if all contents that a lookup has read were present in the trie at the same moment.

        `inodes` are the trie nodes that the lookup visited, `mains[n]` is the content read from
        `inodes[n]`. If all nodes still have these contents, the contents were present together
        when the lookup read the last one.
        """
        last = len(inodes) - 1
        if last == 0:
            return True
        if self._current_root(False) is not root:
            return False
        for at in range(last):
            if inodes[at].main.get() is not mains[at]:
                return False
        return True


class _Collect(ConcurrentWalk[S]):
    """The walk of one lookup, which also records the content that it reads from each trie node."""

    __slots__ = ("_trie", "inodes", "mains")

    def __init__(self, trie: ConcurrentTrie[S], words: list[str]) -> None:
        super().__init__(trie.grammar, words)
        self._trie = trie
        self.inodes: list[INode[S]] = []
        self.mains: list[CNode[S]] = []

    def read(self, inode: INode[S]) -> CNode[S]:
        """Return the content of a trie node, and record it for the comparison in `_unchanged`."""
        main = self._trie.read(inode)
        self.inodes.append(inode)
        self.mains.append(main)
        return main
