"""A broker in memory that samples its messages, and the spans of their steps."""

from __future__ import annotations

import itertools
import random

from broker.messages.sampled import SampledSteps
from broker.routing.sampling import MessageSampler
from tests.clients import World
from trellis.telemetry.assembly import FinishedSpan, SpanAssembler
from trellis.telemetry.service import steps_of

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"
#: The header of a message whose publisher records the trace, and of one whose publisher does not.
RECORDED = f"00-{TRACE}-{PARENT}-01"
IGNORED = f"00-{TRACE}-{PARENT}-00"


class Sampling:
    """A World whose messages are sampled. Its clock advances by a millisecond at each reading."""

    def __init__(self, ratio: float = 0.0, rate: int = 1_000, parent_based: bool = True) -> None:
        self.world = World()
        ticks = itertools.count(1_000_000_000, 1_000_000)
        self.steps = SampledSteps(lambda: next(ticks))
        self.sampler = MessageSampler(
            self.world.broker.agenda,
            self.steps,
            random.Random(7).getrandbits,
            parent_based,
            ratio,
            rate,
        )
        self.world.broker.sample_messages(self.sampler)
        self._assembler = SpanAssembler()

    def spans(self) -> list[FinishedSpan]:
        """Return the spans that ended since the last call, assembled from the recorded steps."""
        return list(self._assembler.add(steps_of(self.steps)))

    def names(self) -> list[str]:
        """Return the names of the spans that `spans` returns."""
        return [span.name for span in self.spans()]
