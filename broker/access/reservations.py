"""Client identifiers that rules reserve for users.

    reserve client dev7              one identifier
    reserve client {username}-*      all identifiers that begin with the user's name and `-`

These rules are in the list of a user's topic rules for a virtual host. Only users with a matching
rule may connect with such an identifier, so no other user can take the identifier before its device
connects. If several rules match, the most specific rule decides: the identifier itself, or else the
longest prefix. So the user `dev` with the second rule cannot take the identifier `dev-a-1` from the
user `dev-a` with the same rule. Each login looks up its identifier once. The time of the lookup
does not grow with the number of users.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

_VARIABLE: Final = re.compile(r"(\{username\}|\{vhost\})")
#: The words with which a rule that reserves client identifiers begins.
_BEGINNING: Final = ("reserve", "client")
#: The last character of a pattern that reserves all identifiers with a prefix.
_ANY: Final = "*"
#: Length of the longest pattern, in characters. This length bounds the number of prefixes that one
#: lookup tries.
PATTERN_MAX: Final = 255


class Reservation:
    """One rule that reserves client identifiers, with its variables replaced.

    Raises ValueError if the text is not a valid rule of this kind.
    """

    def __init__(self, text: str, user: str, vhost: str) -> None:
        words = text.split(maxsplit=2)
        pattern = words[2].rstrip() if len(words) == 3 else ""
        #: True if the rule reserves all identifiers that begin with `name`.
        self.prefix = pattern.endswith(_ANY)
        pattern = pattern.removesuffix(_ANY)
        if tuple(words[:2]) != _BEGINNING or not pattern or len(pattern) > PATTERN_MAX:
            raise ValueError(
                f"'{text}' is not a rule such as 'reserve client {{username}}-*': the third word "
                f"must be a client identifier of 1 to {PATTERN_MAX} characters, or a prefix and '*'"
            )
        values = {"{username}": user, "{vhost}": vhost}
        #: The identifier, or the prefix. All variables are replaced at once, as in topic rules.
        self.name = "".join([values.get(part, part) for part in _VARIABLE.split(pattern)])


def is_reservation(text: str) -> bool:
    """True if the text begins with `reserve`, as a rule that reserves client identifiers does."""
    return text.split(maxsplit=1)[:1] == [_BEGINNING[0]]


class Reservations:
    """The reserved client identifiers of all users."""

    def __init__(self) -> None:
        #: Users by reserved identifier: (virtual host, identifier or prefix, True for a prefix) ->
        #: users.
        self._users: dict[tuple[str, str, bool], list[str]] = {}
        #: (virtual host, user) -> the keys of the user's reservations in `_users`.
        self._keys: dict[tuple[str, str], list[tuple[str, str, bool]]] = {}
        #: Virtual host -> length of a prefix -> number of entries with such a prefix.
        self._lengths: dict[str, dict[int, int]] = {}

    @property
    def empty(self) -> bool:
        """True if no client identifier is reserved."""
        return not self._users

    def replace(self, user: str, vhost: str, rules: Sequence[str]) -> None:
        """Replace a user's reservations in a virtual host.

        `rules` are all topic rules of the user; rules that reserve no identifier are ignored.
        """
        for key in self._keys.pop((vhost, user), ()):
            users = self._users[key]
            users.remove(user)
            if not users:
                del self._users[key]
            if key[2]:
                self._count(vhost, len(key[1]), -1)
        reservations = [Reservation(text, user, vhost) for text in rules if is_reservation(text)]
        keys = list(dict.fromkeys((vhost, one.name, one.prefix) for one in reservations))
        for key in keys:
            self._users.setdefault(key, []).append(user)
            if key[2]:
                self._count(vhost, len(key[1]), 1)
        if keys:
            self._keys[vhost, user] = keys

    def _count(self, vhost: str, length: int, change: int) -> None:
        lengths = self._lengths.setdefault(vhost, {})
        lengths[length] = lengths.get(length, 0) + change
        if not lengths[length]:
            del lengths[length]
        if not lengths:
            del self._lengths[vhost]

    def find(self, vhost: str, client_id: str) -> tuple[int, list[str]]:
        """Return the rank of the most specific rules that match an identifier, and the users that
        have these rules.

        The rank of a rule with a prefix is the length of the prefix. The rank of a rule that names
        the identifier itself is higher. If no rule matches, the rank is 0 and the list is empty.
        """
        exact = self._users.get((vhost, client_id, False))
        if exact is not None:
            return len(client_id) + 1, list(exact)
        for length in sorted(self._lengths.get(vhost, ()), reverse=True):
            if length <= len(client_id):
                users = self._users.get((vhost, client_id[:length], True))
                if users is not None:
                    return length, list(users)
        return 0, []

    def users(self, vhost: str, client_id: str) -> list[str]:
        """Return the users for which an identifier is reserved; empty if no rule reserves it."""
        return self.find(vhost, client_id)[1]
