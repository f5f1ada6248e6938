"""Measures ideas for the structure of a matcher from the articles that matching/__init__.py lists.

The ideas: rolled-up branches and a Bloom filter (article 2), a bitmap instead of a scan (article
3), splitting topics once (article 5).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

from rounds import Work, devices, machine, three_words, time_ways

from matching import AMQP, Matcher, create


class PlainNode:
    """A trie node.

    `exact` has the subscribers of patterns that end at this node, `many` the subscribers of
    patterns that continue with `#`. `children` has the next nodes by literal word, `one` is the
    next node for `*`. In a rolled-up trie, the edge to a node may represent several words: `tail`
    has the words after the first.
    """

    __slots__ = ("children", "exact", "many", "one", "tail")

    def __init__(self) -> None:
        self.children: dict[str, PlainNode] = {}
        self.one: PlainNode | None = None
        self.many: list[int] = []
        self.exact: list[int] = []
        self.tail: list[str] = []


def planted(patterns: list[str]) -> PlainNode:
    """Return the root of a plain trie of the patterns; `#` may only be a pattern's last word."""
    root = PlainNode()
    for number, pattern in enumerate(patterns):
        node = root
        for word in pattern.split("."):
            if word == "#":
                node.many.append(number)
                break
            if word == "*":
                node.one = node.one or PlainNode()
                node = node.one
            else:
                node = node.children.setdefault(word, PlainNode())
        else:
            node.exact.append(number)
    return root


def rolled(node: PlainNode) -> PlainNode:
    """Change a plain trie so that a chain of nodes with a single child becomes one edge.

    Return the root, which may be another node.
    """
    while len(node.children) == 1 and node.one is None and not node.many and not node.exact:
        ((word, child),) = node.children.items()
        child.tail = [*node.tail, word]
        node = child
    node.children = {word: rolled(child) for word, child in node.children.items()}
    if node.one is not None:
        node.one = rolled(node.one)
    return node


def plain_walk(node: PlainNode, words: list[str], at: int, subscribers: list[int]) -> None:
    """Append to `subscribers` the subscribers of patterns below `node` of a plain trie that match
    `words[at:]`.
    """
    while True:
        subscribers += node.many
        if at == len(words):
            subscribers += node.exact
            return
        child = node.children.get(words[at])
        at += 1
        if node.one is not None:
            if child is not None:
                plain_walk(node.one, words, at, subscribers)
            else:
                child = node.one
        if child is None:
            return
        node = child


def rolled_walk(node: PlainNode, words: list[str], at: int, subscribers: list[int]) -> None:
    """Append to `subscribers` the subscribers of patterns below `node` of a rolled-up trie that
    match `words[at:]`.

    An edge to a node represents the word of the edge and the words in the node's `tail`.
    """
    while True:
        if node.tail:
            end = at + len(node.tail)
            if words[at:end] != node.tail:
                return
            at = end
        subscribers += node.many
        if at == len(words):
            subscribers += node.exact
            return
        child = node.children.get(words[at])
        at += 1
        if node.one is not None:
            if child is not None:
                rolled_walk(node.one, words, at, subscribers)
            else:
                child = node.one
        if child is None:
            return
        node = child


def size(node: PlainNode) -> tuple[int, int]:
    """Return the number of nodes, and the bytes of the nodes and their containers.

    The bytes of words are not counted, because both tries share the words.
    """
    nodes, total = 1, sys.getsizeof(node)
    total += sum(
        sys.getsizeof(part) for part in (node.children, node.many, node.exact, node.tail) if part
    )
    for child in [*node.children.values(), *([node.one] if node.one else [])]:
        more, others = size(child)
        nodes, total = nodes + more, total + others
    return nodes, total


def walk(
    how: Callable[[PlainNode, list[str], int, list[int]], None], root: PlainNode, topics: list[str]
) -> int:
    """Look up all topics in a trie with the function `how`; return the number of topics."""
    for topic in topics:
        how(root, topic.split("."), 0, [])
    return len(topics)


def roll_up() -> None:
    """Compare time and memory of the plain and the rolled-up trie."""
    deep = [
        f"org.example.plant.line{number % 97}.cell.robot.arm{number}.joint.temperature.celsius"
        for number in range(10_000)
    ]
    for name, (patterns, topics) in {
        "three words": three_words(10_000),
        "devices": devices(10_000),
        "deep": (deep, deep[:5_000]),
    }.items():
        plain = planted(patterns)
        roll = rolled(planted(patterns))
        for topic in topics[:300]:
            both: tuple[list[int], list[int]] = ([], [])
            plain_walk(plain, topic.split("."), 0, both[0])
            rolled_walk(roll, topic.split("."), 0, both[1])
            assert sorted(both[0]) == sorted(both[1])
        (nodes, total), (fewer, less) = size(plain), size(roll)
        count = len(patterns)
        print(
            f"rolled up, {name}: nodes {nodes:,} -> {fewer:,}, bytes per pattern "
            f"{total / count:.0f} -> {less / count:.0f}"
        )
        time_ways(
            "    lookup",
            {
                "plain": partial(walk, plain_walk, plain, topics),
                "rolled": partial(walk, rolled_walk, roll, topics),
            },
        )


class Bloom:
    """A Bloom filter that sets two bits for the first two words of each pattern.

    `open` is True if one of these words is a wildcard: then the filter can exclude no topic.
    """

    def __init__(self, patterns: list[str], bits: int = 1 << 18) -> None:
        self.mask = bits - 1
        self.field = bytearray(bits)
        self.open = False
        for pattern in patterns:
            words = pattern.split(".")[:2]
            self.open = self.open or "*" in words or "#" in words
            mark = hash(".".join(words))
            self.field[mark & self.mask] = self.field[mark >> 20 & self.mask] = 1

    def may(self, topic: str) -> bool:
        """True if some pattern may match the topic.

        Do not call this method if `open` is True: the filter then excludes no topic.
        """
        mark = hash(".".join(topic.split(".", 2)[:2]))
        return self.field[mark & self.mask] == 1 and self.field[mark >> 20 & self.mask] == 1


def bloom() -> None:
    """Compare a trie with the same trie behind a Bloom filter."""
    patterns = [pattern for pattern in devices(10_000)[0] if pattern.startswith("site.s")]
    filtered = Bloom(patterns)
    assert not filtered.open
    matcher: Matcher[int] = create("trie", AMQP)
    for number, pattern in enumerate(patterns):
        matcher.subscribe(pattern, number)
    topics = devices(10_000)[1]
    kinds = {
        "first word unknown": [f"x{number}{topic}" for number, topic in enumerate(topics)],
        "second word unknown": [
            topic.replace(".s", f".x{number}s", 1) for number, topic in enumerate(topics)
        ],
        "wanted": topics,
    }
    for name, some in kinds.items():

        def alone(some: list[str] = some) -> int:
            for topic in some:
                matcher.match(topic)
            return len(some)

        def behind(some: list[str] = some) -> int:
            for topic in some:
                if filtered.may(topic):
                    matcher.match(topic)
            return len(some)

        time_ways(f"Bloom filter, {name}", {"trie": alone, "filter, then trie": behind})
    wild = devices(10_000)[0]
    off = "off, because some patterns have a wildcard in the first two words"
    print(f"    with all patterns the filter is {off if Bloom(wild).open else 'on'}")


def words_match(wanted: list[str], words: list[str]) -> bool:
    """True if the pattern `wanted` matches `words`; `#` may only be the pattern's last word."""
    for at, want in enumerate(wanted):
        if want == "#":
            return True
        if at == len(words) or want not in ("*", words[at]):
            return False
    return len(wanted) == len(words)


def split_once() -> None:
    """Compare a scan that splits each text at each comparison with a scan that splits it once."""
    for name, (patterns, topics) in {
        "three words": three_words(1_000),
        "devices": devices(1_000),
    }.items():
        topics = topics[:50]
        apart = [pattern.split(".") for pattern in patterns]
        naive: Matcher[int] = create("naive", AMQP)
        bitmap: Matcher[int] = create("bitmap", AMQP)
        trie: Matcher[int] = create("trie", AMQP)
        for matcher in (naive, bitmap, trie):
            for number, pattern in enumerate(patterns):
                matcher.subscribe(pattern, number)

        def each_time(topics: list[str] = topics, patterns: list[str] = patterns) -> int:
            for topic in topics:
                [
                    number
                    for number, pattern in enumerate(patterns)
                    if words_match(pattern.split("."), topic.split("."))
                ]
            return len(topics)

        def once(topics: list[str] = topics, apart: list[list[str]] = apart) -> int:
            for topic in topics:
                words = topic.split(".")
                [number for number, wanted in enumerate(apart) if words_match(wanted, words)]
            return len(topics)

        def look_up_all(matcher: Matcher[int], topics: list[str] = topics) -> int:
            for topic in topics:
                matcher.match(topic)
            return len(topics)

        ways: dict[str, Work] = {
            "split each time": each_time,
            "split once": once,
            "naive": partial(look_up_all, naive),
            "bitmap": partial(look_up_all, bitmap),
            "trie": partial(look_up_all, trie),
        }
        medians = time_ways(f"1,000 {name}", ways)
        print(
            "    splitting once makes the scan faster by a factor of "
            f"{medians['split each time'] / medians['split once']:.2f}; the bitmap is faster than "
            f"the scan by a factor of {medians['split each time'] / medians['bitmap']:.0f}, and "
            f"than the scan with splitting once by {medians['split once'] / medians['bitmap']:.0f}"
        )
    for size_ in (10_000,):
        for name, (patterns, topics) in {
            "three words": three_words(size_),
            "devices": devices(size_),
        }.items():
            ways = {}
            for algorithm in ("bitmap", "trie"):
                matcher = create(algorithm, AMQP)
                for number, pattern in enumerate(patterns):
                    matcher.subscribe(pattern, number)

                def match_all(matcher: Matcher[int] = matcher, topics: list[str] = topics) -> int:
                    for topic in topics:
                        matcher.match(topic)
                    return len(topics)

                ways[algorithm] = match_all
            time_ways(f"{size_:,} {name}", ways)


def main() -> None:
    """Run all comparisons and print their figures."""
    machine()
    roll_up()
    bloom()
    split_once()


if __name__ == "__main__":
    main()
