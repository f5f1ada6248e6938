"""The conditions of a query that the source applies while reading, instead of Spark.

offset            comparisons: segments and batches outside are not read
published_at      comparisons: as for `offset`, but Spark checks the rows again
topic, journal    equality, and IN
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Any, Final

from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from pyspark_trellis.columns import JOURNAL
from pyspark_trellis.journal import JournalStream
from pyspark_trellis.rows import SelectedRows
from pyspark_trellis.trigger import OffsetSpan

#: The times of rows may descend by this number of microseconds, if the clock of the broker's
#: machine is set back.
CLOCK_STEP: Final = 60_000_000
_LAST: Final = (1 << 63) - 1


class PushedConditions:
    """The conditions on the rows that a query reads."""

    def __init__(self) -> None:
        self.low = 0
        self.high = _LAST
        #: Times in microseconds since 1970.
        self.since = 0
        self.until = _LAST
        #: The only topics and journals that are read; None for all.
        self.topics: frozenset[str] | None = None
        self.journals: frozenset[str] | None = None

    def take(self, filters: Iterable[Filter]) -> Iterator[Filter]:
        """Store the conditions that the source applies; yield those that Spark must check."""
        for each in filters:
            if not self._taken(each):
                yield each

    def _taken(self, each: Filter) -> bool:
        """Store a condition if the source can use it.

        Return True if Spark need not check the condition again.
        """
        column = each.attribute if hasattr(each, "attribute") else ()
        if isinstance(each, (EqualTo, In)):
            values = each.value if isinstance(each, In) else (each.value,)
            values = tuple(value for value in values if value is not None)  # null equals nothing
            if column == ("topic",):
                self.topics = _both(self.topics, values)
            elif column == (JOURNAL,):
                self.journals = _both(self.journals, values)
            else:
                return False
            return True
        if column == ("offset",):
            return self._offset(each)
        if column == ("published_at",):
            self._time(each)
        return False

    def _offset(self, each: Any) -> bool:
        if isinstance(each, (GreaterThan, GreaterThanOrEqual)):
            self.low = max(self.low, each.value + isinstance(each, GreaterThan))
        elif isinstance(each, (LessThan, LessThanOrEqual)):
            self.high = min(self.high, each.value + isinstance(each, LessThanOrEqual))
        else:
            return False
        return True

    def _time(self, each: Any) -> None:
        value = getattr(each, "value", None)
        if not isinstance(value, datetime) or value.tzinfo is None:
            return
        since = value - datetime(1970, 1, 1, tzinfo=UTC)
        micros = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
        if isinstance(each, (GreaterThan, GreaterThanOrEqual)):
            self.since = max(self.since, micros - CLOCK_STEP)
        elif isinstance(each, (LessThan, LessThanOrEqual)):
            self.until = min(self.until, micros + 1 + CLOCK_STEP)

    def within(self, stream: JournalStream, span: OffsetSpan) -> OffsetSpan:
        """Return the part of `span` whose rows may satisfy the conditions. Raises PipelineError."""
        if self.journals is not None and stream.journal not in self.journals:
            return OffsetSpan(span.low, span.low)
        low, high = max(span.low, self.low), min(span.high, self.high)
        if self.since > 0:
            low = max(low, stream.offset_at(self.since))
        if self.until < _LAST:
            high = min(high, stream.offset_at(self.until))
        return OffsetSpan(low, max(low, high))


def _both(known: frozenset[str] | None, values: Iterable[str]) -> frozenset[str]:
    return frozenset(values) if known is None else known & frozenset(values)


class PushFilters:
    """The callable that `JournalReader.pushFilters` returns while the option `pushdown` is on.

    Spark refuses a reader whose class overrides `pushFilters` if
    spark.sql.python.filterPushdown.enabled is false. Spark detects an override by the `__func__` of
    the method. This object has the `__func__` of the base class, so Spark sees no override: it
    calls the object if the setting is true, and reads without pushdown if the setting is false.
    """

    def __init__(self, conditions: PushedConditions, selected: SelectedRows) -> None:
        self.__func__: Final[Callable[..., object]] = DataSourceReader.pushFilters
        self._conditions: Final = conditions
        self._selected: Final = selected

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        """Store the conditions that the source applies; return those that Spark must check."""
        left = list(self._conditions.take(filters))
        self._selected.topics = self._conditions.topics
        return left
