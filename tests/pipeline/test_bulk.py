"""Compares the bulk matching of the pipeline on Spark with the matcher `naive`."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from matching import AMQP, MQTT, Grammar
from pyspark_trellis import PipelineError, match_by_shape, match_topics, matches
from pyspark_trellis.bulk import regex
from pyspark_trellis.grammars import GRAMMARS

WORDS = ("a", "b", "", "$x", "a*", "x+y", ".", "(", "é\n")


def words(grammar: Grammar, *wild: str) -> st.SearchStrategy[str]:
    plain = [word for word in WORDS if grammar.separator not in word]
    return st.lists(st.sampled_from([*plain, *wild]), min_size=1, max_size=6).map(
        grammar.separator.join
    )


def valid(pattern: str, grammar: Grammar) -> bool:
    try:
        grammar.check(pattern)
    except ValueError:
        return False
    return True


@st.composite
def cases(draw: st.DrawFn) -> tuple[Grammar, str, str]:
    grammar = draw(st.sampled_from([AMQP, MQTT]))
    topic = draw(words(grammar) | st.just("a" if grammar is MQTT else ""))
    pattern = draw(
        words(grammar, grammar.one, grammar.one, grammar.many, grammar.many).filter(
            lambda text: valid(text, grammar)
        )
    )
    return grammar, pattern, topic


def spelled(topic: str, grammar: Grammar) -> str:
    """Return the topic with a separator before each word, as `bulk.regex` expects it.

    This is the Python counterpart of `bulk.spelled`, which runs in the JVM of Spark.
    """
    return "" if not grammar.split(topic) else grammar.separator + topic


@settings(max_examples=500, deadline=None)
@given(cases())
@example((AMQP, "#..#", "a."))
@example((AMQP, "#.a.#", "ab.a"))
def test_the_regular_expression_of_a_pattern_means_the_pattern(
    case: tuple[Grammar, str, str],
) -> None:
    grammar, pattern, topic = case
    matched = re.search(regex(pattern, grammar), spelled(topic, grammar)) is not None
    assert matched == grammar.matches(pattern, topic)


def test_a_pattern_of_many_wildcards_takes_no_long_time() -> None:
    pattern = "#.a.*." * 20 + "#.b"
    assert re.search(regex(pattern, AMQP), spelled(".".join("a" * 120), AMQP)) is None
    assert re.search(regex(pattern, AMQP), spelled(".".join("a" * 120) + ".b", AMQP)) is not None


TOPICS = {
    "amqp": [
        "",
        "a",
        "b",
        "a.b",
        "a..b",
        "a.b.c",
        "$x.a",
        "stock.nyse.ibm",
        "stock.nasdaq.ibm",
        "stock",
        "a.a.b.b.c",
        ".",
        "a.b.c.d.e.f",
    ],
    "mqtt": [
        "a",
        "b",
        "a/b",
        "a//b",
        "a/b/c",
        "$SYS/a",
        "$x",
        "/",
        "stock/nyse/ibm",
        "a/a/b/b",
        "x.y/z",
    ],
}
PATTERNS = {
    "amqp": [
        "#",
        "*",
        "a.#",
        "#.b",
        "a.*",
        "*.#.b",
        "#.a.#.b.#",
        "a.b",
        "a.b",
        "stock.*.ibm",
        "#.#",
        "",
        "a.#.c",
        "*.*",
        "a..b",
        "#.ibm",
        "q.*.*",
        "a.#.b.#",
        "*.b.*.#",
    ],
    "mqtt": [
        "#",
        "+",
        "a/#",
        "+/b",
        "$SYS/#",
        "a/b",
        "a/+/c",
        "+/+",
        "/+",
        "$x",
        "stock/+/ibm",
        "x.y/+",
        "q/#",
    ],
}


@pytest.mark.parametrize("grammar", ["amqp", "mqtt"])
@pytest.mark.parametrize("way", [match_topics, match_by_shape])
def test_spark_finds_the_results_of_the_naive_matcher(
    spark: SparkSession, grammar: str, way: object
) -> None:
    topics, patterns = TOPICS[grammar], PATTERNS[grammar]
    times = {topic: 1 + at % 3 for at, topic in enumerate(topics)}
    rows = [(topic,) for topic in topics for _ in range(times[topic])]
    table = spark.createDataFrame(rows, "topic string")
    match_rows = way(table, patterns, grammar)  # type: ignore[operator]
    assert match_rows.columns == ["topic", "messages", "pattern"]
    expected = [
        (topic, times[topic], number)
        for topic in topics
        for number, pattern in enumerate(patterns)
        if GRAMMARS[grammar].matches(pattern, topic)
    ]
    assert sorted(tuple(each) for each in match_rows.collect()) == sorted(expected)


def test_a_column_is_asked_for_one_pattern_in_the_jvm(spark: SparkSession) -> None:
    df = spark.createDataFrame([(topic,) for topic in TOPICS["amqp"]], "topic string")
    rows = df.select(
        "topic",
        *[matches("topic", pattern).alias(f"p{at}") for at, pattern in enumerate(PATTERNS["amqp"])],
    ).collect()
    for each in rows:
        assert [each[f"p{at}"] for at in range(len(PATTERNS["amqp"]))] == [
            AMQP.matches(one, each["topic"]) for one in PATTERNS["amqp"]
        ]


def test_an_invalid_pattern_is_named() -> None:
    with pytest.raises(PipelineError, match=r"invalid pattern 'a/#/b': '#' must be the last level"):
        matches("topic", "a/#/b", "mqtt")
    with pytest.raises(PipelineError, match="unknown grammar 'xmpp': set amqp or mqtt"):
        matches("topic", "a", "xmpp")
