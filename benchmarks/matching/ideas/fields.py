"""Compares the header-matching algorithms of `matching.fields` on 100 to 100,000 bindings, here
called requests. (The algorithms come from article 4 of the list in matching/__init__.py.)
"""

from __future__ import annotations

import random
from functools import partial

from rounds import Work, machine, time_ways

from matching.fields import NAMES, Fields, HeadersMatcher, create


def market(size: int) -> tuple[list[Fields], list[Fields]]:
    """Return `size` header bindings, called requests, and messages to match with them.

    A request names one to four of twelve fields, a message has three to eight. Some values are far
    more common than others. A tenth of the requests need only one of their fields (`x-match` is
    `any`).
    """
    dice = random.Random(5)

    def value() -> str:
        return f"v{min(int(dice.expovariate(0.08)), 49)}"

    requests: list[Fields] = []
    for number in range(size):
        kind = {"x-match": "any"} if dice.random() < 0.1 else {}
        fields = {
            f"k{name}": None if dice.random() < 0.08 else value()
            for name in dice.sample(range(12), dice.randint(1, 4))
        }
        requests.append({**fields, **kind, "x-number": number})
    messages: list[Fields] = [
        {f"k{name}": value() for name in dice.sample(range(12), dice.randint(3, 8))}
        for _ in range(200)
    ]
    return requests, messages


def traders(size: int) -> tuple[list[Fields], list[Fields]]:
    """Return `size` header bindings, called requests, and messages to match with them.

    All requests name the same market, and each request names another account.
    """
    requests: list[Fields] = [{"market": "forex", "account": number} for number in range(size)]
    return requests, [
        {"market": "forex", "account": number * 7 % (2 * size), "price": 1.5}
        for number in range(200)
    ]


def ask(matcher: HeadersMatcher[int], messages: list[Fields]) -> int:
    """Match all messages with a matcher of headers; return the number of messages."""
    for message in messages:
        matcher.match(message)
    return len(messages)


def main() -> None:
    """Run all comparisons and print their figures."""
    machine()
    for workload in (market, traders):
        for size in (100, 1_000, 10_000, 100_000):
            requests, messages = workload(size)
            expected: list[set[int]] = []
            ways: dict[str, Work] = {}
            for name in ("naive", *(name for name in NAMES if name != "naive")):
                matcher: HeadersMatcher[int] = create(name)
                for number, request in enumerate(requests):
                    matcher.bind(request, number)
                some = messages[: 200_000 // size] if name == "naive" else messages
                answers = [set(matcher.match(message)) for message in messages[:10]]
                expected = expected or answers
                assert answers == expected, name
                ways[name] = partial(ask, matcher, some[:200] or messages[:2])
            average = sum(map(len, expected)) / len(expected)
            time_ways(f"{workload.__name__} {size:,}, {average:.1f} matches per message", ways)


if __name__ == "__main__":
    main()
