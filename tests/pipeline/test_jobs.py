"""Compares each job with plain Python, which processes the same messages individually.

The jobs whatif, audit and advise get their aggregates from Arrow tables, and in the long tests also
from Spark.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from matching import AMQP, MQTT
from matching.covers import covers
from pyspark_trellis import PipelineError
from pyspark_trellis import history as hist
from pyspark_trellis.advise import advise, cache_size, fastest_matcher, topics_to_prewarm
from pyspark_trellis.arrow_feed import JournalFeed
from pyspark_trellis.arrow_topics import ArrowTopics
from pyspark_trellis.audit import audit, redundant_bindings
from pyspark_trellis.columns import COLUMNS
from pyspark_trellis.counts import COUNTS, KEYS
from pyspark_trellis.definitions import SESSION, parse, read
from pyspark_trellis.journal import Directory
from pyspark_trellis.lake import lake, read_lake, traffic
from pyspark_trellis.nearest import NearestKeys, distance
from pyspark_trellis.routing import BatchRouter
from pyspark_trellis.spark_topics import SparkTopics
from pyspark_trellis.topics import PublishedTopics
from pyspark_trellis.topology import TopologyState, as_definitions, replay, with_subscriptions
from pyspark_trellis.whatif import WhatIfChange, what_if
from tests.pipeline.traffic import (
    EXCHANGES,
    SPECIAL,
    Document,
    Subscription,
    by_receiver,
    counted,
    definitions,
    event_time,
    goes,
    numbered,
    rows,
    snapshot,
    subscriptions,
    topics,
)
from tests.pipeline.written import START, Row, journal

SEED = 7


class Case:
    """One journal, two definitions files and MQTT sessions, for all tests of this file."""

    def __init__(self, path: Path) -> None:
        rng = random.Random(SEED)
        self.old, self.new, self.heard = (
            definitions(rng, 25),
            definitions(rng, 15),
            subscriptions(rng, 8),
        )
        self.rows = journal(
            path, rows(rng, 600, self.old, heard=self.heard), a_batch=50, a_segment=200
        )
        self.then = replay(written(path.parent / "topology", snapshot(self.old, self.heard, START)))
        self.current, self.proposed = (
            with_subscriptions(parse(each, "file"), [self.then]) for each in (self.old, self.new)
        )
        self.path = path
        self.options = {"path": str(path)}


def written(path: Path, changes: list[Row]) -> Directory:
    journal(path, numbered(changes))
    return Directory(str(path))


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(tmp_path_factory.mktemp("jobs") / "journal")


@pytest.fixture(scope="module")
def history(spark: SparkSession, case: Case) -> DataFrame:
    journal = spark.read.format("trellis").schema(hist.PROJECTION).options(**case.options).load()
    return hist.summed(hist.rollup(journal)).cache()


@pytest.fixture(scope="module", params=["arrow", pytest.param("spark", marks=pytest.mark.spark)])
def published(request: pytest.FixtureRequest, case: Case) -> PublishedTopics:
    if request.param == "spark":
        return SparkTopics(request.getfixturevalue("history"))
    return ArrowTopics(JournalFeed(case.options, KEYS).sums())


def tuples(df: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, df.collect()))


def minutes_of(some: list[Row]) -> list[tuple[Any, ...]]:
    sums: dict[tuple[Any, ...], list[int]] = {}
    for each in some:
        key = (event_time(each).strftime("%F %R"), each["exchange"], each["topic"])
        counters = sums.setdefault(key, [0, 0, 0, 0])
        for at, more in enumerate((1, each["size"], each["routed"], each["routed"] == 0)):
            counters[at] += more
    return sorted((*key, *counters) for key, counters in sums.items())


def test_the_history_counts_every_message_once(case: Case, history: DataFrame) -> None:
    counts = {
        (row["exchange"], row["topic"]): (
            row["messages"],
            row["size"],
            row["fanout"],
            row["unroutable"],
        )
        for row in history.collect()
    }
    expected: dict[tuple[str, str], tuple[int, ...]] = {}
    for each in case.rows:
        key = (each["exchange"], each["topic"])
        expected[key] = tuple(
            a + b
            for a, b in zip(
                expected.get(key, (0,) * 4),
                (1, each["size"], each["routed"], each["routed"] == 0),
                strict=True,
            )
        )
    assert counts == expected
    span = hist.span(history)
    assert ArrowTopics(JournalFeed(case.options, KEYS).sums()).span() == span
    times = [event_time(each) for each in case.rows]
    assert (span.messages, span.topics, span.first, span.last) == (
        600,
        len(expected),
        min(times),
        max(times),
    )


def test_lake_and_traffic_have_every_row_once_however_often_they_run(
    spark: SparkSession, case: Case, tmp_path: Path
) -> None:
    options = case.options | {"maxRowsPerTrigger": "350"}
    for _ in range(2):
        for job in (lake, traffic):
            query = job(
                spark,
                options,
                str(tmp_path / job.__name__),
                str(tmp_path / f"{job.__name__}.checkpoint"),
                once=True,
            )
            assert query.awaitTermination(120)
    table = read_lake(spark, str(tmp_path / "lake"))
    assert table.columns == [*COLUMNS, "event_time", "day"]
    rows = table.orderBy("offset").collect()
    assert [
        (row["offset"], row["vhost"], row["exchange"], row["topic"], bytes(row["body"]))
        for row in rows
    ] == [
        (each["offset"], each["vhost"], each["exchange"], each["topic"], each["body"])
        for each in case.rows
    ]
    assert [(row["event_time"].timestamp(), str(row["day"])) for row in rows] == [
        (event_time(each).timestamp(), event_time(each).strftime("%F")) for each in case.rows
    ]
    assert len(list((tmp_path / "lake").glob("day=2026-03-0*/vhost=%2F/exchange=*"))) >= 12
    parts = hist.read_rollup(spark, str(tmp_path / "traffic"))
    by_minute = hist.summed(parts, "minute", "exchange", "topic").select(
        F.date_format("minute", "yyyy-MM-dd HH:mm"), "exchange", "topic", *COUNTS
    )
    assert tuples(by_minute) == minutes_of(case.rows)


def places_of(document: Document, heard: list[Subscription]) -> set[str]:
    return {each["name"] for each in document["queues"]} | {
        SESSION + subscription.session for subscription in heard
    }


def test_whatif_counts_the_messages_of_each_queue(case: Case, published: PublishedTopics) -> None:
    answer = what_if(published, case.current, case.proposed)
    for document, counts in (
        (case.old, {place_of(each): each.before for each in answer.queues}),
        (case.new, {place_of(each): each.after for each in answer.queues}),
    ):
        expected = by_receiver(case.rows, document, case.heard)
        assert counts == {
            place: expected.get(place, 0) for place in places_of(document, case.heard)
        }
        assert (
            sum(messages for receiver, messages in expected.items() if receiver.startswith(SESSION))
            > 0
        )
    lost, unknown = Counter[tuple[str, str]](), 0
    for (exchange, topic), messages in counted(case.rows).items():
        before, after = (
            goes(document, exchange, topic, case.heard) for document in (case.old, case.new)
        )
        if (before[0] or before[2]) and not after[0] and not after[2]:
            lost[exchange, topic] += messages
        unknown += messages if before[2] or after[2] else 0
    assert lost
    assert {(each.exchange, each.topic): each.messages for each in answer.lost} == lost
    assert [each.messages for each in answer.lost] == sorted(lost.values(), reverse=True)
    assert answer.unknown == unknown > 0
    assert answer.breaks


def place_of(each: WhatIfChange) -> str:
    return SESSION + each.name if each.kind == "session" else each.name


def test_whatif_reads_the_routed_messages_from_the_journal(
    case: Case, published: PublishedTopics
) -> None:
    proposed = parse(case.new, "new")
    answer = what_if(published, None, proposed)
    lost = {
        (exchange, topic): messages
        for (exchange, topic), messages in counted(case.rows).items()
        if goes(case.old, exchange, topic, case.heard)[0]
        and not goes(case.new, exchange, topic)[0]
        and not goes(case.new, exchange, topic)[2]
    }
    assert {(each.exchange, each.topic): each.messages for each in answer.lost} == lost
    assert {change.before for change in answer.queues} == {None}
    same = what_if(published, case.current, case.current)
    assert (same.lost, same.newly_hit, same.starved, same.breaks) == ([], [], [], False)
    nothing = what_if(published, parse({}, "without the exchanges"), proposed)
    elsewhere = {key: messages for key, messages in lost.items() if key[0] in EXCHANGES}
    assert elsewhere
    assert {
        (each.exchange, each.topic): each.messages
        for each in nothing.lost
        if each.exchange in EXCHANGES
    } == elsewhere


def test_audit_finds_the_results_of_plain_python(case: Case, published: PublishedTopics) -> None:
    answer = audit(published, case.current)
    bindings = [
        *(
            (each["source"], each["destination"], each["destination_type"], each["routing_key"])
            for each in case.old["bindings"]
        ),
        *(
            ("amq.topic", subscription.session, "session", subscription.topic_filter)
            for subscription in case.heard
        ),
    ]
    used: set[int] = set()
    met: Counter[tuple[int, int]] = Counter()
    lost: Counter[tuple[str, str]] = Counter()
    for (exchange, topic), messages in counted(case.rows).items():
        receivers, hit, unknown = goes(case.old, exchange, topic, case.heard)
        used |= hit
        if not receivers and not unknown:
            lost[exchange, topic] += messages
        for a, b in combinations(sorted(hit), 2):
            one, other = bindings[a], bindings[b]
            grammar = MQTT if one[2] == "session" else AMQP
            if (
                one[:3] == other[:3]
                and one[0] in ("t", "u", "amq.topic")
                and not covers(one[3], other[3], grammar)
                and not covers(other[3], one[3], grammar)
            ):
                met[a, b] += messages
    # Topics that a headers exchange may route are never reported as dead.
    assert {each.number for each in answer.dead} == {
        at
        for at in range(len(bindings))
        if at not in used and bindings[at][0] not in reached(case.old, "h")
    }
    assert {
        (each.one.number, each.other.number): each.messages for each in answer.overlapping
    } == met
    assert {(each.exchange, each.topic): each.messages for each in answer.unroutable} == lost
    assert answer.dead
    assert answer.overlapping
    assert answer.unroutable
    for each in answer.subsumed:
        assert (each.binding.source, each.binding.receiver) == (
            each.by.source,
            each.by.receiver,
        )
        assert covers(
            each.by.key, each.binding.key, MQTT if each.binding.kind == "session" else AMQP
        )


def reached(document: Document, exchange: str) -> set[str]:
    """Return the exchanges that a message may reach from this exchange."""
    exchanges, ahead = set[str](), [exchange]
    while ahead:
        name = ahead.pop()
        if name not in exchanges:
            exchanges.add(name)
            ahead += [
                each["destination"]
                for each in document["bindings"]
                if each["source"] == name and each["destination_type"] == "exchange"
            ]
            ahead += [
                each["arguments"]["alternate-exchange"]
                for each in document["exchanges"]
                if each["name"] == name and each["arguments"]
            ]
    return exchanges


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 1 << 32))
def test_a_router_is_the_oracle(seed: int) -> None:
    """Compare the router of the pipeline with `goes`, a plain Python model of routing.

    Definitions and sessions are random. Any topic is published to any exchange.
    """
    rng = random.Random(seed)
    document, heard = definitions(rng, 12), subscriptions(rng, 6)
    then = TopologyState("/", START)
    for each in snapshot(document, heard, START)[1:-1]:
        if each["topic"] != "connect":
            then.apply(each["topic"], json.loads(each["body"]))
    for parsed in (
        with_subscriptions(parse(document, "file"), [then]),
        as_definitions([then], "topology"),
    ):
        router = BatchRouter(parsed.hosts["/"])
        topic_names = [*topics(rng, 15), *SPECIAL]
        for exchange in (*EXCHANGES, "", "amq.topic"):
            routes = router.route(exchange, topic_names)
            receivers = sorted(
                zip(
                    routes.receivers[0].tolist(),
                    [router.names[at] for at in routes.receivers[1]],
                    strict=True,
                )
            )
            hit = sorted(zip(*(column.tolist() for column in routes.bindings), strict=True))
            expected = [goes(document, exchange, topic, heard) for topic in topic_names]
            assert receivers == sorted(
                (row, receiver) for row, (there, _, _) in enumerate(expected) for receiver in there
            )
            assert hit == sorted(
                (row, number) for row, (_, used, _) in enumerate(expected) for number in used
            )
            assert routes.unknown.tolist() == [unknown for _, _, unknown in expected]


def bound_to(queue: str, keys: list[str]) -> Document:
    return {
        "queues": [{"name": queue}],
        "bindings": [
            {
                "source": "amq.topic",
                "destination": queue,
                "destination_type": "queue",
                "routing_key": key,
                "arguments": {"n": at},
            }
            for at, key in enumerate(keys)
        ],
    }


@pytest.mark.parametrize(
    ("keys", "duplicates", "covered"),
    [
        (["a.*", "a.#", "a.*", "b", "#.b", "c"], [(2, 0)], [("a.*", "a.#"), ("b", "#.b")]),
        (["a.#.#", "a.#"], [], [("a.#", "a.#.#")]),
        (["*.#", "#.*"], [], [("#.*", "*.#")]),
        (["#", "#.#", "*.#"], [], [("#.#", "#"), ("*.#", "#")]),
        (
            ["#.a.#", "a.#", "#.a", "a", "*.a.*"],
            [],
            [("a.#", "#.a.#"), ("#.a", "#.a.#"), ("a", "#.a.#"), ("*.a.*", "#.a.#")],
        ),
        (["*.#.*", "*.*.#", "*.*"], [], [("*.*.#", "*.#.*"), ("*.*", "*.#.*")]),
        (["a.*", "*.b", "a.b.#"], [], []),
    ],
)
def test_audit_names_bindings_that_others_make_needless(
    keys: list[str], duplicates: list[Any], covered: list[Any]
) -> None:
    duplicate, subsumed = redundant_bindings(parse(bound_to("q", keys), "file"))
    assert [(each.binding.number, each.by.number) for each in duplicate] == duplicates
    assert [(each.binding.key, each.by.key) for each in subsumed] == covered


def test_subscriptions_cover_each_other_by_the_mqtt_rules() -> None:
    parsed = parse({}, "file")
    parsed.hosts["/"].sessions.add("c")
    for key in ("#", "$x/#", "$x/a", "a/+", "+/#"):
        parsed.add("/", "amq.topic", "c", "session", key, "mqtt")
    assert [(each.binding.key, each.by.key) for each in redundant_bindings(parsed)[1]] == [
        ("$x/a", "$x/#"),
        ("a/+", "#"),
        ("+/#", "#"),
    ]


_TOPICS = [".".join(words) for size in range(6) for words in product("abx", repeat=size)]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.lists(st.sampled_from(["a", "b", "*", "#"]), min_size=1, max_size=3).map(".".join),
        max_size=6,
    )
)
def test_without_the_needless_ones_the_same_topics_come(keys: list[str]) -> None:
    duplicate, subsumed = redundant_bindings(parse(bound_to("q", keys), "file"))
    gone = {each.binding.number for each in [*duplicate, *subsumed]}
    kept = [key for at, key in enumerate(keys) if at not in gone]
    taken = {key: {topic for topic in _TOPICS if AMQP.matches(key, topic)} for key in keys}
    assert set().union(*(taken[key] for key in kept)) == set().union(*taken.values())
    for one in kept:
        assert not any(taken[one] <= taken[other] for other in kept if other is not one), (
            "one more binding is not needed"
        )


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from("ab"), max_size=5),
    st.lists(st.sampled_from(["a", "b", "*", "#"]), max_size=5),
)
def test_a_pattern_matches_topics_at_distance_zero(words: list[str], pattern: list[str]) -> None:
    assert (distance(words, pattern) == 0) == (
        AMQP.matches(".".join(pattern), ".".join(words)) if pattern else not words
    )


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.sampled_from(["a", "ab", "b"]), min_size=1, max_size=4),
    st.sets(
        st.lists(st.sampled_from(["a", "ab", "bc", "*", "#"]), min_size=1, max_size=4).map(
            ".".join
        ),
        min_size=1,
    ),
)
def test_the_nearest_pattern_has_the_smallest_distance(
    words: list[str], patterns: set[str]
) -> None:
    least = min((distance(words, AMQP.split(pattern)), pattern) for pattern in patterns)
    assert NearestKeys(patterns).nearest(".".join(words)) == (least[1], int(least[0]))


def test_the_nearest_pattern_differs_in_the_fewest_words() -> None:
    for topic, keys in (
        ("sensor.7.tmep", ["sensor.*.temp", "sensor.*.hum.x", "#.alarm"]),
        ("snesor.7.temp", ["#.alarm", "sensor.*.temp", "x.#"]),
        ("sensor.7.tmep", ["sensor.*.temp", "stock.#"]),
    ):
        assert NearestKeys(keys).nearest(topic) == ("sensor.*.temp", 1)
    assert NearestKeys([]).nearest("a") is None


def test_advice_is_of_topic_exchanges_and_their_topics(
    case: Case, published: PublishedTopics, tmp_path: Path
) -> None:
    lines: list[str] = []
    advice = advise(published, case.current, lines.append)
    by_name = {each.exchange: each for each in advice.exchanges}
    assert set(by_name) == {"t", "u", "amq.topic"}
    assert len(lines) == 3
    for name, each in by_name.items():
        counts = Counter(
            {
                topic: messages
                for (exchange, topic), messages in counted(case.rows).items()
                if exchange == name
            }
        )
        assert (each.topics, each.messages) == (len(counts), counts.total())
        assert (
            each.prewarm
            == [topic for topic, _ in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))][
                : len(each.prewarm)
            ]
        )
        assert (
            sum(counts[topic] for topic in each.prewarm)
            >= 0.9 * each.messages
            > sum(counts[topic] for topic in each.prewarm[:-1])
        )
        assert min(each.measured.values()) > 0
    assert advice.routes == 1024
    advice.write(tmp_path / "matching-profile.json")
    assert json.loads((tmp_path / "matching-profile.json").read_text())["format"] == 1


def test_advice_is_computed_from_counts_and_measurements() -> None:
    assert fastest_matcher({"auto": 100, "trie": 95, "shapes": 120}) is None
    assert fastest_matcher({"auto": 100, "trie": 60, "shapes": 80}) == "trie"
    assert fastest_matcher({}) is None
    assert [cache_size(topics) for topics in (0, 1000, 50_000, 1 << 40)] == [
        1024,
        2048,
        65_536,
        4_194_304,
    ]
    assert topics_to_prewarm([("a", 80), ("b", 15), ("c", 5)], 100) == ["a", "b"]


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            {
                "bindings": [
                    {
                        "source": "nwes",
                        "destination": "q",
                        "destination_type": "queue",
                        "routing_key": "a",
                    }
                ]
            },
            (
                "file: bindings[0] names the exchange 'nwes', which vhost '/' does not have; "
                "the nearest is 'news'"
            ),
        ),
        (
            {
                "bindings": [
                    {
                        "source": "news",
                        "destination": "p",
                        "destination_type": "queue",
                        "routing_key": "a",
                    }
                ]
            },
            "file: bindings[0] names the queue 'p', which vhost '/' does not have",
        ),
        (
            {"bindings": [{"source": "news", "destination": "q"}]},
            "file: bindings[0]: the field 'routing_key' must be a string, not None",
        ),
        (
            {"queues": [{"name": "q", "vhost": "other"}]},
            "file: queues[0] names the vhost 'other', which is not in the list vhosts of the file",
        ),
        ({"exchanges": {}}, "file: 'exchanges' must be a list of objects"),
    ],
)
def test_definitions_that_do_not_fit_together_are_named(change: dict[str, Any], line: str) -> None:
    document: dict[str, Any] = {
        "exchanges": [{"name": "news", "type": "topic"}],
        "queues": [{"name": "q"}],
    } | change
    with pytest.raises(PipelineError) as caught:
        parse(document, "file")
    assert str(caught.value) == line


def test_files_that_are_no_definitions_are_named(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="No such file"):
        read(tmp_path / "none.json")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(PipelineError, match=r"bad\.json is not JSON: "):
        read(tmp_path / "bad.json")
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(PipelineError, match="is not a definitions file: expected a JSON object"):
        read(tmp_path / "list.json")
