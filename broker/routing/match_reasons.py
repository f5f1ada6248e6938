"""The reason for which a binding of an exchange matches a message, as a text for operators.

The exchange has decided already that the binding matches (`Exchange.match`); these functions only
name the reason.
"""

from __future__ import annotations

from typing import Final

from broker.messages.message import Properties, headers_of
from broker.queues.delay import DelayQueue
from broker.routing.binding import Binding
from broker.routing.exchanges import (
    ConsistentHashExchange,
    DelayedExchange,
    DirectExchange,
    Exchange,
    HeadersExchange,
    ModulusHashExchange,
    RandomExchange,
    TopicExchange,
)
from matching.fields.criteria import Criteria, Fields
from matching.grammar import DEFAULT, Grammar, swap

#: The reason for which a binding with a key that equals the routing key matches.
EQUAL_KEYS: Final = "the keys are equal"
#: The reason for which the binding of a queue to the default exchange matches.
_OWN_NAME: Final = "the routing key is the name of the queue"


def common_reason(exchange: Exchange) -> str:
    """Return the reason that all matching bindings of an exchange have.

    Return "" if each binding has a reason of its own. Any other result is also the result of
    `reason_of` for each of these bindings.
    """
    if exchange.name == "":
        return _OWN_NAME
    own = (DelayedExchange, TopicExchange, HeadersExchange)
    return "" if isinstance(exchange, own) else _reason_of_kind(exchange)


def reason_of(exchange: Exchange, binding: Binding, key: str, properties: Properties) -> str:
    """Return why the binding of an exchange matches a message with this routing key."""
    if exchange.name == "":
        return _OWN_NAME
    if isinstance(exchange, DelayedExchange):
        if isinstance(binding.destination, DelayQueue):
            return "the header x-delay asks for a delay"
        exchange = exchange.inner
    if isinstance(exchange, TopicExchange):
        return _topic_reason(binding, key)
    if isinstance(exchange, HeadersExchange):
        return _headers_reason(binding, headers_of(properties))
    return _reason_of_kind(exchange)


def _reason_of_kind(exchange: Exchange) -> str:
    """Return the reason for a match that follows from the type of the exchange alone."""
    if isinstance(exchange, DirectExchange):
        return EQUAL_KEYS
    if isinstance(exchange, RandomExchange):
        return "chosen at random: the exchange chooses a binding anew for each message"
    if isinstance(exchange, (ConsistentHashExchange, ModulusHashExchange)):
        return "a hash of the message chooses this binding"
    return f"every binding of an exchange of type {exchange.kind} matches"


def topic_in(grammar: Grammar, key: str) -> str:
    """Return a routing key in the notation of a binding's grammar."""
    return key if grammar is DEFAULT else swap(key)


def _topic_reason(binding: Binding, key: str) -> str:
    grammar = binding.grammar
    if not grammar.is_pattern(binding.key):
        return EQUAL_KEYS
    words = grammar.split(topic_in(grammar, key))
    parts = matched_words(grammar, grammar.split(binding.key), words)
    return ", ".join(
        [
            f"{wildcard} matches {grammar.separator.join(some)!r}"
            if some
            else f"{wildcard} matches zero words"
            for wildcard, some in parts
        ]
    )


def matched_words(
    grammar: Grammar, pattern: list[str], words: list[str]
) -> list[tuple[str, list[str]]]:
    """Return each wildcard of a pattern with the words that it matches.

    The words must match the pattern. A wildcard for any number of words matches as few words as
    possible; the last such wildcard matches all remaining words.
    """
    many = grammar.many
    pairs: list[tuple[str, list[str]]] = []
    at = 0
    place = 0
    while place < len(pattern):
        wanted = pattern[place]
        place += 1
        if wanted != many:
            if wanted == grammar.one:
                pairs.append((wanted, words[at : at + 1]))
            at += 1
            continue
        end = place
        while end < len(pattern) and pattern[end] != many:
            end += 1
        piece = pattern[place:end]
        start = len(words) - len(piece) if end == len(pattern) else at
        while end < len(pattern) and not _fits(grammar, piece, words, start):
            start += 1
        pairs.append((many, words[at:start]))
        at = start
    return pairs


def _fits(grammar: Grammar, piece: list[str], words: list[str], start: int) -> bool:
    """True if `piece`, a part of a pattern without `#`, matches the words from index `start` on."""
    if start + len(piece) > len(words):
        return True  # The words do not match the pattern: return True to end the caller's search.
    for number, wanted in enumerate(piece):
        if wanted != grammar.one and wanted != words[start + number]:
            return False
    return True


def _headers_reason(binding: Binding, headers: Fields) -> str:
    kind = binding.arguments.get("x-match", "all")
    wanted = Criteria(binding.arguments).wanted
    if not wanted:
        return f"x-match is {kind}, and the binding names no header"
    agreeing = [
        name
        for name in wanted
        if name in headers
        and Criteria({name: binding.arguments[name], "x-match": "all-with-x"}).accept(headers)
    ]
    named = ", ".join([f"{name}={headers[name]!r}" for name in agreeing])
    return f"x-match is {kind}" + (f", and these headers agree: {named}" if agreeing else "")
