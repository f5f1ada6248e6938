"""Finds binding keys that may differ from a routing key in one small change: a fast filter.

    sensors.kitchen.temp      routing key
    sensors.kitchen.tmep      passes: only `tmep` is unknown, and it resembles `temp`
    *.kitchen                 passes: no word is unknown, and the binding key has one word less
    sensors.cellar.temp       rejected: `cellar` is unknown, and does not resemble `kitchen`
    orders.new.#              rejected: two words, `orders` and `new`, are unknown

A word of a binding key is unknown if the routing key does not contain it. The filter ignores the
difference between upper and lower case, and between the separators `.` and `/`. So it can convert
many binding keys of both grammars at once, by a few methods of str. A binding key that passes may
still be no near miss: key_differences.py compares it exactly.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

_ONE: Final = "*"
_MANY: Final = "#"
#: Number of characters between the two halves of a key, so that an exchange of two neighbouring
#: characters cannot change both halves. _GAP_UNICODE is for keys that are not ASCII, because
#: `casefold` may turn one character into three.
_GAP: Final = 1
_GAP_UNICODE: Final = 5


class NearKeyFilter:
    """The filter of binding keys that resemble one routing key.

    `wildcards` is False if `*` and `#` in a binding key stand for themselves, as in a direct
    exchange.

    Both `.` and `/` separate words here, so the AMQP word `a/b` counts as two words. The filter may
    therefore miss a binding key that differs from the routing key only in such a word.
    """

    __slots__ = (
        "_ends",
        "_halves_end",
        "_halves_start",
        "_known",
        "_starts",
        "_wildcards",
        "_words",
        "only_fewer_words",
    )

    def __init__(self, key: str, wildcards: bool = True) -> None:
        self._wildcards = wildcards
        whole = _uniform(key)
        self._words = whole.split(".")
        # One change alters only one half of a key, except the removal of a word that reaches into
        # both halves.
        half = len(whole) // 2
        first, last = whole[:half], whole[half + (_GAP if whole.isascii() else _GAP_UNICODE) :]
        self._halves_end = last
        self._halves_start = (
            first,
            *[
                one
                for one in _without_each_word(key)
                if not one.startswith(first) and not one.endswith(last)
            ],
        )
        self._known = frozenset([*self._words, _ONE, _MANY])
        # One change leaves the beginning or the end of a word as it was. The character between
        # these two parts is in neither part: otherwise the exchange of two neighbours could change
        # both.
        self._starts = [word[: len(word) // 2] for word in self._words]
        self._ends = [word[len(word) // 2 + 1 :] for word in self._words]
        #: True if a binding key with one additional word passes only if this word is empty.
        self.only_fewer_words = False

    def passing(self, keys: list[str]) -> list[int]:
        """Return the indices of the keys in `keys` that may be near misses of the routing key."""
        whole = "\n".join(keys)
        folded = _uniform(whole)
        if folded == whole:
            same = keys
        else:
            same = folded.split("\n")
            if len(same) != len(keys):  # A key contains a line feed.
                same = [_uniform(key) for key in keys]
        known = self._known
        size: i64 = len(self._words)
        indices: list[int] = []
        plain = not self._wildcards
        starts, end = self._halves_start, self._halves_end
        for number, key in enumerate(same):
            many = _MANY in key
            if (
                (plain or not many and _ONE not in key)
                and not key.startswith(starts)
                and not key.endswith(end)
            ):
                continue
            words = key.split(".")
            gap: i64 = len(words) - size
            if many and _MANY in words:
                gap -= 1
                if gap < -1:
                    gap = 0  # The wildcard stands for the missing words.
            if gap > 1 or gap < -1:
                continue
            unknown: str | None = None
            for word in words:
                if word not in known:
                    if unknown is not None:
                        break
                    unknown = word
            else:
                if unknown is not None:
                    if gap == 1:
                        if self.only_fewer_words and unknown != "":
                            continue
                    elif not self._resembles(words, unknown):
                        continue
                indices.append(number)
        return indices

    def _resembles(self, words: list[str], unknown: str) -> bool:
        """True if one change may turn the word `unknown` of a binding key into the word at the
        same index of the routing key.

        `words` are the words of the binding key. After a `#`, the index is counted from the end.
        """
        at: i64 = words.index(unknown)
        size: i64 = len(self._words)
        if _MANY in words and words.index(_MANY) < at:
            at += size - len(words)
        if at < 0 or at >= size:
            return False
        word = self._words[at]
        if not unknown.isascii() or not word.isascii():
            return True  # `casefold` may turn one character into several.
        longer: i64 = len(unknown) - len(word)
        return -2 < longer < 2 and (
            unknown.startswith(self._starts[at]) or unknown.endswith(self._ends[at])
        )


def _without_each_word(key: str) -> list[str]:
    """Return all keys that result if one word of a routing key is left out, one for each word.

    The keys are in lowercase (see `_uniform`). Return an empty list for a key of one word.
    """
    words = key.split(".")
    if len(words) == 1:
        return []
    return [
        _uniform(".".join(words[:number] + words[number + 1 :])) for number in range(len(words))
    ]


def _uniform(text: str) -> str:
    """Return `text`, one or more keys, in lowercase and in the notation of AMQP.

    MQTT's `/` and `+` are replaced by AMQP's `.` and `*`.
    """
    return text.casefold().replace("/", ".").replace("+", _ONE)
