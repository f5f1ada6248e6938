"""Tests of the search for the destinations of a message, which may take several turns.

The steps in a turn are bounded. Bindings may change while a search pauses. Plans are cached.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import pamqp.commands as spec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from broker.access.identity import Identity
from broker.access.rules import UserPermissions
from broker.errors import LimitExceeded
from broker.limits import BrokerLimits
from broker.messages.message import Properties
from broker.queues.queue import Queue
from broker.routing.binding import Binding
from broker.routing.exchanges import Exchange, FanoutExchange
from broker.routing.exchanges.base import ExchangeOptions
from broker.routing.plan_search import (
    RESTARTS,
    STEPS_PER_TURN,
    UNLIMITED,
    PlanSearch,
    SearchScope,
    SearchSlot,
)
from broker.routing.route import Route
from matching import AMQP, MQTT
from tests.clients import World, mqtt_publish, publication

#: Number of levels of the filters that make a lookup long. Each level is `+` or `a`, so there are
#: 4,096 filters.
LEVELS = 12
LONG_TOPIC = "/".join("a" * LEVELS)


def heavy_world(levels: int = LEVELS, exchange: str = "amq.topic") -> World:
    """Return a broker in which a lookup of LONG_TOPIC in `exchange` visits 2**LEVELS nodes."""
    limits = BrokerLimits()
    limits.pattern_nodes = 0
    world = World(limits)
    world.vhost.declare_exchange(exchange, "topic", world.vhost.exchange("amq.topic").options)
    world.vhost.declare_queue("all")
    for words in product("+a", repeat=levels):
        name = "/".join([*words, "#"])
        world.vhost.bind(exchange, Binding(name, world.queue("all"), 0, None, MQTT))
    return world


def one_turn(world: World, connection: Any) -> None:
    """Run one turn, and let a connection that has leftover input continue once."""
    world.turn()
    if connection.behind:
        connection.resume()


@pytest.mark.parametrize("kind", ["headers", "fanout", "direct", "x-delayed-message"])
def test_exchange_without_keys_is_searched_once_and_a_lookup_costs_its_steps(
    kind: str,
) -> None:
    world = World()
    delayed = ExchangeOptions(arguments={"x-delayed-type": "headers"})
    options = delayed if kind == "x-delayed-message" else ExchangeOptions()
    exchange = world.vhost.declare_exchange("x", kind, options)
    world.vhost.declare_queue("q")
    world.vhost.declare_queue("r")
    many = 2_000
    for number in range(many):
        arguments = {"a": 1, "b": None, "x-number": number}
        world.vhost.bind("x", Binding(str(number), world.queue("q"), 0, arguments))
    world.vhost.bind("x", Binding("r", world.queue("r"), 0, {"a": 1, "x-match": "any"}))
    keys = ["0", "r", *[f"k{number}" for number in range(5_000)]]
    scope = SearchScope(world.vhost.exchanges, world.vhost.queues, world.vhost.replies)
    search = PlanSearch(scope, exchange, b"", keys, {"headers": {"a": 1}})
    slot = SearchSlot()
    while not search.advance(slot):
        pass
    names = sorted(target.name for target, _ in search.destinations())
    by_headers = kind in ("headers", "x-delayed-message")
    assert names == (["r"] if by_headers else ["q", "r"])
    if kind == "direct":
        # The search looks up the keys of a direct exchange one by one.
        assert slot.spent > len(keys)
    else:
        assert many < slot.spent < many + 100


def test_a_search_takes_no_more_steps_in_a_turn_than_it_may_and_finds_all() -> None:
    world = heavy_world(LEVELS + 1)
    exchange = world.vhost.exchange("amq.topic")
    assert exchange.needs_search
    scope = SearchScope(world.vhost.exchanges, world.vhost.queues, world.vhost.replies)
    search = PlanSearch(scope, exchange, b"", [".".join("a" * (LEVELS + 1))], {})
    turns = 1
    slot = SearchSlot()
    while not search.advance(slot):
        turns += 1
        assert slot.spent <= turns * (STEPS_PER_TURN + 20)
    # Each of the 2**(LEVELS + 1) patterns takes at least two steps: for its node and its binding.
    assert 8 <= turns <= 40
    assert [target.name for target, _ in search.destinations()] == ["all"]
    assert scope.paused == 1


def test_a_publisher_waits_for_its_search_while_others_are_served_and_order_is_kept() -> None:
    world = heavy_world()
    reader, other = world.mqtt("r"), world.mqtt("o")
    reader.subscribe("#", 0)
    writer = world.mqtt("w")
    first, second, third = (
        mqtt_publish(topic, b"x") for topic in (LONG_TOPIC, "short", f"{LONG_TOPIC}/b")
    )
    writer.connection.receive_data(first + second + third)
    assert writer.connection.behind
    assert reader.read() == b""
    assert other.send(mqtt_publish("quick", b"y")) == b""
    assert reader.read() == mqtt_publish("quick", b"y")
    world.settle(writer.connection)
    assert reader.read() == first + second + third
    assert writer.connection.slot.searches is None
    assert world.fates() == {"routed": 4}
    assert world.vhost.paused_searches == 2
    writer.connection.receive_data(first)
    assert reader.read() == first, "the route is cached"


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("retain", [0, 1])
def test_an_acknowledged_publication_is_published_once_after_its_search(
    qos: int, retain: int
) -> None:
    world = heavy_world()
    reader, writer = world.mqtt("r"), world.mqtt("w")
    reader.subscribe("#", 0)
    packet = mqtt_publish(LONG_TOPIC, b"x", qos, 7, retain)
    writer.connection.receive_data(packet)
    world.turn()
    assert writer.connection.data_to_send() == b""
    assert reader.read() == b""
    world.settle(writer.connection)
    answer = b"\x40\x02\x00\x07" if qos == 1 else b"\x50\x02\x00\x07"
    assert writer.read() == answer
    assert reader.read() == mqtt_publish(LONG_TOPIC, b"x")
    assert world.queue("all").depth == 1
    assert len(world.vhost.retained) == retain


@pytest.mark.parametrize("size", [10, 300_000])
@pytest.mark.parametrize("mode", ["plain", "confirm", "transaction", "mandatory"])
def test_an_amqp_publication_is_published_once_after_its_search(mode: str, size: int) -> None:
    world = heavy_world()
    client = world.amqp()
    client.queue("short")
    if mode == "confirm":
        client.send(spec.Confirm.Select())
    if mode == "transaction":
        client.send(spec.Tx.Select())
    key = LONG_TOPIC.replace("/", ".")
    body = bytes(size)
    whole = publication("amq.topic", key, body, mandatory=mode == "mandatory")
    whole += publication("", "short", b"later")
    for at in range(0, len(whole), 100_000):
        client.connection.receive_data(whole[at : at + 100_000])
    world.turn()
    assert world.queue("all").depth == 0 and world.queue("short").depth == 0
    assert client.connection.behind
    world.settle(client.connection)
    if mode == "transaction":
        client.send(spec.Tx.Commit())
    answers = client.read()
    if mode == "confirm":
        tags = [(answer.delivery_tag, answer.multiple) for answer in answers]
        assert tags in ([(1, False), (2, False)], [(2, True)])
    assert world.queue("all").depth == 1 and world.queue("short").depth == 1
    assert world.fates() == {"routed": 2}
    assert client.connection.slot.searches is None


def test_thousands_of_routing_keys_of_one_message_are_looked_up_in_slices() -> None:
    world = World()
    for number in range(300):
        world.vhost.declare_queue(f"q{number}")
        world.vhost.bind("amq.topic", Binding(f"{number}.#", world.queue(f"q{number}")))
    client = world.amqp()
    keys = [f"{number}.x" for number in range(3_000)]
    client.connection.receive_data(
        publication("amq.topic", "0.0", b"x", headers={"CC": keys}, frame_max=131_072)
    )
    assert client.connection.behind
    world.settle(client.connection)
    assert all(world.queue(f"q{number}").depth == 1 for number in range(300))


def test_exchanges_bound_to_each_other_are_walked_in_slices() -> None:
    world = World()
    many = 120
    for number in range(many):
        world.vhost.exchanges[f"e{number}"] = FanoutExchange(
            f"e{number}", world.vhost.exchange("amq.fanout").options
        )
    exchanges = [world.vhost.exchange(f"e{number}") for number in range(many)]
    world.vhost.declare_queue("q")
    for source in exchanges:
        for target in exchanges:
            world.vhost.bind(source.name, Binding("", target))
        world.vhost.bind(source.name, Binding("", world.queue("q")))
    client = world.amqp()
    client.connection.receive_data(publication("e0", "", b"x"))
    assert client.connection.behind
    world.settle(client.connection)
    assert world.queue("q").depth == 1
    # A plan that leads through so many exchanges becomes invalid at any change in the virtual host.
    world.vhost.declare_queue("another")
    client.publish("e0", "", b"x")
    world.settle(client.connection)
    assert world.queue("q").depth == 2


def test_a_dead_letter_and_a_will_wait_for_their_searches() -> None:
    world = heavy_world()
    client = world.amqp()
    key = LONG_TOPIC.replace("/", ".")
    client.queue(
        "dying",
        x_dead_letter_exchange="amq.topic",
        x_dead_letter_routing_key=key,
        x_max_length=1,
    )
    client.publish("", "dying", b"one")
    client.publish("", "dying", b"two")
    gone = world.mqtt("gone", will=(LONG_TOPIC, b"will"))
    gone.connection.on_closed()
    world.settle()
    assert world.queue("all").depth == 2
    assert world.vhost.paused_searches == 2
    assert world.fates() == {"routed": 4}


class Churn:
    """A binding to `amq.topic`. `change` adds an absent binding, and removes an existing one."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.binding = Binding(name, world.queue("churn"), 0, None, MQTT)
        self.bound = False

    def change(self) -> None:
        if self.bound:
            self.world.vhost.unbind("amq.topic", self.binding)
        else:
            self.world.vhost.bind("amq.topic", self.binding)
        self.bound = not self.bound


def test_a_search_ends_though_bindings_change_in_every_turn() -> None:
    world = heavy_world()
    world.vhost.declare_queue("churn")
    churn = Churn(world, "never/#")
    reader, writer = world.mqtt("r"), world.mqtt("w")
    reader.subscribe("#", 0)
    writer.connection.receive_data(mqtt_publish(LONG_TOPIC, b"x"))
    turns = 0
    while writer.connection.behind:
        churn.change()
        one_turn(world, writer.connection)
        turns += 1
        assert turns < 40 * (1 + RESTARTS)
    world.turn()
    assert reader.read() == mqtt_publish(LONG_TOPIC, b"x")
    route = next(iter(world.vhost.contexts.enter(writer.connection.identity, "none").routes), None)
    assert route is None
    # If bindings changed during a search, its plan serves one message and is not cached.
    writer.connection.receive_data(mqtt_publish(LONG_TOPIC, b"y"))
    assert writer.connection.behind
    world.settle(writer.connection)
    assert reader.read() == mqtt_publish(LONG_TOPIC, b"y")


def test_a_binding_that_is_added_during_a_search_gets_the_message() -> None:
    world = heavy_world()
    writer, late = world.mqtt("w"), world.mqtt("late")
    writer.connection.receive_data(mqtt_publish(LONG_TOPIC, b"x"))
    assert writer.connection.behind
    late.subscribe(LONG_TOPIC, 0)
    world.settle(writer.connection)
    assert late.read() == mqtt_publish(LONG_TOPIC, b"x")


@pytest.mark.parametrize("end", ["connection", "queue", "permission"])
def test_destination_may_end_before_the_search_is_complete(end: str) -> None:
    world = heavy_world()
    reader, writer = world.mqtt("r"), world.mqtt("w")
    reader.subscribe("#", 0)
    writer.connection.receive_data(mqtt_publish(LONG_TOPIC, b"x"))
    assert writer.connection.behind
    if end == "connection":
        writer.connection.on_closed()
    elif end == "queue":
        world.vhost.delete_queue(world.queue("all"))
    else:
        world.vhost.retire_plans()
    world.settle(writer.connection)
    world.settle()
    assert reader.read() == (b"" if end == "connection" else mqtt_publish(LONG_TOPIC, b"x"))
    assert world.fates() == ({} if end == "connection" else {"routed": 1})


@pytest.mark.parametrize("alternate", ["missing", ""])
def test_an_alternate_destination_that_is_declared_during_a_search_gets_the_message(
    alternate: str,
) -> None:
    world = heavy_world()
    vhost, client = world.vhost, world.amqp()
    key = LONG_TOPIC.replace("/", ".")
    vhost.declare_exchange("in", "fanout", ExchangeOptions())
    options = ExchangeOptions(arguments={"alternate-exchange": alternate})
    unbound = vhost.declare_exchange("unbound", "direct", options)
    # The search walks `unbound` with its alternate exchange, and pauses in amq.topic.
    for target in (vhost.exchange("amq.topic"), unbound):
        vhost.bind("in", Binding("", target))
    client.connection.receive_data(publication("in", key, b"x"))
    assert client.connection.behind
    if alternate:
        vhost.declare_exchange(alternate, "fanout", ExchangeOptions())
        vhost.bind(alternate, Binding("", vhost.declare_queue("late")))
    else:
        vhost.declare_queue(key)
    world.settle(client.connection)
    for _ in range(3):
        client.publish("in", key, b"x")
    assert world.queue("late" if alternate else key).depth == 4


def test_a_search_does_not_keep_a_destination_that_may_no_longer_read_the_topic() -> None:
    world = heavy_world(exchange="heavy")
    vhost = world.vhost
    world.guests.identities["u"] = _denied("other")
    reader, writer = world.mqtt("r", user="u/guest"), world.amqp()
    reader.subscribe("#", 0)
    key = LONG_TOPIC.replace("/", ".")
    vhost.declare_exchange("in", "fanout", ExchangeOptions())
    # The search finds the reader in amq.topic, and pauses in `heavy`.
    for name in ("heavy", "amq.topic"):
        vhost.bind("in", Binding("", vhost.exchange(name)))
    writer.connection.receive_data(publication("in", key, b"x"))
    assert writer.connection.behind
    world.guests.identities["u"] = _denied(LONG_TOPIC)
    world.review()
    world.settle(writer.connection)
    for _ in range(2):
        writer.publish("in", key, b"y")
    assert reader.read() == b""
    writer.publish("in", "other", b"z")
    assert reader.read() == mqtt_publish("other", b"z")
    assert world.queue("all").depth == 3


def _denied(topic: str) -> Identity:
    """Return an identity of the user `u`, who may read every topic except `topic`."""
    rules = [f"deny subscribe {topic}", "allow all #"]
    return UserPermissions("u", "/", (".*", ".*", ".*"), rules).identity("r")


def test_the_patterns_of_one_session_are_limited_by_the_nodes_that_a_topic_can_visit() -> None:
    world = World()
    client = world.mqtt("c")
    refused = 0
    for number, words in enumerate(product("+a", repeat=13)):
        answer = client.subscribe("/".join([*words, "#"]), 0)
        refused += answer[-1] == 0x80
        if number < 32:
            assert answer[-1] == 0
        if refused > 3:
            break
    assert refused == 4
    assert world.vhost.bindings.refused == 4
    # The limit does not apply to filters without a wildcard, which visit no nodes, or to other
    # clients.
    assert client.subscribe("plain/topic", 0)[-1] == 0
    other = world.mqtt("other")
    for number in range(200):
        assert other.subscribe(f"site/{number}/+/t", 0)[-1] == 0


def test_a_binding_above_the_limit_is_refused_and_fits_after_others_are_removed() -> None:
    limits = BrokerLimits()
    limits.pattern_nodes = 200
    world = World(limits)
    world.vhost.declare_queue("q")
    queue = world.queue("q")
    bound: list[Binding] = []
    refusal = ""
    for words in product(["*", "a"], repeat=8):
        binding = Binding(".".join(words), queue)
        try:
            world.vhost.bind("amq.topic", binding)
        except LimitExceeded as error:
            refusal = str(error)
            break
        bound.append(binding)
    assert "bindings of 'q' (" in refusal and "to exchange 'amq.topic'" in refusal
    assert "limits.pattern_nodes is 200" in refusal
    wanted = Binding(".".join("a" * 8), queue)
    for binding in bound[:100]:
        world.vhost.unbind("amq.topic", binding)
    world.vhost.bind("amq.topic", wanted)


KEYS = ["a", "b", "a.b", "b.a.c", "", "x.a"]
PATTERNS = ["a", "a.b", "*", "#", "a.#", "*.a", "b.*.c", "#.c", "x.#"]
EXCHANGES = {"d": "direct", "t": "topic", "f": "fanout", "amq.topic": "topic"}


class CachedPlans(RuleBasedStateMachine):
    """A machine that changes exchanges and bindings at random, and publishes messages.

    After each change, a cached route that is still valid must have the destinations that a new
    search finds.
    """

    @initialize()
    def begin(self) -> None:
        self.world = World()
        self.client = self.world.amqp()
        self.serial = 0
        for name, kind in EXCHANGES.items():
            self._declare(name, kind)

    def _declare(self, name: str, kind: str) -> None:
        if name not in self.world.vhost.exchanges:
            self.client.send(spec.Exchange.Declare(exchange=name, exchange_type=kind))

    @rule(name=st.sampled_from(sorted(EXCHANGES)), key=st.sampled_from(KEYS))
    def publish(self, name: str, key: str) -> None:
        if name in self.world.vhost.exchanges:
            self.client.publish(name, key, b"x")

    @rule(key=st.sampled_from(["q0", "q1", "q2", "a"]))
    def publish_to_a_queue(self, key: str) -> None:
        self.client.publish("", key, b"x")

    @rule(number=st.integers(0, 2))
    def declare_queue(self, number: int) -> None:
        self.world.vhost.declare_queue(f"q{number}")

    @rule(number=st.integers(0, 2))
    def delete_queue(self, number: int) -> None:
        queue = self.world.vhost.queues.get(f"q{number}")
        if queue is not None:
            self.world.vhost.delete_queue(queue)

    @rule(name=st.sampled_from(["d", "f"]))
    def delete_exchange(self, name: str) -> None:
        self.world.vhost.delete_exchange(name)

    @rule(name=st.sampled_from(["d", "f"]))
    def declare_exchange(self, name: str) -> None:
        self._declare(name, EXCHANGES[name])

    @rule(
        source=st.sampled_from(sorted(EXCHANGES)),
        to=st.sampled_from(["q0", "q1", "q2", "d", "f", "t"]),
        key=st.sampled_from(PATTERNS),
        unbind=st.booleans(),
    )
    def bind(self, source: str, to: str, key: str, unbind: bool) -> None:
        vhost = self.world.vhost
        target = vhost.queues.get(to) or vhost.exchanges.get(to)
        if target is None or source not in vhost.exchanges:
            return
        if unbind:
            vhost.unbind(source, Binding(key, target))
        else:
            vhost.bind(source, Binding(key, target))

    @rule(name=st.sampled_from(["a/+", "+/b", "#", "b/a/c", "x/#"]), leaves=st.booleans())
    def subscribe(self, name: str, leaves: bool) -> None:
        self.serial += 1
        reader = self.world.mqtt(f"r{self.serial}")
        reader.subscribe(name, 1)
        if leaves:
            reader.connection.on_closed()

    @rule(alternate=st.sampled_from(["f", "t", None]))
    def set_policy(self, alternate: str | None) -> None:
        vhost = self.world.vhost
        exchange = vhost.exchanges.get("d")
        if exchange is not None:
            exchange.alternate = alternate
            vhost.retire_plans()

    @invariant()
    def cached_routes_lead_where_fresh_ones_lead(self) -> None:
        if not hasattr(self, "world"):
            return
        vhost = self.world.vhost
        for context in vhost.contexts:
            for route in context.routes.values():
                if not route.plan.stale:
                    assert _reached(route) == _fresh(self.world, route), route.key


def _reached(route: Route) -> tuple[set[str], int]:
    plan = route.plan
    names = {queue.name for queue in plan.reliable_queues}
    return names | {target.name for target in plan.relay.targets}, int(plan.copies)


def _fresh(world: World, route: Route) -> tuple[set[str], int]:
    """Search the destinations of a route again, without its cached plan.

    Return the names of the destinations, and the number of copies that a message would have.
    """
    vhost = world.vhost
    exchange = vhost.exchanges.get(route.exchange)
    if exchange is None:
        return set(), 0
    scope = SearchScope(vhost.exchanges, vhost.queues, vhost.replies)
    properties: Properties = {}
    search = PlanSearch(scope, exchange, route.topic, [route.key], properties)
    assert search.advance(SearchSlot(UNLIMITED))
    names = set()
    for target, qos in search.destinations():
        names.add(target.name)
        if not isinstance(target, Queue) and qos > 0:
            names.add(target.inbox.name)
    return names, len(search.targets) + search.unrepresentable


CachedPlans.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
test_cached_plans = pytest.mark.hypothesis(CachedPlans.TestCase)


@given(
    keys=st.lists(st.text("ab.", max_size=6), min_size=1, max_size=4),
    patterns=st.lists(st.sampled_from(PATTERNS), max_size=12),
    steps=st.integers(1, 30),
)
def test_search_in_any_slices_equals_a_whole_search(
    keys: list[str], patterns: list[str], steps: int
) -> None:
    world = World()
    vhost = world.vhost
    targets: Iterator[Exchange | Queue] = iter(
        [vhost.declare_queue(f"q{number}") for number in range(6)]
        + [vhost.exchange("amq.fanout"), vhost.exchange("amq.direct")]
    )
    several = list(targets)
    for number, pattern in enumerate(patterns):
        source = "amq.topic" if number % 3 else "amq.fanout"
        vhost.bind(source, Binding(pattern, several[number % len(several)], 0, None, AMQP))
    scope = SearchScope(vhost.exchanges, vhost.queues, vhost.replies)
    source_exchange = vhost.exchange("amq.topic")
    sliced = PlanSearch(scope, source_exchange, b"", keys, {})
    whole = PlanSearch(scope, source_exchange, b"", keys, {})
    assert whole.advance(SearchSlot(UNLIMITED))
    turns = 0
    while not sliced.advance(SearchSlot(steps)):
        turns += 1
        assert turns < 1_000
    assert sliced.destinations() == whole.destinations()
    assert sliced.seen == whole.seen


def test_a_slot_keeps_no_search_for_another_publication() -> None:
    world = heavy_world()
    slot = SearchSlot(1_000)
    context = world.vhost.internal
    assert world.vhost.route(context, "amq.topic", LONG_TOPIC.replace("/", "."), slot) is None
    other = world.vhost.route(context, "amq.fanout", "x", slot)
    assert other is not None and other.plan.copies == 0


@pytest.mark.parametrize("matching", [True, False])
@pytest.mark.parametrize("kind", ["all", "any"])
def test_a_lookup_in_very_many_headers_bindings_is_continued_in_later_turns(
    kind: str, matching: bool
) -> None:
    """Check that a lookup that examines all bindings of a headers exchange takes several turns.

    All bindings have equal criteria. They differ only in `x-number`, which is no criterion.
    """
    world = World()
    client = world.amqp()
    client.queue("q")
    criteria: dict[str, object] = {f"c{number}": 1 for number in range(4)}
    for number in range(2 * STEPS_PER_TURN):
        arguments = {**criteria, "x-match": kind, "x-number": number}
        world.vhost.bind("amq.headers", Binding("", world.queue("q"), 0, arguments))
    headers = criteria if matching else {"c0": 1, "c1": 1, "c2": 2}
    client.connection.receive_data(publication("amq.headers", "", b"x", headers=headers))
    assert client.connection.behind and world.queue("q").depth == 0
    turns = 0
    while client.connection.behind:
        one_turn(world, client.connection)
        turns += 1
    assert turns >= 2 and world.vhost.paused_searches >= 1
    assert world.queue("q").depth == (matching or kind == "any")
