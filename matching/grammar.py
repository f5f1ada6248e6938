"""The pattern grammars of AMQP and MQTT; `Grammar.matches` defines when a pattern matches.

                  separator   one word   any words   `$` topics hidden from a leading wildcard
    AMQP            .           *          #           no
    MQTT            /           +          # (last)    yes

A topic is a list of words; a word may be empty. A wildcard is a word that consists of the wildcard
character alone. The AMQP rules are the rules of AMQP 0-9-1 section 3.1.3.3 as RabbitMQ implements
them. Numbers in brackets are statements of MQTT 5.0 (MQTT 3.1.1 has the same rules under other
numbers).
"""

from __future__ import annotations

from typing import Final

#: The most words that a topic of 65,535 bytes can have; the broker allows fewer.
MOST_LEVELS: Final = 65_536
#: The longest AMQP short string, in bytes.
_AMQP_MAX_BYTES: Final = 255
_MQTT_MAX_BYTES: Final = 65_535
_SWAPPED: Final = str.maketrans("/.", "./")


class InvalidPattern(ValueError):
    """Raised if a pattern violates a rule of its grammar.

    `position` is the index, from 0, of the word that violates `rule`; 0 if the rule is about the
    whole pattern.
    """

    def __init__(self, pattern: str, position: int, rule: str) -> None:
        super().__init__(f"invalid pattern {_short(pattern)}: {rule}{_place(position)}")
        self.pattern = pattern
        self.position = position
        self.rule = rule


class InvalidTopic(ValueError):
    """Raised if a topic violates a rule of its grammar: no message may be published to it.

    `position` is the index, from 0, of the word that violates `rule`; 0 if the rule is about the
    whole topic.
    """

    def __init__(self, topic: str, position: int, rule: str) -> None:
        super().__init__(f"invalid topic {_short(topic)}: {rule}{_place(position)}")
        self.topic = topic
        self.position = position
        self.rule = rule


class Grammar:
    """The grammar of AMQP binding keys: any wildcard may stand anywhere."""

    def __init__(self, name: str, separator: str, one: str, many: str) -> None:
        self.name: Final = name
        self.separator: Final = separator
        self.one: Final = one
        self.many: Final = many
        #: True if `hidden` can return True for some topic.
        self.hides = False

    def __repr__(self) -> str:
        return f"<Grammar {self.name}>"

    def split(self, topic: str) -> list[str]:
        """Return the words of a topic or pattern. The empty AMQP key has no words."""
        return topic.split(self.separator) if topic else []

    def is_pattern(self, key: str) -> bool:
        """True if at least one word of the key is a wildcard; ``a*`` is a literal word."""
        if self.one not in key and self.many not in key:
            return False
        words = key.split(self.separator)
        return self.one in words or self.many in words

    def hidden(self, topic: str) -> bool:
        """True if patterns that begin with a wildcard must not match this topic."""
        return False

    def check(self, pattern: str, max_levels: int = MOST_LEVELS) -> None:
        """Raise InvalidPattern unless this is a valid pattern of at most `max_levels` words."""
        rule = _violation(pattern, _AMQP_MAX_BYTES, "surrogateescape")
        if rule:
            raise InvalidPattern(pattern, 0, rule)
        if pattern.count(self.separator) >= max_levels:
            raise InvalidPattern(pattern, max_levels, _too_deep(max_levels))

    def check_topic(self, topic: str, max_levels: int = MOST_LEVELS) -> None:
        """Raise InvalidTopic unless this is a valid topic of at most `max_levels` words."""
        rule = _violation(topic, _AMQP_MAX_BYTES, "surrogateescape")
        if rule:
            raise InvalidTopic(topic, 0, rule)
        if topic.count(self.separator) >= max_levels:
            raise InvalidTopic(topic, max_levels, _too_deep(max_levels))

    def matches(self, pattern: str, topic: str) -> bool:
        """True if the pattern matches the topic. All algorithms implement this definition.

        The method uses dynamic programming and costs O(words of the pattern x words of the topic).
        ``row[n]`` is True if the pattern's words so far match the first n words of the topic.
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
        """Return the levels of a topic or filter."""
        return topic.split(self.separator)

    def hidden(self, topic: str) -> bool:
        """True if filters that begin with a wildcard must not match this topic [MQTT-4.7.2-1]."""
        return topic.startswith("$")

    def check(self, pattern: str, max_levels: int = MOST_LEVELS) -> None:
        """Raise InvalidPattern unless this is a valid topic filter of at most `max_levels`
        levels.
        """
        rule = _violation(pattern, _MQTT_MAX_BYTES, "strict") if pattern else _EMPTY
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
        """Raise InvalidTopic unless this is a valid topic name of at most `max_levels` levels."""
        rule = _violation(topic, _MQTT_MAX_BYTES, "strict") if topic else _EMPTY
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
    """Return the topic in the other grammar's notation: ``/`` and ``.`` exchanged.

    Applied twice, `swap` returns the original text. Different topics stay different, and no
    wildcard appears or disappears.
    """
    # With only one of the two characters present, a plain replacement takes a third of the time.
    if "/" not in text:
        return text.replace(".", "/")
    return text.translate(_SWAPPED) if "." in text else text.replace("/", ".")


def _violation(text: str, max_bytes: int, errors: str) -> str:
    """Return the rule on length or encoding that the text violates, or an empty string if none.

    `max_bytes` is the permitted size in UTF-8, `errors` the error handler of `str.encode`: an AMQP
    key need not be UTF-8, and has other bytes as lone surrogates (``surrogateescape``).
    """
    try:
        size = len(text) if text.isascii() else len(text.encode("utf-8", errors))
    except UnicodeEncodeError:
        return "must be valid UTF-8"
    return f"must not be longer than {max_bytes:,} bytes" if size > max_bytes else ""


def _too_deep(max_levels: int) -> str:
    return f"must not have more than {max_levels:,} levels"


def _place(position: int) -> str:
    """Return the text " (word N)" for an error at this position; "" for the first word, 0."""
    return f" (word {position + 1})" if position else ""


def _short(text: str) -> str:
    return repr(text) if len(text) <= 80 else f"{text[:80]!r}... of {len(text):,} characters"
