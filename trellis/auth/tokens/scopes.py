"""Scopes of tokens: permissions written as in RabbitMQ.

    read:VHOST/NAME/KEY    permission to read the queue or exchange NAME with the routing key KEY
    read:VHOST/NAME        permission to read it with every routing key

The other permissions are `write` and `configure`. `*` matches any text, and `%2F` stands for `/`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Final
from urllib.parse import unquote

from broker.access.identity import READ_ALL, READ_NONE, Identity
from broker.errors import AccessRefused

#: Largest number of `#` in a binding key by which a user may read. Binding keys with more `#` are
#: refused without a look at the scopes.
MAX_WILDCARDS: Final = 3
_VERBS: Final = ("configure", "write", "read")


class Glob:
    """A pattern in which `*` matches any text.

    The time of a match is linear in the length of the text.
    """

    __slots__ = ("_pieces",)

    def __init__(self, text: str) -> None:
        self._pieces = [unquote(piece) for piece in text.split("*")]

    @property
    def matches_all(self) -> bool:
        """True if the pattern matches every text: it has only `*`."""
        return len(self._pieces) > 1 and not any(self._pieces)

    def equals(self, text: str) -> bool:
        """True if the pattern has no `*`, and matches only `text`."""
        return self._pieces == [text]

    def matches(self, text: str) -> bool:
        """True if the pattern matches the whole text."""
        pieces = self._pieces
        if len(pieces) == 1:
            return text == pieces[0]
        first, last = pieces[0], pieces[-1]
        at, end = len(first), len(text) - len(last)
        if end < at or not text.startswith(first) or not text.endswith(last):
            return False
        for piece in pieces[1:-1]:
            start = text.find(piece, at, end)
            if start < 0:
                return False
            at = start + len(piece)
        return True


class Scope:
    """A scope of a token, parsed from VERB:VHOST/NAME[/KEY]. Raises ValueError for other texts."""

    __slots__ = ("key", "name", "text", "verb", "vhost")

    def __init__(self, text: str) -> None:
        self.text = text
        self.verb, colon, rest = text.partition(":")
        parts = rest.split("/")
        if self.verb not in _VERBS or not colon or not 2 <= len(parts) <= 3:
            raise ValueError(text)
        self.vhost, self.name, self.key = (Glob(part) for part in [*parts, "*"][:3])

    def allows(self, verb: str, name: str) -> bool:
        """True if the scope grants `verb` on the exchange or queue `name`."""
        return self.verb == verb and self.name.matches(name)


class ScopedIdentity(Identity):
    """The user of a token in one virtual host, with the scopes that match this virtual host."""

    def __init__(self, name: str, scopes: Sequence[Scope]) -> None:
        super().__init__(name, "^$", "^$", "^$")
        self._scopes = scopes
        self.weight = 1 + len(scopes)

    def may(self, operation: str, kind: str, name: str, vhost: str) -> None:
        if not any(scope.allows(operation, name) for scope in self._scopes):
            raise AccessRefused(
                f"{operation} access to {kind} '{name}' in vhost '{vhost}' refused "
                f"for user '{self.name}': no scope of the token allows this access"
            )

    def may_route(self, exchange: str, key: str, topic: bytes) -> bool:
        return self._allows("write", exchange, key)

    def may_publish_everything(self, exchange: str) -> bool:
        return any(
            scope.allows("write", exchange) and scope.key.matches_all for scope in self._scopes
        )

    def may_read_everything(self) -> bool:
        return any(
            scope.verb == "read" and scope.name.matches_all and scope.key.matches_all
            for scope in self._scopes
        )

    def read_scope(self, exchange: str, key: str, topic_filter: str, hides_dollar: bool) -> int:
        """Return READ_ALL if the token's scopes allow to read by a binding key, else READ_NONE.

        Scopes are compared with the binding key as text. A `#` in the key also matches zero words,
        so the scopes must allow the key and each shorter key without one or more of its `#`. A
        scope that is equal to the binding key allows the key without this check. Return READ_NONE
        for a key with more than MAX_WILDCARDS `#`, whatever the scopes are.
        """
        words = key.split(".")
        gaps = words.count("#")
        if gaps > MAX_WILDCARDS:
            return READ_NONE
        for kept in product((True, False), repeat=gaps):
            left = iter(kept)
            spelled = ".".join([word for word in words if word != "#" or next(left)])
            if not self._allows("read", exchange, spelled) and not self._names(
                "read", exchange, key
            ):
                return READ_NONE
        return READ_ALL

    def _allows(self, verb: str, exchange: str, key: str) -> bool:
        return any(
            scope.allows(verb, exchange) and scope.key.matches(key) for scope in self._scopes
        )

    def _names(self, verb: str, exchange: str, key: str) -> bool:
        """True if a scope of this verb names the exchange and exactly this binding key."""
        return any(scope.allows(verb, exchange) and scope.key.equals(key) for scope in self._scopes)
