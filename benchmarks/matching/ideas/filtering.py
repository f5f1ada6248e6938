"""Compares ways to find out if any pattern matches a topic: all patterns in one bitmap, bitmaps of
64 patterns, patterns with wildcards first, and a trie without redundant patterns. (Article 4 of the
list in matching/__init__.py calls this filtering.)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from rounds import Work, devices, machine, three_words, time_ways
from structure import PlainNode, planted

from matching import AMQP, Matcher, create
from matching.covers import redundant


class Blocks:
    """The matcher of article 4 (iMatix): bitmaps with one bit for each pattern.

    Each bitmap covers `width` patterns. In a pattern, `#` may only be the last word.
    """

    def __init__(self, patterns: list[str], width: int) -> None:
        self.blocks: list[tuple[list[dict[str, int]], list[int], list[int], list[int]]] = []
        for begin in range(0, len(patterns), width):
            self.blocks.append(_rows(patterns[begin : begin + width]))

    def any(self, topic: str) -> bool:
        """True if any pattern matches the topic."""
        words = topic.split(".")
        for named, free, end, rest in self.blocks:
            agreed = -1
            for at, word in enumerate(words):
                if at >= len(named):
                    agreed = 0
                    break
                if agreed & rest[at]:
                    return True
                agreed &= named[at].get(word, 0) | free[at]
                if not agreed:
                    break
            if agreed and len(words) < len(named) and agreed & (end[len(words)] | rest[len(words)]):
                return True
        return False


def _rows(patterns: list[str]) -> tuple[list[dict[str, int]], list[int], list[int], list[int]]:
    depth = 1 + max(len(pattern.split(".")) for pattern in patterns)
    named: list[dict[str, int]] = [{} for _ in range(depth)]
    free, end, rest = [0] * depth, [0] * depth, [0] * depth
    for number, pattern in enumerate(patterns):
        words = pattern.split(".")
        for at, word in enumerate(words):
            if word == "#":
                rest[at] |= 1 << number
            elif word == "*":
                free[at] |= 1 << number
            else:
                named[at][word] = named[at].get(word, 0) | 1 << number
        if words[-1] != "#":
            end[len(words)] |= 1 << number
    return named, free, end, rest


def wildcards_first(patterns: list[str]) -> list[str]:
    """Sort patterns as in article 4: patterns with more wildcards, which match more topics, come
    first.
    """
    return sorted(patterns, key=lambda pattern: (-pattern.count("#"), -pattern.count("*")))


def fewest_words_first(patterns: list[str]) -> list[str]:
    """Sort patterns by their number of literal words: first the patterns that match more topics."""
    return sorted(
        patterns, key=lambda pattern: sum(word not in ("*", "#") for word in pattern.split("."))
    )


def any_walk(node: PlainNode, words: list[str], at: int, wildcard_first: bool) -> bool:
    """True if any pattern below `node` in a plain trie matches `words` from index `at` on.

    `wildcard_first` decides if the edge `*` is tried before the literal edge.
    """
    if node.many:
        return True
    if at == len(words):
        return bool(node.exact)
    ways = [node.children.get(words[at]), node.one]
    if wildcard_first:
        ways.reverse()
    return any(way is not None and any_walk(way, words, at + 1, wildcard_first) for way in ways)


def ask(wanted: Callable[[str], object], topics: list[str]) -> int:
    """Call `wanted` with each topic; return the number of topics."""
    for topic in topics:
        wanted(topic)
    return len(topics)


def main() -> None:
    """Run all comparisons and print their figures."""
    machine()
    for workload in (three_words, devices):
        for size in (1_000, 10_000):
            patterns, topics = workload(size)
            patterns = list(dict.fromkeys(patterns))
            # In `three_words`, every second topic is changed so that no pattern matches it.
            topics = [
                topic + (".no.body" if number % 2 and workload is three_words else "")
                for number, topic in enumerate(topics)
            ]
            needless = redundant(patterns, AMQP)
            stay = [pattern for pattern in patterns if pattern not in needless]
            full: Matcher[int] = create("trie", AMQP)
            few: Matcher[int] = create("trie", AMQP)
            bitmap: Matcher[int] = create("bitmap", AMQP)
            for number, pattern in enumerate(patterns):
                full.subscribe(pattern, number)
                bitmap.subscribe(pattern, number)
            for pattern in stay:
                few.subscribe(pattern, 0)
            tried: dict[str, Callable[[str], object]] = {
                "trie match": full.match,
                "trie any": full.matches_any,
                "stay": few.matches_any,
                "bitmap any": bitmap.matches_any,
                "whole": Blocks(patterns, len(patterns)).any,
            }
            for width in (64, 1_024):
                tried[f"{width}"] = Blocks(patterns, width).any
                tried[f"{width} wildcards first"] = Blocks(wildcards_first(patterns), width).any
                tried[f"{width} fewest words first"] = Blocks(
                    fewest_words_first(patterns), width
                ).any
            root = planted(patterns)

            def word_first(topic: str, root: PlainNode = root) -> bool:
                return any_walk(root, topic.split("."), 0, False)

            def wildcard_first(topic: str, root: PlainNode = root) -> bool:
                return any_walk(root, topic.split("."), 0, True)

            tried["walk word first"] = word_first
            tried["walk wildcard first"] = wildcard_first
            expected = [bool(full.match(topic)) for topic in topics]
            for name, wanted in tried.items():
                assert [bool(wanted(topic)) for topic in topics] == expected, name
            ways: dict[str, Work] = {
                name: partial(ask, wanted, topics[:500]) for name, wanted in tried.items()
            }
            print(
                f"a pattern matches {sum(expected) / len(expected):.0%} of the topics; {len(stay)} "
                f"of {len(patterns)} patterns are not redundant"
            )
            time_ways(f"{workload.__name__} {size:,}", ways)


if __name__ == "__main__":
    main()
