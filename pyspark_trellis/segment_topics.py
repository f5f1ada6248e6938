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

#: Ending that the name of a summary's file adds to the name of its segment.
TOPICS: Final = ".topics"
_HEAD: Final = struct.Struct("<4sIqqqq")
_SUM: Final = struct.Struct("<Q")
#: The key of a segment's schema with the number of the stream.
_STREAM_KEY: Final = b"trellis.stream"


class TopicCondition:
    """A condition on the topics of the rows that a query reads."""

    def __init__(self, questions: Iterable[TopicQuestion]) -> None:
        """Create the condition: a row matches each question."""
        self._questions: Final = tuple(questions)

    def may_hold(self, summary: TopicSummary | None) -> bool:
        """Return False only if no row of the segment with this summary matches the condition.

        A summary of None means that nothing is known about the segment.
        """
        return summary is None or all(summary.may_match(each) for each in self._questions)


def condition_of(
    pattern: str | None, grammar: str, topics: frozenset[str] | None = None
) -> TopicCondition | None:
    """Return the condition that a topic matches a pattern, and is one of `topics`.

    `grammar` is the name of the pattern's grammar. A pattern or topics of None select all topics;
    the result is None if both do. Raises PipelineError.
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
    """Return the summary in the file `data` if it is intact and belongs to a segment, else None.

    The segment has the epoch `epoch` and the offsets from `base` up to, not including, `end`.
    `schema` is the beginning of the segment; b"" if the broker has compared the stream's number.
    """
    size = len(data) - _SUM.size
    if size < _HEAD.size or _SUM.unpack_from(data, size)[0] != crc32(data[:size]):
        return None
    magic, version, stream, *place = _HEAD.unpack_from(data)
    if (magic, version, place) != (b"TSTP", 1, [epoch, base, end]):
        return None
    if schema:
        metadata = pa.ipc.read_schema(pa.py_buffer(schema)).metadata or {}
        if metadata.get(_STREAM_KEY, b"") != b"%020d" % stream:
            return None  # A deleted stream of the same name has left the file.
    return decode_summary(data[_HEAD.size : size])
