"""What a pattern is and when it matches: the two grammars, and the definition every algorithm must
equal.

                  separator   one word   any words   `$` topics hidden from a leading wildcard
    AMQP            .           *          #           no
    MQTT            /           +          # (last)    yes

A topic is a list of words; a word may be empty. A wildcard is a word that is nothing but the
wildcard character. AMQP rules follow AMQP 0-9-1 section 3.1.3.3 as RabbitMQ answers it, the numbers
in brackets are those of MQTT 5.0 (3.1.1 says the same under other numbers).
"""

from __future__ import annotations

from typing import Final

#: As many levels as a topic of 65,535 octets can have; a broker asks for fewer.
MOST_LEVELS: Final = 65_536
#: An AMQP short string holds no more octets.
_AMQP_OCTETS: Final = 255
_MQTT_OCTETS: Final = 65_535
_SWAPPED: Final = str.maketrans("/.", "./")


class InvalidPattern(ValueError):
    """A pattern that its grammar does not know: which rule it breaks, at which word (counted from
    0).
    """

    def __init__(self, pattern: str, position: int, rule: str) -> None:
        super().__init__(f"invalid pattern {_short(pattern)}: {rule} (word {position})")
        self.pattern = pattern
        self.position = position
        self.rule = rule


class InvalidTopic(ValueError):
    """A topic that must not be published: which rule it breaks, at which word (counted from 0)."""

    def __init__(self, topic: str, position: int, rule: str) -> None:
        super().__init__(f"invalid topic {_short(topic)}: {rule} (word {position})")
        self.topic = topic
        self.position = position
        self.rule = rule


class Grammar:
    """The grammar of AMQP binding keys: any wildcard anywhere, and every word is a word."""

    def __init__(self, name: str, separator: str, one: str, many: str) -> None:
        self.name: Final = name
        self.separator: Final = separator
        self.one: Final = one
        self.many: Final = many
        #: Whether `hidden` may be true at all.
        self.hides = False

    def __repr__(self) -> str:
        return f"<Grammar {self.name}>"

    def split(self, topic: str) -> list[str]:
        """The words of a topic or pattern. The empty AMQP key has none."""
        return topic.split(self.separator) if topic else []

    def is_pattern(self, key: str) -> bool:
        """Whether some word of the key is a wildcard; ``a*`` is a literal word."""
        if self.one not in key and self.many not in key:
            return False
        words = key.split(self.separator)
        return self.one in words or self.many in words

    def hidden(self, topic: str) -> bool:
        """Whether no pattern that begins with a wildcard may match this topic."""
        return False

    def check(self, pattern: str, max_levels: int = MOST_LEVELS) -> None:
        """Raise InvalidPattern unless this is a pattern of the grammar with at most so many words."""
        rule = _flaw(pattern, _AMQP_OCTETS, "surrogateescape")
        if rule:
            raise InvalidPattern(pattern, 0, rule)
        if pattern.count(self.separator) >= max_levels:
            raise InvalidPattern(pattern, max_levels, _too_deep(max_levels))

    def check_topic(self, topic: str, max_levels: int = MOST_LEVELS) -> None:
        """Raise InvalidTopic unless this topic may be published and has at most so many words."""
        rule = _flaw(topic, _AMQP_OCTETS, "surrogateescape")
        if rule:
            raise InvalidTopic(topic, 0, rule)
        if topic.count(self.separator) >= max_levels:
            raise InvalidTopic(topic, max_levels, _too_deep(max_levels))

    def matches(self, pattern: str, topic: str) -> bool:
        """Whether the pattern matches the topic, by the textbook's dynamic programming: O(words x
        words).

        ``row[n]`` says whether the pattern's words so far match the topic's first n words.
        """
        wanted = self.split(pattern)
        words = self.split(topic)
        if self.hidden(topic) and wanted and wanted[0] in (self.one, self.many):
            return False
        row = [True] + [False] * len(words)
        for want in wanted:
            if want == self.many:
                first = row.index(True) if True in row else len(row)
                row = [n >= first for n in range(len(row))]
            else:
                row = [False] + [
                    row[n] and want in (self.one, word) for n, word in enumerate(words)
                ]
        return row[len(words)]


class _FilterGrammar(Grammar):
    """The grammar of MQTT topic filters."""

    def __init__(self, name: str, separator: str, one: str, many: str) -> None:
        super().__init__(name, separator, one, many)
        self.hides = True

    def split(self, topic: str) -> list[str]:
        """The levels of a topic or filter."""
        return topic.split(self.separator)

    def hidden(self, topic: str) -> bool:
        """Whether no filter that begins with a wildcard may match this topic [MQTT-4.7.2-1]."""
        return topic.startswith("$")

    def check(self, pattern: str, max_levels: int = MOST_LEVELS) -> None:
        """Raise InvalidPattern unless this is a topic filter with at most so many levels."""
        rule = _flaw(pattern, _MQTT_OCTETS, "strict") if pattern else _EMPTY
        if rule:
            raise InvalidPattern(pattern, 0, rule)
        if pattern.count("/") >= max_levels:
            raise InvalidPattern(pattern, max_levels, _too_deep(max_levels))
        if "#" not in pattern and "+" not in pattern and "\0" not in pattern:
            return
        levels = pattern.split("/")
        for position, level in enumerate(levels):
            if "\0" in level:
                raise InvalidPattern(pattern, position, _NUL)
            if level == "#" and position < len(levels) - 1:
                raise InvalidPattern(pattern, position, "'#' must be the last level [MQTT-4.7.1-1]")
            if len(level) > 1 and "#" in level:
                raise InvalidPattern(pattern, position, "'#' must be a whole level [MQTT-4.7.1-1]")
            if len(level) > 1 and "+" in level:
                raise InvalidPattern(pattern, position, "'+' must be a whole level [MQTT-4.7.1-2]")

    def check_topic(self, topic: str, max_levels: int = MOST_LEVELS) -> None:
        """Raise InvalidTopic unless this is a topic name with at most so many levels."""
        rule = _flaw(topic, _MQTT_OCTETS, "strict") if topic else _EMPTY
        if rule:
            raise InvalidTopic(topic, 0, rule)
        if topic.count("/") >= max_levels:
            raise InvalidTopic(topic, max_levels, _too_deep(max_levels))
        for character, broken in _NOT_IN_A_TOPIC:
            at = topic.find(character)
            if at >= 0:
                raise InvalidTopic(topic, topic.count("/", 0, at), broken)


_EMPTY: Final = "must be at least one character long [MQTT-4.7.3-1]"
_NUL: Final = "must not contain NUL [MQTT-4.7.3-2]"
_WILDCARD: Final = "must not contain a wildcard [MQTT-4.7.0-1]"
_NOT_IN_A_TOPIC: Final = (("\0", _NUL), ("#", _WILDCARD), ("+", _WILDCARD))

AMQP: Final = Grammar("amqp", ".", "*", "#")
MQTT: Final[Grammar] = _FilterGrammar("mqtt", "/", "+", "#")
DEFAULT: Final = AMQP


def swap(text: str) -> str:
    """A topic as the other protocol spells it: ``/`` and ``.`` exchanged, all else as it was.

    It is its own inverse, so no two topics meet, and it makes and removes no wildcard.
    """
    # A third of the time, where one of them does not occur.
    if "/" not in text:
        return text.replace(".", "/")
    return text.translate(_SWAPPED) if "." in text else text.replace("/", ".")


def _flaw(text: str, octets: int, errors: str) -> str:
    """The rule on length or encoding that the text breaks, or nothing.

    AMQP keys need not be UTF-8: octets that are not arrive as lone surrogates
    (``surrogateescape``).
    """
    try:
        size = len(text) if text.isascii() else len(text.encode("utf-8", errors))
    except UnicodeEncodeError:
        return "must be valid UTF-8"
    return f"must not be longer than {octets:,} octets" if size > octets else ""


def _too_deep(max_levels: int) -> str:
    return f"must not have more than {max_levels:,} levels"


def _short(text: str) -> str:
    return repr(text) if len(text) <= 80 else f"{text[:80]!r}... of {len(text):,} characters"
