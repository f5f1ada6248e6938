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
from broker.routing.binding_trial import BindingTrial
from broker.routing.changed_bindings import BindingChange
from broker.routing.exchanges.base import ExchangeOptions
from broker.routing.topic_history import (
    KEY_MAX,
    SLOT_SECONDS,
    SLOTS,
    HistorySum,
    TopicHistory,
)
from tests.clients import World
from tests.core.test_explanation import (
    BINDINGS,
    FILTERS,
    HEADERS,
    KEYS,
    KINDS,
    NAMES,
    routed,
    topology,
)

#: Published messages: (number of the exchange, routing key) -> headers -> number of messages.
PUBLISHED = st.dictionaries(
    st.tuples(NAMES, KEYS),
    # At most SAMPLES_PER_TOPIC messages of a topic, so that the history has the headers of each
    # message.
    st.dictionaries(
        HEADERS.map(lambda one: tuple(sorted(one.items()))), st.integers(1, 6), max_size=5
    ),
    min_size=1,
    max_size=5,
)
#: A published topic with headers: exchange, routing key, headers.
Publication = tuple[str, str, tuple[tuple[str, int], ...]]


def tried(
    world: World,
    changes: list[BindingChange],
    history: TopicHistory,
    deleted: Sequence[Destination] = (),
) -> BindingTrial:
    """Return a completed trial: it predicts how `changes` would route the messages of `history`.

    `deleted` are the queues and exchanges that the trial assumes to be deleted.
    """
    scope = world.vhost.declarations.planner.scope
    trial = BindingTrial("/", scope, changes, HistorySum(history), deleted)
    for _ in trial.steps():
        pass
    return trial


def expected_effects(
    counts: Mapping[Any, int],
    before: Mapping[Any, set[Destination]],
    after: Mapping[Any, set[Destination]],
) -> dict[tuple[Destination, bool], int]:
    """Return the number of messages that each destination gains (True) or loses (False).

    `counts` has the number of messages of each publication. `before` and `after` have the
    destinations that a publication reaches before and after the change of the bindings.
    """
    expected: Counter[tuple[Destination, bool]] = Counter()
    for publication, messages in counts.items():
        for reached in after[publication] - before[publication]:
            expected[reached, True] += messages
        for reached in before[publication] - after[publication]:
            expected[reached, False] += messages
    return dict(expected)


def published(
    history: TopicHistory, topics: Mapping[tuple[int, str], Mapping[Any, int]]
) -> dict[Publication, int]:
    """Add messages and their headers to a history; return the number of messages by publication."""
    counts: dict[Publication, int] = {}
    for (source, key), by_headers in topics.items():
        history.add("/", f"x{source}", key, sum(by_headers.values()))
        history.add("other vhost", f"x{source}", key, 1)
        for headers, messages in by_headers.items():
            counts[f"x{source}", key, headers] = messages
            for _ in range(messages):
                history.offer("/", f"x{source}", key, {"headers": dict(headers)})
    return counts


def reached(world: World, counts: Mapping[Publication, int]) -> dict[Publication, set[Destination]]:
    """Return the destinations of each publication, as the broker routes it at present."""
    return {
        (exchange, key, headers): routed(world, exchange, key, dict(headers))
        if exchange in world.vhost.exchanges
        else set()
        for exchange, key, headers in counts
    }


def named(world: World, target: int, to_exchange: bool) -> Destination:
    return world.vhost.exchange(f"x{target}") if to_exchange else world.queue(f"q{target}")


def bound(world: World, source: int, binding: tuple[int, bool, str, Any, str]) -> Binding:
    """Return a binding of exchange `source`, with the arguments that the exchange's type needs."""
    target, to_exchange, key, headers, match = binding
    kind = world.vhost.exchange(f"x{source}").kind
    arguments = {**headers, "x-match": match} if kind == "headers" else {}
    key = "1" if kind == "x-consistent-hash" else key
    return Binding(key, named(world, target, to_exchange), 0, arguments)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.sampled_from(KINDS), min_size=5, max_size=5),
    st.lists(st.none() | NAMES, min_size=5, max_size=5),
    BINDINGS,
    st.lists(FILTERS, max_size=3),
    PUBLISHED,
    BINDINGS.map(lambda some: some[:3]),
    st.lists(st.integers(0, 20), max_size=3, unique=True),
)
def test_a_trial_foretells_what_the_changed_bindings_do(
    kinds: list[str],
    alternates: list[int | None],
    bindings: list[Any],
    filters: list[str],
    topics: dict[tuple[int, str], dict[Any, int]],
    added: list[Any],
    removed: list[int],
) -> None:
    world = topology(kinds, alternates, bindings, filters)
    topics = {topic: some for topic, some in topics.items() if some}
    history = TopicHistory()
    counts = published(history, topics)
    present = [
        (exchange, binding) for exchange in world.vhost.exchanges.values() for binding in exchange
    ]
    changes = [BindingChange(False, *present[at]) for at in removed if at < len(present)]
    for source, *binding in added:
        exchange = world.vhost.exchange(f"x{source}")
        changes.append(BindingChange(True, exchange, bound(world, source, tuple(binding))))
    before = reached(world, counts)
    bound_to = {queue: queue.bound_to for queue in world.vhost.queues.values()}

    trial = tried(world, changes, history)

    assert {queue: queue.bound_to for queue in world.vhost.queues.values()} == bound_to
    assert before == reached(world, counts)
    # A binding that is both removed and added exists afterwards.
    for change in sorted(changes, key=lambda one: one.added):
        if change.added:
            world.vhost.bind(change.exchange.name, change.binding)
        else:
            world.vhost.unbind(change.exchange.name, change.binding)
    after = reached(world, counts)
    effects = {key: effect.messages for key, effect in trial.effects.items()}
    assert effects == expected_effects(counts, before, after)
    assert trial.complete and trial.topics == len(topics)
    assert (trial.by_headers, trial.estimated) == (0, 0)
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
    PUBLISHED,
    st.dictionaries(NAMES, st.integers(1, 1_000), max_size=3),
    st.sets(st.tuples(NAMES, st.booleans()), min_size=1, max_size=3),
)
def test_a_trial_foretells_what_a_deletion_does(
    kinds: list[str],
    alternates: list[int | None],
    bindings: list[Any],
    filters: list[str],
    topics: dict[tuple[int, str], dict[Any, int]],
    direct: dict[int, int],
    deleted: set[tuple[int, bool]],
) -> None:
    world = topology(kinds, alternates, bindings, filters)
    history = TopicHistory()
    counts = published(history, {topic: some for topic, some in topics.items() if some})
    for queue, messages in direct.items():
        history.add_direct("/", f"q{queue}", messages)
        history.add_direct("other vhost", f"q{queue}", messages)
        counts["", f"q{queue}", ()] = messages
    before = reached(world, counts)
    gone = [named(world, *one) for one in deleted]

    trial = tried(world, [], history, gone)

    assert before == reached(world, counts)
    for target in gone:
        if isinstance(target, Queue):
            world.vhost.delete_queue(target, False, False, None)
        else:
            world.vhost.delete_exchange(target.name, False, None)
    after = reached(world, counts)
    effects = {key: effect.messages for key, effect in trial.effects.items()}
    assert effects == expected_effects(counts, before, after)
    assert trial.newly_unroutable == sum(
        messages for one, messages in counts.items() if before[one] and not after[one]
    )
    assert trial.complete


def test_bindings_that_cannot_be_tried_are_refused() -> None:
    world = topology(
        ["x-random", "headers", "topic", "x-consistent-hash", "fanout"], [None] * 5, [], []
    )
    queue = world.queue("q0")
    for name, binding, reason in (
        ("x0", Binding("", queue), "chooses a binding for each message at random"),
        ("", Binding("q1", queue), "cannot try a binding of the default exchange"),
        ("x1", Binding("", queue, 0, {"x-match": "none"}), "x-match"),
        ("x3", Binding("heavy", queue), "must be a whole number"),
    ):
        change = BindingChange(True, world.vhost.exchange(name), binding)
        with pytest.raises(PreconditionFailed, match=reason):
            tried(world, [change], TopicHistory())
    absent = BindingChange(False, world.vhost.exchange("x2"), Binding("a", queue))
    with pytest.raises(NotFound, match="no binding with key 'a' from exchange 'x2' to 'q0'"):
        tried(world, [absent], TopicHistory())


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        ("x-delayed-message", {"x-delayed-type": "headers"}),
        ("x-recent-history", {}),
        ("x-message-deduplication", {"x-cache-size": 10}),
    ],
)
def test_a_trial_adds_and_removes_bindings_of_the_exchanges_of_plugins(
    kind: str, arguments: dict[str, Any]
) -> None:
    world = World()
    world.vhost.declare_exchange("x", kind, ExchangeOptions(arguments=arguments))
    exchange, history = world.vhost.exchange("x"), TopicHistory()
    for name in ("old", "new"):
        world.vhost.declare_queue(name)
    old, new = world.queue("old"), world.queue("new")
    world.vhost.bind("x", Binding("", old, 0, {"kind": "order"}))
    history.add("/", "x", "k", 3)
    for delay in (0, 100, 100):
        headers = {"kind": "order", "x-delay": delay, "x-deduplication-header": "same"}
        history.offer("/", "x", "k", {"headers": headers})
    changes = [
        BindingChange(False, exchange, Binding("", old, 0, {"kind": "order"})),
        BindingChange(True, exchange, Binding("", new, 0, {"kind": "order"})),
    ]
    trial = tried(world, changes, history)
    assert {key: effect.messages for key, effect in trial.effects.items()} == {
        (old, False): 3,
        (new, True): 3,
    }


def test_an_exchange_that_hashes_a_header_is_tried_with_the_headers_of_the_messages() -> None:
    world = World()
    options = ExchangeOptions(arguments={"hash-header": "device"})
    world.vhost.declare_exchange("x", "x-consistent-hash", options)
    history = TopicHistory()
    for number in range(3):
        world.vhost.declare_queue(f"q{number}")
    queues = [world.queue(f"q{number}") for number in range(3)]
    for queue in queues:
        world.vhost.bind("x", Binding("1", queue))
    history.add("/", "x", "k", 30)
    devices: list[dict[str, Any]] = [{"device": f"d{number}"} for number in range(30)]
    for headers in devices:
        history.offer("/", "x", "k", {"headers": headers})
    before = Counter(next(iter(routed(world, "x", "k", headers))) for headers in devices)
    trial = tried(world, [], history, [queues[0]])
    effects = {key: effect.messages for key, effect in trial.effects.items()}
    assert effects.pop((queues[0], False)) == before[queues[0]] > 5
    assert sum(effects.values()) == before[queues[0]]
    assert set(effects) == {(queues[1], True), (queues[2], True)}


def test_a_topic_without_samples_is_tried_as_messages_without_headers() -> None:
    world = topology(["headers", "topic", "topic", "direct", "fanout"], [None] * 5, [], [])
    history = TopicHistory()
    history.add("/", "x0", "k", 7)
    added = Binding("", world.queue("q0"), 0, {"x-match": "all", "h": 1})
    history.offer("/", "x0", "k", {"headers": {"h": 1, "large": "x" * 2_000}})
    history.offer("/", "x0", "k", {"headers": {"h": 1, "list": [1]}})
    trial = tried(world, [BindingChange(True, world.vhost.exchange("x0"), added)], history)
    assert (trial.by_headers, trial.estimated, trial.effects) == (1, 0, {})
    every = Binding("", world.queue("q0"), 0, {"x-match": "all"})
    trial = tried(world, [BindingChange(True, world.vhost.exchange("x0"), every)], history)
    assert trial.by_headers == 1
    assert {key: effect.messages for key, effect in trial.effects.items()} == {
        (world.queue("q0"), True): 7
    }


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
    counts_by_key = HistorySum(history)
    for _ in counts_by_key.steps():
        pass
    return counts_by_key.counts.get(("/", "x"), {})


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
    direct_counts = HistorySum(history)
    assert [direct_counts.direct("/", queue) for queue in ("a", "b", "c")] == [10, 5, 0]
    assert (len(history), history.queues, history.left_out) == (0, 2, 5)
