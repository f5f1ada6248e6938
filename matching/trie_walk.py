"""The walk through a trie of words below a ``#`` in the middle of a pattern."""

from __future__ import annotations

from matching.bucket import take
from matching.matcher import S
from matching.trie_search import TrieNode


def cross(start: TrieNode, words: list[str], at: int, subscribers: list[S]) -> None:
    """Append the subscribers of patterns whose part after a ``#`` matches the words from `at` on.

    The caller has already appended the subscribers of the ``#`` node itself.
    """
    entered: set[TrieNode] = {start}
    stays: list[TrieNode] = []
    _enter(start.many, entered, stays, subscribers)
    stays.append(start)
    advance(stays, [], entered, words, at, subscribers)


def advance(
    stays: list[TrieNode],
    moving: list[TrieNode],
    entered: set[TrieNode],
    words: list[str],
    at: int,
    subscribers: list[S],
) -> None:
    """Walk on from these nodes and append the subscribers of patterns that match the words from
    `at`.

    `entered` are the ``#`` nodes that the search has reached; their own subscribers are in
    `subscribers` already. `stays` are the entered nodes that have children other than ``#``.
    `moving` are the nodes that the last word led to.
    """
    end = len(words)
    while at < end:
        word = words[at]
        at += 1
        following: list[TrieNode] = []
        for node in stays + moving:
            children = node.children
            if children is not None:
                child = children.get(word)
                if child is not None:
                    following.append(child)
            one = node.one
            if one is not None:
                following.append(one)
        for node in following:
            many = node.many
            if many is not None and many not in entered:
                _enter(many, entered, stays, subscribers)
        moving = following
    for node in moving:
        take(node.bucket, subscribers)


def _enter(
    node: TrieNode | None,
    entered: set[TrieNode],
    stays: list[TrieNode],
    subscribers: list[S],
) -> None:
    """Enter a ``#`` node and the chain of ``#`` nodes directly below it.

    To enter a node is to append its subscribers to `subscribers`. If the node has children that are
    not ``#``, the node is also appended to `stays`. The chain ends at a node that was entered
    before.
    """
    while node is not None and node not in entered:
        entered.add(node)
        take(node.bucket, subscribers)
        if node.children is not None or node.one is not None:
            stays.append(node)
        node = node.many
