"""Searches the concurrent trie for the patterns that match a topic, with the algorithm of `trie`.

`ConcurrentWalk` decides which nodes a lookup visits. Its subclass in `cstrie` decides how a node is
read and which reads are recorded.
"""

from __future__ import annotations

from typing import Generic

from matching.cnodes import Branch, CNode, INode
from matching.grammar import Grammar
from matching.matcher import S
from matching.subscriber_set import SubscriberSet


class ConcurrentWalk(Generic[S]):
    """A search along the words of one topic; `sets` holds the subscriber sets of matching
    patterns.

    A subclass implements `read`.
    """

    __slots__ = ("grammar", "sets", "words")

    def __init__(self, grammar: Grammar, words: list[str]) -> None:
        self.grammar = grammar
        self.words = words
        self.sets: list[SubscriberSet[S]] = []

    def read(self, inode: INode[S]) -> CNode[S]:
        """Return the content of a trie node. A subclass may also record what it read."""
        raise NotImplementedError

    def walk(self, root: INode[S], hidden: bool, stop_at_first: bool) -> None:
        """Visit all nodes that the topic's words lead to.

        With `stop_at_first`, stop at the first match. With `hidden`, patterns that begin with a
        wildcard do not match.
        """
        words = self.words
        end = len(words)
        sets = self.sets
        inode = root
        at = 0
        turns: list[tuple[INode[S], int]] = []
        while True:
            main = self.read(inode)
            one = main.one
            many = main.many
            if hidden and at == 0:
                one = many = None
            if many is not None:
                if many.subscribers is not None:
                    sets.append(many.subscribers)
                if many.inode is not None:
                    self.cross(many, many.inode, at)
            following: INode[S] | None = None
            if at < end:
                literal = None if main.children is None else main.children.get(words[at])
                at += 1
                if one is not None:
                    following = one.inode
                    if at == end and one.subscribers is not None:
                        sets.append(one.subscribers)
                if literal is not None:
                    if at == end and literal.subscribers is not None:
                        sets.append(literal.subscribers)
                    if literal.inode is not None:
                        if following is not None:
                            turns.append((following, at))
                        following = literal.inode
            elif end == 0 and main.children is not None:
                nothing = main.children.get(self.grammar.separator)
                if nothing is not None:
                    sets.append(nothing.subscribers)
            if stop_at_first and sets:
                return
            if following is not None:
                inode = following
            elif turns:
                inode, at = turns.pop()
            else:
                return

    def cross(self, start: Branch[S], inode: INode[S], at: int) -> None:
        """Append the subscriber sets of patterns whose part after a ``#`` matches the words from
        `at` on.

        `start` is the branch of the ``#``, and `inode` the node below that branch. The caller has
        already appended the subscribers of `start` itself. Each node is read only once.
        """
        words = self.words
        end = len(words)
        sets = self.sets
        entered: set[Branch[S]] = {start}
        behind = self.read(inode)
        stays: list[CNode[S]] = [behind]  # the nodes below all `#` entered so far
        moving: list[CNode[S]] = []  # the nodes that the last word led to
        known: dict[INode[S], CNode[S]] = {}
        self._enter(behind.many, entered, stays)
        while at < end:
            word = words[at]
            at += 1
            following: list[CNode[S]] = []
            led: list[Branch[S]] = []
            for main in stays + moving:
                children = main.children
                if children is not None:
                    top = children.top
                    literal: Branch[S] | None = (
                        top.get(word) if isinstance(top, dict) else children.get(word)
                    )
                    if literal is not None:
                        led.append(literal)
                if main.one is not None:
                    led.append(main.one)
            for branch in led:
                if at == end and branch.subscribers is not None:
                    sets.append(branch.subscribers)
                onward = branch.inode
                if onward is not None:
                    reached = known.get(onward)
                    if reached is None:
                        reached = known[onward] = self.read(onward)
                    many = reached.many
                    if many is not None and many not in entered:
                        self._enter(many, entered, stays)
                    if reached.children is not None or reached.one is not None:
                        following.append(reached)
            moving = following

    def _enter(
        self, branch: Branch[S] | None, entered: set[Branch[S]], stays: list[CNode[S]]
    ) -> None:
        """Enter a ``#`` branch and the chain of ``#`` branches directly below it.

        To enter a branch is to append its subscribers to `sets`. If the node below the branch has
        branches other than ``#``, the content of the node is also appended to `stays`. The chain
        ends at a branch that was entered before.
        """
        while branch is not None and branch not in entered:
            entered.add(branch)
            if branch.subscribers is not None:
                self.sets.append(branch.subscribers)
            if branch.inode is None:
                return
            main = self.read(branch.inode)
            if main.children is not None or main.one is not None:
                stays.append(main)
            branch = main.many
