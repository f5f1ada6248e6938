"""An immutable trie behind one atomic reference: the fastest lookups with many threads.

    cell -> version 1 -> root -+-a-> o -*-> o [x]
            version 2 -> root' +-a-> o'         subscribing y to `a.b` copies this path
                               `-b-> o' [y]     and shares the rest

A subscription makes a new version with a new root, and replaces the old version by compare-and-set.
If another thread was faster, the subscription starts again from that thread's version. A lookup
reads the cell once and walks an immutable trie. So a lookup never waits and never restarts, and its
answer belongs to a single version. A snapshot is the present version: it takes O(1), and is
searched as fast as the matcher itself.

Costs: a lookup costs as much as in `trie`. A subscription copies one node per word (and log16 n
short lists of its children, see `hamt`). If several threads change subscriptions at the same time,
all but one must repeat their work, even in different parts of the trie; for many such threads
choose `cstrie`. Own design.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic

from matching.cells import AtomicCell, Cell
from matching.grammar import Grammar
from matching.hamt import Hamt, only
from matching.matcher import Matcher, S, Snapshot
from matching.subscriber_set import SubscriberSet, holds, members, merged, with_added, without

try:
    from mypy_extensions import mypyc_attr
except ImportError:  # pragma: no cover - the tests' environment can compile
    from matching.uncompiled import mypyc_attr


class _FrozenNode(Generic[S]):
    """A trie node: the nodes below, and the subscribers of the pattern ending here. Immutable."""

    __slots__ = ("children", "depth", "many", "one", "subscribers")

    def __init__(
        self,
        depth: int,
        subscribers: SubscriberSet[S],
        children: Hamt[str, _FrozenNode[S]] | None,
        one: _FrozenNode[S] | None,
        many: _FrozenNode[S] | None,
    ) -> None:
        self.depth = depth
        self.subscribers = subscribers
        self.children = children
        self.one = one
        self.many = many


class _TrieVersion(Generic[S]):
    """One version of the whole trie, and its sizes. Immutable."""

    __slots__ = ("nodes", "pairs", "patterns", "root")

    def __init__(self, root: _FrozenNode[S], pairs: int, patterns: int, nodes: int) -> None:
        self.root = root
        self.pairs = pairs
        self.patterns = patterns
        self.nodes = nodes


@mypyc_attr(allow_interpreted_subclasses=True)
class Persistent(Matcher[S]):
    """A trie that any number of threads may use at once; needs the package cereggii."""

    def __init__(self, grammar: Grammar, cell: type[Cell[Any]] = AtomicCell) -> None:
        super().__init__(grammar)
        self._kind = cell
        self._current: Cell[_TrieVersion[S]] = cell(_empty())

    def subscribe(self, pattern: str, subscriber: S) -> bool:
        hash(subscriber)  # raise TypeError for an unhashable subscriber before anything changes
        self.grammar.check(pattern)
        words = self.grammar.split(pattern)
        while True:
            version = self._current.get()
            changed = _with(version, self.grammar, words, subscriber)
            if changed is None:
                return False
            if self._current.compare_and_set(version, changed):
                return True

    def unsubscribe(self, pattern: str, subscriber: S) -> bool:
        words = self.grammar.split(pattern)
        while True:
            version = self._current.get()
            changed = _without(version, self.grammar, words, subscriber)
            if changed is None:
                return False
            if self._current.compare_and_set(version, changed):
                return True

    def match(self, topic: str) -> list[S]:
        return merged(_walk(self._current.get().root, self.grammar, topic, False))

    def matches_any(self, topic: str) -> bool:
        return len(_walk(self._current.get().root, self.grammar, topic, True)) > 0

    def subscriptions(self) -> Iterator[tuple[str, S]]:
        """Iterate over the pairs present at the first step, in no particular order.

        Later changes to the matcher do not affect the iteration.
        """
        grammar = self.grammar
        words: list[str] = []
        waiting: list[tuple[_FrozenNode[S], str]] = [(self._current.get().root, "")]
        while waiting:
            node, word = waiting.pop()
            if node.depth:
                del words[node.depth - 1 :]
                words.append(word)
            for subscriber in members(node.subscribers):
                yield grammar.separator.join(words), subscriber
            if node.one is not None:
                waiting.append((node.one, grammar.one))
            if node.many is not None:
                waiting.append((node.many, grammar.many))
            if node.children is not None:
                for leaf in node.children.leaves():
                    for word, child in leaf.items():
                        waiting.append((child, word))

    def snapshot(self) -> Matcher[S]:
        frozen: Persistent[S] = Persistent(self.grammar, self._kind)
        frozen._current = self._kind(self._current.get())
        return Snapshot(frozen)

    def clear(self) -> None:
        while True:
            if self._current.compare_and_set(self._current.get(), _empty()):
                return

    def stats(self) -> dict[str, int]:
        """Return the sizes of the trie. All are of the same version, so they are consistent."""
        version = self._current.get()
        return {
            "subscriptions": version.pairs,
            "patterns": version.patterns,
            "nodes": version.nodes,
        }

    def __len__(self) -> int:
        return self._current.get().pairs

    def __contains__(self, pair: tuple[str, S]) -> bool:
        pattern, subscriber = pair
        node: _FrozenNode[S] | None = self._current.get().root
        for word in self.grammar.split(pattern):
            node = _child(node, self.grammar, word)
        return node is not None and holds(node.subscribers, subscriber)


def _empty() -> _TrieVersion[S]:
    return _TrieVersion(_FrozenNode(0, None, None, None, None), 0, 0, 1)


def _child(node: _FrozenNode[S] | None, grammar: Grammar, word: str) -> _FrozenNode[S] | None:
    """Return the child for a word of a pattern, or None if the node has no such child."""
    if node is None:
        return None
    if word == grammar.one:
        return node.one
    if word == grammar.many:
        return node.many
    return None if node.children is None else node.children.get(word)


def _with(
    version: _TrieVersion[S], grammar: Grammar, words: list[str], subscriber: S
) -> _TrieVersion[S] | None:
    """Return a new version with the pair added; None if `version` has the pair already."""
    path: list[_FrozenNode[S] | None] = []
    node: _FrozenNode[S] | None = version.root
    for word in words:
        path.append(node)
        node = _child(node, grammar, word)
    subscribers: SubscriberSet[S] = None if node is None else node.subscribers
    if subscribers is not None and holds(subscribers, subscriber):
        return None
    nodes = version.nodes
    depth = len(words)
    if node is None:
        changed = _FrozenNode(depth, with_added(subscribers, subscriber), None, None, None)
        nodes += 1
    else:
        changed = _FrozenNode(
            depth, with_added(subscribers, subscriber), node.children, node.one, node.many
        )
    while depth > 0:
        depth -= 1
        parent = path[depth]
        if parent is None:
            parent = _FrozenNode(depth, None, None, None, None)
            nodes += 1
        changed = _put(parent, grammar, words[depth], changed)
    return _TrieVersion(changed, version.pairs + 1, version.patterns + (subscribers is None), nodes)


def _without(
    version: _TrieVersion[S], grammar: Grammar, words: list[str], subscriber: S
) -> _TrieVersion[S] | None:
    """Return a new version without the pair; None if `version` does not have the pair.

    Nodes without subscribers and children are removed.
    """
    path: list[_FrozenNode[S]] = []
    node = version.root
    for word in words:
        child = _child(node, grammar, word)
        if child is None:
            return None
        path.append(node)
        node = child
    if not holds(node.subscribers, subscriber):
        return None
    subscribers = without(node.subscribers, subscriber)
    nodes = version.nodes
    depth = len(words)
    changed = _FrozenNode(depth, subscribers, node.children, node.one, node.many)
    while depth > 0:
        depth -= 1
        if (
            changed.subscribers is None
            and changed.children is None
            and changed.one is None
            and changed.many is None
        ):
            changed = _drop(path[depth], grammar, words[depth])
            nodes -= 1
        else:
            changed = _put(path[depth], grammar, words[depth], changed)
    return _TrieVersion(changed, version.pairs - 1, version.patterns - (subscribers is None), nodes)


def _put(
    node: _FrozenNode[S], grammar: Grammar, word: str, child: _FrozenNode[S]
) -> _FrozenNode[S]:
    """Return a copy of the node that has `child` as its child for this word."""
    if word == grammar.one:
        return _FrozenNode(node.depth, node.subscribers, node.children, child, node.many)
    if word == grammar.many:
        return _FrozenNode(node.depth, node.subscribers, node.children, node.one, child)
    children = only(word, child) if node.children is None else node.children.put(word, child)
    return _FrozenNode(node.depth, node.subscribers, children, node.one, node.many)


def _drop(node: _FrozenNode[S], grammar: Grammar, word: str) -> _FrozenNode[S]:
    """Return a copy of the node without its child for this word."""
    if word == grammar.one:
        return _FrozenNode(node.depth, node.subscribers, node.children, None, node.many)
    if word == grammar.many:
        return _FrozenNode(node.depth, node.subscribers, node.children, node.one, None)
    assert node.children is not None
    return _FrozenNode(
        node.depth, node.subscribers, node.children.without(word), node.one, node.many
    )


def _walk(
    root: _FrozenNode[S], grammar: Grammar, topic: str, stop_at_first: bool
) -> list[SubscriberSet[S]]:
    """Return the subscriber sets of all matching patterns.

    With `stop_at_first`, return only the first set found.
    """
    sets: list[SubscriberSet[S]] = []
    words = grammar.split(topic)
    end = len(words)
    node = root
    at = 0
    if grammar.hides and grammar.hidden(topic):
        first = _literal(root, words[0])
        if first is None:
            return sets
        node = first
        at = 1
    turns: list[_FrozenNode[S]] = []
    while True:
        many = node.many
        if many is not None:
            if many.subscribers is not None:
                sets.append(many.subscribers)
            if many.children is not None or many.one is not None or many.many is not None:
                _cross(many, words, at, sets)
        if at == end:
            if node.subscribers is not None:
                sets.append(node.subscribers)
        else:
            child = _literal(node, words[at])
            if child is not None:
                if node.one is not None:
                    turns.append(node.one)
                node = child
                at += 1
                continue
            if node.one is not None:
                node = node.one
                at += 1
                continue
        if not turns or (stop_at_first and sets):
            return sets
        node = turns.pop()
        at = node.depth


def _literal(node: _FrozenNode[S], word: str) -> _FrozenNode[S] | None:
    """Return the child for a literal word of a topic, or None if the node has no such child."""
    return None if node.children is None else node.children.get(word)


def _cross(start: _FrozenNode[S], words: list[str], at: int, sets: list[SubscriberSet[S]]) -> None:
    """Append the subscriber sets of patterns whose part after a ``#`` matches the words from `at`
    on.

    `start` is the node of the ``#``, whose own subscribers the caller has already appended.
    """
    entered: set[_FrozenNode[S]] = {start}
    stays: list[_FrozenNode[S]] = [start]  # the `#` nodes entered so far
    moving: list[_FrozenNode[S]] = []  # the nodes that the last word led to
    _enter(start.many, entered, stays, sets)
    end = len(words)
    while at < end:
        word = words[at]
        at += 1
        following: list[_FrozenNode[S]] = []
        for node in stays + moving:
            children = node.children
            if children is not None:
                top = children.top
                child: _FrozenNode[S] | None = (
                    top.get(word) if isinstance(top, dict) else children.get(word)
                )
                if child is not None:
                    following.append(child)
            if node.one is not None:
                following.append(node.one)
        for node in following:
            many = node.many
            if many is not None and many not in entered:
                _enter(many, entered, stays, sets)
        moving = following
    for node in moving:
        if node.subscribers is not None:
            sets.append(node.subscribers)


def _enter(
    node: _FrozenNode[S] | None,
    entered: set[_FrozenNode[S]],
    stays: list[_FrozenNode[S]],
    sets: list[SubscriberSet[S]],
) -> None:
    """Enter a ``#`` node and the chain of ``#`` nodes directly below it.

    To enter a node is to append its subscribers to `sets`. If the node has children that are not
    ``#``, the node is also appended to `stays`. The chain ends at a node that was entered before.
    """
    while node is not None and node not in entered:
        entered.add(node)
        if node.subscribers is not None:
            sets.append(node.subscribers)
        if node.children is not None or node.one is not None:
            stays.append(node)
        node = node.many
