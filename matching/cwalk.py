"""The walk of a lookup through the nodes of the concurrent trie. It is that of `trie`, over I-nodes
and branches.

Which way a lookup goes is said here; how an I-node is read, and what of that is kept, by who asks.
"""

from __future__ import annotations

from typing import Generic

from matching.cnodes import Branch, CNode, INode
from matching.crowd import SubscriberSet
from matching.grammar import Grammar
from matching.matcher import S


class ConcurrentWalk(Generic[S]):
    """One walk along the words of a topic: `found` are the crowds of the patterns that match.

    It lacks `read`.
    """

    __slots__ = ("found", "grammar", "words")

    def __init__(self, grammar: Grammar, words: list[str]) -> None:
        self.grammar = grammar
        self.words = words
        self.found: list[SubscriberSet[S]] = []

    def read(self, inode: INode[S]) -> CNode[S]:
        """The value of an I-node."""
        raise NotImplementedError

    def walk(self, root: INode[S], hidden: bool, enough: bool) -> None:
        """Go all ways from the root that the words allow; one, if that is enough."""
        words = self.words
        end = len(words)
        found = self.found
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
                if many.crowd is not None:
                    found.append(many.crowd)
                if many.inode is not None:
                    self.cross(many, many.inode, at)
            following: INode[S] | None = None
            if at < end:
                literal = None if main.children is None else main.children.get(words[at])
                at += 1
                if one is not None:
                    following = one.inode
                    if at == end and one.crowd is not None:
                        found.append(one.crowd)
                if literal is not None:
                    if at == end and literal.crowd is not None:
                        found.append(literal.crowd)
                    if literal.inode is not None:
                        if following is not None:
                            turns.append((following, at))
                        following = literal.inode
            elif end == 0 and main.children is not None:
                nothing = main.children.get(self.grammar.separator)
                if nothing is not None:
                    found.append(nothing.crowd)
            if enough and found:
                return
            if following is not None:
                inode = following
            elif turns:
                inode, at = turns.pop()
            else:
                return

    def cross(self, start: Branch[S], inode: INode[S], at: int) -> None:
        """Find whose patterns, behind a ``#``, match the words from there on; the crowd of the
        ``#`` is the caller's.

        `stays` are the nodes behind the ``#`` entered so far, `moving` those that the last word led
        to. Many words may lead to the same one: each I-node is read once.
        """
        words = self.words
        end = len(words)
        found = self.found
        entered: set[Branch[S]] = {start}
        behind = self.read(inode)
        stays: list[CNode[S]] = [behind]
        moving: list[CNode[S]] = []
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
                if at == end and branch.crowd is not None:
                    found.append(branch.crowd)
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
        """Go behind a ``#``, and behind those that follow it, unless that was done before."""
        while branch is not None and branch not in entered:
            entered.add(branch)
            if branch.crowd is not None:
                self.found.append(branch.crowd)
            if branch.inode is None:
                return
            main = self.read(branch.inode)
            if main.children is not None or main.one is not None:
                stays.append(main)
            branch = main.many
