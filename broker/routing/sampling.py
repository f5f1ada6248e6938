"""The sampler for distributed tracing: it decides which messages get spans.

A message with a valid `traceparent` is sampled if its publisher records the trace; other messages
are sampled with a probability (`ratio`). The slow path asks the sampler (tracing.py):

    plan.slow_path_mask has TRACEPARENT_HEADER   messages with `traceparent` take the slow path
    ratio > 0: each plan is `traced`             every message takes the slow path
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mypy_extensions import i64

from broker.agenda import Agenda
from broker.messages.message import Message
from broker.messages.outlet import Outlet
from broker.messages.sampled import (
    TEXT_MAX,
    SampledMessage,
    SampledOrigin,
    SampledSteps,
    cut_names,
)
from broker.messages.trace_context import trace_context_of
from broker.names import shown
from broker.routing.publish_context import PublishContext

#: Shortest duration in ms of a window in which a share of `rate` messages may be sampled. With a
#: rate below 10, a window is longer, and has one message.
WINDOW_MS: Final[i64] = 100
_WINDOWS_PER_SECOND: Final = 10
_SECOND_MS: Final = 1_000
#: Longest message_id or correlation_id of a span, in characters.
_ID_MAX: Final = 256
#: Number of the lower bits of a trace id that are compared with `ratio`, as in OpenTelemetry.
_RATIO_BITS: Final = 64
_RATIO_MASK: Final = (1 << 64) - 1


class MessageSampler:
    """The sampler of a broker. It makes a SampledMessage for each message that it chooses.

    If `parent_based` is True, the flag in a valid `traceparent` decides about the message. All
    other messages are sampled with the probability `ratio` (0 to 1): the trace id is compared with
    the ratio. At most `rate` messages are sampled in a second; further messages are counted in
    `skipped`. The function `draw` returns a random integer with the given number of bits.
    """

    def __init__(
        self,
        agenda: Agenda,
        steps: SampledSteps,
        draw: Callable[[int], int],
        parent_based: bool = True,
        ratio: float = 0.0,
        rate: int = 1_000,
    ) -> None:
        self.steps = steps
        #: Number of messages that were sampled, and number that were skipped because of `rate`.
        self.sampled = 0
        self.skipped = 0
        self._agenda = agenda
        self._draw = draw
        self._parent_based = parent_based
        self._bound = round(ratio * (_RATIO_MASK + 1))
        self._window_ms: i64 = max(int(WINDOW_MS), -(-_SECOND_MS // rate))
        self._window_max = max(1, rate // _WINDOWS_PER_SECOND)
        self._window: i64 = -1
        self._in_window = 0

    @property
    def asks_all(self) -> bool:
        """True if messages without `traceparent` may be sampled: each message is passed to
        `sample`.
        """
        return self._bound > 0

    def sample(
        self,
        vhost: str,
        context: PublishContext,
        exchange: str,
        message: Message,
        publisher: Outlet | None,
    ) -> SampledMessage | None:
        """Return the SampledMessage of a message that is being published; None if it is not chosen.

        `publisher` is the client's connection; None if the broker itself publishes the message.
        """
        parent = trace_context_of(message)
        if parent is None:
            if self._bound == 0:
                return None
            number = self._draw(128) | 1 << 127  # An id of zeros is invalid.
            trace_id, chosen = f"{number:032x}", self._in_ratio(number)
        else:
            trace_id = parent.trace_id
            by_parent = self._parent_based
            chosen = parent.sampled if by_parent else self._in_ratio(int(trace_id, 16))
        if not chosen:
            return None
        if not self._has_room():
            self.skipped += 1
            return None
        self.sampled += 1
        properties = message.properties
        origin = SampledOrigin(
            parent,
            vhost,
            exchange,
            shown(message.address.key[:TEXT_MAX])[:TEXT_MAX],
            context.identity.name[:TEXT_MAX],
            context.front,
            () if publisher is None else cut_names(publisher.client_names()),
            int(message.encoding.size(message.content)),
            str(properties.get("message_id") or "")[:_ID_MAX],
            str(properties.get("correlation_id") or "")[:_ID_MAX],
        )
        return SampledMessage(self.steps, trace_id, f"{self._draw(64) | 1:016x}", origin)

    def _in_ratio(self, trace_id: int) -> bool:
        return trace_id & _RATIO_MASK < self._bound

    def _has_room(self) -> bool:
        window: i64 = self._agenda.now // self._window_ms
        if window != self._window:
            self._window = window
            self._in_window = 0
        if self._in_window >= self._window_max:
            return False
        self._in_window += 1
        return True
