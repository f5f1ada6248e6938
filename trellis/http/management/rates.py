"""Message statistics with rates, as RabbitMQ's API shows them.

A rate is computed from two samples of a counter, which were taken for two answers about the object
at least SAMPLE_SECONDS apart: the growth of the counter, divided by the time between the samples.
The first answer about an object has rates of 0. The broker keeps no other history of its counters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from broker.eviction import evict_oldest
from broker.queues.statistics import STATISTICS
from trellis.monitoring.http_counters import HttpCounters

#: Seconds between two samples of the counters of one object, as in RabbitMQ's statistics.
SAMPLE_SECONDS: Final = 5.0
#: Seconds after which a sample is too old to compute a rate from it.
SAMPLE_MAX_AGE: Final = 300.0
#: Largest number of objects whose samples are kept: the objects of the latest answers.
RATED_OBJECTS_MAX: Final = 20_000

#: The key of an object with counters: its kind and its names.
Key = tuple[str, ...]


#: The samples of one object in one tuple: the time of the last sample in seconds of a monotonic
#: clock, its counts, then the time and the counts of the sample before it, if there is one. The
#: garbage collector examines no tuple of plain numbers. With an object for each sample, the first
#: list of 5,000 connections made collections of up to 4 ms.
Samples = tuple[float, ...]
_NO_SAMPLE: Final[Samples] = ()


class Rates:
    """Samples of counters by object: the latest sample, and the previous sample."""

    def __init__(self, counters: HttpCounters) -> None:
        self._samples: dict[Key, Samples] = {}
        self._counters = counters

    def of(self, key: Key, counts: Sequence[int], now: float, counters: int) -> list[float]:
        """Return the growth per second of each count of an object, and remember the counts.

        `now` is in seconds of a monotonic clock. The first `counters` items of `counts` never fall
        while the object exists: if one of these items has fallen, the object was deleted and
        created again, and all rates are 0. The other items may fall.
        """
        size = 1 + len(counts)
        samples = self._samples.pop(key, _NO_SAMPLE)
        if len(samples) % size:
            samples = _NO_SAMPLE  # The object had other counts.
        last, base = samples[:size], samples[size:]
        renewed = not last
        if last and now - last[0] >= SAMPLE_SECONDS:
            renewed, base = True, last
        if base and (
            now - base[0] > SAMPLE_MAX_AGE
            or any(counts[at] < base[1 + at] for at in range(counters))
        ):
            # There is no usable older sample: it is too old, or the object was deleted and created
            # again.
            renewed, base = True, _NO_SAMPLE
        self._samples[key] = (now, *counts, *base) if renewed else samples
        if len(self._samples) > RATED_OBJECTS_MAX:
            evict_oldest(self._samples)
        self._counters.rated_objects = len(self._samples)
        if not base:
            return [0.0] * len(counts)
        seconds = now - base[0]
        return [
            round((count - old) / seconds, 3) for count, old in zip(counts, base[1:], strict=True)
        ]

    def rated(
        self, key: Key, counts: Mapping[str, int], gauges: Mapping[str, int], now: float
    ) -> dict[str, Any]:
        """Return counters by name, and the rate of each in the field `NAME_details`.

        `counts` are the counters. `gauges` are numbers that may fall; the result has only their
        rates. `now` is in seconds of a monotonic clock.
        """
        values = [*counts.values(), *gauges.values()]
        rates = self.of(key, values, now, len(counts))
        row: dict[str, Any] = dict(counts)
        for name, rate in zip((*counts, *gauges), rates, strict=True):
            row[f"{name}_details"] = {"rate": rate}
        return row


def delivery_counts(statistics: Sequence[int]) -> dict[str, int]:
    """Return counts of deliveries by name, with their sum `deliver_get`.

    `statistics` has the counts in the order of STATISTICS (broker/queues/statistics.py).
    """
    return with_sum(dict(zip(STATISTICS, statistics, strict=True)))


def with_sum(counts: dict[str, int]) -> dict[str, int]:
    """Return counts of deliveries by name, with their sum added as `deliver_get`."""
    return counts | {
        "deliver_get": counts["deliver"]
        + counts["deliver_no_ack"]
        + counts["get"]
        + counts["get_no_ack"]
    }
