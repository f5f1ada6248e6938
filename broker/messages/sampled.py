"""Steps of sampled messages, from which a span exporter makes spans.

    MessageSampler (routing/sampling.py) --SampledMessage--> the message's address (tracing.py)
    queues and consumers --report--> SampledSteps <--take-- span exporter (trellis/telemetry)

The broker makes only the steps, which are small. Another process makes the spans.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Final

from broker.messages.trace_context import TraceContext
from broker.messages.tracing import MessageTrace
from broker.names import shown

#: Largest number of steps that wait for the span exporter. Further steps are dropped and counted.
STEPS_MAX: Final = 1_000
#: Largest length of a name or text of a step, and of a routing key, in characters.
TEXT_MAX: Final = 256
#: Upper bounds of the buckets of DeliveryTimes, in seconds.
BUCKETS: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 300.0)
_SECOND_NS: Final = 1_000_000_000


class SampledOrigin:
    """The publication of a sampled message.

    `parent` is the trace context in the headers of the message; None if it had none. `client` has
    the names of the publishing client (`Outlet.client_names`), `size` is the size of the body in
    bytes.
    """

    def __init__(
        self,
        parent: TraceContext | None,
        vhost: str,
        exchange: str,
        key: str,
        user: str,
        protocol: str,
        client: tuple[str, ...],
        size: int,
        message_id: str,
        correlation_id: str,
    ) -> None:
        self.parent = parent
        self.vhost = vhost
        self.exchange = exchange
        self.key = key
        self.user = user
        self.protocol = protocol
        self.client = client
        self.size = size
        self.message_id = message_id
        self.correlation_id = correlation_id


class SampledStep:
    """A step of a sampled message, such as "delivered", at Unix time `time` in nanoseconds.

    `span_id` is the id of the span of the message's publication. `place` is the name of an
    exchange, queue or session, and `client` has the names of the client that got the message.
    `origin` is set in the first step.
    """

    def __init__(
        self,
        trace_id: str,
        span_id: str,
        time: int,
        step: str,
        place: str,
        detail: str,
        client: tuple[str, ...],
        origin: SampledOrigin | None,
    ) -> None:
        self.trace_id = trace_id
        self.span_id = span_id
        self.time = time
        self.step = step
        self.place = place
        self.detail = detail
        self.client = client
        self.origin = origin


class DeliveryTimes:
    """A histogram of the times from publication to delivery of sampled messages, in seconds.

    `counts` has the number of deliveries in each bucket; the last bucket is above all BUCKETS.
    `exemplars` has the last delivery of each bucket: its trace id, the duration, and its Unix time
    in seconds.
    """

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS) + 1)
        self.exemplars: list[tuple[str, float, float] | None] = [None] * (len(BUCKETS) + 1)
        self.total = 0.0

    def add(self, seconds: float, trace_id: str, time: float) -> None:
        """Count a delivery after `seconds`, at Unix time `time` in seconds."""
        at = bisect_left(BUCKETS, seconds)
        self.counts[at] += 1
        self.exemplars[at] = (trace_id, seconds, time)
        self.total += seconds


def _ignore() -> None:
    """Do nothing: the `wake` of steps that no exporter takes."""


class SampledSteps:
    """The steps that wait for the span exporter, at most STEPS_MAX.

    `clock` returns Unix time in nanoseconds. `wake` is called when a step is added while no other
    step waits.
    """

    def __init__(self, clock: Callable[[], int]) -> None:
        self.clock = clock
        self.wake: Callable[[], None] = _ignore
        #: Number of steps that were dropped, because the exporter had not taken enough of them.
        self.dropped = 0
        self.times = DeliveryTimes()
        self._waiting: list[SampledStep] = []

    def add(self, step: SampledStep) -> None:
        """Add a step, unless STEPS_MAX steps wait."""
        if len(self._waiting) >= STEPS_MAX:
            self.dropped += 1
            return
        self._waiting.append(step)
        if len(self._waiting) == 1:
            self.wake()

    def take(self) -> list[SampledStep]:
        """Return the steps that wait, and remove them."""
        taken, self._waiting = self._waiting, []
        return taken


def _cut(text: str) -> str:
    """Return a text cut to TEXT_MAX characters, with escape sequences for invalid UTF-8.

    The text of a refusal has the routing key, which may have any bytes. The steps of all messages
    go to the span exporter together, so one text that is not valid UTF-8 would lose all steps.
    """
    return shown(text[:TEXT_MAX])[:TEXT_MAX]


def cut_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of a client, cut to TEXT_MAX characters each."""
    return tuple(_cut(name) for name in names)


class SampledMessage(MessageTrace):
    """A message that is sampled: each of its steps is added to `steps`."""

    def __init__(
        self, steps: SampledSteps, trace_id: str, span_id: str, origin: SampledOrigin
    ) -> None:
        self._steps = steps
        self._trace_id = trace_id
        self._span_id = span_id
        #: The publication; None once the first step has been reported.
        self._origin: SampledOrigin | None = origin
        self._published_at = steps.clock()

    def report(self, step: str, place: str, detail: str) -> None:
        self._add(self._steps.clock(), step, place, detail, ())

    def report_delivery(self, place: str, client: tuple[str, ...], detail: str) -> None:
        now = self._steps.clock()
        waited = max(0, now - self._published_at) / _SECOND_NS
        self._steps.times.add(waited, self._trace_id, now / _SECOND_NS)
        self._add(now, "delivered", place, detail, cut_names(client))

    def _add(self, time: int, step: str, place: str, detail: str, client: tuple[str, ...]) -> None:
        origin, self._origin = self._origin, None
        self._steps.add(
            SampledStep(
                self._trace_id,
                self._span_id,
                self._published_at if origin is not None else time,
                step,
                _cut(place),
                _cut(detail),
                client,
                origin,
            )
        )
