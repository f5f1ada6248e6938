"""Ideas about the structure: rolled-up branches, a Bloom filter in front (article 2), splitting
once (5), factor 3 (3).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

from rounds import Work, devices, machine, three_words, told

from matching import AMQP, Matcher, create


class Node:
    """A trie's node; `tail` are the words that follow the edge's first without a choice, when
    branches are rolled up.
    """

    __slots__ = ("children", "found", "many", "one", "tail")

    def __init__(self) -> None:
        self.children: dict[str, Node] = {}
        self.one: Node | None = None
        self.many: list[int] = []
        self.found: list[int] = []
        self.tail: list[str] = []


def planted(patterns: list[str]) -> Node:
    """A plain trie; `#` stands last."""
    root = Node()
    for number, pattern in enumerate(patterns):
        node = root
        for word in pattern.split("."):
            if word == "#":
                node.many.append(number)
                break
            if word == "*":
                node.one = node.one or Node()
                node = node.one
            else:
                node = node.children.setdefault(word, Node())
        else:
            node.found.append(number)
    return root


def rolled(node: Node) -> Node:
    """The same with every chain of nodes that only pass one word on as one edge."""
    while len(node.children) == 1 and node.one is None and not node.many and not node.found:
        ((word, child),) = node.children.items()
        child.tail = [*node.tail, word]
        node = child
    node.children = {word: rolled(child) for word, child in node.children.items()}
    if node.one is not None:
        node.one = rolled(node.one)
    return node


def plain_walk(node: Node, words: list[str], at: int, found: list[int]) -> None:
    while True:
        found += node.many
        if at == len(words):
            found += node.found
            return
        child = node.children.get(words[at])
        at += 1
        if node.one is not None:
            if child is not None:
                plain_walk(node.one, words, at, found)
            else:
                child = node.one
        if child is None:
            return
        node = child


def rolled_walk(node: Node, words: list[str], at: int, found: list[int]) -> None:
    while True:
        if node.tail:
            end = at + len(node.tail)
            if words[at:end] != node.tail:
                return
            at = end
        found += node.many
        if at == len(words):
            found += node.found
            return
        child = node.children.get(words[at])
        at += 1
        if node.one is not None:
            if child is not None:
                rolled_walk(node.one, words, at, found)
            else:
                child = node.one
        if child is None:
            return
        node = child


def size(node: Node) -> tuple[int, int]:
    """Nodes, and octets of them and their containers (of words nothing: both tries name the same)."""
    nodes, octets = 1, sys.getsizeof(node)
    octets += sum(
        sys.getsizeof(part) for part in (node.children, node.many, node.found, node.tail) if part
    )
    for child in [*node.children.values(), *([node.one] if node.one else [])]:
        more, others = size(child)
        nodes, octets = nodes + more, octets + others
    return nodes, octets


def walk(
    how: Callable[[Node, list[str], int, list[int]], None], root: Node, topics: list[str]
) -> int:
    for topic in topics:
        how(root, topic.split("."), 0, [])
    return len(topics)


def roll_up() -> None:
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
        (nodes, octets), (fewer, less) = size(plain), size(roll)
        count = len(patterns)
        print(
            f"rolled up, {name}: nodes {nodes:,} -> {fewer:,}, octets a pattern {octets / count:.0f} -> {less / count:.0f}"
        )
        told(
            "    lookup",
            {
                "plain": partial(walk, plain_walk, plain, topics),
                "rolled": partial(walk, rolled_walk, roll, topics),
            },
        )


class Bloom:
    """Two bits for each literal pair of first words; patterns that begin with a wildcard switch it
    off for all.
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
        mark = hash(".".join(topic.split(".", 2)[:2]))
        return self.field[mark & self.mask] == 1 and self.field[mark >> 20 & self.mask] == 1


def bloom() -> None:
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

        told(f"Bloom filter, {name}", {"trie": alone, "filter, then trie": behind})
    wild = devices(10_000)[0]
    print(
        f"    with all patterns the filter is {'off: some begin with a wildcard' if Bloom(wild).open else 'on'}"
    )


def words_match(wanted: list[str], words: list[str]) -> bool:
    """For patterns whose `#` is last."""
    for at, want in enumerate(wanted):
        if want == "#":
            return True
        if at == len(words) or want not in ("*", words[at]):
            return False
    return len(wanted) == len(words)


def split_once() -> None:
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

        def asked(matcher: Matcher[int], topics: list[str] = topics) -> int:
            for topic in topics:
                matcher.match(topic)
            return len(topics)

        ways: dict[str, Work] = {
            "split each time": each_time,
            "split once": once,
            "naive": partial(asked, naive),
            "bitmap": partial(asked, bitmap),
            "trie": partial(asked, trie),
        }
        medians = told(f"1,000 {name}", ways)
        print(
            f"    splitting once: factor {medians['split each time'] / medians['split once']:.2f}; bitmap beside one by one: factor "
            f"{medians['split each time'] / medians['bitmap']:.0f}, beside one by one and split once: "
            f"{medians['split once'] / medians['bitmap']:.0f}"
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

                def asked_all(matcher: Matcher[int] = matcher, topics: list[str] = topics) -> int:
                    for topic in topics:
                        matcher.match(topic)
                    return len(topics)

                ways[algorithm] = asked_all
            told(f"{size_:,} {name}", ways)


def main() -> None:
    machine()
    roll_up()
    bloom()
    split_once()


if __name__ == "__main__":
    main()
