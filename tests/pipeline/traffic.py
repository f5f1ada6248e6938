"""Random traffic, random definitions, and what plain Python says of them: the oracle of the jobs."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from datetime import timedelta
from typing import Any, Final

from matching import AMQP
from tests.pipeline.written import START, Row, row

WORDS: Final = ("a", "b", "c", "")
Document = dict[str, Any]


def topics(rng: random.Random, count: int) -> list[str]:
    return [".".join(rng.choice(WORDS) for _ in range(rng.randrange(5))) for _ in range(count)]


def definitions(rng: random.Random, bindings: int) -> Document:
    """A topic exchange `t` with an alternate exchange, one of each other type, exchanges bound to exchanges in a circle."""
    types = {"t": "topic", "u": "topic", "d": "direct", "f": "fanout", "h": "headers"}
    queues = [f"q{number}" for number in range(6)]
    made: list[dict[str, Any]] = []
    for key in ("a.#", "#.c", "*.*"):
        made.append({"source": "t", "vhost": "/", "destination": "q0", "destination_type": "queue", "routing_key": key, "arguments": {}})
    for number in range(bindings):
        words = [rng.choice([*WORDS, "*", "#"]) for _ in range(1 + rng.randrange(4))]
        source = rng.choice(["t", "t", "u", "d", "f", "amq.topic"])
        made.append({"source": source, "vhost": "/", "destination": rng.choice(queues), "destination_type": "queue",
                     "routing_key": ".".join(words), "arguments": {"n": number}})
    for source, destination, key in (("t", "u", "a.#"), ("u", "t", "#.c"), ("t", "f", "b.*"), ("u", "h", "c.#")):
        made.append(
            {
                "source": source,
                "vhost": "/",
                "destination": destination,
                "destination_type": "exchange",
                "routing_key": key,
                "arguments": {},
            }
        )
    return {
        "vhosts": [{"name": "/"}],
        "queues": [{"name": name, "vhost": "/"} for name in queues],
        "bindings": made,
        "exchanges": [
            {"name": name, "vhost": "/", "type": kind, "arguments": {"alternate-exchange": "f"} if name == "d" else {}}
            for name, kind in types.items()
        ],
    }


def goes(document: Document, exchange: str, topic: str) -> tuple[set[str], set[int], bool]:
    """(queues, numbers of bindings, whether a headers exchange decides) by the definition of each type."""
    types = {each["name"]: each["type"] for each in document["exchanges"]} | {"amq.topic": "topic"}
    alternates = {each["name"]: each["arguments"]["alternate-exchange"] for each in document["exchanges"] if each["arguments"]}
    queues: set[str] = set()
    used: set[int] = set()
    unknown = False
    seen: set[str] = set()
    ahead = [exchange]
    while ahead:
        name = ahead.pop()
        if name in seen:
            continue
        seen.add(name)
        if name == "":
            queues |= {each["name"] for each in document["queues"]} & {topic}
            continue
        if types[name] == "headers":
            unknown = True
            continue
        hit = False
        for number, each in enumerate(document["bindings"]):
            if each["source"] == name and (types[name] == "fanout" or (types[name] == "direct" and each["routing_key"] == topic)
                                           or (types[name] == "topic" and AMQP.matches(each["routing_key"], topic))):
                hit = True
                used.add(number)
                if each["destination_type"] == "exchange":
                    ahead.append(each["destination"])
                else:
                    queues.add(each["destination"])
        if not hit and name in alternates:
            ahead.append(alternates[name])
    return queues, used, unknown


def rows(
    rng: random.Random, count: int, document: Document, exchanges: tuple[str, ...] = ("t", "u", "d", "f", "", "amq.topic")
) -> list[Row]:
    """Messages as a journal has them, some with a time of their publisher's own."""
    pool = [*topics(rng, 40), "q1", "q5"]
    made = []
    for offset in range(count):
        topic, exchange = rng.choice(pool), rng.choice(exchanges)
        made.append(row(offset, topic, exchange=exchange, routed=len(goes(document, exchange, topic)[0]), body=bytes(rng.randrange(9)),
                        timestamp=START + timedelta(hours=20, seconds=offset) if rng.random() < 0.3 else None))
    return made


def event_time(each: Row) -> Any:
    return each["timestamp"] or each["published_at"]


def counted(some: list[Row]) -> Counter[tuple[str, str]]:
    return Counter((each["exchange"], each["topic"]) for each in some)


def by_queue(some: list[Row], document: Document) -> dict[str, int]:
    found: dict[str, int] = defaultdict(int)
    for (exchange, topic), messages in counted(some).items():
        for queue in goes(document, exchange, topic)[0]:
            found[queue] += messages
    return found
