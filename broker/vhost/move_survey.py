"""The dry run of a move: how many messages would go to which queue, and which would stay.

Nothing changes. The dry run looks at the first messages of the source as they are now. In a real
move, a destination may refuse some of these messages, because it is over a limit by then.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from mypy_extensions import i64

from broker.access.identity import Identity
from broker.messages.message import Message
from broker.queues.peeking import PeekCursor, peek
from broker.queues.queue import Queue
from broker.routing.plan_search import SearchSlot
from broker.vhost.message_move import REASONS_MAX
from broker.vhost.move_destination import MoveDecision, MoveDestination, decide
from broker.vhost.vhost import VirtualHost

#: Largest number of messages that a survey examines.
EXAMINED_MAX: Final = 10_000
#: Largest number of different queues that a survey counts.
QUEUES_MAX: Final = 1_000
#: Number of messages that the survey reads from the queue in one step.
_AT_ONCE: Final = 32


class MoveSurvey:
    """The dry run of a move: the iterator `steps` counts the messages that each queue would get."""

    def __init__(
        self,
        vhost: VirtualHost,
        identity: Identity,
        destination: MoveDestination,
        source: Queue,
        count: i64,
    ) -> None:
        self._vhost = vhost
        self._identity = identity
        self._destination = destination
        self._source = source
        #: Number of messages that the move would examine, and number that the survey has examined.
        self.messages = int(min(count, source.depth))
        self.examined = 0
        #: For each queue to which messages would go, the number of these messages.
        self.queues: dict[str, int] = {}
        #: The transient queues among `queues`: their messages do not survive a restart.
        self.transient: set[str] = set()
        #: Number of messages that would stay, by reason.
        self.refused: dict[str, int] = {}

    def steps(self) -> Iterator[None]:
        """Count where the messages would go; each iteration does one bounded step.

        Raises OutOfDescriptors if no file descriptor is free to read the messages.
        """
        cursor = PeekCursor()
        most = min(self.messages, EXAMINED_MAX)
        while self.examined < most:
            peeked = peek(self._source, cursor, min(_AT_ONCE, most - self.examined))
            if not peeked:
                return
            for one in peeked:
                if one.message is not None:
                    yield from self._examine(one.message)
                yield

    def _examine(self, message: Message) -> Iterator[None]:
        slot = SearchSlot()
        decision: MoveDecision | str | None = None
        while decision is None:
            decision = decide(
                self._vhost, self._identity, self._destination, self._source, message, slot
            )
            if decision is None:
                yield
        self.examined += 1
        if isinstance(decision, str):
            self._count_refused(decision)
        elif decision.refusal:
            self._count_refused(decision.refusal)
        else:
            self._count_moved(decision)

    def _count_moved(self, decision: MoveDecision) -> None:
        for queue in decision.queues:
            if queue.name in self.queues or len(self.queues) < QUEUES_MAX:
                self.queues[queue.name] = self.queues.get(queue.name, 0) + 1
            if not queue.durable:
                self.transient.add(queue.name)

    def _count_refused(self, reason: str) -> None:
        if reason in self.refused or len(self.refused) < REASONS_MAX:
            self.refused[reason] = self.refused.get(reason, 0) + 1
