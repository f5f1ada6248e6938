"""A trie that never changes, and one cell that says which is the present one.

    cell -> state 1 -> root -+-a-> o -*-> o [x]
            state 2 -> root' +-a-> o'           subscribing y to `a.b` copies the way there, and shares the rest
                               `-b-> o' [y]

To subscribe is to make a new root and exchange it for the one it was made of; who finds another
there by then makes his again, from that one. A lookup reads the cell once and walks what no one
changes: it never waits and is never repeated, and all that it finds was true at that one moment. A
snapshot is the state that was read: O(1), and as fast as the matcher itself. What it costs: writers
that meet do their work anew, wherever in the trie each is, and a subscription copies one node a
word (and of its children, log16 n short lists: see `hamt`).

Our own; the walk is that of `trie`, whose comments on its bounds hold here too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic

from matching.cells import AtomicCell, Cell
from matching.crowd import SubscriberSet, holds, members, merged, with_added, without
from matching.grammar import Grammar
from matching.hamt import Hamt, only
from matching.matcher import Matcher, S, Snapshot

try:
    from mypy_extensions import mypyc_attr
except ImportError:  # pragma: no cover - the tests' environment can compile
    from matching.uncompiled import mypyc_attr


class _Node(Generic[S]):
    """What may follow a prefix, and who subscribed to the prefix itself. Never changed."""

    __slots__ = ("children", "crowd", "depth", "many", "one")

    def __init__(
        self,
        depth: int,
        crowd: SubscriberSet[S],
        children: Hamt[str, _Node[S]] | None,
        one: _Node[S] | None,
        many: _Node[S] | None,
    ) -> None:
        self.depth = depth
        self.crowd = crowd
        self.children = children
        self.one = one
        self.many = many


class _State(Generic[S]):
    """A whole trie, and how much is in it. Never changed."""

    __slots__ = ("nodes", "pairs", "patterns", "root")

    def __init__(self, root: _Node[S], pairs: int, patterns: int, nodes: int) -> None:
        self.root = root
        self.pairs = pairs
        self.patterns = patterns
        self.nodes = nodes


@mypyc_attr(allow_interpreted_subclasses=True)
class Persistent(Matcher[S]):
    """Any number of threads may use it at once; needs the package cereggii."""

    def __init__(self, grammar: Grammar, cell: type[Cell[Any]] = AtomicCell) -> None:
        super().__init__(grammar)
        self._kind = cell
        self._state: Cell[_State[S]] = cell(_empty())

    def subscribe(self, pattern: str, subscriber: S) -> bool:
        hash(subscriber)  # what cannot be hashed is refused before anything changes
        self.grammar.check(pattern)
        words = self.grammar.split(pattern)
        while True:
            state = self._state.get()
            changed = _with(state, self.grammar, words, subscriber)
            if changed is None:
                return False
            if self._state.compare_and_set(state, changed):
                return True

    def unsubscribe(self, pattern: str, subscriber: S) -> bool:
        words = self.grammar.split(pattern)
        while True:
            state = self._state.get()
            changed = _without(state, self.grammar, words, subscriber)
            if changed is None:
                return False
            if self._state.compare_and_set(state, changed):
                return True

    def match(self, topic: str) -> list[S]:
        return merged(_walk(self._state.get().root, self.grammar, topic, False))

    def matches_any(self, topic: str) -> bool:
        return len(_walk(self._state.get().root, self.grammar, topic, True)) > 0

    def subscriptions(self) -> Iterator[tuple[str, S]]:
        """All pairs as they are when the first is asked for, in no order, whatever changes
        meanwhile.
        """
        grammar = self.grammar
        words: list[str] = []
        waiting: list[tuple[_Node[S], str]] = [(self._state.get().root, "")]
        while waiting:
            node, word = waiting.pop()
            if node.depth:
                del words[node.depth - 1 :]
                words.append(word)
            for subscriber in members(node.crowd):
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
        kept: Persistent[S] = Persistent(self.grammar, self._kind)
        kept._state = self._kind(self._state.get())
        return Snapshot(kept)

    def clear(self) -> None:
        while True:
            if self._state.compare_and_set(self._state.get(), _empty()):
                return

    def stats(self) -> dict[str, int]:
        """All of one moment."""
        state = self._state.get()
        return {"subscriptions": state.pairs, "patterns": state.patterns, "nodes": state.nodes}

    def __len__(self) -> int:
        return self._state.get().pairs

    def __contains__(self, pair: tuple[str, S]) -> bool:
        pattern, subscriber = pair
        node: _Node[S] | None = self._state.get().root
        for word in self.grammar.split(pattern):
            node = _child(node, self.grammar, word)
        return node is not None and holds(node.crowd, subscriber)


def _empty() -> _State[S]:
    return _State(_Node(0, None, None, None, None), 0, 0, 1)


def _child(node: _Node[S] | None, grammar: Grammar, word: str) -> _Node[S] | None:
    """The node to which a word of a pattern leads, if it is there."""
    if node is None:
        return None
    if word == grammar.one:
        return node.one
    if word == grammar.many:
        return node.many
    return None if node.children is None else node.children.get(word)


def _with(state: _State[S], grammar: Grammar, words: list[str], subscriber: S) -> _State[S] | None:
    """The state with a pair, None when it is in this one already."""
    path: list[_Node[S] | None] = []
    node: _Node[S] | None = state.root
    for word in words:
        path.append(node)
        node = _child(node, grammar, word)
    crowd: SubscriberSet[S] = None if node is None else node.crowd
    if crowd is not None and holds(crowd, subscriber):
        return None
    nodes = state.nodes
    depth = len(words)
    if node is None:
        changed = _Node(depth, with_added(crowd, subscriber), None, None, None)
        nodes += 1
    else:
        changed = _Node(depth, with_added(crowd, subscriber), node.children, node.one, node.many)
    while depth > 0:
        depth -= 1
        parent = path[depth]
        if parent is None:
            parent = _Node(depth, None, None, None, None)
            nodes += 1
        changed = _put(parent, grammar, words[depth], changed)
    return _State(changed, state.pairs + 1, state.patterns + (crowd is None), nodes)


def _without(
    state: _State[S], grammar: Grammar, words: list[str], subscriber: S
) -> _State[S] | None:
    """The state without a pair, None when it is not in this one.

    Nodes that lead nowhere are left out.
    """
    path: list[_Node[S]] = []
    node = state.root
    for word in words:
        child = _child(node, grammar, word)
        if child is None:
            return None
        path.append(node)
        node = child
    if not holds(node.crowd, subscriber):
        return None
    crowd = without(node.crowd, subscriber)
    nodes = state.nodes
    depth = len(words)
    changed = _Node(depth, crowd, node.children, node.one, node.many)
    while depth > 0:
        depth -= 1
        if (
            changed.crowd is None
            and changed.children is None
            and changed.one is None
            and changed.many is None
        ):
            changed = _drop(path[depth], grammar, words[depth])
            nodes -= 1
        else:
            changed = _put(path[depth], grammar, words[depth], changed)
    return _State(changed, state.pairs - 1, state.patterns - (crowd is None), nodes)


def _put(node: _Node[S], grammar: Grammar, word: str, child: _Node[S]) -> _Node[S]:
    """The node with another child."""
    if word == grammar.one:
        return _Node(node.depth, node.crowd, node.children, child, node.many)
    if word == grammar.many:
        return _Node(node.depth, node.crowd, node.children, node.one, child)
    children = only(word, child) if node.children is None else node.children.put(word, child)
    return _Node(node.depth, node.crowd, children, node.one, node.many)


def _drop(node: _Node[S], grammar: Grammar, word: str) -> _Node[S]:
    """The node without a child."""
    if word == grammar.one:
        return _Node(node.depth, node.crowd, node.children, None, node.many)
    if word == grammar.many:
        return _Node(node.depth, node.crowd, node.children, node.one, None)
    assert node.children is not None
    return _Node(node.depth, node.crowd, node.children.without(word), node.one, node.many)


def _walk(root: _Node[S], grammar: Grammar, topic: str, enough: bool) -> list[SubscriberSet[S]]:
    """The crowds of all patterns that match; those of the first found only, if that is enough."""
    found: list[SubscriberSet[S]] = []
    words = grammar.split(topic)
    end = len(words)
    node = root
    at = 0
    if grammar.hides and grammar.hidden(topic):
        first = _literal(root, words[0])
        if first is None:
            return found
        node = first
        at = 1
    turns: list[_Node[S]] = []
    while True:
        many = node.many
        if many is not None:
            if many.crowd is not None:
                found.append(many.crowd)
            if many.children is not None or many.one is not None or many.many is not None:
                _cross(many, words, at, found)
        if at == end:
            if node.crowd is not None:
                found.append(node.crowd)
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
        if not turns or (enough and found):
            return found
        node = turns.pop()
        at = node.depth


def _literal(node: _Node[S], word: str) -> _Node[S] | None:
    """The node to which a word of a topic leads, wildcards aside."""
    return None if node.children is None else node.children.get(word)


def _cross(start: _Node[S], words: list[str], at: int, found: list[SubscriberSet[S]]) -> None:
    """Append whose patterns, behind a ``#``, match the words from there on; the crowd of the ``#``
    is the caller's.

    `stays` are the ``#`` nodes entered so far, `moving` those nodes that the last word led to.
    """
    entered: set[_Node[S]] = {start}
    stays: list[_Node[S]] = [start]
    moving: list[_Node[S]] = []
    _enter(start.many, entered, stays, found)
    end = len(words)
    while at < end:
        word = words[at]
        at += 1
        following: list[_Node[S]] = []
        for node in stays + moving:
            children = node.children
            if children is not None:
                top = children.top
                child: _Node[S] | None = (
                    top.get(word) if isinstance(top, dict) else children.get(word)
                )
                if child is not None:
                    following.append(child)
            if node.one is not None:
                following.append(node.one)
        for node in following:
            many = node.many
            if many is not None and many not in entered:
                _enter(many, entered, stays, found)
        moving = following
    for node in moving:
        if node.crowd is not None:
            found.append(node.crowd)


def _enter(
    node: _Node[S] | None,
    entered: set[_Node[S]],
    stays: list[_Node[S]],
    found: list[SubscriberSet[S]],
) -> None:
    """Go into a ``#`` node, and into those that follow it, unless that was done before."""
    while node is not None and node not in entered:
        entered.add(node)
        if node.crowd is not None:
            found.append(node.crowd)
        if node.children is not None or node.one is not None:
            stays.append(node)
        node = node.many
