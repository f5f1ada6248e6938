"""Matches many topics against many patterns on Spark.

    matches(column, pattern)       one pattern: a regular expression, evaluated by the JVM
    match_topics(df, patterns)     counts distinct topics, then `matching.batch` on batches of them
    match_by_shape(df, patterns)   returns what `match_topics` returns, but by a join in Spark SQL,
                                   for more patterns than fit in a worker's memory

A routing question needs each distinct topic once, with its count. Counting saves most of the CPU
time: five million messages have some fifty thousand topics. `matching.batch` then searches one
table per shape, whatever the number of patterns.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from matching.batch import Batch
from matching.grammar import Grammar
from matching.shapes import form_of
from pyspark_trellis.grammars import GRAMMARS, checked, grammar_of
from pyspark_trellis.spark_connect import sent

#: Above this many patterns, topics and patterns are joined in Spark SQL instead of sending all
#: patterns to every worker. Sending costs less CPU as long as the patterns fit in memory: each
#: Python worker needs 0.25 GB per million patterns, so 1 GB at this limit. Measured with 50,000
#: topics, in CPU seconds and additional memory (when joining, that of the JVM):
#:     1 million patterns    sending  6 s, 0.3 GB    joining 31 s, 1.1 GB
#:     2 million patterns    sending  9 s, 0.6 GB    joining 44 s, 1.4 GB
#:     5 million patterns    sending 30 s, 1.2 GB    joining 64 s, 3.1 GB
JOINED_ABOVE: Final = 4_000_000


# One pattern.


def regex(pattern: str, grammar: Grammar) -> str:
    """Return a regular expression, for Java and Python, that is equivalent to the pattern.

    The expression matches topics in the form that `spelled` gives them. Its atomic groups prevent
    backtracking: for the pattern's words between two ``#``, a search tries only the first place in
    the topic where these words fit. The first place is enough, because ``#`` matches any words. So
    a search takes at most (words of the topic) x (words of the pattern) steps.
    """
    separator = re.escape(grammar.separator)
    any_word = f"{separator}[^{separator}]*"
    ends = f"(?![^{separator}])"  # The word ends here: a longer word does not match.
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
    # The end of the text. `$` and `\Z` cannot be used: they differ between Java and Python.
    return text + r"(?![\s\S])"


def spelled(topic: Column, grammar: Grammar) -> Column:
    """Return the topic as `regex` expects it: with a separator before each word.

    A topic without words becomes an empty text.
    """
    first = F.concat(F.lit(grammar.separator), topic)
    return first if grammar.split("") else F.when(topic == "", F.lit("")).otherwise(first)


def matches(topic: Column | str, pattern: str, grammar: str = "amqp") -> Column:
    """Return a condition that is true for topics that the pattern matches.

        df.where(matches("topic", "stock.*.#"))

    Raises PipelineError.
    """
    known = grammar_of(grammar)
    checked([pattern], known)
    column = F.col(topic) if isinstance(topic, str) else topic
    return spelled(column, known).rlike(regex(pattern, known))


# -- many patterns


def counted(df: DataFrame, topic: str = "topic") -> DataFrame:
    """Return a table (topic, messages) with the number of messages of each distinct topic."""
    return df.groupBy(F.col(topic).alias("topic")).agg(F.count("*").alias("messages"))


@lru_cache(maxsize=4)
def _batch(patterns: tuple[str, ...], grammar: str) -> Batch:
    """Return a matcher that matches many topics at once against these patterns.

    A worker process creates the matcher once, and uses it again in later tasks.
    """
    return Batch(patterns, GRAMMARS[grammar])


def pairs(batch: Batch, topics: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return every pair of a topic and a pattern that matches it, as two columns of equal length.

    The first column has indexes in `topics`, the second column indexes of patterns in `batch`.
    """
    matches = batch.match(topics.to_pylist())
    size = len(matches.topics)
    return tuple(
        pa.Array.from_buffers(pa.int64(), size, [None, pa.py_buffer(column)]) for column in matches
    )


def match_topics(
    df: DataFrame,
    patterns: Sequence[str],
    grammar: str = "amqp",
    topic: str = "topic",
    tasks: int = 0,
) -> DataFrame:
    """Return (topic, messages, pattern): how many messages of each topic each pattern matched.

    `topic` names the column of `df` with the topics. In the result, `pattern` is an index in
    `patterns`. `tasks` is the number of parallel tasks; with 0, Spark chooses the number. Raises
    PipelineError.
    """
    known = checked(patterns, grammar_of(grammar))
    if len(known) > JOINED_ABOVE:
        return match_by_shape(df, known, grammar, topic)
    distinct = counted(df, topic)
    if tasks:
        distinct = distinct.coalesce(tasks)
    shared = sent(df.sparkSession, tuple(known))

    def search(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        batch = _batch(shared.value, grammar)
        for each in batches:
            rows, numbers = pairs(batch, each.column("topic"))
            yield pa.RecordBatch.from_arrays(
                [each.column("topic").take(rows), each.column("messages").take(rows), numbers],
                ["topic", "messages", "pattern"],
            )

    return distinct.mapInArrow(search, "topic string, messages long, pattern long")


def match_by_shape(
    df: DataFrame, patterns: Sequence[str] | DataFrame, grammar: str = "amqp", topic: str = "topic"
) -> DataFrame:
    """Return (topic, messages, pattern): how many messages of each topic each pattern matched.

    The result equals the result of `match_topics`, but comes from a join in Spark SQL on two
    columns: the pattern's shape (number of words, positions of literal words) and its key (the
    literal words). The patterns are distributed over the cluster like the topics. `patterns` may be
    a table (pattern long, text string), which is never collected in one place. For a pattern with
    several ``#``, the key has only the words before the first ``#``, and a regular expression
    decides whether a topic matches.
    """
    known = grammar_of(grammar)
    if not isinstance(patterns, DataFrame):
        rows = list(enumerate(checked(patterns, known)))
        patterns = df.sparkSession.createDataFrame(rows, "pattern long, text string")

    def shapes(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for each in batches:
            forms = [_shape(text, GRAMMARS[grammar]) for text in each.column("text").to_pylist()]
            columns = (
                [pa.array(column) for column in zip(*forms, strict=True)]
                if forms
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
    topics_by_shape = parts[0]
    for part in parts[1:]:
        topics_by_shape = topics_by_shape.unionAll(part)
    joined = topics_by_shape.join(shaped, ["shape", "key"])
    right = (F.col("regex") == "") | F.rlike(spelled(F.col("topic"), known), F.col("regex"))
    return joined.where(right).select("topic", "messages", "pattern")


def _shape(text: str, grammar: Grammar) -> tuple[str, str, str]:
    """Return the (shape, key, regular expression) of a pattern.

    The shape is the number of words and the positions of the literal words; the key is the literal
    words. A topic matches a pattern with at most one ``#`` if the topic's number of words fits the
    shape, and the topic's words at the positions of the shape equal the key. The regular expression
    is empty for such a pattern. For a pattern with several ``#``, the regular expression decides.
    """
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
    rooted = words[:1] not in ([grammar.one], [grammar.many])
    shape = f"{length}{'=' if form[1] < 0 else '+'}{'r' if rooted else 'w'}"
    shape += ",".join(map(str, marks))
    key = "".join(grammar.separator + words[mark] for mark in marks)
    return shape, key, regex(text, grammar) if several else ""


def _read(shape: str) -> tuple[int, bool, bool, list[int]]:
    """Parse a shape that `_shape` made. Return four values:

    - the least number of words of a matching topic;
    - True if a matching topic has exactly this number of words;
    - True if the pattern begins with a literal word, so that it may match topics that begin with
      `$` in MQTT's grammar, too;
    - the positions of the key's words.
    """
    match = re.fullmatch(r"(\d+)([=+])([rw])(.*)", shape)
    assert match is not None
    return (
        int(match[1]),
        match[2] == "=",
        match[3] == "r",
        [int(mark) for mark in match[4].split(",") if mark],
    )
