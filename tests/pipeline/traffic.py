"""Random traffic, definitions and MQTT sessions, and a plain Python model of routing: the oracle of
the jobs' tests.
"""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from matching import AMQP, MQTT, swap
from pyspark_trellis.definitions import SESSION
from tests.pipeline.written import START, Row, row

WORDS: Final = ("a", "b", "c", "")
#: Topics that not every subscriber receives: hidden from wildcards, or not representable in MQTT.
SPECIAL: Final = ("$x.a", "$SYS.a", "a.+", "#", "a/b.c", "q1", "q5", "s1")
EXCHANGES: Final = {"t": "topic", "u": "topic", "d": "direct", "f": "fanout", "h": "headers"}
Document = dict[str, Any]


class Subscription(NamedTuple):
    """A subscription of an MQTT session, or a shared subscription."""

    session: str
    topic_filter: str


def topics(rng: random.Random, count: int) -> list[str]:
    return [".".join(rng.choice(WORDS) for _ in range(rng.randrange(5))) for _ in range(count)]


def definitions(rng: random.Random, bindings: int) -> Document:
    """Draw definitions with exchanges of each type, bindings, and alternate exchanges.

    Bindings and alternate exchanges may form cycles. The default exchange may be an alternate
    exchange.
    """
    queues = [f"q{number}" for number in range(6)]
    drawn: list[dict[str, Any]] = [_binding("t", "q0", key) for key in ("a.#", "#.c", "*.*")]
    for number in range(bindings):
        words = [rng.choice([*WORDS, "*", "#"]) for _ in range(1 + rng.randrange(4))]
        source = rng.choice(["t", "t", "u", "d", "f", "amq.topic"])
        drawn.append(_binding(source, rng.choice(queues), ".".join(words), n=number))
    drawn += [
        _binding(*each)
        for each in (("t", "u", "a.#"), ("u", "t", "#.c"), ("t", "f", "b.*"), ("u", "h", "c.#"))
    ]
    drawn += [
        _binding(
            rng.choice(list(EXCHANGES)),
            rng.choice(list(EXCHANGES)),
            rng.choice(["a.#", "b", "*.c"]),
            n=number,
        )
        for number in (-1, -2)
    ]
    exchanges = []
    for name, kind in EXCHANGES.items():
        alternate = (
            rng.choice(["t", "f", "h", "", "gone"])
            if rng.random() < 0.3
            else "f"
            if name == "d"
            else None
        )
        exchanges.append(
            {
                "name": name,
                "vhost": "/",
                "type": kind,
                "arguments": {} if alternate is None else {"alternate-exchange": alternate},
            }
        )
    return {
        "vhosts": [{"name": "/"}],
        "queues": [{"name": name, "vhost": "/"} for name in queues],
        "bindings": drawn,
        "exchanges": exchanges,
    }


def _binding(source: str, destination: str, key: str, **arguments: Any) -> dict[str, Any]:
    return {
        "source": source,
        "vhost": "/",
        "destination": destination,
        "routing_key": key,
        "arguments": arguments,
        "destination_type": "exchange" if destination in EXCHANGES else "queue",
    }


def subscriptions(rng: random.Random, count: int) -> list[Subscription]:
    """Draw up to `count` different subscriptions, of MQTT sessions or of shared subscriptions.

    One of the sessions has the name of a queue.
    """
    drawn: dict[Subscription, None] = {}
    for _ in range(count):
        levels = [rng.choice([*WORDS, "+", "$x", "a.b"]) for _ in range(1 + rng.randrange(3))]
        if rng.random() < 0.5:
            levels.append("#")
        topic_filter = "/".join(levels) or "+"
        session = rng.choice(["s1", "s2", "q1", f"$share/g/{topic_filter}"])
        drawn[Subscription(session, topic_filter)] = None
    return list(drawn)


def goes(
    document: Document, exchange: str, topic: str, heard: list[Subscription] | None = None
) -> tuple[set[str], set[int], bool]:
    """Return the expected route of a message, by the definition of each exchange type.

    The result is (names of the queues and sessions that get the message, numbers of the bindings
    that it passes, unknown). `unknown` is True if the message passes a headers exchange, which does
    not route by the topic. `heard` are the subscriptions of MQTT sessions.
    """
    types = {each["name"]: each["type"] for each in document["exchanges"]} | {"amq.topic": "topic"}
    alternates = {
        each["name"]: each["arguments"]["alternate-exchange"]
        for each in document["exchanges"]
        if each["arguments"]
    }
    receivers: set[str] = set()
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
            receivers |= {each["name"] for each in document["queues"]} & {topic}
            continue
        if name not in types:
            continue
        if types[name] == "headers":
            unknown = True
            continue
        hit = False
        for number, each in enumerate(document["bindings"]):
            if each["source"] == name and (
                types[name] == "fanout"
                or (types[name] == "direct" and each["routing_key"] == topic)
                or (types[name] == "topic" and AMQP.matches(each["routing_key"], topic))
            ):
                hit = True
                used.add(number)
                if each["destination_type"] == "exchange":
                    ahead.append(each["destination"])
                else:
                    receivers.add(each["destination"])
        for number, subscription in enumerate(
            heard or [] if name == "amq.topic" else [], start=len(document["bindings"])
        ):
            if MQTT.matches(subscription.topic_filter, swap(topic)):
                hit = True
                if representable(swap(topic)):
                    used.add(number)
                    receivers.add(SESSION + subscription.session)
        if not hit and name in alternates:
            ahead.append(alternates[name])
    return receivers, used, unknown


def representable(name: str) -> bool:
    """True if MQTT clients may receive this topic name [MQTT-4.7.0-1, 4.7.3-1].

    Topics that begin with $SYS or $share are excluded.
    """
    return (
        bool(name)
        and "+" not in name
        and "#" not in name
        and name.split("/")[0] not in ("$SYS", "$share")
    )


def rows(
    rng: random.Random,
    count: int,
    document: Document,
    exchanges: tuple[str, ...] = ("t", "u", "d", "f", "", "amq.topic"),
    heard: list[Subscription] | None = None,
) -> list[Row]:
    """Draw `count` messages as rows of a journal, some with a timestamp of the publisher.

    `heard` are the subscriptions of MQTT sessions, which count in the column `routed`.
    """
    pool = [*topics(rng, 40), *SPECIAL]
    messages = []
    for offset in range(count):
        topic, exchange = rng.choice(pool), rng.choice(exchanges)
        routed = len(goes(document, exchange, topic, heard)[0])
        messages.append(
            row(
                offset,
                topic,
                exchange=exchange,
                routed=routed,
                body=bytes(rng.randrange(9)),
                timestamp=START + timedelta(hours=20, seconds=offset)
                if rng.random() < 0.3
                else None,
            )
        )
    return messages


# -- the stream $topology


def change(event: str, at: datetime, facts: dict[str, Any]) -> Row:
    """Return the row of the stream `$topology` for a change; `numbered` later sets its offset."""
    return row(
        0,
        event,
        exchange="",
        body=json.dumps(facts).encode(),
        published_at=at,
        content_type="application/json",
    )


def numbered(changes: list[Row], first: int = 0) -> list[Row]:
    return [each | {"offset": offset} for offset, each in enumerate(changes, start=first)]


def subscribed(subscription: Subscription, at: datetime, event: str = "subscribe") -> Row:
    return change(
        event,
        at,
        {
            "source": "amq.topic",
            "destination": subscription.session,
            "destination_type": "session",
            "assurance": 1,
            "routing_key": subscription.topic_filter,
            "arguments": {},
            "grammar": "mqtt",
        },
    )


def bound(each: dict[str, Any], at: datetime, event: str = "bind") -> Row:
    return change(
        event,
        at,
        {
            "source": each["source"],
            "destination": each["destination"],
            "destination_type": each["destination_type"],
            "routing_key": each["routing_key"],
            "arguments": each["arguments"],
            "grammar": "amqp",
            "assurance": 1,
        },
    )


def snapshot(
    document: Document, heard: list[Subscription], at: datetime, restarted: bool = True
) -> list[Row]:
    """Return the rows that the broker writes to `$topology` for a snapshot at the time `at`.

    `heard` are the subscriptions of MQTT sessions. `restarted` is True if the rows before the
    snapshot are no longer valid.
    """
    predeclared = [
        {"name": name, "type": kind, "arguments": {}}
        for name, kind in (
            ("", "direct"),
            ("amq.direct", "direct"),
            ("amq.fanout", "fanout"),
            ("amq.topic", "topic"),
            ("amq.headers", "headers"),
            ("amq.match", "headers"),
        )
    ]
    return [
        change("snapshot", at, {"restarted": restarted}),
        *(
            change(
                "declare",
                at,
                {
                    "kind": "exchange",
                    "name": each["name"],
                    "type": each["type"],
                    "alternate": each["arguments"].get("alternate-exchange"),
                },
            )
            for each in [*predeclared, *document["exchanges"]]
        ),
        *(
            change("declare", at, {"kind": "queue", "name": each["name"]})
            for each in document["queues"]
        ),
        change("declare", at, {"kind": "stream", "name": "$topology"}),
        *(bound(each, at) for each in document["bindings"]),
        *(subscribed(subscription, at) for subscription in heard),
        change("connect", at, {"user": "guest", "protocol": "mqtt50"}),
        change("complete", at, {}),
    ]


# -- expected results of the jobs


def event_time(each: Row) -> Any:
    return each["timestamp"] or each["published_at"]


def counted(some: list[Row]) -> Counter[tuple[str, str]]:
    return Counter((each["exchange"], each["topic"]) for each in some)


def by_receiver(
    some: list[Row], document: Document, heard: list[Subscription] | None = None
) -> dict[str, int]:
    totals: dict[str, int] = defaultdict(int)
    for (exchange, topic), messages in counted(some).items():
        for receiver in goes(document, exchange, topic, heard)[0]:
            totals[receiver] += messages
    return totals
