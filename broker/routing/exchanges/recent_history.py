"""The recent-history exchange (RabbitMQ's plugin `x-recent-history`).

    publish --+--> every binding, as in a fanout exchange
              +--> recent: the last N messages --> each new binding's destination gets them

The argument `x-recent-history-length` sets N. A message with the header `x-recent-history-no-store`
is routed, but does not join the history.
"""

from __future__ import annotations

from typing import ClassVar, Final

from broker.errors import PreconditionFailed
from broker.messages.message import Properties
from broker.queues.recent import RecentQueue
from broker.routing.binding import Binding
from broker.routing.exchanges.base import Exchange, ExchangeOptions

LENGTH: Final = "x-recent-history-length"
NO_STORE: Final = "x-recent-history-no-store"
DEFAULT_LENGTH: Final = 20
#: The largest number of messages in a history. All of them are in memory.
LENGTH_MAX: Final = 10_000


class RecentHistoryExchange(Exchange):
    """A fanout exchange that gives its last messages to each new binding.

    `recent` is the queue of these messages; it has the same number in the store as the exchange.
    """

    kind: ClassVar[str] = "x-recent-history"
    hash_kind: ClassVar[str] = "RecentHistoryExchange"
    by_headers: ClassVar[bool] = True

    def __init__(self, name: str, options: ExchangeOptions, recent: RecentQueue) -> None:
        super().__init__(name, options)
        self.recent = recent

    @property
    def uses_keys(self) -> bool:
        return False

    def match(self, key: str, properties: Properties) -> list[Binding]:
        return self.all_bindings()


def history_length(where: str, options: ExchangeOptions) -> int:
    """Return the argument `x-recent-history-length`. Raises PreconditionFailed if it is invalid.

    `where` names the exchange in the error.
    """
    length = options.arguments.get(LENGTH, DEFAULT_LENGTH)
    if not isinstance(length, int) or isinstance(length, bool) or not 0 < length <= LENGTH_MAX:
        raise PreconditionFailed(
            f"invalid arg '{LENGTH}' {where}: must be a whole number from 1 to {LENGTH_MAX}, not "
            f"{length!r}"
        )
    return length


def joins_history(properties: Properties) -> bool:
    """True if the message joins the history: `x-recent-history-no-store` is not true."""
    headers = properties.get("headers")
    return not isinstance(headers, dict) or headers.get(NO_STORE) is not True
