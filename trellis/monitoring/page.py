"""A page of metrics, and its text in the format of Prometheus or OpenMetrics, made in slices.

A scraper that asks for OpenMetrics also gets exemplars: the trace of a delivery in each bucket of a
histogram.

Rendering takes 3 us for each series.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from itertools import accumulate, repeat
from typing import Any, Final

from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.utils import floatToGoString

from broker.messages.sampled import BUCKETS, DeliveryTimes

#: The content types of a page's text, in the formats of Prometheus and of OpenMetrics.
CONTENT_TYPE: Final = CONTENT_TYPE_LATEST
OPENMETRICS_TYPE: Final = openmetrics.CONTENT_TYPE_LATEST
#: The media type with which a scraper asks for OpenMetrics.
_OPENMETRICS: Final = OPENMETRICS_TYPE.partition(";")[0].encode()
#: Number of samples that are rendered in one turn of the event loop.
RENDER_SLICE: Final = 200

#: Largest number of objects, such as queues, that a page lists by name. Further objects are left
#: out.
OBJECTS_MAX: Final = 100_000

Labels = dict[str, str]
#: The text of a value, as Prometheus writes it.
_text_of: Final[Any] = floatToGoString


class MetricFamily:
    """One metric: name without `_total`, kind (gauge or counter), help text, and samples."""

    def __init__(self, name: str, kind: str, text: str) -> None:
        self.name = name
        self.kind = kind
        self.text = text
        # Labels and values, in chunks of RENDER_SLICE samples, the last chunk last. The garbage
        # collector examines new objects every few hundred samples: it soon skips full chunks, but
        # would examine one growing list of 50,000 samples again and again, 2 ms each time.
        self._labels: list[list[Labels]] = [[]]
        self._values: list[list[float]] = [[]]

    def append(self, labels: Labels, value: float) -> None:
        """Add a sample: the value for these labels."""
        if len(self._labels[-1]) == RENDER_SLICE:
            self._labels.append([])
            self._values.append([])
        self._labels[-1].append(labels)
        self._values[-1].append(value)

    @property
    def samples(self) -> list[tuple[Labels, float]]:
        """The labels and the value of each sample."""
        every = zip(self._labels, self._values, strict=True)
        return [pair for chunk in every for pair in zip(*chunk, strict=True)]

    def head(self, in_openmetrics: bool) -> str:
        """Return the lines of name, kind and help text, in one of the two formats."""
        name, text = self.name, self.text.replace("\\", "\\\\").replace("\n", "\\n")
        if in_openmetrics:
            text = text.replace('"', '\\"')
        elif self.kind == "counter":
            name += "_total"
        return f"# HELP {name} {text}\n# TYPE {name} {self.kind}\n"

    def take_lines(self, in_openmetrics: bool) -> Iterator[list[str]]:
        """Remove the samples, and yield their lines of text in chunks of up to RENDER_SLICE."""
        name = self.name + ("_total" if self.kind == "counter" else "")
        for labels, values in self.take():
            yield list(map(_line, repeat(name), labels, values))

    def take(self) -> Iterator[tuple[list[Labels], list[float]]]:
        """Remove and yield the samples, in chunks of RENDER_SLICE."""
        labels, self._labels = self._labels, [[]]
        values, self._values = self._values, [[]]
        labels.reverse()
        values.reverse()
        while labels:
            yield labels.pop(), values.pop()


class HistogramFamily(MetricFamily):
    """A histogram of times in seconds, with an exemplar for each bucket in OpenMetrics."""

    def __init__(self, name: str, text: str, times: DeliveryTimes) -> None:
        super().__init__(name, "histogram", text)
        self._exemplars = list(times.exemplars)
        self._sum = times.total
        for bound, count in zip((*BUCKETS, float("inf")), accumulate(times.counts), strict=True):
            self.append({"le": _text_of(bound)}, count)

    def take_lines(self, in_openmetrics: bool) -> Iterator[list[str]]:
        lines, count = [], 0.0
        for (labels, count), exemplar in zip(self.samples, self._exemplars, strict=True):
            line = _line(f"{self.name}_bucket", labels, count)
            if in_openmetrics and exemplar is not None:
                trace, seconds, time = exemplar
                line = f'{line[:-1]} # {{trace_id="{trace}"}} {seconds} {time:.3f}\n'
            lines.append(line)
        lines.append(_line(f"{self.name}_count", {}, count))
        lines.append(_line(f"{self.name}_sum", {}, self._sum))
        list(self.take())
        yield lines


class MetricsPage:
    """The metrics of one scrape, in order, each with all its samples."""

    def __init__(self) -> None:
        self.families: dict[str, MetricFamily] = {}

    def add(self, name: str, kind: str, text: str, value: float, **labels: str) -> None:
        """Add a sample to the metric `name`, which is created at its first sample.

        `kind` is gauge or counter, and `text` the help text.
        """
        self.listed(name, kind, text, value, labels)

    def listed(self, name: str, kind: str, text: str, value: float, labels: Labels) -> None:
        """Add a sample to the metric `name`; the caller may share `labels` among samples.

        If all samples of an object share one dictionary of labels, pages of 50,000 queues are
        several times smaller in memory.
        """
        family = self.families.get(name)
        if family is None:
            family = self.families[name] = MetricFamily(name, kind, text)
        family.append(labels, value)

    def gauge(self, name: str, text: str, value: float, **labels: str) -> None:
        """Add a sample to a gauge; `text` is its help text."""
        self.add(name, "gauge", text, value, **labels)

    def counter(self, name: str, text: str, value: float, **labels: str) -> None:
        """Add a sample to a counter; `text` is its help text."""
        self.add(name, "counter", text, value, **labels)

    def histogram(self, name: str, text: str, times: DeliveryTimes) -> None:
        """Add a histogram of times in seconds; `text` is its help text."""
        self.families[name] = HistogramFamily(name, text, times)

    def counter_by(
        self, label: str, name: str, text: str, counts: Mapping[Any, float], **labels: str
    ) -> None:
        """Add a sample to a counter for each item of `counts`.

        The item's key is the value of `label`.
        """
        for key in sorted(counts):
            self.counter(name, text, counts[key], **labels, **{label: str(key)})

    async def render(self, in_openmetrics: bool = False) -> bytearray:
        """Return the text that Prometheus scrapes, and empty the page.

        The format of the text is OpenMetrics 1.0 if `in_openmetrics` is True, else the text format
        of Prometheus.

        The text is made in slices of RENDER_SLICE samples, with a turn of the event loop after
        each. (A thread would hold the interpreter lock for 5 ms at a time.) The text grows in
        place, because a copy of a long text would take too long for one turn.
        """
        text_of_page = bytearray()
        parts: list[str] = []
        samples = 0
        for family in self.families.values():
            parts.append(family.head(in_openmetrics))
            for lines in family.take_lines(in_openmetrics):
                parts += lines
                samples += len(lines)
                if samples >= RENDER_SLICE:
                    samples = 0
                    text_of_page += "".join(parts).encode()
                    parts = []
                    await asyncio.sleep(0)
        if in_openmetrics:
            parts.append("# EOF\n")
        text_of_page += "".join(parts).encode()
        return text_of_page


def wants_openmetrics(accept: bytes) -> bool:
    """True if the header Accept of a request names the format of OpenMetrics."""
    return any(part.partition(b";")[0].strip() == _OPENMETRICS for part in accept.split(b","))


def _line(name: str, labels: Labels, value: float) -> str:
    """Return the line of text for one sample, in the format of Prometheus."""
    listed = ",".join(f'{label}="{_escaped(labels[label])}"' for label in sorted(labels))
    return f"{name}{{{listed}}} {_text_of(value)}\n" if listed else (f"{name} {_text_of(value)}\n")


def _escaped(value: str) -> str:
    """Return the value of a label, escaped for the format of Prometheus."""
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
