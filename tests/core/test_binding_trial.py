"""Tests of binding trials, which predict the effect of a change of bindings.

The prediction must equal the effect of the real change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.errors import NotFound, PreconditionFailed
from broker.queues.destination import Destination
from broker.queues.queue import Queue
from broker.routing import binding_trial, topic_history
from broker.routing.binding import Binding
from broker.routing.binding_trial import BindingChange, BindingTrial
from broker.routing.topic_history import (
    KEY_MAX,
    SLOT_SECONDS,
    SLOTS,
    HistorySum,
    TopicHistory,
)
from tests.clients import World
from tests.core.test_explanation import BINDINGS, FILTERS, KEYS, NAMES, PATTERNS, routed, topology

KINDS = ("direct", "fanout", "topic")


def tried(
    world: World,
    changes: list[BindingChange],
    history: TopicHistory,
    deleted: Sequence[Destination] = (),
) -> BindingTrial:
    """Return a completed trial: a prediction of how changed bindings would route messages."""
    scope = world.vhost.declarations.planner.scope
    trial = BindingTrial("/", scope, changes, HistorySum(history), deleted)
    for _ in trial.steps():
        pass
    return trial


def expected_effects(
    counts: Mapping[tuple[str, str], int],
    before: Mapping[tuple[str, str], set[Destination]],
    after: Mapping[tuple[str, str], set[Destination]],
) -> dict[tuple[Destination, bool], int]:
    """Return the messages that each destination gains (True) or loses (False).

    `counts` has the number of messages for each exchange and routing key; `before` and `after` have
    the destinations that these messages reach.
    """
    expected: Counter[tuple[Destination, bool]] = Counter()
    for topic, messages in counts.items():
        for reached in after[topic] - before[topic]:
            expected[reached, True] += messages
        for reached in before[topic] - after[topic]:
            expected[reached, False] += messages
    return dict(expected)


def named(world: World, target: int, to_exchange: bool) -> Destination:
    return world.vhost.exchange(f"x{target}") if to_exchange else world.queue(f"q{target}")


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.sampled_from(KINDS), min_size=5, max_size=5),
    st.lists(st.none() | NAMES, min_size=5, max_size=5),
    BINDINGS,
    st.lists(FILTERS, max_size=3),
    st.dictionaries(st.tuples(NAMES, KEYS), st.integers(1, 1_000), min_size=1, max_size=6),
    st.lists(st.tuples(NAMES, NAMES, st.booleans(), PATTERNS), max_size=3),
    st.lists(st.integers(0, 20), max_size=3, unique=True),
)
def test_a_trial_foretells_what_the_changed_bindings_do(
    kinds: list[str],
    alternates: list[int | None],
    bindings: list[Any],
    filters: list[str],
    topics: dict[tuple[int, str], int],
    added: list[tuple[int, int, bool, str]],
    removed: list[int],
) -> None:
    world = topology(kinds, alternates, bindings, filters)
    history = TopicHistory()
    for (source, key), messages in topics.items():
        history.add("/", f"x{source}", key, messages)
        history.add("other vhost", f"x{source}", key, messages)
    present = [
        (exchange, binding) for exchange in world.vhost.exchanges.values() for binding in exchange
    ]
    changes = [BindingChange(False, *present[at]) for at in removed if at < len(present)]
    for source, target, to_exchange, key in added:
        binding = Binding(key, named(world, target, to_exchange))
        changes.append(BindingChange(True, world.vhost.exchange(f"x{source}"), binding))
    counts = {(f"x{source}", key): messages for (source, key), messages in topics.items()}
    before = {one: routed(world, *one, {}) for one in counts}
    bound_to = {queue: queue.bound_to for queue in world.vhost.queues.values()}

    trial = tried(world, changes, history)

    assert {queue: queue.bound_to for queue in world.vhost.queues.values()} == bound_to
    assert before == {one: routed(world, *one, {}) for one in counts}
    # A binding that is removed and added at once is there afterwards.
    for change in sorted(changes, key=lambda one: one.added):
        if change.added:
            world.vhost.bind(change.exchange.name, change.binding)
        else:
            world.vhost.unbind(change.exchange.name, change.binding)
    after = {one: routed(world, *one, {}) for one in counts}
    effects = {key: effect.messages for key, effect in trial.effects.items()}
    assert effects == expected_effects(counts, before, after)
    assert trial.complete and trial.topics == len(topics)
    assert trial.newly_unroutable == sum(
        messages for one, messages in counts.items() if before[one] and not after[one]
    )
    assert trial.newly_routed == sum(
        messages for one, messages in counts.items() if after[one] and not before[one]
    )


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.sampled_from(KINDS), min_size=5, max_size=5),
    st.lists(st.none() | NAMES, min_size=5, max_size=5),
    BINDINGS,
    st.lists(FILTERS, max_size=3),
    st.dictionaries(st.tuples(NAMES, KEYS), st.integers(1, 1_000), min_size=1, max_size=6),
    st.dictionaries(NAMES, st.integers(1, 1_000), max_size=3),
    st.sets(st.tuples(NAMES, st.booleans()), min_size=1, max_size=3),
)
def test_a_trial_foretells_what_a_deletion_does(
    kinds: list[str],
    alternates: list[int | None],
    bindings: list[Any],
    filters: list[str],
    topics: dict[tuple[int, str], int],
    direct: dict[int, int],
    deleted: set[tuple[int, bool]],
) -> None:
    world = topology(kinds, alternates, bindings, filters)
    history = TopicHistory()
    for (source, key), messages in topics.items():
        history.add("/", f"x{source}", key, messages)
    for queue, messages in direct.items():
        history.add_direct("/", f"q{queue}", messages)
        history.add_direct("other vhost", f"q{queue}", messages)
    counts = {(f"x{source}", key): messages for (source, key), messages in topics.items()}
    counts |= {("", f"q{queue}"): messages for queue, messages in direct.items()}
    before = {one: routed(world, *one, {}) for one in counts}
    gone = [named(world, *one) for one in deleted]

    trial = tried(world, [], history, gone)

    assert before == {one: routed(world, *one, {}) for one in counts}
    for target in gone:
        if isinstance(target, Queue):
            world.vhost.delete_queue(target, False, False, None)
        else:
            world.vhost.delete_exchange(target.name, False, None)
    after = {
        one: routed(world, *one, {}) if one[0] in world.vhost.exchanges else set() for one in counts
    }
    effects = {key: effect.messages for key, effect in trial.effects.items()}
    assert effects == expected_effects(counts, before, after)
    assert trial.newly_unroutable == sum(
        messages for one, messages in counts.items() if before[one] and not after[one]
    )
    assert trial.newly_routed == 0 and trial.complete


def test_bindings_that_depend_on_more_than_the_key_cannot_be_tried() -> None:
    world = topology(
        ["headers", "x-consistent-hash", "topic", "direct", "fanout"], [None] * 5, [], []
    )
    for name in ("x0", "x1", ""):
        change = BindingChange(True, world.vhost.exchange(name), Binding("1", world.queue("q0")))
        with pytest.raises(PreconditionFailed, match="cannot try a binding"):
            tried(world, [change], TopicHistory())
    absent = BindingChange(False, world.vhost.exchange("x2"), Binding("a", world.queue("q0")))
    with pytest.raises(NotFound, match="no binding 'a' from exchange 'x2' to 'q0'"):
        tried(world, [absent], TopicHistory())


def test_a_trial_is_bounded_and_says_what_it_leaves_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binding_trial, "DESTINATIONS_MAX", 2)
    monkeypatch.setattr(binding_trial, "TOPICS_SHOWN", 3)
    world = topology(["fanout", "topic", "topic", "direct", "fanout"], [None] * 5, [], [])
    for number in range(5):
        world.vhost.bind("x0", Binding("", world.queue(f"q{number}")))
    history = TopicHistory()
    for number in range(10):
        history.add("/", "x1", f"t{number}", number + 1)
    into = BindingChange(True, world.vhost.exchange("x1"), Binding("#", world.vhost.exchange("x0")))
    trial = tried(world, [into], history)
    assert len(trial.effects) == 2 and trial.left_out == 3 * 10
    for effect in trial.effects.values():
        assert (effect.topics, effect.messages) == (10, 55)
        assert sorted(one.messages for one in effect.largest) == [8, 9, 10]
    monkeypatch.setattr(binding_trial, "BINDINGS_MAX", 20)
    trial = tried(world, [into], history)
    assert not trial.complete and 0 < trial.topics < trial.topics_known == 10


# -- the history


def total(history: TopicHistory) -> dict[str, int]:
    """Return the numbers of messages of exchange x in the virtual host /, by routing key."""
    found = HistorySum(history)
    for _ in found.steps():
        pass
    return found.counts.get(("/", "x"), {})


def test_the_history_forgets_after_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    history = TopicHistory()
    history.advance(1_000.0)
    for number in range(SLOTS):
        history.add("/", "x", "always", 1)
        history.add("/", "x", f"only {number}", 1)
        history.advance(1_000.0 + (number + 1) * SLOT_SECONDS - 1)
        history.add("/", "x", "always", 1)
        history.advance(1_000.0 + (number + 1) * SLOT_SECONDS)
    assert len(history.slots) == SLOTS
    assert total(history) == {"always": 2 * (SLOTS - 1)} | {
        f"only {number}": 1 for number in range(1, SLOTS)
    }
    history.advance(5.0)  # The clock was set back: a new slot begins.
    assert history.slots[-1].began == 5.0


def test_the_history_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_history, "TOPICS_MAX", 3)
    history = TopicHistory()
    for number in range(5):
        history.add("/", "x", f"t{number}", 10)
    history.add("/", "x", "t0", 5)
    assert total(history) == {"t0": 15, "t1": 10, "t2": 10}
    assert (history.left_out, len(history), HistorySum(history).left_out) == (20, 3, 20)
    history.advance(1.0)
    history.advance(1.0 + SLOT_SECONDS)
    history.add("/", "x", "k" * (KEY_MAX + 1), 7)
    history.add("/", "x", "t4", 1)
    assert (history.left_out, total(history)["t4"]) == (27, 1)


def test_the_history_counts_messages_that_name_a_queue_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(topic_history, "QUEUES_MAX", 2)
    history = TopicHistory()
    for queue in ("a", "b", "c", "a"):
        history.add_direct("/", queue, 5)
    found = HistorySum(history)
    assert [found.direct("/", queue) for queue in ("a", "b", "c")] == [10, 5, 0]
    assert (len(history), history.queues, history.left_out) == (0, 2, 5)
