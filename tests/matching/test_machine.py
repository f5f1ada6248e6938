"""Runs random sequences of all operations on every algorithm.

The expected answers come from a plain set of (pattern, subscriber) pairs and the definition of a
match.
"""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from matching import AMQP, MQTT, NAMES, Grammar, Matcher, create
from tests.matching.words import patterns, topics

PEOPLE = st.sampled_from(["x", "y", "z", None])
PICK = st.integers(0, 1 << 16)

Pairs = dict[tuple[str, str | None], None]


def subscribers(grammar: Grammar, pairs: Pairs, topic: str) -> list[str | None]:
    return list(
        dict.fromkeys(person for pattern, person in pairs if grammar.matches(pattern, topic))
    )


def machine(name: str, grammar: Grammar) -> type[RuleBasedStateMachine]:
    class Machine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.matcher: Matcher[str | None] = create(name, grammar)
            self.pairs: Pairs = {}
            self.snapshots: list[tuple[Matcher[str | None], Pairs]] = []

        @rule(pattern=patterns(grammar), person=PEOPLE)
        def subscribe(self, pattern: str, person: str | None) -> None:
            assert self.matcher.subscribe(pattern, person) == ((pattern, person) not in self.pairs)
            self.pairs[pattern, person] = None

        @rule(pattern=patterns(grammar), person=PEOPLE)
        def unsubscribe(self, pattern: str, person: str | None) -> None:
            assert self.matcher.unsubscribe(pattern, person) == ((pattern, person) in self.pairs)
            self.pairs.pop((pattern, person), None)

        @rule(pick=PICK)
        def unsubscribe_one_of_them(self, pick: int) -> None:
            if self.pairs:
                pattern, person = list(self.pairs)[pick % len(self.pairs)]
                self.unsubscribe(pattern, person)

        @rule(topic=topics(grammar))
        def match(self, topic: str) -> None:
            wanted = subscribers(grammar, self.pairs, topic)
            answer = self.matcher.match(topic)
            assert sorted(answer, key=str) == sorted(wanted, key=str)
            assert self.matcher.matches_any(topic) == bool(wanted)
            # The caller owns the returned list, so changing it must not affect the matcher.
            answer.clear()

        @rule(topic=topics(grammar), pick=PICK)
        def match_in_a_snapshot(self, topic: str, pick: int) -> None:
            if self.snapshots:
                snapshot, pairs = self.snapshots[pick % len(self.snapshots)]
                assert sorted(snapshot.match(topic), key=str) == sorted(
                    subscribers(grammar, pairs, topic), key=str
                )
                assert len(snapshot) == len(pairs)

        @rule()
        def snapshot(self) -> None:
            self.snapshots.append((self.matcher.snapshot(), dict(self.pairs)))

        @rule()
        def clear(self) -> None:
            self.matcher.clear()
            self.pairs.clear()

        @invariant()
        def it_holds_what_was_subscribed(self) -> None:
            assert len(self.matcher) == len(self.pairs)
            assert sorted(self.matcher.subscriptions(), key=str) == sorted(self.pairs, key=str)
            assert all(pair in self.matcher for pair in self.pairs)

    return Machine


@pytest.mark.parametrize("grammar", [AMQP, MQTT], ids=["amqp", "mqtt"])
@pytest.mark.parametrize("name", NAMES)
def test_no_sequence_of_operations_makes_a_matcher_differ_from_the_definition(
    name: str, grammar: Grammar
) -> None:
    run_state_machine_as_test(
        machine(name, grammar),
        settings=settings(max_examples=settings().max_examples // 5, stateful_step_count=30),
    )
