"""The consistent-hash exchange: each message to one of the bindings, equal keys to the same one
(RabbitMQ's `x-consistent-hash`).

Rendezvous hashing with weights: every binding draws a number from (its own name, the message's
key), and the highest draw, stretched by the binding's weight, wins. So the shares are exactly as
the weights, a binding that comes or goes moves only what it wins or won, and the answer does not
depend on the order in which bindings came: after a restart it is the same. (D. G. Thaler, C. V.
Ravishankar: Using name-based mappings to increase hit rates, 1998.)

A binding's name is its destination's `hash_kind` and name, and its own identity. It contains no
name of a class, so that a release that renames classes does not move messages to other queues.
"""

from __future__ import annotations

import math
import zlib
from typing import ClassVar, Final

from mypy_extensions import i64

from broker.errors import PreconditionFailed
from broker.messages.message import Properties
from broker.routing.binding import Binding
from broker.routing.exchanges.base import Exchange, ExchangeOptions

#: The largest weight.
WEIGHT_MAX: Final = 1_000_000
_PROPERTIES: Final = ("correlation_id", "message_id", "timestamp")
_MASK: Final[i64] = 0xFFFF_FFFF


class HashShare:
    """A binding with its seed and weight."""

    __slots__ = ("binding", "seed", "weight")

    def __init__(self, binding: Binding) -> None:
        self.binding = binding
        self.weight = float(binding.key)
        self.seed: i64 = zlib.crc32(
            f"{binding.destination.hash_kind} {binding.destination.name} {binding.identity}".encode(
                "utf-8", "surrogateescape"
            )
        )


class ConsistentHashExchange(Exchange):
    """A binding key is a weight.

    The routing key decides, or the header or property that the exchange names.
    """

    kind: ClassVar[str] = "x-consistent-hash"
    hash_kind: ClassVar[str] = "ConsistentHashExchange"
    by_headers: ClassVar[bool] = True

    def __init__(self, name: str, options: ExchangeOptions) -> None:
        super().__init__(name, options)
        header, of = options.arguments.get("hash-header"), options.arguments.get("hash-property")
        if header is not None and of is not None:
            raise PreconditionFailed("hash-header and hash-property are mutually exclusive")
        if header is not None and not isinstance(header, str):
            raise PreconditionFailed(f"invalid arg 'hash-header' for exchange '{name}': not a text")
        if of is not None and of not in _PROPERTIES:
            raise PreconditionFailed(
                f"Unsupported property: {of}; supported are {', '.join(_PROPERTIES)}"
            )
        self._header = header if isinstance(header, str) else None
        self._property = of if isinstance(of, str) else None
        self._shares: dict[Binding, HashShare] = {}

    def check(self, binding: Binding) -> None:
        key = binding.key
        if not key.removeprefix("-").isdecimal() or not key.isascii():
            raise PreconditionFailed(f"The binding key must be an integer: '{key}'")
        if not 0 < int(key) <= WEIGHT_MAX:
            raise PreconditionFailed(
                f"The binding key must be greater than 0 and at most {WEIGHT_MAX}: '{key}'"
            )

    def added(self, binding: Binding) -> None:
        self._shares[binding] = HashShare(binding)

    def removed(self, binding: Binding) -> None:
        del self._shares[binding]

    def match(self, key: str, properties: Properties) -> list[Binding]:
        mark = self._mark(key, properties)
        best: Binding | None = None
        highest = 0.0
        for share in self._shares.values():
            if share.binding.destination.dead:
                continue
            # -ln(draw) / weight is exponentially distributed, and the least of such is each one's
            # in the share of its weight.
            score = share.weight / -math.log(
                (float(mixed(mark, share.seed)) + 0.5) / 4_294_967_296.0
            )
            if score > highest:
                best, highest = share.binding, score
        return [] if best is None else [best]

    def _mark(self, key: str, properties: Properties) -> i64:
        if self._header is not None:
            headers = properties.get("headers")
            key = repr(headers.get(self._header)) if isinstance(headers, dict) else "None"
        elif self._property is not None:
            key = repr(properties.get(self._property))
        return zlib.crc32(key.encode("utf-8", "surrogateescape"))


def mixed(mark: i64, seed: i64) -> i64:
    """32 bits that depend on every bit of both.

    (Both below 2**32, so that no product leaves 63 bits.)
    """
    mixing: i64 = mark ^ (seed * 0x1E35_A7BD & _MASK)
    mixing = (mixing >> 16 ^ mixing) * 0x45D9_F3B & _MASK
    mixing = (mixing >> 16 ^ mixing ^ seed) * 0x45D9_F3B & _MASK
    mixing = (mixing >> 15 ^ mixing) * 0x2C1B_3C6D & _MASK
    return mixing >> 16 ^ mixing
