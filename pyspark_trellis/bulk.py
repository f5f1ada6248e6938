"""Many topics against many patterns, on Spark.

    matches(column, pattern)          one pattern: a regular expression, which the JVM evaluates itself
    match_topics(df, patterns)        groupBy(topic).count(), then `matching.batch` on whole batches of distinct topics
    match_by_shape(df, patterns)      the same as a join of Spark SQL, for more patterns than one worker has room for

A question about routing needs each distinct topic once, and its count. What that saves is most of
it: five million messages have some fifty thousand topics. `matching.batch` then asks one table a
shape (see there), whatever the number of patterns.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from matching.batch import Batch
from matching.grammar import AMQP, MQTT, Grammar, InvalidPattern
from matching.shapes import form_of
from pyspark_trellis.errors import PipelineError

GRAMMARS: Final = {"amqp": AMQP, "mqtt": MQTT}
#: Above so many patterns they are not sent to every worker, but joined. The tables are cheaper as
#: long as there is room for them: each Python worker that matches takes 0.25 GB a million patterns,
#: so here one has a gigabyte. Measured with 50,000 topics, CPU seconds and what they add to memory:
#: 1M 6 and 0.3 GB, joined 31 and 1.1 GB (of the JVM); 2M 9 and 0.6, joined 44 and 1.4; 5M 30 and
#: 1.2, joined 64 and 3.1.
JOINED_ABOVE: Final = 4_000_000


def grammar_of(name: str) -> Grammar:
    """Raises PipelineError."""
    grammar = GRAMMARS.get(name)
    if grammar is None:
        raise PipelineError(f"unknown grammar '{name}'; known: {', '.join(GRAMMARS)}")
    return grammar


def checked(patterns: Iterable[str], grammar: Grammar) -> list[str]:
    """The patterns as a list. Raises PipelineError for one that is none."""
    found = list(patterns)
    try:
        for pattern in found:
            grammar.check(pattern)
    except InvalidPattern as error:
        raise PipelineError(str(error)) from error
    return found


# -- one pattern


def regex(pattern: str, grammar: Grammar) -> str:
    """A regular expression, of Java and of Python, that `spelled` topics fulfil when the pattern
    matches them.

    Between two ``#`` the first place that fits is as good as any, so nothing goes back for another
    (atomic groups): a pattern with many ``#`` takes no longer than words x words.
    """
    separator = re.escape(grammar.separator)
    any_word = f"{separator}[^{separator}]*"
    ends = f"(?![^{separator}])"  # A word, and not only the beginning of one.
    words = grammar.split(pattern)
    runs: list[str] = [""]
    for word in words:
        if word == grammar.many:
            runs.append("")
        else:
            runs[-1] += any_word if word == grammar.one else separator + re.escape(word) + ends
    hidden = (
        f"(?!{separator}[$])" if grammar.hides and words[0] in (grammar.one, grammar.many) else ""
    )
    text = rf"\A{hidden}{runs[0]}"
    for run in runs[1:-1]:
        text += f"(?>(?:{any_word})*?{run})"
    if len(runs) > 1:
        text += f"(?:{any_word})*{runs[-1]}"
    return text + r"(?![\s\S])"  # The end: `$` and `\\Z` mean something else in either language.


def spelled(topic: Column, grammar: Grammar) -> Column:
    """A topic as `regex` wants it: a separator before each word. Zero words are nothing."""
    first = F.concat(F.lit(grammar.separator), topic)
    return first if grammar.split("") else F.when(topic == "", F.lit("")).otherwise(first)


def matches(topic: Column | str, pattern: str, grammar: str = "amqp") -> Column:
    """Whether the pattern matches the topics of a column: `df.where(matches("topic",
    "stock.*.#"))`. Raises PipelineError.
    """
    known = grammar_of(grammar)
    checked([pattern], known)
    column = F.col(topic) if isinstance(topic, str) else topic
    return spelled(column, known).rlike(regex(pattern, known))


# -- many patterns


def counted(df: DataFrame, topic: str = "topic") -> DataFrame:
    """(topic, messages): each distinct topic once."""
    return df.groupBy(F.col(topic).alias("topic")).agg(F.count("*").alias("messages"))


@lru_cache(maxsize=4)
def _batch(patterns: tuple[str, ...], grammar: str) -> Batch:
    """Made once a worker process, which Spark keeps for the tasks that follow."""
    return Batch(patterns, GRAMMARS[grammar])


def pairs(batch: Batch, topics: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Rows of topics, and numbers of the patterns that match them."""
    found = batch.match(topics.to_pylist())
    size = len(found.topics)
    return tuple(
        pa.Array.from_buffers(pa.int64(), size, [None, pa.py_buffer(column)]) for column in found
    )


def match_topics(
    df: DataFrame,
    patterns: Sequence[str],
    grammar: str = "amqp",
    topic: str = "topic",
    tasks: int = 0,
) -> DataFrame:
    """(topic, messages, pattern): how many messages of each topic each pattern matched. `pattern`
    is its number in `patterns`. `tasks`: in how many tasks at once topics are matched; 0 leaves it
    to Spark. Raises PipelineError.
    """
    known = checked(patterns, grammar_of(grammar))
    if len(known) > JOINED_ABOVE:
        return match_by_shape(df, known, grammar, topic)
    distinct = counted(df, topic)
    if tasks:
        distinct = distinct.coalesce(tasks)
    sent = df.sparkSession.sparkContext.broadcast(tuple(known))

    def search(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        made = _batch(sent.value, grammar)
        for each in batches:
            rows, numbers = pairs(made, each.column("topic"))
            yield pa.RecordBatch.from_arrays(
                [each.column("topic").take(rows), each.column("messages").take(rows), numbers],
                ["topic", "messages", "pattern"],
            )

    return distinct.mapInArrow(search, "topic string, messages long, pattern long")


def match_by_shape(
    df: DataFrame, patterns: Sequence[str] | DataFrame, grammar: str = "amqp", topic: str = "topic"
) -> DataFrame:
    """The same answer as a join on (shape, key), all of it in Spark SQL: patterns are spread over
    the cluster like the topics.

    `patterns` may be a table (pattern long, text string), which nobody ever holds whole. Of
    patterns with several ``#`` only the words before the first one are the key, and the regular
    expression decides.
    """
    known = grammar_of(grammar)
    if not isinstance(patterns, DataFrame):
        rows = list(enumerate(checked(patterns, known)))
        patterns = df.sparkSession.createDataFrame(rows, "pattern long, text string")

    def shapes(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for each in batches:
            made = [_shape(text, GRAMMARS[grammar]) for text in each.column("text").to_pylist()]
            columns = (
                [pa.array(column) for column in zip(*made, strict=True)]
                if made
                else [
                    pa.array([], pa.string()),
                    pa.array([], pa.string()),
                    pa.array([], pa.string()),
                ]
            )
            yield pa.RecordBatch.from_arrays(
                [each.column("pattern"), *columns], ["pattern", "shape", "key", "regex"]
            )

    shaped = patterns.mapInArrow(
        shapes, "pattern long, shape string, key string, regex string"
    ).cache()
    distinct = counted(df, topic)
    words = F.split(F.col("topic"), re.escape(known.separator), -1)
    if not known.split(""):
        words = F.when(F.col("topic") == "", F.array().cast("array<string>")).otherwise(words)
    split = distinct.withColumn("words", words).withColumn("length", F.size("words"))
    split = split.withColumn(
        "hidden", F.col("topic").startswith("$") if known.hides else F.lit(False)
    )
    parts = []
    for (shape,) in shaped.select("shape").distinct().collect():
        least, exact, rooted, marks = _read(shape)
        fits = F.col("length") == least if exact else F.col("length") >= least
        if not rooted:
            fits = fits & ~F.col("hidden")
        key = (
            F.concat(
                *[
                    F.concat(
                        F.lit(known.separator),
                        F.try_element_at("words", F.lit(mark + 1 if mark >= 0 else mark)),
                    )
                    for mark in marks
                ]
            )
            if marks
            else F.lit("")
        )
        parts.append(
            split.where(fits).select(
                "topic", "messages", F.lit(shape).alias("shape"), key.alias("key")
            )
        )
    if not parts:
        return distinct.select("topic", "messages", F.lit(0).cast("long").alias("pattern")).where(
            F.lit(False)
        )
    asked = parts[0]
    for part in parts[1:]:
        asked = asked.unionAll(part)
    joined = asked.join(shaped, ["shape", "key"])
    right = (F.col("regex") == "") | F.rlike(spelled(F.col("topic"), known), F.col("regex"))
    return joined.where(right).select("topic", "messages", "pattern")


def _shape(text: str, grammar: Grammar) -> tuple[str, str, str]:
    """(shape, key, regular expression or nothing where the key says all) of a pattern."""
    words = grammar.split(text)
    form = form_of(words, grammar)
    several = form is None
    if form is None:
        first = words.index(grammar.many)
        form = (
            1 + sum(word != grammar.many for word in words),
            first,
            *[at for at, word in enumerate(words[:first]) if word != grammar.one],
        )
    marks = form[2:]
    length = form[0] - (form[1] >= 0)
    shape = f"{length}{'=' if form[1] < 0 else '+'}{'r' if words[:1] not in ([grammar.one], [grammar.many]) else 'w'}"
    shape += ",".join(map(str, marks))
    key = "".join(grammar.separator + words[mark] for mark in marks)
    return shape, key, regex(text, grammar) if several else ""


def _read(shape: str) -> tuple[int, bool, bool, list[int]]:
    """(least number of words, whether exactly so many, whether hidden topics may match, places of
    the words of the key).
    """
    found = re.fullmatch(r"(\d+)([=+])([rw])(.*)", shape)
    assert found is not None
    return (
        int(found[1]),
        found[2] == "=",
        found[3] == "r",
        [int(mark) for mark in found[4].split(",") if mark],
    )
