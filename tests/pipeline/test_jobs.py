"""Each job against plain Python that goes through the same messages one by one."""

from __future__ import annotations

import json
import random
from collections import Counter
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from matching import AMQP
from matching.covers import covers
from pyspark_trellis import PipelineError
from pyspark_trellis import history as hist
from pyspark_trellis.advise import advise, cache_size, carrying, choice
from pyspark_trellis.audit import audit, distance, nearest
from pyspark_trellis.columns import COLUMNS
from pyspark_trellis.definitions import parse, read
from pyspark_trellis.lake import lake, read_lake, traffic
from pyspark_trellis.whatif import what_if
from tests.pipeline.traffic import by_queue, counted, definitions, event_time, goes, rows
from tests.pipeline.written import Row, journal

SEED = 7


class Case:
    """One journal, and two files of definitions, for all tests here."""

    def __init__(self, spark: SparkSession, path: Path) -> None:
        rng = random.Random(SEED)
        self.old, self.new = definitions(rng, 25), definitions(rng, 15)
        self.rows = journal(path, rows(rng, 600, self.old), a_batch=50, a_segment=200)
        self.path = path
        self.options = {"path": str(path)}
        self.history = hist.summed(hist.rollup(spark.read.format("trellis").schema(hist.PROJECTION).options(**self.options).load())).cache()


@pytest.fixture(scope="module")
def case(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(spark, tmp_path_factory.mktemp("jobs") / "journal")


def tuples(df: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, df.collect()))


def minutes_of(some: list[Row]) -> list[tuple[Any, ...]]:
    sums: dict[tuple[Any, ...], list[int]] = {}
    for each in some:
        key = (event_time(each).strftime("%F %R"), each["exchange"], each["topic"])
        found = sums.setdefault(key, [0, 0, 0, 0])
        for at, more in enumerate((1, each["size"], each["routed"], each["routed"] == 0)):
            found[at] += more
    return sorted((*key, *found) for key, found in sums.items())


def test_the_history_counts_every_message_once(case: Case) -> None:
    found = {
        (row["exchange"], row["topic"]): (row["messages"], row["size"], row["fanout"], row["unroutable"]) for row in case.history.collect()
    }
    expected: dict[tuple[str, str], tuple[int, ...]] = {}
    for each in case.rows:
        key = (each["exchange"], each["topic"])
        expected[key] = tuple(
            a + b for a, b in zip(expected.get(key, (0,) * 4), (1, each["size"], each["routed"], each["routed"] == 0), strict=True)
        )
    assert found == expected
    span = hist.span(case.history)
    times = [event_time(each) for each in case.rows]
    assert (span.messages, span.topics, span.first, span.last) == (600, len(expected), min(times), max(times))


def test_lake_and_traffic_have_every_row_once_however_often_they_run(spark: SparkSession, case: Case, tmp_path: Path) -> None:
    options = case.options | {"maxRowsPerTrigger": "350"}
    for _ in range(2):
        for job in (lake, traffic):
            query = job(spark, options, str(tmp_path / job.__name__), str(tmp_path / f"{job.__name__}.checkpoint"), once=True)
            assert query.awaitTermination(120)
    table = read_lake(spark, str(tmp_path / "lake"))
    assert table.columns == [*COLUMNS, "event_time", "day"]
    found = table.orderBy("offset").collect()
    assert [(row["offset"], row["vhost"], row["exchange"], row["topic"], bytes(row["body"])) for row in found] == [
        (each["offset"], each["vhost"], each["exchange"], each["topic"], each["body"]) for each in case.rows]
    assert [(row["event_time"].timestamp(), str(row["day"])) for row in found] == [
        (event_time(each).timestamp(), event_time(each).strftime("%F")) for each in case.rows]
    assert len(list((tmp_path / "lake").glob("day=2026-03-0*/vhost=%2F/exchange=*"))) >= 12
    parts = hist.read_rollup(spark, str(tmp_path / "traffic"))
    by_minute = hist.summed(parts, "minute", "exchange", "topic").select(
        F.date_format("minute", "yyyy-MM-dd HH:mm"), "exchange", "topic", *hist.COUNTS)
    assert tuples(by_minute) == minutes_of(case.rows)


def test_whatif_says_who_would_get_what(case: Case) -> None:
    answer = what_if(case.history, parse(case.old, "old"), parse(case.new, "new"))
    assert {change.queue: change.before for change in answer.queues} == {
        f"q{n}": by_queue(case.rows, case.old).get(f"q{n}", 0) for n in range(6)
    }
    assert {change.queue: change.after for change in answer.queues} == {
        f"q{n}": by_queue(case.rows, case.new).get(f"q{n}", 0) for n in range(6)
    }
    lost, unknown = Counter[tuple[str, str]](), 0
    for (exchange, topic), messages in counted(case.rows).items():
        before, after = goes(case.old, exchange, topic), goes(case.new, exchange, topic)
        if (before[0] or before[2]) and not after[0] and not after[2]:
            lost[exchange, topic] += messages
        unknown += messages if before[2] or after[2] else 0
    assert lost
    assert {(each.exchange, each.topic): each.messages for each in answer.lost} == lost
    assert [each.messages for each in answer.lost] == sorted(lost.values(), reverse=True)
    assert answer.unknown == unknown > 0
    assert answer.breaks


def test_whatif_knows_from_the_journal_what_was_routed(case: Case) -> None:
    answer = what_if(case.history, None, parse(case.new, "new"))
    lost = {(exchange, topic): messages for (exchange, topic), messages in counted(case.rows).items()
            if goes(case.old, exchange, topic)[0] and not goes(case.new, exchange, topic)[0] and not goes(case.new, exchange, topic)[2]}
    assert {(each.exchange, each.topic): each.messages for each in answer.lost} == lost
    assert {change.before for change in answer.queues} == {None}
    same = what_if(case.history, parse(case.old, "old"), parse(case.old, "old"))
    assert (same.lost, same.newly_hit, same.starved, same.breaks) == ([], [], [], False)


def test_audit_finds_what_plain_python_finds(case: Case) -> None:
    found = audit(case.history, parse(case.old, "old"))
    bindings = case.old["bindings"]
    used: set[int] = set()
    met: Counter[tuple[int, int]] = Counter()
    lost: Counter[tuple[str, str]] = Counter()
    for (exchange, topic), messages in counted(case.rows).items():
        queues, hit, unknown = goes(case.old, exchange, topic)
        used |= hit
        if not queues and not unknown:
            lost[exchange, topic] += messages
        for a, b in combinations(sorted(hit), 2):
            one, other = bindings[a], bindings[b]
            if (one["source"], one["destination"], one["destination_type"]) == (
                other["source"],
                other["destination"],
                other["destination_type"],
            ):
                if one["source"] in ("t", "u", "amq.topic") and not covers(one["routing_key"], other["routing_key"], AMQP) and not covers(
                        other["routing_key"], one["routing_key"], AMQP):
                    met[a, b] += messages
    assert {each.number for each in found.dead} == set(range(len(bindings))) - used
    assert {(each.one.number, each.other.number): each.messages for each in found.overlapping} == met
    assert {(each.exchange, each.topic): each.messages for each in found.unroutable} == lost
    assert found.dead
    assert found.overlapping
    assert found.unroutable
    for each in found.subsumed:
        assert (each.binding.source, each.binding.destination) == (each.by.source, each.by.destination)
        assert covers(each.by.key, each.binding.key, AMQP)


def test_audit_names_bindings_that_others_make_needless() -> None:
    from pyspark_trellis.audit import needless

    keys = ["a.*", "a.#", "a.*", "b", "#.b", "c"]
    document = {"queues": [{"name": "q"}], "bindings": [
        {"source": "amq.topic", "destination": "q", "destination_type": "queue", "routing_key": key, "arguments": {"n": at}}
        for at, key in enumerate(keys)]}
    duplicate, subsumed = needless(parse(document, "file"))
    assert [(each.binding.number, each.by.number) for each in duplicate] == [(2, 0)]
    assert [(each.binding.key, each.by.key) for each in subsumed] == [("a.*", "a.#"), ("b", "#.b")]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from("ab"), max_size=5), st.lists(st.sampled_from(["a", "b", "*", "#"]), max_size=5))
def test_a_pattern_matches_what_is_at_no_distance(words: list[str], pattern: list[str]) -> None:
    assert (distance(words, pattern) == 0) == (AMQP.matches(".".join(pattern), ".".join(words)) if pattern else not words)


def test_the_nearest_pattern_differs_in_the_fewest_words() -> None:
    assert nearest("sensor.7.tmep", ["sensor.*.temp", "sensor.*.hum.x", "#.alarm"]) == ("sensor.*.temp", 1)
    assert nearest("snesor.7.temp", ["#.alarm", "sensor.*.temp", "x.#"]) == ("sensor.*.temp", 1)
    assert nearest("sensor.7.tmep", ["sensor.*.temp", "stock.#"]) == ("sensor.*.temp", 1)
    assert nearest("a", []) is None


def test_advice_is_of_topic_exchanges_and_their_topics(case: Case, tmp_path: Path) -> None:
    said: list[str] = []
    advice = advise(case.history, parse(case.old, "old"), said.append)
    by_name = {each.exchange: each for each in advice.exchanges}
    assert set(by_name) == {"t", "u", "amq.topic"}
    assert len(said) == 3
    for name, each in by_name.items():
        counts = Counter({topic: messages for (exchange, topic), messages in counted(case.rows).items() if exchange == name})
        assert (each.topics, each.messages) == (len(counts), counts.total())
        assert each.prewarm == [topic for topic, _ in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))][:len(each.prewarm)]
        assert sum(counts[topic] for topic in each.prewarm) >= 0.9 * each.messages > sum(counts[topic] for topic in each.prewarm[:-1])
        assert min(each.measured.values()) > 0
    assert advice.routes == 1024
    advice.write(tmp_path / "matching-profile.json")
    assert json.loads((tmp_path / "matching-profile.json").read_text())["format"] == 1


def test_what_advice_is_made_of() -> None:
    assert choice({"auto": 100, "trie": 95, "shapes": 120}) is None
    assert choice({"auto": 100, "trie": 60, "shapes": 80}) == "trie"
    assert choice({}) is None
    assert [cache_size(topics) for topics in (0, 1000, 50_000, 1 << 40)] == [1024, 2048, 65_536, 4_194_304]
    assert carrying([("a", 80), ("b", 15), ("c", 5)], 100) == ["a", "b"]


@pytest.mark.parametrize(("change", "line"), [
    ({"bindings": [{"source": "nwes", "destination": "q", "destination_type": "queue", "routing_key": "a"}]},
     "file: bindings[0] names the exchange 'nwes', which vhost '/' does not have; the nearest is 'news'"),
    ({"bindings": [{"source": "news", "destination": "p", "destination_type": "queue", "routing_key": "a"}]},
     "file: bindings[0] names the queue 'p', which vhost '/' does not have"),
    ({"bindings": [{"source": "news", "destination": "q"}]}, "file: bindings[0]: its 'routing_key' is None, and should be a text"),
    ({"queues": [{"name": "q", "vhost": "other"}]}, "file: queues[0] names the vhost 'other', which the file does not have"),
    ({"exchanges": {}}, "file: 'exchanges' is no list of objects"),
])
def test_definitions_that_do_not_fit_together_are_named(change: dict[str, Any], line: str) -> None:
    document: dict[str, Any] = {"exchanges": [{"name": "news", "type": "topic"}], "queues": [{"name": "q"}]} | change
    with pytest.raises(PipelineError) as caught:
        parse(document, "file")
    assert str(caught.value) == line


def test_files_that_are_no_definitions_are_named(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="No such file"):
        read(tmp_path / "none.json")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(PipelineError, match=r"bad\.json is no JSON: "):
        read(tmp_path / "bad.json")
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(PipelineError, match="definitions are a JSON object"):
        read(tmp_path / "list.json")
