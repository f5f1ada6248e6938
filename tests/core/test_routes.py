"""Routes and plans: caching, eviction, and the count of every message despite route changes."""

from __future__ import annotations

import pamqp.commands as spec

from broker.access.identity import Identity
from broker.limits import BrokerLimits
from broker.routing.publish_context import ROUTES_PER_SLICE
from broker.routing.topic_history import HistorySum
from tests.clients import World, mqtt_publish


def world_with(routes: int, contexts: int = 1_000) -> World:
    limits = BrokerLimits()
    limits.routes = routes
    limits.contexts = contexts
    return World(limits)


def test_a_full_route_cache_evicts_routes_and_loses_no_count() -> None:
    world = world_with(routes=32)
    writer = world.mqtt("w")
    for number in range(200):
        writer.send(mqtt_publish(f"t/{number}", b"x"))
    [context] = [context for context in world.vhost.contexts if context.front == "mqtt311"]
    assert len(context.routes) <= 32
    assert world.fates() == {"unroutable": 200}


def test_routes_to_deleted_queues_do_not_fill_the_cache() -> None:
    world = World()
    client = world.amqp()
    [context] = [context for context in world.vhost.contexts if context.front == "amqp091"]
    for number in range(20):
        [ok] = client.send(spec.Queue.Declare(queue=f"reply-{number}", exclusive=True))
        client.publish("", ok.queue, b"answer")
        client.send(spec.Queue.Delete(queue=ok.queue))
        client.publish("", ok.queue, b"too late")
    assert len(context.routes) == 0
    assert world.fates() == {"routed": 20, "unroutable": 20}


def test_topics_above_512_bytes_are_not_cached_and_are_counted() -> None:
    world = World()
    reader, writer = world.mqtt("r"), world.mqtt("w")
    reader.subscribe("#", 0)
    long = mqtt_publish("t" * 600, b"x")
    writer.send(long * 3)
    assert reader.read() == long * 3
    assert world.fates() == {"routed": 3}


def test_topics_to_the_same_destinations_share_a_plan_and_a_new_binding_retires_it() -> None:
    world = World()
    reader, writer = world.mqtt("r"), world.mqtt("w")
    reader.subscribe("room/#", 0)
    writer.send(b"".join(mqtt_publish(f"room/{number}", b"x") for number in range(50)))
    assert world.vhost.plans == 1
    world.mqtt("late").subscribe("room/7", 0)
    assert world.vhost.plans == 0
    writer.send(b"".join(mqtt_publish(f"room/{number}", b"x") for number in range(50)))
    assert world.vhost.plans == 2
    assert world.copies() == {"auto_acknowledged": 101}


def test_many_subscribers_get_the_same_bytes_in_the_same_order_as_a_few() -> None:
    world = World()
    readers = [world.mqtt(f"r{number}") for number in range(300)]
    for reader in readers:
        reader.subscribe("all/#", 0)
    readers[0].subscribe("one", 0)
    one, first, second, third = (
        mqtt_publish(topic, topic.encode() * 9) for topic in ("one", "all/a", "all/b", "all/c")
    )
    writer = world.mqtt("w")
    writer.send(one + first + second + one + third)
    assert readers[0].read() == one + first + second + one + third
    for reader in readers[1:]:
        assert reader.read() == first + second + third
    writer.send(third + one)
    assert readers[0].read() == third + one
    assert {reader.read() for reader in readers[1:]} == {third}
    assert world.fates() == {"routed": 7}


def test_unused_publish_contexts_are_removed_above_the_limit_and_their_counts_stay() -> None:
    world = world_with(routes=100, contexts=3)
    for number in range(10):
        world.guests.identities[f"user-{number}"] = Identity(f"user-{number}")
        client = world.mqtt("c", user=f"user-{number}/guest")
        client.send(mqtt_publish("t", b"x"))
        client.send(b"\xe0\x00")
    assert len(list(world.vhost.contexts)) <= 5
    assert world.fates() == {"unroutable": 10}
    assert world.vhost.contexts.ingress_counters()["mqtt311"].received == 10


def test_unused_publish_contexts_are_removed_in_slices() -> None:
    world = world_with(routes=5_000, contexts=3)
    contexts = world.vhost.contexts
    routes, users = 2 * ROUTES_PER_SLICE, 4
    clients = []
    for user in range(users):
        world.guests.identities[f"user-{user}"] = Identity(f"user-{user}")
        client = world.mqtt(f"c{user}", user=f"user-{user}/guest")
        client.send(b"".join(mqtt_publish(f"t/{number}", b"x") for number in range(routes)))
        clients.append(client)
    caching = [context for context in contexts if context.routes]
    assert len(caching) == users and all(len(one.routes) == routes for one in caching)

    def cached() -> int:
        return sum(len(context.routes) for context in caching)

    for client in clients[1:]:
        client.connection.on_closed()
    left, turns = cached(), 0
    while left > 2 * routes:
        world.broker.agenda.turn()
        assert 0 <= left - cached() <= ROUTES_PER_SLICE
        left, turns = cached(), turns + 1
        assert turns < 100
        if turns == 1:  # This user's context is used again before its routes are removed.
            contexts.enter(world.guests.identities["user-1"], "mqtt311")
    assert turns > 1
    for _ in range(10):
        world.broker.agenda.turn()
    assert [context.identity.name for context in contexts if context.routes] == ["user-0", "user-1"]
    assert cached() == 2 * routes
    # No message of a removed route is forgotten.
    assert contexts.collected()["mqtt311"].received == users * routes
    sums = HistorySum(world.broker.history)
    for _ in sums.steps():
        pass
    assert sum(sums.counts["/", "amq.topic"].values()) == 2 * routes


def test_counts_of_messages_that_are_summed_in_slices_count_each_message_once() -> None:
    world = world_with(routes=100, contexts=4)
    reader = world.mqtt("reader")
    reader.subscribe("t/#", 0)

    def publish(user: int, topic: int) -> None:
        name = f"user-{user}"
        world.guests.identities.setdefault(name, Identity(name))
        client = world.mqtt("c", user=f"{name}/guest")
        client.send(mqtt_publish(f"t/{topic}", b"x"))
        client.send(b"\xe0\x00")

    for number in range(40):
        publish(number % 3, number)
    steps, added = 0, 0
    for _ in world.vhost.contexts.collect_steps(3):
        steps += 1
        publish(steps % 12, steps)
        added += 1
    assert steps > 4
    counters = world.vhost.contexts.collected()["mqtt311"]
    assert counters.received == 40 + added and 40 <= sum(counters.fates) <= 40 + added
    for _ in world.vhost.contexts.collect_steps(10_000):
        raise AssertionError("the pass over the routes was not complete")
    counters = world.vhost.contexts.collected()["mqtt311"]
    assert counters.received == counters.copies == sum(counters.fates) == 40 + added
    assert counters.fates == world.vhost.contexts.ingress_counters()["mqtt311"].fates


def test_a_will_is_counted_though_its_publish_context_is_no_longer_used() -> None:
    world = world_with(routes=100, contexts=0)
    client = world.mqtt("c", will=("gone", b"x"))
    client.connection.on_closed()
    world.turn()
    assert world.fates() == {"unroutable": 1}
