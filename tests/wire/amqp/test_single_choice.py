"""The exchanges that choose one destination: x-random, x-local-random and x-modulus-hash."""

from __future__ import annotations

import zlib
from collections import Counter
from pathlib import Path

import pamqp.commands as spec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.queues.destination import Destination
from broker.queues.policies import Policy
from broker.routing.binding import Binding
from broker.routing.exchanges import Exchange, ModulusHashExchange, RandomExchange
from broker.routing.exchanges.base import ExchangeOptions
from broker.routing.exchanges.consistent_hash import mixed
from tests.clients import Amqp, World
from tests.store.homes import Home
from tests.wire.amqp.speech import read, refusal

Q, X = spec.Queue, spec.Exchange
MESSAGES = 600


def client_of(world: World, kind: str, queues: list[str], durable: bool = False) -> Amqp:
    client = world.amqp()
    client.send(X.Declare(exchange="x", exchange_type=kind, durable=durable))
    for name in queues:
        client.queue(name, "x", "", durable=durable)
    return client


def publish(client: Amqp, count: int = MESSAGES) -> None:
    for number in range(count):
        client.publish("x", f"key-{number}", b"%d" % number)


@pytest.mark.parametrize("kind", ["x-random", "x-local-random"])
def test_each_message_goes_to_one_queue_and_each_queue_gets_its_share(kind: str) -> None:
    client = client_of(World(), kind, ["a", "b", "c"])
    publish(client)
    received = [read(client, name) for name in ("a", "b", "c")]
    assert sorted(int(body) for bodies in received for body in bodies) == list(range(MESSAGES))
    # Five standard deviations of a binomial distribution: 5 * sqrt(600 * 1/3 * 2/3) = 58.
    assert all(abs(len(bodies) - MESSAGES / 3) < 58 for bodies in received)
    client.world.fates()


def test_the_same_messages_are_routed_alike_in_another_simulation() -> None:
    first, second = (client_of(World(), "x-random", ["a", "b", "c"]) for _ in range(2))
    publish(first)
    publish(second)
    assert [read(first, name) for name in "abc"] == [read(second, name) for name in "abc"]


def test_a_queue_with_two_bindings_gets_twice_the_messages_of_a_random_exchange() -> None:
    client = client_of(World(), "x-random", ["a", "b"])
    client.send(Q.Bind(queue="a", exchange="x", routing_key="second"))
    publish(client)
    assert abs(len(read(client, "a")) - MESSAGES * 2 / 3) < 58


@pytest.mark.parametrize("kind", ["x-random", "x-local-random", "x-modulus-hash"])
def test_a_deleted_queue_gets_nothing_and_a_message_without_a_queue_is_returned(kind: str) -> None:
    client = client_of(World(), kind, ["a", "b"])
    client.send(Q.Delete(queue="a"))
    publish(client, 50)
    assert len(read(client, "b")) == 50
    client.send(Q.Delete(queue="b"))
    frames = client.publish("x", "k", b"x", mandatory=True)
    assert frames[0].name == "Basic.Return"
    client.world.fates()


@pytest.mark.parametrize("kind", ["x-random", "x-modulus-hash"])
def test_a_policy_that_replaces_a_queue_keeps_its_bindings(kind: str) -> None:
    client = client_of(World(), kind, ["a"])
    vhost = client.world.vhost
    vhost.applied_policies.set_policy(Policy("/", "p", "a", "queues", 0, {"max-length": 1_000}))
    client.world.settle()
    publish(client, 20)
    assert len(read(client, "a")) == 20


def test_a_local_random_exchange_refuses_keys_and_exchanges() -> None:
    client = client_of(World(), "x-local-random", ["a"])
    error = refusal(client.send(Q.Bind(queue="a", exchange="x", routing_key="k")))
    assert error.code == 406 and "accepts no binding key" in error.text
    client = client_of(World(), "x-local-random", [])
    error = refusal(client.send(X.Bind(destination="amq.direct", source="x", routing_key="")))
    assert error.code == 406 and "routes to queues only" in error.text


@given(st.lists(st.text(max_size=8), max_size=20), st.integers(1, 6))
@settings(max_examples=25, deadline=None)
def test_the_modulus_of_the_crc_chooses_among_the_sorted_queues(
    keys: list[str], queues: int
) -> None:
    names = [f"q{number}" for number in range(queues)]
    client = client_of(World(), "x-modulus-hash", names[::-1])
    for key in keys:
        client.publish("x", key, key.encode())
    wanted = Counter(names[mixed(zlib.crc32(key.encode()), 0) % queues] for key in keys)
    assert {name: len(read(client, name)) for name in names} == {
        name: wanted[name] for name in names
    }


@pytest.mark.parametrize("queues", [2, 3, 4, 8])
def test_the_modulus_spreads_similar_keys_evenly(queues: int) -> None:
    names = [f"q{number}" for number in range(queues)]
    client = client_of(World(), "x-modulus-hash", names)
    publish(client)
    counts = [len(read(client, name)) for name in names]
    assert sum(counts) == MESSAGES
    assert min(counts) > 0.8 * MESSAGES / queues


def test_a_second_binding_of_a_queue_does_not_change_the_modulus() -> None:
    client = client_of(World(), "x-modulus-hash", ["a", "b"])
    publish(client)
    before = [read(client, name) for name in "ab"]
    client.send(Q.Bind(queue="a", exchange="x", routing_key="second"))
    publish(client)
    assert [read(client, name) for name in "ab"] == before and all(before)


def test_the_modulus_leads_to_the_same_queues_after_a_restart(tmp_path: Path) -> None:
    received = []
    for _ in range(2):
        home = Home(tmp_path / "d")
        client = client_of(home, "x-modulus-hash", ["c", "a", "b"], durable=True)
        publish(client, 100)
        received.append([read(client, name) for name in "abc"])
        home.settle()
        home.store.sync()
        home.store.close()
    assert received[0] == received[1] and all(received[0])


@pytest.mark.parametrize("kind", [RandomExchange, ModulusHashExchange])
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2), st.integers(0, 3)), max_size=40))
@settings(max_examples=50, deadline=None)
def test_every_choice_leads_to_a_live_destination_that_is_bound(
    kind: type[Exchange], steps: list[tuple[int, int, int]]
) -> None:
    exchange = kind("x", ExchangeOptions())
    queues = [Destination(f"q{number}") for number in range(6)]
    for at, key, action in steps:
        queue = queues[at]
        if action == 0:
            exchange.unbind(queue, str(key))
        elif action == 1:
            # A deleted queue keeps its bindings for a while; a new queue may have its name.
            queue.dead = True
            queues[at] = Destination(queue.name)
        else:
            exchange.bind(Binding(str(key), queue))
        live = {one for one in exchange.bindings.destinations() if not one.dead}
        destinations = [
            binding.destination
            for number in range(4)
            for binding in exchange.match(f"k{number}", {})
        ]
        assert set(destinations) <= live and len(destinations) == (4 if live else 0)
