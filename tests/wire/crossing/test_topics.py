"""Topics between AMQP and MQTT: all topics and patterns of up to three words, in both directions,
through the real broker.

The expected matches follow the definition in architecture.md, not the code. A topic is a tuple of
words. AMQP separates the words by `.`, MQTT by `/`. A topic that crosses from one protocol to the
other has the characters `.` and `/` exchanged, and no other change.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from itertools import product

import pamqp.commands as spec

from tests.clients import World, marshal, mqtt_publish, publication
from tests.wire.mqtt.client import RETAIN, here, publications, subscribe

WORDS = ["a", "*", "+", "#", ".", "/", "$x", ""]
LISTS = [words for length in range(4) for words in product(WORDS, repeat=length)]
KEYS = sorted({".".join(words) for words in LISTS})
TEXTS = sorted({"/".join(words) for words in LISTS})
TOPICS = [text for text in TEXTS if text and not set("+#") & set(text)]
FILTERS = [
    text
    for text in TEXTS
    if text
    and all(level in ("+", "#") or not set("+#") & set(level) for level in text.split("/"))
    and "#" not in text.split("/")[:-1]
]

_EXCHANGED = str.maketrans("./", "/.")
#: Regular expressions for one word and for any number of words; each word ends in a newline.
_ONE, _MANY = r"[^\n]*\n", r"(?:[^\n]*\n)*"


@cache
def amqp_pattern(pattern: str) -> re.Pattern[str]:
    words = pattern.split(".") if pattern else []
    return re.compile(
        "".join({"*": _ONE, "#": _MANY}.get(word, re.escape(word) + r"\n") for word in words)
    )


@cache
def mqtt_filter(topic_filter: str) -> re.Pattern[str]:
    levels = topic_filter.split("/")
    veil = r"(?!\$)" if levels[0] in ("+", "#") else ""
    return re.compile(
        veil
        + "".join({"+": _ONE, "#": _MANY}.get(level, re.escape(level) + r"\n") for level in levels)
    )


def amqp_words(key: str) -> str:
    return "".join(word + "\n" for word in key.split(".")) if key else ""


def mqtt_words(topic: str) -> str:
    return "".join(level + "\n" for level in topic.split("/"))


def tags(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield (number in the consumer tag, number in the body) of each delivery in the data."""
    at, tag = 0, 0
    while at < len(data):
        kind, size = data[at], int.from_bytes(data[at + 3 : at + 7], "big")
        if kind == 1:
            assert data[at + 7 : at + 11] == b"\x00\x3c\x00\x3c"
            tag = int(data[at + 12 : at + 12 + data[at + 11]])
        elif kind == 3:
            yield tag, int(data[at + 7 : at + 7 + size])
        at += size + 8


def test_the_words_say_something_about_both_sides() -> None:
    assert len(KEYS) == len(TEXTS) > 300
    assert len(TOPICS) > 100
    assert len(FILTERS) > 200
    assert "a/b.c".translate(_EXCHANGED) == "a.b/c"


def test_every_topic_of_both_protocols_reaches_exactly_its_matching_subscribers() -> None:
    world = World()
    amqp = world.amqp()
    for number, key in enumerate(KEYS):
        amqp.connection.receive_data(
            marshal(1, spec.Queue.Declare(queue=f"q{number}", nowait=True))
            + marshal(
                1,
                spec.Queue.Bind(
                    queue=f"q{number}", exchange="amq.topic", routing_key=key, nowait=True
                ),
            )
            + marshal(
                1,
                spec.Basic.Consume(
                    queue=f"q{number}", consumer_tag=str(number), no_ack=True, nowait=True
                ),
            )
        )
    readers = [here(world, f"r{number}") for number in range(len(FILTERS))]
    for reader, topic_filter in zip(readers, FILTERS, strict=True):
        reader.send(subscribe(1, (topic_filter, 0)))
    assert amqp.read_bytes() == b""
    #: Each topic, as AMQP clients write it and as MQTT clients write it.
    sent = [(key, key.translate(_EXCHANGED)) for key in KEYS] + [
        (topic.translate(_EXCHANGED), topic) for topic in TOPICS
    ]
    publisher, writer = world.amqp(), here(world, "w")
    heard_there: set[tuple[int, int]] = set()
    for number, (key, topic) in enumerate(sent):
        if number < len(KEYS):
            publisher.connection.receive_data(publication("amq.topic", key, b"%d" % number))
        else:
            writer.connection.receive_data(mqtt_publish(topic, b"%d" % number))
        if number % 16 == 15 or number == len(sent) - 1:
            heard_there.update(tags(amqp.read_bytes()))
    expected_there = {
        (tag, number)
        for number, (key, _) in enumerate(sent)
        for words in [amqp_words(key)]
        for tag, pattern in enumerate(KEYS)
        if amqp_pattern(pattern).fullmatch(words)
    }
    assert heard_there == expected_there
    silenced = 0
    for reader, topic_filter in zip(readers, FILTERS, strict=True):
        pattern = mqtt_filter(topic_filter)
        wanted = [
            (topic, number)
            for number, (_, topic) in enumerate(sent)
            if pattern.fullmatch(mqtt_words(topic))
        ]
        sayable = [
            (topic, number) for topic, number in wanted if topic and not set("+#") & set(topic)
        ]
        silenced += len(wanted) - len(sayable)
        assert [(one.topic, int(one.body)) for one in publications(reader.read())] == sayable
    assert silenced > 0
    assert world.copies()["not_representable"] == silenced
    assert world.fates() == {"routed": len(sent)}


def test_every_filter_finds_the_retained_messages_that_it_matches() -> None:
    world = World()
    writer = here(world, "w")
    for topic in TOPICS:
        writer.send(mqtt_publish(topic, topic.encode(), flags=RETAIN))
    reader = here(world, "r")
    for topic_filter in FILTERS:
        pattern = mqtt_filter(topic_filter)
        topics = [one.topic for one in publications(reader.send(subscribe(1, (topic_filter, 0))))]
        assert sorted(topics) == [topic for topic in TOPICS if pattern.fullmatch(mqtt_words(topic))]
