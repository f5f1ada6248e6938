"""Finds a grammar by its name, and checks patterns that users write."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from matching.grammar import AMQP, MQTT, Grammar, InvalidPattern
from pyspark_trellis.errors import PipelineError

GRAMMARS: Final = {"amqp": AMQP, "mqtt": MQTT}


def grammar_of(name: str) -> Grammar:
    """Return the grammar with this name. Raises PipelineError."""
    grammar = GRAMMARS.get(name)
    if grammar is None:
        raise PipelineError(f"unknown grammar '{name}': set {' or '.join(GRAMMARS)}")
    return grammar


def checked(patterns: Iterable[str], grammar: Grammar) -> list[str]:
    """Return the patterns as a list. Raises PipelineError if a pattern is invalid."""
    pattern_list = list(patterns)
    try:
        for pattern in pattern_list:
            grammar.check(pattern)
    except InvalidPattern as error:
        raise PipelineError(str(error)) from error
    return pattern_list
