"""Makes spans of the steps of sampled messages.

    publish EXCHANGE     the message's publication; child of the publisher's span
      +- route EXCHANGE  its routing; a dead letter gets a further span `route`
      +- deliver QUEUE   from the arrival in the queue to the delivery, with a link to the
      |                  publisher's span
           +- settle QUEUE  from the delivery to the acknowledgement, requeue, rejection, ...

A copy that ends without a delivery (expired, purged, over its queue's limit) has a span `settle`
below `publish`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final, NamedTuple

from trellis.telemetry.attributes import (
    SYSTEM,
    Attributes,
    client_attributes,
    destination_of,
    message_attributes,
    operation,
    publisher_attributes,
)
from trellis.telemetry.contract import Step, StepOrigin

#: Largest number of messages that the assembler remembers, and of the queues and sessions of all of
#: these messages. Beyond either number, the assembler forgets the message that was sampled first:
#: spans of this message that end later have no duration and no link.
MESSAGES_MAX: Final = 10_000
PLACES_MAX: Final = 50_000
#: Steps that belong to the routing of a message. Each other step ends the routing.
ROUTING: Final = frozenset(
    (
        "published",
        "routed",
        "delayed",
        "offline",
        "dropped",
        "not_representable",
        "unroutable",
        "refused",
        "denied",
        "looped",
        "repeated",
        "too_large",
    )
)
#: Outcomes that are errors.
ERRORS: Final = frozenset(
    ("refused", "denied", "too_large", "looped", "delivery_limit", "unreadable", "over_limit")
)
#: Kinds of spans, as OpenTelemetry names them.
INTERNAL, SERVER, PRODUCER, CONSUMER = "INTERNAL", "SERVER", "PRODUCER", "CONSUMER"
_UNKNOWN: Final = StepOrigin("", "", "", "", "", "", "", (), 0, "", "")


class FinishedSpan(NamedTuple):
    """A span. Times are Unix times in nanoseconds; ids are in hexadecimal.

    `parent_id` is "" for the first span of a trace. `link` is the id of the linked span in the same
    trace, "" for none. `error` is the outcome of a message that failed (one of ERRORS), else "".
    `remote` is True if the parent is a span of the publisher. `state` is the value of `tracestate`.
    """

    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str
    remote: bool
    start: int
    end: int
    attributes: Attributes
    link: str
    error: str
    state: str


class _Message:
    """The state of a sampled message between its steps."""

    def __init__(self, trace_id: str, span_id: str, origin: StepOrigin) -> None:
        self.trace_id = trace_id
        self.span_id = span_id
        self.origin = origin
        #: The steps of the present routing. It begins when the message is published, or published
        #: again as a dead letter.
        self.routing: list[Step] = []
        #: True once the span of the publication has been made.
        self.published = origin is _UNKNOWN
        #: The span that is the parent of the present routing.
        self.cause = span_id
        #: Time of the message's arrival in each queue.
        self.waiting: dict[str, int] = {}
        #: Time and span id of the last delivery from each queue.
        self.delivered: dict[str, tuple[int, str]] = {}

    @property
    def places(self) -> int:
        """Number of entries in `waiting` and `delivered`, which bounds the memory."""
        return len(self.waiting) + len(self.delivered)


class SpanAssembler:
    """The maker of spans from steps. Steps must be added in the order in which they happened."""

    def __init__(self) -> None:
        self._messages: dict[str, _Message] = {}
        #: Sum of `_Message.places` of all messages.
        self._places = 0
        #: Number of messages with a step whose publication is not known: the message was forgotten,
        #: an earlier worker had its publication, or the broker dropped that step.
        self.unknown = 0

    @property
    def remembered(self) -> int:
        """Number of sampled messages in memory, to whose traces further steps are added."""
        return len(self._messages)

    def add(self, steps: list[Step]) -> Iterator[FinishedSpan]:
        """Yield the spans that end with these steps.

        All steps of the routing of one message must be in the same list.
        """
        touched: dict[str, _Message] = {}
        for step in steps:
            message = self._messages.get(step.span_id) or self._begin(step)
            places = message.places
            if step.step in ROUTING:
                message.routing.append(step)
                touched[step.span_id] = message
                if step.step in ("routed", "delayed"):
                    message.waiting[step.place] = step.time
            else:
                yield from self._end_routing(message)
                yield from self._after_routing(message, step)
            self._places += message.places - places
            self._forget(message)
        for message in touched.values():
            yield from self._end_routing(message)

    def _begin(self, step: Step) -> _Message:
        self.unknown += step.origin is None
        message = _Message(step.trace_id, step.span_id, step.origin or _UNKNOWN)
        self._messages[step.span_id] = message
        return message

    def _forget(self, present: _Message) -> None:
        """Remove the oldest messages until their number and their places are within the limits.

        The removal ends before the message `present`, which stays in every case.
        """
        while len(self._messages) > MESSAGES_MAX or self._places > PLACES_MAX:
            first = next(iter(self._messages.values()))
            if first is present:
                return
            del self._messages[first.span_id]
            self._places -= first.places

    def _end_routing(self, message: _Message) -> Iterator[FinishedSpan]:
        """End the message's present routing, if there is one, and yield its spans."""
        routing, message.routing = message.routing, []
        if not routing:
            return
        origin, start, end = message.origin, routing[0].time, routing[-1].time
        outcomes = [step.step for step in routing if step.step != "published"]
        error = next((step for step in routing if step.step in ERRORS), None)
        places = tuple(step.place for step in routing if step.step in ("routed", "delayed"))
        exchange = origin.exchange or "amq.default"
        if not message.published:
            message.published = True
            yield self._span(
                message,
                f"publish {exchange}",
                CONSUMER,
                start,
                end,
                operation("publish", "receive", destination_of(origin))
                | publisher_attributes(origin),
                parent=origin.parent_span,
                span_id=message.span_id,
                error="" if error is None else error.step,
            )
        else:
            exchange = routing[0].place if routing[0].step == "published" else exchange
        attributes = operation("route", "route", destination_of(origin))
        attributes["trellis.destinations"] = places
        attributes["trellis.outcome"] = ",".join(sorted(set(outcomes)))
        if error is not None:
            attributes["trellis.detail"] = error.detail
        yield self._span(
            message,
            f"route {exchange}",
            INTERNAL,
            start,
            end,
            attributes,
            parent=message.cause,
            error="" if error is None else error.step,
        )

    def _after_routing(self, message: _Message, step: Step) -> Iterator[FinishedSpan]:
        if step.step == "delivered":
            yield self._deliver(message, step)
        elif step.step not in ("published_again", "paged"):
            yield self._settle(message, step)

    def _deliver(self, message: _Message, step: Step) -> FinishedSpan:
        start = message.waiting.get(step.place, step.time)
        span = self._span(
            message,
            f"deliver {step.place}",
            PRODUCER,
            start,
            step.time,
            operation("deliver", "send", destination_of(message.origin, step.place))
            | client_attributes(step.client)
            | {"trellis.detail": step.detail},
            parent=message.span_id,
            link=message.origin.parent_span,
        )
        message.delivered[step.place] = step.time, span.span_id
        return span

    def _settle(self, message: _Message, step: Step) -> FinishedSpan:
        arrived = message.waiting.get(step.place, step.time)
        start, parent = message.delivered.pop(step.place, (arrived, message.span_id))
        attributes = operation("settle", "settle", destination_of(message.origin, step.place))
        attributes["trellis.outcome"] = step.step
        if step.detail:
            attributes["trellis.detail"] = step.detail
        error = step.step if step.step in ERRORS else ""
        span = self._span(
            message, f"settle {step.place}", SERVER, start, step.time, attributes, parent, error
        )
        message.waiting.pop(step.place, None)
        if step.step == "requeued":
            message.waiting[step.place] = step.time
        else:
            message.cause = span.span_id
        return span

    def _span(
        self,
        message: _Message,
        name: str,
        kind: str,
        start: int,
        end: int,
        attributes: Attributes,
        parent: str,
        error: str = "",
        link: str = "",
        span_id: str = "",
    ) -> FinishedSpan:
        known = message.origin is not _UNKNOWN
        general = message_attributes(message.origin) if known else {"messaging.system": SYSTEM}
        if error:
            attributes["error.type"] = error
        return FinishedSpan(
            name,
            kind,
            message.trace_id,
            span_id or f"{random.getrandbits(64) | 1:016x}",
            parent,
            bool(span_id) and bool(parent),
            start,
            max(start, end),
            general | attributes,
            link,
            error,
            message.origin.state,
        )
