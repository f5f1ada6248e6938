"""Queues with arguments: time to live, length, overflow, dead letters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from mypy_extensions import i64

from broker.agenda import Agenda
from broker.errors import PreconditionFailed
from broker.message import Message
from broker.queue import DEAD_LETTERED, ENDLESS, EXPIRED, OVER_LIMIT, PURGED, REJECTED, Delivery, Queue
from broker.store.contract import Store

#: The largest number that an argument may be.
NUMBER_MAX: Final = 1 << 50
#: Octets of the longest name.
NAME_OCTETS: Final = 255
_NUMBERS: Final = ("x-message-ttl", "x-max-length")
_TEXTS: Final = ("x-dead-letter-exchange", "x-dead-letter-routing-key", "x-overflow")
_OVERFLOWS: Final = ("drop-head", "reject-publish", "reject-publish-dlx")

#: Why a message became a dead letter, as x-death and the metrics name it.
REASONS: Final[dict[int, str]] = {int(EXPIRED): "expired", int(OVER_LIMIT): "maxlen", int(REJECTED): "rejected"}


class Limits:
    """Queue arguments, checked. Raises PreconditionFailed. None of them given: `idle`."""

    def __init__(self, name: str, vhost: str, arguments: Mapping[str, object]) -> None:
        thing = f"for queue '{name}' in vhost '{vhost}'"
        for argument in _NUMBERS:
            value = arguments.get(argument, 0)
            if not isinstance(value, int) or isinstance(value, bool):
                raise PreconditionFailed(f"invalid arg '{argument}' {thing}: not a number")
            if value < 0:
                raise PreconditionFailed(f"invalid arg '{argument}' {thing}: {value} is too small")
            if value > NUMBER_MAX:
                raise PreconditionFailed(f"invalid arg '{argument}' {thing}: {value} is too large")
        for argument in _TEXTS:
            text = arguments.get(argument, "")
            if not isinstance(text, str):
                raise PreconditionFailed(f"invalid arg '{argument}' {thing}: not a text")
            if len(text.encode()) > NAME_OCTETS:
                raise PreconditionFailed(f"invalid arg '{argument}' {thing}: longer than {NAME_OCTETS} octets")
        overflow = _text(arguments.get("x-overflow"))
        if overflow is not None and overflow not in _OVERFLOWS:
            raise PreconditionFailed(f"invalid arg 'x-overflow' {thing}: '{overflow}' is none of {', '.join(_OVERFLOWS)}")
        self.given = {argument: arguments[argument] for argument in _NUMBERS + _TEXTS if argument in arguments}
        self.ttl = _number(arguments.get("x-message-ttl", -1))
        self.max_length = _number(arguments.get("x-max-length", -1))
        self.reject_publish = overflow in ("reject-publish", "reject-publish-dlx")
        self.bury_refused = overflow == "reject-publish-dlx"
        self.dead_letter_exchange = _text(arguments.get("x-dead-letter-exchange"))
        self.dead_letter_key = _text(arguments.get("x-dead-letter-routing-key"))
        if self.dead_letter_key is not None and self.dead_letter_exchange is None:
            raise PreconditionFailed(f"invalid arg 'x-dead-letter-routing-key' {thing}: there is no 'x-dead-letter-exchange'")

    @property
    def idle(self) -> bool:
        return not self.given


class LimitedQueue(Queue):
    """A queue that follows its Limits. `bury` takes (queue, message, reason) of what is dead-lettered."""

    def __init__(self, vhost: str, name: str, agenda: Agenda, store: Store, durable: bool, limits: Limits,
                 bury: Callable[[LimitedQueue, Message, str], None]) -> None:
        super().__init__(vhost, name, agenda, store, durable)
        self.limits = limits
        self.ttl: i64 = limits.ttl
        self.limit: i64 = limits.max_length if limits.max_length >= 0 else ENDLESS
        self._bury = bury

    def latest(self) -> i64:
        return self.agenda.now + self.ttl if self.ttl >= 0 else -1

    def accepts(self) -> bool:
        """False when a publication must be refused; then it counts as over the limit."""
        return not (self.limits.reject_publish and self.depth >= self.limit)

    def refuse(self, message: Message) -> None:
        """Count the copy that `accepts` kept out; with reject-publish-dlx it is a dead letter too."""
        if self.limits.bury_refused:
            copy = message.copy(message.assurance, message.retained)
            copy.position = 0  # The store never kept it for this queue.
            self.discard(copy, OVER_LIMIT)
        else:
            self.count(OVER_LIMIT)

    def put(self, message: Message) -> None:
        if self.ttl >= 0:
            message = message.copy(message.assurance, message.retained)
            latest = self.latest()
            if message.expires == 0 or message.expires > latest:
                message.expires = latest
        super().put(message)
        while self.depth > self.limit:
            self.drop_head(OVER_LIMIT)

    def requeue(self, delivery: Delivery) -> None:
        super().requeue(delivery)
        while self.depth > self.limit and not self.limits.reject_publish:
            self.drop_head(OVER_LIMIT)

    def discard(self, message: Message, fate: i64) -> None:
        if self.limits.dead_letter_exchange is None or fate == PURGED:
            super().discard(message, fate)
            return
        self.count(DEAD_LETTERED)
        self._bury(self, message, REASONS[int(fate)])  # ... and forgets it, with the letter in the same record.


def _number(value: object) -> int:
    return value if isinstance(value, int) else -1


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
