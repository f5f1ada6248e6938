"""The deduplicating exchange (RabbitMQ's plugin `rabbitmq-message-deduplication`).

    publish --> x-deduplication-header known? --yes--> confirmed and dropped
                     `--no--> every binding, as in a fanout exchange; the value is recorded

The value is recorded only after the queues accepted the message. So a message that a full queue
refused does not count as repeated when the publisher sends it again.
"""

from __future__ import annotations

from typing import ClassVar, Final

from mypy_extensions import i64

from broker.errors import PreconditionFailed
from broker.messages.message import Properties
from broker.queues.duplicate_filter import TTL, TTL_MAX, DuplicateFilter
from broker.routing.binding import Binding
from broker.routing.exchanges.base import Exchange, ExchangeOptions

SIZE: Final = "x-cache-size"
PERSISTENCE: Final = "x-cache-persistence"
#: The largest number of values that an exchange remembers, which take up to 200 MB.
SIZE_MAX: Final = 1_000_000


class DeduplicationExchange(Exchange):
    """A fanout exchange that drops a message with a known value of `x-deduplication-header`.

    The exchange remembers the values of the messages that it has routed.
    """

    kind: ClassVar[str] = "x-message-deduplication"
    hash_kind: ClassVar[str] = "DeduplicationExchange"
    by_headers: ClassVar[bool] = True

    def __init__(self, name: str, options: ExchangeOptions, known: DuplicateFilter) -> None:
        super().__init__(name, options)
        self.filter = known

    @property
    def uses_keys(self) -> bool:
        return False

    def match(self, key: str, properties: Properties) -> list[Binding]:
        return [] if self.filter.repeats(properties) else self.all_bindings()

    def memory_bytes(self) -> i64:
        return super().memory_bytes() + self.filter.memory_bytes()


def cache_arguments(where: str, options: ExchangeOptions) -> tuple[int, int]:
    """Return how many header values an exchange remembers, and for how many ms (0: no time limit).

    Both numbers come from the arguments of the exchange. `where` names the exchange in the error.
    Raises PreconditionFailed if one of the numbers is invalid.
    """
    size = _number(where, options, SIZE, SIZE_MAX)
    ttl = _number(where, options, TTL, TTL_MAX) if TTL in options.arguments else 0
    persistence = options.arguments.get(PERSISTENCE, "memory")
    if persistence != "memory":
        raise PreconditionFailed(
            f"invalid arg '{PERSISTENCE}' {where}: must be 'memory', not {persistence!r}"
        )
    return size, ttl


def _number(where: str, options: ExchangeOptions, argument: str, most: int) -> int:
    value = options.arguments.get(argument)
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 16:
        value = int(value)  # The plugin's documentation declares its arguments as texts.
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= most:
        raise PreconditionFailed(
            f"invalid arg '{argument}' {where}: must be a whole number from 1 to {most}, not "
            f"{value!r}"
        )
    return value
