"""The explanation of a route names exactly the destinations that a published message reaches."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.access.identity import INTERNAL
from broker.queues.destination import Destination
from broker.queues.queue import Queue
from broker.routing.binding import Binding
from broker.routing.binding_chunks import CHUNK_MAX
from broker.routing.exchanges.base import ExchangeOptions
from broker.routing.explanation import RouteExplanation
from broker.routing.match_reasons import common_reason, matched_words, reason_of
from broker.routing.matching_bindings import STEPS
from broker.routing.near_misses import NEAR_MISSES_MAX, NearMissSearch
from broker.routing.plan_search import UNLIMITED, SearchSlot
from broker.routing.queue_verdicts import verdict_of
from matching.grammar import AMQP, MQTT
from tests.clients import World

KINDS = ("direct", "fanout", "topic", "headers", "x-consistent-hash", "x-modulus-hash")
WORDS = st.sampled_from(["a", "b", "", "c/d"])
KEYS = st.lists(WORDS, max_size=3).map(".".join)
PATTERNS = st.lists(st.sampled_from(["a", "b", "*", "#", "c/d"]), max_size=4).map(".".join)
FILTERS = st.sampled_from(["#", "a/#", "+/b", "a", "c.d/+", "$share/g/a/#", "$share/g/+/b", "a/b"])
HEADERS = st.dictionaries(st.sampled_from(["h", "k"]), st.integers(0, 1), max_size=2)
NAMES = st.integers(0, 4)
BINDINGS = st.lists(
    st.tuples(NAMES, NAMES, st.booleans(), PATTERNS, HEADERS, st.sampled_from(["all", "any"])),
    max_size=14,
)


def explained(
    world: World, exchange: str, key: str, headers: dict[str, Any] | None = None
) -> RouteExplanation:
    """Return the completed explanation of a message's route."""
    explanation = RouteExplanation(
        world.vhost.declarations.planner.scope,
        world.vhost.exchange(exchange),
        [key],
        {"headers": headers} if headers else {},
    )
    for _ in explanation.steps():
        pass
    return explanation


def near_misses(
    world: World, exchange: str, key: str, headers: dict[str, Any] | None = None
) -> NearMissSearch:
    """Return the completed search for near misses of a message: bindings that nearly match."""
    search = NearMissSearch(
        world.vhost.declarations.planner.scope,
        explained(world, exchange, key, headers),
        key,
        {"headers": headers} if headers else {},
    )
    for _ in search.steps():
        pass
    return search


def topology(
    kinds: list[str], alternates: list[int | None], bindings: list[Any], filters: list[str]
) -> World:
    """Return a broker with exchanges x0, x1 ..., queues q0, q1 ..., and two MQTT sessions.

    `kinds` has the type of each exchange, `alternates` the number of its alternate exchange. A
    binding is (number of the source exchange, number of the destination, True if the destination is
    an exchange, key, headers, x-match). The sessions subscribe to `filters` in turn.
    """
    world = World()
    for number, kind in enumerate(kinds):
        alternate = alternates[number]
        given = {} if alternate is None else {"alternate-exchange": f"x{alternate}"}
        options = ExchangeOptions(arguments=given)
        world.vhost.declare_exchange(f"x{number}", kind, options)
        world.vhost.declare_queue(f"q{number}")
    for source, target, to_exchange, key, headers, match in bindings:
        kind = world.vhost.exchange(f"x{source}").kind
        destination: Destination = (
            world.vhost.exchange(f"x{target}") if to_exchange else world.queue(f"q{target}")
        )
        arguments = {**headers, "x-match": match} if kind == "headers" else {}
        binding_key = "1" if kind == "x-consistent-hash" else key
        world.vhost.bind(f"x{source}", Binding(binding_key, destination, 0, arguments))
    clients = [world.mqtt("m0"), world.mqtt("m1")]
    for number, topic_filter in enumerate(filters):
        clients[number % 2].subscribe(topic_filter, number % 3)
    return world


def routed(world: World, exchange: str, key: str, headers: dict[str, Any]) -> set[Destination]:
    """Return the destinations of the plan with which a message is really published."""
    plan = world.vhost.declarations.planner.plan_keys(
        INTERNAL, exchange, [key], {"headers": headers}, None, SearchSlot(UNLIMITED)
    )
    assert plan is not None
    return {*plan.queues, *plan.delays, *plan.relay.targets}


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.sampled_from(KINDS), min_size=5, max_size=5),
    st.lists(st.none() | NAMES, min_size=5, max_size=5),
    BINDINGS,
    st.lists(FILTERS, max_size=4),
    st.sampled_from(["x0", "x1", "amq.topic", ""]),
    KEYS | st.sampled_from(["q1", "a+"]),
    HEADERS,
)
def test_an_explanation_names_what_a_message_reaches(
    kinds: list[str],
    alternates: list[int | None],
    bindings: list[Any],
    filters: list[str],
    exchange: str,
    key: str,
    headers: dict[str, int],
) -> None:
    world = topology(kinds, alternates, bindings, filters)
    explanation = explained(world, exchange, key, dict(headers))
    expected = routed(world, exchange, key, headers)
    assert {target for target, _ in explanation.targets} == expected
    # The matched bindings lead to exactly the listed destinations.
    led_to = {one.binding.destination for walked in explanation.walked for one in walked.matched}
    queues = {target for target in led_to if target in explanation.reached}
    assert queues >= expected
    left_out = led_to - explanation.reached
    assert left_out == set(explanation.unrepresentable)
    # Each listed exchange is entered from another listed exchange, and each binding has a reason.
    for walked in explanation.walked:
        assert walked.entered
        for one in walked.matched:
            reason = reason_of(walked.exchange, one.binding, one.key, {"headers": headers})
            assert reason and common_reason(walked.exchange) in ("", reason)
    # Publishing the message puts it into exactly these queues.
    before = {name: queue.depth for name, queue in world.vhost.queues.items()}
    world.amqp().publish(exchange, key, b"m", headers=headers)
    grown = {queue for name, queue in world.vhost.queues.items() if queue.depth > before[name]}
    assert grown == {one for one in expected if isinstance(one, Queue)}


@given(PATTERNS, KEYS)
def test_the_words_of_the_wildcards_rebuild_the_routing_key(pattern: str, key: str) -> None:
    if not AMQP.matches(pattern, key):
        return
    words = AMQP.split(pattern)
    parts = iter(matched_words(AMQP, words, AMQP.split(key)))
    rebuilt: list[str] = []
    for word in words:
        rebuilt += next(parts)[1] if word in ("*", "#") else [word]
    assert rebuilt == AMQP.split(key)
    assert next(parts, None) is None


def test_no_step_does_more_than_its_share_of_100_000_bindings() -> None:
    """A search for near misses among 100,000 bindings examines a limited number in each step."""
    world = World()
    exchange = world.vhost.declare_exchange("sensors", "topic", ExchangeOptions())
    world.vhost.declare_queue("all")
    for number in range(10_000):
        world.vhost.declare_queue(f"q{number}")
        exchange.bind(Binding(f"sensors.d{number}.temp", world.queue(f"q{number}")))
        exchange.bind(Binding(f"sensors.d{number}.*", world.queue(f"q{number}")))
    for number in range(80_000):
        exchange.bind(Binding(f"other.d{number}.#", world.queue("all")))
    key = "Sensors.d77.temp"
    scope = world.vhost.declarations.planner.scope
    explanation = RouteExplanation(scope, exchange, [key], {})
    for _ in explanation.steps():
        pass
    search = NearMissSearch(scope, explanation, key, {})
    steps, before = 0, 0
    for _ in search.steps():
        steps += 1
        assert search.examined - before <= CHUNK_MAX
        before = search.examined
    assert (search.examined, search.complete) == (100_000, True)
    assert steps >= 100_000 // CHUNK_MAX
    best = search.best()
    assert [(one.key, one.difference.kind) for one in best] == [
        ("sensors.d77.*", "case"),
        ("sensors.d77.temp", "case"),
    ]


def test_the_matched_bindings_of_a_large_fanout_are_found_in_steps() -> None:
    world = World()
    exchange = world.vhost.declare_exchange("all", "fanout", ExchangeOptions())
    for number in range(5_000):
        exchange.bind(Binding("", world.vhost.declare_queue(f"q{number}")))
    explanation = RouteExplanation(world.vhost.declarations.planner.scope, exchange, ["k"], {})
    steps, before = 0, 0
    for _ in explanation.steps():
        steps += 1
        now = sum(len(walked.matched) for walked in explanation.walked)
        assert now - before <= STEPS
        before = now
    assert (before, len(explanation.targets)) == (5_000, 5_000)
    assert steps >= 5_000 // STEPS


def test_an_answer_has_few_near_misses_of_many() -> None:
    world = World()
    for number in range(200):
        world.vhost.declare_queue(f"q{number}")
        world.vhost.bind("amq.direct", Binding(f"k{number}", world.queue(f"q{number}")))
    search = near_misses(world, "amq.direct", "k1x")  # k10 to k19 differ from k1 by one character.
    assert len(search.best()) == NEAR_MISSES_MAX
    assert [one.key for one in near_misses(world, "amq.direct", "K1").best()] == ["k1"]


def test_a_random_exchange_is_explained_with_the_one_binding_that_it_chose() -> None:
    world = World()
    world.vhost.declare_exchange("x", "x-random", ExchangeOptions())
    for name in "abcde":
        world.vhost.declare_queue(name)
        world.vhost.bind("x", Binding("", world.queue(name)))
    explanation = explained(world, "x", "k")
    (matched,) = explanation.walked[0].matched
    assert [target for target, _ in explanation.targets] == [matched.binding.destination]
    reason = reason_of(explanation.walked[0].exchange, matched.binding, "k", {})
    assert reason.startswith("chosen at random")


def test_a_delayed_message_is_explained_with_its_delay() -> None:
    world = World()
    options = ExchangeOptions(arguments={"x-delayed-type": "topic"})
    world.vhost.declare_exchange("later", "x-delayed-message", options)
    world.vhost.declare_queue("q")
    world.vhost.bind("later", Binding("a.*", world.queue("q")))
    ((target, qos),) = explained(world, "later", "a.b", {"x-delay": 100}).targets
    assert verdict_of(target, qos).kind == "delays"
    assert [one.name for one, _ in explained(world, "later", "a.b").targets] == ["q"]


def test_an_exchange_that_changes_during_an_explanation_is_named_as_outdated() -> None:
    world = World()
    world.vhost.declare_exchange("x", "fanout", ExchangeOptions())
    for name in "abc":
        world.vhost.declare_queue(name)
        world.vhost.bind("x", Binding("", world.queue(name)))
    explanation = RouteExplanation(
        world.vhost.declarations.planner.scope, world.vhost.exchange("x"), ["k"], {}
    )
    steps = explanation.steps()
    next(steps)
    world.vhost.declare_queue("d")
    world.vhost.bind("x", Binding("", world.queue("d")))
    for _ in steps:
        pass
    assert explanation.outdated
    assert not explained(world, "x", "k").outdated


def verdict(world: World, name: str) -> tuple[str, str]:
    """Return what the broker says about a queue: the kind and the text of the verdict."""
    explanation = verdict_of(world.queue(name), 0)
    return explanation.kind, explanation.text


def test_the_verdict_says_what_a_queue_would_do_and_why() -> None:
    world = World()
    client = world.amqp()
    client.queue("plain")
    client.queue("refusing", x_max_length=1, x_overflow="reject-publish")
    client.queue("dropping", x_max_length=1)
    client.queue("dying", x_max_length=1, x_dead_letter_exchange="amq.fanout")
    client.queue("expiring", x_message_ttl=0)
    client.queue("later", x_message_ttl=500)
    client.queue("none", x_max_length=0)
    client.queue("bytes", x_max_length_bytes=3)
    assert {verdict(world, name)[0] for name in ("refusing", "dropping", "dying", "bytes")} == {
        "takes"
    }
    for name in ("refusing", "dropping", "dying", "bytes"):
        client.publish("", name, b"abc")
    assert verdict(world, "plain") == ("takes", "")
    kind, reason = verdict(world, "refusing")
    assert (kind, "1 of 1 messages" in reason) == ("refuses", True)
    assert verdict(world, "dropping") == (
        "drops_oldest",
        "the queue is full (1 of 1 messages): the oldest message is dropped",
    )
    assert verdict(world, "dying")[1].endswith("is dead-lettered to exchange 'amq.fanout'")
    assert verdict(world, "expiring")[0] == "needs_consumer"
    assert verdict(world, "later") == ("takes", "after 500 ms the message is dropped")
    assert verdict(world, "none")[0] == "needs_consumer"
    assert verdict(world, "bytes")[0] == "drops_oldest"


def test_the_verdict_of_a_session_says_if_a_client_is_connected() -> None:
    world = World()
    client = world.mqtt("away", clean=False)
    client.subscribe("a/+", 1)
    world.mqtt("here").subscribe("a/b", 0)
    client.send(b"\xe0\x00")
    verdicts = {
        target.name: verdict_of(target, qos)
        for target, qos in explained(world, "amq.topic", "a.b").targets
    }
    assert verdicts["here"].kind == verdicts["away"].kind == "takes"
    assert "a client is connected" in verdicts["here"].text
    assert "no client is connected" in verdicts["away"].text


def test_the_reason_names_the_words_of_each_wildcard() -> None:
    world = World()
    exchange = world.vhost.exchange("amq.topic")
    world.vhost.declare_queue("q")
    queue = world.queue("q")
    key = "sensors.kitchen.temp.now"
    for binding, reason in (
        (Binding("sensors.*.temp.#", queue), "* matches 'kitchen', # matches 'now'"),
        (Binding("sensors.#", queue), "# matches 'kitchen.temp.now'"),
        (Binding(f"{key}.#", queue), "# matches zero words"),
        (Binding("#.temp.*", queue), "# matches 'sensors.kitchen', * matches 'now'"),
        (Binding(key, queue), "the keys are equal"),
        (Binding("sensors/+/#", queue, 0, None, MQTT), "+ matches 'kitchen', # matches 'temp/now'"),
    ):
        assert reason_of(exchange, binding, key, {}) == reason


def test_the_reason_of_a_headers_binding_names_the_headers_that_agree() -> None:
    world = World()
    exchange = world.vhost.exchange("amq.headers")
    world.vhost.declare_queue("q")
    binding = Binding("", world.queue("q"), 0, {"x-match": "any", "a": 1, "b": 2})
    reason = reason_of(exchange, binding, "", {"headers": {"a": 1, "b": 3}})
    assert reason == "x-match is any, and these headers agree: a=1"
