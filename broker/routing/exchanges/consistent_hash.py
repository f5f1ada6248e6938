"""The consistent-hash exchange (RabbitMQ's `x-consistent-hash`).

This exchange routes each message to one of its bindings, and messages with equal keys to the same
binding.

Rendezvous hashing with weights: for each message key, each binding gets a score, computed from a
hash of the binding's seed and the key, and from the binding's weight. The binding with the highest
score gets the message. So each binding gets messages in proportion to its weight; a binding that is
added or removed moves only its own messages; and the result does not depend on the order of the
bindings, so the result is the same after a restart. (D. G. Thaler, C. V. Ravishankar: Using
name-based mappings to increase hit rates, 1998.)

The seed is a hash of the destination's `hash_kind`, the destination's name and the binding's
identity. All three are stable: a policy, a restart or a renamed class moves no messages to other
queues.
"""

from __future__ import annotations

import math
import zlib
from typing import ClassVar, Final

from mypy_extensions import i64

from broker.errors import PreconditionFailed
from broker.messages.message import Properties
from broker.queues.queue import Queue
from broker.routing.binding import Binding
from broker.routing.exchanges.base import Exchange, ExchangeOptions
from matching.matcher import Search

#: The largest weight of a binding.
WEIGHT_MAX: Final = 1_000_000
#: Number of scores that count as one step of a search. A score takes 25 to 65 ns, compiled.
SHARES_PER_STEP: Final = 4
#: Largest number of bindings for which a match is done in one turn, which then takes up to 1 ms.
DIRECT_SHARES: Final = 16_384
_PROPERTIES: Final = ("correlation_id", "message_id", "timestamp")
_MASK: Final[i64] = 0xFFFF_FFFF


class HashShare:
    """A binding with its weight and the seed of its hash."""

    __slots__ = ("binding", "seed", "weight")

    def __init__(self, binding: Binding) -> None:
        self.binding = binding
        self.weight = float(binding.key)
        destination = binding.destination
        kind = destination.hash_kind
        if isinstance(destination, Queue):
            kind = destination.arguments.hash_kind
        self.seed: i64 = zlib.crc32(
            f"{kind} {destination.name} {binding.identity}".encode("utf-8", "surrogateescape")
        )


class ConsistentHashExchange(Exchange):
    """An exchange that routes each message to one binding, by a hash of its key.

    The binding key is the weight. The key of a message is its routing key, or the header or
    property that the arguments of the exchange name.
    """

    kind: ClassVar[str] = "x-consistent-hash"
    hash_kind: ClassVar[str] = "ConsistentHashExchange"
    by_headers: ClassVar[bool] = True

    def __init__(self, name: str, options: ExchangeOptions) -> None:
        super().__init__(name, options)
        header = options.arguments.get("hash-header")
        property_name = options.arguments.get("hash-property")
        if header is not None and property_name is not None:
            raise PreconditionFailed(
                f"exchange '{name}' can have only one of the arguments 'hash-header' and "
                "'hash-property': remove one of them"
            )
        if header is not None and not isinstance(header, str):
            raise PreconditionFailed(
                f"invalid arg 'hash-header' for exchange '{name}': must be a string"
            )
        if property_name is not None and property_name not in _PROPERTIES:
            raise PreconditionFailed(
                f"invalid arg 'hash-property' for exchange '{name}': must be one of "
                f"{', '.join(_PROPERTIES)}, not {property_name!r}"
            )
        self._header = header if isinstance(header, str) else None
        self._property = property_name if isinstance(property_name, str) else None
        self._shares: dict[Binding, HashShare] = {}

    def check(self, binding: Binding) -> None:
        key = binding.key
        if not key.removeprefix("-").isdecimal() or not key.isascii():
            raise PreconditionFailed(
                f"invalid binding key '{key}' for exchange '{self.name}': must be a whole number, "
                "the weight of the binding"
            )
        if not 0 < int(key) <= WEIGHT_MAX:
            raise PreconditionFailed(
                f"invalid binding key '{key}' for exchange '{self.name}': "
                f"the weight must be from 1 to {WEIGHT_MAX}"
            )

    def added(self, binding: Binding) -> None:
        self._shares[binding] = HashShare(binding)

    def removed(self, binding: Binding) -> None:
        del self._shares[binding]

    @property
    def needs_search(self) -> bool:
        return len(self._shares) > DIRECT_SHARES

    @property
    def uses_keys(self) -> bool:
        return self._header is None and self._property is None

    @property
    def lookup_steps(self) -> i64:
        return 0 if self.needs_search else len(self._shares) // SHARES_PER_STEP

    def match(self, key: str, properties: Properties) -> list[Binding]:
        bindings: list[Binding] = []
        search = self._search(key, properties, bindings)
        while not search.done:
            search.advance(DIRECT_SHARES)
        return bindings

    def searches(
        self, key: str, properties: Properties, bindings: list[Binding]
    ) -> list[Search[Binding]]:
        return [self._search(key, properties, bindings)]

    def _search(self, key: str, properties: Properties, bindings: list[Binding]) -> HashSearch:
        return HashSearch(list(self._shares.values()), self._key_hash(key, properties), bindings)

    def _key_hash(self, key: str, properties: Properties) -> i64:
        """Return a 32-bit hash of the routing key, or of the chosen header or property.

        The value is converted with `ascii`, because the characters that `repr` escapes depend on
        Python's version.
        """
        if self._header is not None:
            headers = properties.get("headers")
            key = ascii(headers.get(self._header)) if isinstance(headers, dict) else "None"
        elif self._property is not None:
            key = ascii(properties.get(self._property))
        return zlib.crc32(key.encode("utf-8", "surrogateescape"))


class HashSearch(Search[Binding]):
    """The search for the binding with the highest score, which can pause."""

    __slots__ = ("_best", "_highest", "_key_hash", "_next", "_shares")

    def __init__(self, shares: list[HashShare], key_hash: i64, bindings: list[Binding]) -> None:
        super().__init__(bindings)
        self._shares = shares
        self._key_hash: i64 = key_hash
        self._next: i64 = 0
        self._best: Binding | None = None
        self._highest = 0.0

    def advance(self, steps: int) -> int:
        shares, key_hash = self._shares, self._key_hash
        first: i64 = self._next
        last: i64 = min(len(shares), first + max(1, steps) * SHARES_PER_STEP)
        highest = self._highest
        at: i64 = first
        while at < last:
            share = shares[at]
            at += 1
            if share.binding.destination.dead:
                continue
            # For a uniform hash in (0, 1), -ln(hash) / weight is exponentially distributed. Each
            # binding has the least of these values with a probability proportional to its weight.
            # The score is the reciprocal.
            score = share.weight / -math.log(
                (float(mixed(key_hash, share.seed)) + 0.5) / 4_294_967_296.0
            )
            if score > highest:
                self._best, highest = share.binding, score
        self._highest = highest
        self._next = last
        if last == len(shares):
            self.done = True
            if self._best is not None:
                self.subscribers.append(self._best)
        return steps - int((last - first) // SHARES_PER_STEP)


def mixed(key_hash: i64, seed: i64) -> i64:
    """Return a 32-bit hash of two 32-bit numbers, which depends on each of their bits.

    The multipliers have at most 31 bits, so that no product exceeds 63 bits.
    """
    mixing: i64 = key_hash ^ (seed * 0x1E35_A7BD & _MASK)
    mixing = (mixing >> 16 ^ mixing) * 0x45D9_F3B & _MASK
    mixing = (mixing >> 16 ^ mixing ^ seed) * 0x45D9_F3B & _MASK
    mixing = (mixing >> 15 ^ mixing) * 0x2C1B_3C6D & _MASK
    return mixing >> 16 ^ mixing
