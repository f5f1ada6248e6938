"""The filter of an `x-message-deduplication` exchange, which remembers header values.

The filter holds no messages. Its class is derived from Queue only because the search for the
destinations of a message finds queues and subscribers. A Plan keeps its filters apart from its
queues.

The filter remembers a hash of each header value, so all entries have the same size. As in
RabbitMQ's plugin by default, the entries are in memory only: after a restart the filter is empty.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

from mypy_extensions import i64

from broker.agenda import Agenda
from broker.eviction import evict_oldest
from broker.messages.message import Properties
from broker.queues.queue import Queue
from broker.store.contract import Store

#: The header whose value identifies a message, and the header with a message's own time to live.
HEADER: Final = "x-deduplication-header"
TTL: Final = "x-cache-ttl"
#: The longest time to live in ms. A longer time is shortened to TTL_MAX.
TTL_MAX: Final = 1 << 50
#: Estimated memory of an entry in bytes: its hash, its expiry, and its place in a dict.
ENTRY_SIZE: Final[i64] = 200
#: Largest number of expired entries that are removed with each new entry. It must be above 1: with
#: 2, the filter shrinks while entries expire.
_EXPIRED_REMOVED: Final = 2


class DuplicateFilter(Queue):
    """A filter that remembers the `x-deduplication-header` of messages that an exchange routed.

    A value of the header expires `ttl` ms after it was recorded, or never if `ttl` is 0. A filter
    with `size` values is full, and evicts the value that was recorded first.
    """

    def __init__(
        self, vhost: str, name: str, agenda: Agenda, store: Store, size: int, ttl: int
    ) -> None:
        super().__init__(vhost, name, agenda, store, False)
        self._size = size
        self._ttl = ttl
        #: Expiry of each value in ms of the agenda's clock, by its hash; 0 for never.
        self._expires: dict[bytes, int] = {}

    @property
    def entries(self) -> int:
        """The number of values, including expired values that are not removed yet."""
        return len(self._expires)

    def memory_bytes(self) -> i64:
        return ENTRY_SIZE * len(self._expires)

    def repeats(self, properties: Properties) -> bool:
        """True if the filter remembers this message's value of `x-deduplication-header`."""
        headers = properties.get("headers")
        if not self._expires or not isinstance(headers, dict) or HEADER not in headers:
            return False
        expires = self._expires.get(hash_value(headers[HEADER]))
        return expires is not None and (expires == 0 or expires > self.agenda.now)

    def record(self, properties: Properties) -> None:
        """Remember the message's value of `x-deduplication-header`, if it has this header.

        If the filter remembers the value already, do nothing: the expiry of the value stays the
        same.
        """
        headers = properties.get("headers")
        if not isinstance(headers, dict) or HEADER not in headers or self.repeats(properties):
            return
        known, now = self._expires, int(self.agenda.now)
        ttl = headers.get(TTL)
        if not isinstance(ttl, int) or isinstance(ttl, bool) or ttl <= 0:
            ttl = self._ttl
        value = hash_value(headers[HEADER])
        known.pop(value, None)
        known[value] = now + min(ttl, TTL_MAX) if ttl else 0
        for _ in range(_EXPIRED_REMOVED):
            oldest = next(iter(known.values()))
            if 0 < oldest <= now:
                evict_oldest(known)
        if len(known) > self._size:
            evict_oldest(known)


def hash_value(value: object) -> bytes:
    """Return a 16-byte hash of a header value and its type: the hashes of 1 and "1" differ."""
    text = f"{type(value).__name__} {value!a}".encode()
    return blake2b(text, digest_size=16).digest()
