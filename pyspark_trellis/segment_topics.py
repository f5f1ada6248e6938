"""Skips segments in which no topic matches, by the summaries that the broker makes of the topics.

    <epoch>-<base offset>.arrow.topics   beside a full segment: a summary of its topics

A segment without a valid summary is read: the broker makes the summary some time after the segment
became full, and never for the segment that is being written. Tests compare the format with that of
broker/stream/segment_topics.py.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final
from zlib import crc32

import pyarrow as pa

from matching.topic_summary import (
    EqualityQuestion,
    PatternQuestion,
    TopicQuestion,
    TopicSummary,
    decode_summary,
)
from pyspark_trellis.grammars import checked, grammar_of

#: The name of a summary's file is the name of the segment's file with this suffix.
TOPICS: Final = ".topics"
_HEAD: Final = struct.Struct("<4sIqqqq")
_SUM: Final = struct.Struct("<Q")
#: The key in the metadata of a segment's schema whose value is the number of the stream.
_STREAM_KEY: Final = b"trellis.stream"


class TopicCondition:
    """A condition on the topics of the rows that a query reads."""

    def __init__(self, questions: Iterable[TopicQuestion]) -> None:
        """Create the condition that a row's topic matches all of `questions`."""
        self._questions: Final = tuple(questions)

    def may_hold(self, summary: TopicSummary | None) -> bool:
        """True if a row of the segment with this summary may match the condition.

        False if certainly no row matches. If `summary` is None, nothing is known about the
        segment, and the result is True.
        """
        return summary is None or all(summary.may_match(each) for each in self._questions)


def condition_of(
    pattern: str | None, grammar: str, topics: frozenset[str] | None = None
) -> TopicCondition | None:
    """Return the condition that a topic matches a pattern, and is one of `topics`.

    `grammar` is the name of the pattern's grammar. If `pattern` is None, the topic may have any
    form; if `topics` is None, the topic need not be in a set. Return None if both arguments are
    None. Raises PipelineError if the pattern is invalid.
    """
    questions: list[TopicQuestion] = []
    if pattern is not None:
        rules = grammar_of(grammar)
        questions.append(PatternQuestion(checked([pattern], rules)[0], rules))
    if topics is not None:
        questions.append(EqualityQuestion(topics))
    return TopicCondition(questions) if questions else None


def summary_of(
    data: bytes, epoch: int, base: int, end: int, schema: bytes = b""
) -> TopicSummary | None:
    """Return the summary in the file `data`; None if it is damaged or of another segment.

    The segment must have the epoch `epoch` and the offsets from `base` up to, not including, `end`.
    `schema` is the beginning of the segment, with which the number of the stream is compared. Pass
    b"" for a summary that the broker served, because the broker has compared the number.
    """
    size = len(data) - _SUM.size
    if size < _HEAD.size or _SUM.unpack_from(data, size)[0] != crc32(data[:size]):
        return None
    magic, version, stream, *segment = _HEAD.unpack_from(data)
    if (magic, version, segment) != (b"TSTP", 1, [epoch, base, end]):
        return None
    if schema:
        metadata = pa.ipc.read_schema(pa.py_buffer(schema)).metadata or {}
        if metadata.get(_STREAM_KEY, b"") != b"%020d" % stream:
            return None  # The file is left over from a deleted stream of the same name.
    return decode_summary(data[_HEAD.size : size])
