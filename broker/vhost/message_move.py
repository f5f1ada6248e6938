"""Moves messages of a queue to another queue, to an exchange, or back to where they came from.

    head of the source --decide--> publish the new message + settle the old one     one store group
                          `-- refused --> set aside, and put back at the end

The new message and the settlement of the old message are one group of the store's log. So after a
crash each message is either in its source or at its destination. (A transient message, or a message
in a transient queue, does not survive a restart in any case.)

A move is bulk work of the agenda: each slice takes 1 to 2 ms. It pauses while an alarm is on, while
a destination is behind with its dead letters, and while UNSETTLED_MAX moved messages are not
durable yet. A move handles as many messages as waited in the queue at its start, and then ends, so
messages that come meanwhile do not prolong it. A move is in memory only: it does not continue after
a restart.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mypy_extensions import i64

from broker.access.identity import Identity
from broker.agenda import BulkTask
from broker.errors import BrokerError
from broker.messages.fates import MOVED, ROUTED
from broker.messages.message import Message
from broker.messages.tracing import continue_trace
from broker.queues.consumer import ReturnedMessage
from broker.queues.peeking import head_of, put_aside_back, set_head_aside
from broker.queues.queue import Queue
from broker.queues.slices import MESSAGES_PER_SLICE
from broker.queues.upkeep import TAIL_RETRY_MS
from broker.routing.plan_search import SearchSlot
from broker.store.contract import Ticket, Waiter
from broker.vhost.dead_letters import SEARCH_STEPS, STEPS_PER_SLICE
from broker.vhost.move_destination import MoveDecision, MoveDestination, decide
from broker.vhost.vhost import VirtualHost

#: States of a move: it runs; it has moved all its messages; an operator cancelled it; it cannot
#: continue, and `reason` says why.
RUNNING: Final = "running"
DONE: Final = "done"
CANCELLED: Final = "cancelled"
STOPPED: Final = "stopped"

#: Number of steps of a slice that one message costs besides its copies, as for dead letters.
_MESSAGE_STEPS: Final[i64] = 9
#: Largest number of moved messages that are not durable yet.
UNSETTLED_MAX: Final[i64] = 5_000
#: Largest number of messages that are set aside because they cannot be moved.
ASIDE_MAX: Final = 1_000
#: Largest number of different reasons that a move counts.
REASONS_MAX: Final = 100
#: Pause while an alarm is on or a queue is behind, and while expired messages wait to be discarded,
#: in ms.
_PAUSE_MS: Final[i64] = 200
_SHORT_PAUSE_MS: Final[i64] = 10
#: Longest pause of a move with a rate, in ms.
_RATE_PAUSE_MS: Final[i64] = 1_000


class _MovedAreDurable(Waiter):
    """Continues a move once the messages that it moved are durable."""

    def __init__(self, move: MessageMove) -> None:
        self._move = move

    def settled(self) -> None:
        self._move.moved_are_durable()


class MessageMove(BulkTask):
    """The move of messages out of one queue; `state`, `moved` and `refused` show the progress.

    At most `count` messages are moved, at most `rate` per second (0: as many as possible).
    `identity_now` returns the present identity of the user that moves the messages; None if the
    user has lost all permissions in the virtual host.
    """

    def __init__(
        self,
        vhost: VirtualHost,
        source: Queue,
        destination: MoveDestination,
        identity_now: Callable[[], Identity | None],
        count: i64,
        rate: float = 0.0,
        user: str = "",
    ) -> None:
        super().__init__(vhost.agenda)
        self.vhost = vhost
        self.user = user
        self.source = source
        self.destination = destination
        self.rate = rate
        self.state = RUNNING
        #: The reason for which the move has stopped or waits; "" otherwise.
        self.reason = ""
        self.moved: i64 = 0
        #: Number of messages that the move may still move, and number that it may still examine.
        self._left: i64 = count
        self._waiting: i64 = source.depth
        self.wanted = int(min(count, source.depth))
        #: The number of messages that cannot be moved, by reason.
        self.refused: dict[str, int] = {}
        self._aside: list[ReturnedMessage] = []
        self._identity_now = identity_now
        self._began: i64 = vhost.agenda.now
        #: The move waits until this time, in ms.
        self._resumes: i64 = 0
        #: Number of messages that were moved since the ticket was settled last.
        self._unsettled: i64 = 0
        self._ticket = Ticket(_MovedAreDurable(self))
        #: The paused search for the queues of the first message, and this message; None if no
        #: search is paused.
        self._slot: SearchSlot | None = None
        self._searched: Message | None = None

    @property
    def is_complete(self) -> bool:
        """True if the move has ended and all moved messages are durable."""
        return self.state != RUNNING and self._ticket.outstanding == 0

    def cancel(self) -> None:
        """End the move. Messages that were moved already stay at their destination."""
        if self.state == RUNNING:
            self._end(CANCELLED, "")

    def moved_are_durable(self) -> None:
        """Continue the move, because the messages that it moved are durable now."""
        self._unsettled = 0
        self.schedule()

    # -- slices

    def has_work(self) -> bool:
        return self.state == RUNNING and not self._is_waiting()

    def _is_waiting(self) -> bool:
        """True if the move waits for a timer or for the store."""
        if self._unsettled >= UNSETTLED_MAX and self._ticket.outstanding > 0:
            return True
        return self._resumes > self._agenda.now

    def on_failure(self) -> None:
        self._end(STOPPED, "the broker had an internal error, which its log describes")

    def do_slice(self) -> None:
        if not self.has_work():
            return
        while self.source.replacement is not None:
            self.source = self.source.replacement
        identity = self._permitted()
        if identity is None:
            return
        if self.vhost.alarmed:
            self._pause(_PAUSE_MS, "an alarm for memory or disk is on")
            return
        self.reason = ""
        left: i64 = STEPS_PER_SLICE
        while left > 0 and self.has_work():
            left -= self._move_next(identity)

    def _permitted(self) -> Identity | None:
        """Return the user's present identity. Stop the move, and return None, if the user may not
        read the source any more or the source was deleted.
        """
        source = self.source
        problem = ""
        identity = self._identity_now()
        if source.dead:
            problem = f"queue '{source.name}' was deleted"
        elif identity is None:
            problem = (
                f"user '{self.user}' has no permissions in vhost '{self.vhost.name}' any more: "
                "grant permissions, and begin the move again"
            )
        else:
            try:
                identity.may("read", "queue", source.name, self.vhost.name)
            except BrokerError as refusal:
                problem = str(refusal)
        if not problem:
            return identity
        self._end(STOPPED, problem)
        return None

    def _pause(self, milliseconds: i64, reason: str) -> None:
        """Pause the move for this time; `reason` tells operators why."""
        self.reason = reason
        self._resumes = self._agenda.now + milliseconds
        self._agenda.at(self._resumes, self)

    def _move_next(self, identity: Identity) -> i64:
        """Move the first message of the source, or set it aside; return the steps that this took.

        End the move if it has handled all its messages. Return 0 if the move has ended, or must
        wait because of `rate` or because the message cannot be read now.
        """
        if self._left <= 0 or self._waiting <= 0 or self.source.depth == 0:
            self._end(DONE, "")
            return 0
        if self._exceeds_rate():
            return 0
        message = self._head()
        if message is None:
            return 0
        if self._slot is None or self._searched is not message:
            self._slot, self._searched = SearchSlot(), message
        slot = self._slot
        decision = decide(self.vhost, identity, self.destination, self.source, message, slot)
        if decision is None:
            return STEPS_PER_SLICE  # The search continues in the next slice.
        self._slot = self._searched = None
        if isinstance(decision, str):
            self._refuse(decision)
        elif decision.refusal:
            self._refuse(decision.refusal)
        else:
            if message.address.traced:
                continue_trace(message, decision.message, self.source.name)
            self._move(decision)
            if decision.route.plan.behind:
                self._pause(_PAUSE_MS, "many dead letters of a queue are not published yet")
            return _MESSAGE_STEPS + decision.route.plan.weight + slot.spent // SEARCH_STEPS
        return _MESSAGE_STEPS + slot.spent // SEARCH_STEPS

    def _exceeds_rate(self) -> bool:
        """True if the next message must wait because of `rate`; in this case, set a timer."""
        if self.rate <= 0:
            return False
        due = int(self._began) + int(int(self.moved) * 1000 / self.rate)
        if due <= self._agenda.now:
            return False
        self._pause(min(due - self._agenda.now, _RATE_PAUSE_MS), "")
        return True

    def _head(self) -> Message | None:
        """Return the first message of the source queue; None if no message can be moved now."""
        source = self.source
        source.expire(MESSAGES_PER_SLICE)
        if source.depth == 0:
            return None  # The next call of `_move_next` ends the move.
        message = head_of(source)
        if message is None:
            self._pause(TAIL_RETRY_MS, "no file descriptor is free to read the messages")
        elif source.head_expired:
            self._pause(_SHORT_PAUSE_MS, "")
            return None
        return message

    def _move(self, decision: MoveDecision) -> None:
        """Publish the new message and settle the old message, in one group of the store's log."""
        vhost, route = self.vhost, decision.route
        vhost.store.begin()
        try:
            vhost.internal.received += 1
            fate = vhost.publish(vhost.internal, route, route.plan, decision.message, self._ticket)
            if fate == ROUTED:
                self.source.drop_head(MOVED)
        finally:
            vhost.store.commit()
        if fate == ROUTED:
            self.moved += 1
            self._unsettled += 1
            self._left -= 1
            self._waiting -= 1
        else:
            self._refuse("the destination refused the message")

    # -- messages that cannot be moved, and the end

    def _refuse(self, reason: str) -> None:
        """Set the first message aside; if all messages have one destination, stop the move instead.

        Also stop the move if ASIDE_MAX messages are set aside. `reason` tells operators why.
        """
        stops = self.destination.same_for_all
        stay = min(self._left, self._waiting) if stops else 1
        if reason in self.refused or len(self.refused) < REASONS_MAX:
            self.refused[reason] = self.refused.get(reason, 0) + int(stay)
        if stops:
            self._end(STOPPED, reason)
            return
        self._aside.append(set_head_aside(self.source))
        self._waiting -= 1
        if len(self._aside) >= ASIDE_MAX:
            text = (
                f"{ASIDE_MAX} messages cannot be moved; the reason for the last message: {reason}"
            )
            self._end(STOPPED, text)

    def _end(self, state: str, reason: str) -> None:
        """End the move, and put the messages that were set aside back at their old places.

        `state` is the final state, and `reason` explains it to operators.
        """
        self.state, self.reason = state, reason
        aside, self._aside = self._aside, []
        for returned in aside:
            put_aside_back(self.source, returned)


class MessageMoves:
    """The moves of a broker: the running moves, and the last KEPT_MAX moves that have ended."""

    def __init__(self) -> None:
        self._moves: dict[int, MessageMove] = {}
        self._started = 0

    def all(self) -> list[tuple[int, MessageMove]]:
        """Return the moves with their numbers, in the order of their start."""
        return list(self._moves.items())

    def find(self, number: int) -> MessageMove | None:
        """Return the move with this number; None if there is none."""
        return self._moves.get(number)

    def running(self, source: Queue) -> int:
        """Return the number of the running move that takes messages from this queue; 0 if there is
        none.
        """
        for number, move in self._moves.items():
            if move.source is source and move.state == RUNNING:
                return number
        return 0

    @property
    def is_full(self) -> bool:
        """True if RUNNING_MAX moves run."""
        return sum(move.state == RUNNING for move in self._moves.values()) >= RUNNING_MAX

    def start(self, move: MessageMove) -> int:
        """Begin a move and return its number. The caller has checked `is_full`."""
        self._started += 1
        self._moves[self._started] = move
        ended = [number for number, known in self._moves.items() if known.is_complete]
        for number in ended[: max(0, len(ended) - KEPT_MAX)]:
            del self._moves[number]
        move.schedule()
        return self._started


#: Largest number of moves that run at a time, and of ended moves that are remembered.
RUNNING_MAX: Final = 16
KEPT_MAX: Final = 64
