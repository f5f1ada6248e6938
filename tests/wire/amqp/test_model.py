"""Compares the broker with the model of model.py, after steps that hypothesis draws at random."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.wire.amqp.model import KEYS, PATTERNS, QUEUES, Play

WHO = st.integers(0, 1)
NAMES = st.sampled_from(QUEUES)
MORE_KEYS = st.none() | st.lists(st.sampled_from(KEYS + QUEUES), max_size=2)


class Broker(Play, RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.begin(sides=2, consumers=3)
        for name in QUEUES:
            self.declare(0, name)
            self.bind_or_unbind(0, name, "k.#", True, False)
            self.bind_or_unbind(0, name, "k.#", True, True)

    # Frequent steps have a rule of their own, and rare ones share a rule, because hypothesis draws
    # each rule equally often.

    publishes = rule(
        who=WHO,
        key=st.sampled_from(KEYS),
        count=st.integers(1, 4),
        direct=st.none() | NAMES,
        cut=st.integers(0, 60),
        copies=MORE_KEYS,
        blind=MORE_KEYS,
        priority=st.integers(0, 4),
    )(Play.publish)
    publishes_later = rule(
        who=WHO,
        key=st.sampled_from(KEYS),
        count=st.integers(1, 2),
        direct=st.none(),
        cut=st.just(0),
        blind=MORE_KEYS,
        priority=st.integers(0, 4),
        delay=st.integers(1, 40),
    )(Play.publish)
    consumes = rule(
        who=WHO,
        name=NAMES,
        prefetch=st.integers(0, 3),
        no_ack=st.booleans(),
        priority=st.integers(-1, 1),
    )(Play.consume)
    gets = rule(who=WHO, name=NAMES, no_ack=st.booleans())(Play.get)
    settles = rule(
        who=WHO,
        which=st.integers(0, 30),
        multiple=st.booleans(),
        how=st.sampled_from(["ack", "drop", "drop", "requeue", "requeue"]),
    )(Play.settle)
    time_passes = rule(milliseconds=st.integers(1, 40))(Play.pass_time)

    @rule(
        who=WHO,
        name=NAMES,
        step=st.sampled_from([Play.declare, Play.declare, Play.declare, Play.delete, Play.purge]),
    )
    def changes_queues(self, who: int, name: str, step: Callable[[Play, int, str], None]) -> None:
        step(self, who, name)

    @rule(
        who=WHO,
        name=NAMES,
        pattern=st.sampled_from(PATTERNS),
        there=st.booleans(),
        later=st.booleans(),
    )
    def binds(self, who: int, name: str, pattern: str, there: bool, later: bool) -> None:
        self.bind_or_unbind(who, name, pattern, there, later)

    @rule(who=WHO, step=st.sampled_from([Play.select, Play.commit, Play.commit, Play.rollback]))
    def transacts(self, who: int, step: Callable[[Play, int], None]) -> None:
        step(self, who)

    @rule(
        who=WHO,
        which=st.integers(0, 5),
        step=st.sampled_from(
            [Play.recover, Play.close_channel, Play.break_channel, Play.lose_connection, None]
        ),
    )
    def gives_up(self, who: int, which: int, step: Callable[[Play, int], None] | None) -> None:
        if step is None:
            self.cancel(who, which)
        else:
            step(self, who)

    @invariant()
    def queues_hold_what_the_model_says(self) -> None:
        if hasattr(self, "world"):
            self.compare()


Broker.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestBroker = Broker.TestCase
