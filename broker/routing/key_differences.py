"""Finds the one small difference because of which a binding does not match a message.

The functions are called for very many bindings, so the cheap comparisons come first. The result for
a binding that matches the message is undefined: the caller asks only about bindings that do not
match.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from matching.fields.criteria import PRESENT, Criteria, Fields, token
from matching.grammar import AMQP, Grammar, swap

#: Kinds of differences, the most probable mistake first: upper and lower case; `/` instead of `.`;
#: an empty word, such as at a leading separator; the value of a header; one character of a word;
#: one word more; one word less.
CASE: Final = "case"
SEPARATOR: Final = "separator"
EMPTY_WORD: Final = "empty_word"
HEADER: Final = "header"
CHARACTER: Final = "character"
MORE: Final = "more_words"
LESS: Final = "fewer_words"
KINDS: Final = (CASE, SEPARATOR, EMPTY_WORD, HEADER, CHARACTER, MORE, LESS)

#: The noun of a routing key that an MQTT client publishes.
TOPIC: Final = "topic"
#: The value of a header that a message does not have.
_ABSENT: Final = object()
#: Least length in characters of a word that may differ by one character; otherwise `a` would
#: resemble `b`.
_WORD_MIN: Final = 2


class NearDifference:
    """The one difference for which a binding does not match: its kind, and a text for operators.

    The text says what would have to change.
    """

    def __init__(self, kind: str, text: str) -> None:
        self.kind = kind
        self.text = text


class KeyComparison:
    """A routing key that is compared with binding keys of one grammar.

    `noun` is the word for the routing key in texts for operators, such as "topic".
    """

    def __init__(self, grammar: Grammar, key: str, noun: str) -> None:
        self._noun = noun
        self._one = grammar.one
        self._many = grammar.many
        self._separator = grammar.separator
        self._other = "/" if grammar is AMQP else "."
        self._key = key if grammar is AMQP else swap(key)
        self._words = self._key.split(self._separator)
        self._folded = self._key.casefold()
        self._folded_words = self._folded.split(self._separator)
        self._has_other = self._other in self._key
        self._uniform = self._key.replace(self._other, self._separator).split(self._separator)
        self._size = len(self._key)

    def difference(self, binding_key: str, wildcards: bool) -> NearDifference | None:
        """Return the one difference between the routing key and a binding key.

        Return None if there are several differences or no difference.

        `wildcards` is True if the exchange is a topic exchange.
        """
        has_many = self._many in binding_key
        has_wildcard = has_many or self._one in binding_key
        is_mixed = self._has_other or self._other in binding_key
        if not wildcards or not has_wildcard:
            if len(binding_key) == self._size and binding_key.casefold() == self._folded:
                return _of_case(self._key, binding_key)
            if has_wildcard:
                # A direct exchange compares `*` and `#` literally, so this binding key is no near
                # miss.
                return None
        words = binding_key.split(self._separator)
        difference = self._other_separator(binding_key, words) if is_mixed else None
        if difference is not None:
            return difference
        if has_many and self._many in words:
            return self._open_difference(words)
        gap: i64 = len(words) - len(self._words)
        return self._plain_difference(words) if -2 < gap < 2 else None

    def _other_separator(self, binding_key: str, words: list[str]) -> NearDifference | None:
        """Return the difference if the keys differ only in the separators `/` and `.`.

        Return None if the keys are equal, or differ in anything else.
        """
        uniform = words
        if self._other in binding_key:
            uniform = binding_key.replace(self._other, self._separator).split(self._separator)
        if not self._matches(uniform, self._uniform):
            return None
        theirs = self._separator if self._has_other else self._other
        mine = self._other if self._has_other else self._separator
        if (self._separator == AMQP.separator) == (self._noun == TOPIC):
            theirs, mine = mine, theirs
        return NearDifference(
            SEPARATOR,
            f"the binding would match if the {self._noun} had '{theirs}' instead of '{mine}'",
        )

    def _matches(self, pattern: list[str], words: list[str]) -> bool:
        """True if the pattern matches the words. False for a pattern with several `#` wildcards."""
        one, many = self._one, self._many
        if many in pattern:
            at = pattern.index(many)
            tail = pattern[at + 1 :]
            if len(words) < at + len(tail) or many in tail:
                return False
            return self._matches(pattern[:at], words[:at]) and self._matches(
                tail, words[len(words) - len(tail) :]
            )
        if len(pattern) != len(words):
            return False
        for number, wanted in enumerate(pattern):
            if wanted != words[number] and wanted != one:
                return False
        return True

    def _agreeing(self, pattern: list[str], words: list[str]) -> i64:
        """Return the number of words at the beginning that match the pattern."""
        one = self._one
        count: i64 = 0
        most: i64 = len(pattern)
        if len(words) < most:
            most = len(words)
        while count < most and (pattern[count] == words[count] or pattern[count] == one):
            count += 1
        return count

    def _plain_difference(self, pattern: list[str]) -> NearDifference | None:
        """Return the one difference between the routing key and a pattern without `#`.

        The pattern has the length of the routing key, or one word more or less. Return None if
        there are several differences or no difference.
        """
        words = self._words
        size: i64 = len(words)
        wanted: i64 = len(pattern)
        front: i64 = self._agreeing(pattern, words)
        if wanted == size:
            if front == size:
                return None
            if self._agrees_to_end(pattern, words, front + 1, front + 1):
                return self._of_word(pattern[front], words[front], int(front))
            return self._of_all_case(pattern)
        if wanted > size:
            if not self._agrees_to_end(pattern, words, front + 1, front):
                return None
            if self._size == 0 and (pattern[front] == "" or self._one in pattern):
                # An empty routing key has no word, not one empty word. After the removal of one
                # separator, the binding key would still require a word.
                return None
            return self._of_more(pattern[front])
        if not self._agrees_to_end(pattern, words, front, front + 1):
            return None
        if size == 2 and words[1 - front] == "":
            return None  # Without a word, the routing key would be empty.
        return self._of_less(words[front])

    def _agrees_to_end(self, pattern: list[str], words: list[str], mine: i64, theirs: i64) -> bool:
        """True if pattern[mine:] matches words[theirs:], which has the same length."""
        one = self._one
        size: i64 = len(pattern)
        while mine < size:
            if pattern[mine] != words[theirs] and pattern[mine] != one:
                return False
            mine += 1
            theirs += 1
        return True

    def _of_word(self, wanted: str, given: str, place: int) -> NearDifference | None:
        """Return the difference between the word `given` of the routing key and `wanted`.

        `wanted` is the word of the binding key at the same index, and `place` is this index. Return
        None if the words differ in more than case or one character, or if they are too short.
        """
        if len(wanted) == len(given) and wanted.casefold() == given.casefold():
            return _of_case(given, wanted)
        if wanted == "" or given == "" or not _is_one_change(wanted, given):
            return None
        return NearDifference(
            CHARACTER,
            f"the binding would match if word {place + 1} of the {self._noun} were '{wanted}', "
            f"not '{given}'",
        )

    def _of_all_case(self, pattern: list[str]) -> NearDifference | None:
        """Return the difference if the keys differ only in upper and lower case; None otherwise."""
        one, folded = self._one, self._folded_words
        for number, wanted in enumerate(pattern):
            if wanted != one and wanted.casefold() != folded[number]:
                return None
        return _of_case(self._key, self._separator.join(pattern))

    def _open_difference(self, pattern: list[str]) -> NearDifference | None:
        """Return the one difference between the routing key and a pattern with one `#`.

        Return None if there are several differences or no difference.
        """
        at = pattern.index(self._many)
        head, tail = pattern[:at], pattern[at + 1 :]
        words = self._words
        if self._many in tail:
            return None
        missing = len(head) + len(tail) - len(words)
        if missing == 1:
            return self._plain_difference(head + tail)
        if missing > 1:
            return None
        whole = head + words[at : len(words) - len(tail)] + tail
        difference = self._plain_difference(whole)
        if difference is None and self._matches_shifted(head, words, tail):
            front = self._agreeing(head, words)
            difference = self._of_less(words[front])
        return difference

    def _matches_shifted(self, head: list[str], words: list[str], tail: list[str]) -> bool:
        """True if the pattern `head`, `#`, `tail` matches `words` without one of the words.

        The word to leave out is the first word that does not match the word of `head` at its
        position.
        """
        front = self._agreeing(head, words)
        if front == len(head) or len(words) - 1 < len(head) + len(tail):
            return False
        rest = words[:front] + words[front + 1 :]
        # A rest of one empty word is the empty routing key, which has no word.
        return rest != [""] and self._matches([*head, self._many, *tail], rest)

    def _of_more(self, word: str) -> NearDifference:
        if word == "":
            return NearDifference(
                EMPTY_WORD,
                "the binding key has one separator too many: at its beginning, at its end, or two "
                "in a row",
            )
        return NearDifference(
            MORE, f"the binding would match if the {self._noun} had one more word"
        )

    def _of_less(self, word: str) -> NearDifference:
        if word == "":
            return NearDifference(
                EMPTY_WORD,
                f"the {self._noun} has one separator too many: at its beginning, at its end, or "
                "two in a row",
            )
        return NearDifference(
            LESS,
            f"the binding would match if the {self._noun} had one word less (without '{word}')",
        )


def _of_case(given: str, wanted: str) -> NearDifference:
    return NearDifference(
        CASE,
        f"only upper and lower case differ: the binding would match '{wanted}', not '{given}'",
    )


def _is_one_change(first: str, second: str) -> bool:
    """True if one change of a character turns `first` into `second`.

    A change adds, removes or replaces a character, or exchanges two neighbouring characters. False
    if both words have fewer than _WORD_MIN characters.
    """
    if len(first) > len(second):
        first, second = second, first
    if len(second) - len(first) > 1 or len(second) < _WORD_MIN:
        return False
    at = 0
    while at < len(first) and first[at] == second[at]:
        at += 1
    if len(first) < len(second):
        return first[at:] == second[at + 1 :]
    if first[at + 1 :] == second[at + 1 :]:
        return True
    return first[at : at + 2] == second[at : at + 2][::-1] and first[at + 2 :] == second[at + 2 :]


class HeaderComparison:
    """The headers of a message, which are compared with the arguments of many bindings."""

    def __init__(self, headers: Fields) -> None:
        # A dict: compiled code takes ten times as long for a Mapping.
        self._headers: dict[str, object] = dict(headers)
        # Most kinds of `x-match` ignore headers whose names begin with `x-`.
        self._special = frozenset([name for name in headers if name.startswith("x-")])

    def similar(self, many: list[Fields]) -> list[int]:
        """Return the indices of the bindings that may be near misses of the message.

        `many` has the arguments of the bindings. An index is returned if at most one header seems
        to keep the binding from matching.
        """
        given, special = self._headers, self._special
        indices: list[int] = []
        for number, arguments in enumerate(many):
            wanted: dict[str, object] = (
                arguments if isinstance(arguments, dict) else dict(arguments)
            )
            different: i64 = 0
            for name, value in wanted.items():
                theirs = given.get(name, _ABSENT)
                if theirs == value or value is None:
                    continue
                if theirs is _ABSENT:
                    if name.startswith("x-") or wanted.get("x-match") in ("any", "any-with-x"):
                        continue
                elif name in special:
                    continue
                different += 1
                if different > 1:
                    break
            else:
                indices.append(number)
        return indices

    def difference(self, arguments: Fields) -> NearDifference | None:
        """Return the difference in the one header that keeps a binding from matching the message.

        `arguments` are the arguments of the binding. Return None if several headers would have to
        change.
        """
        headers = self._headers
        criteria = Criteria(arguments)
        failing = ""
        for name, wanted in criteria.wanted.items():
            if name in headers and (wanted is PRESENT or wanted == token(headers[name])):
                continue
            if criteria.any and name not in headers:
                continue
            if failing:
                return None
            failing = name
        if not failing:
            return None
        value = arguments[failing]
        if failing not in headers:
            value_text = "" if value is None else f" to {value!r}"
            return NearDifference(
                HEADER,
                f"the binding would match if the missing header '{failing}' were set{value_text}",
            )
        return NearDifference(
            HEADER,
            f"the binding would match if the header '{failing}' were {value!r}, "
            f"not {headers[failing]!r}",
        )
