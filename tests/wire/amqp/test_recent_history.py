"""The exchange type x-recent-history."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pamqp.commands as spec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.queues.policies import Policy
from broker.queues.recent import RECENT_BYTES_MAX
from tests.clients import Amqp, World, marshal
from tests.store.homes import Home
from tests.wire.amqp.speech import names, properties, read, refusal

Q, B, X = spec.Queue, spec.Basic, spec.Exchange


def remembering(world: World, durable: bool = False, **arguments: Any) -> Amqp:
    client = world.amqp()
    client.send(
        X.Declare(
            exchange="x",
            exchange_type="x-recent-history",
            durable=durable,
            arguments={name.replace("_", "-"): value for name, value in arguments.items()},
        )
    )
    return client


def publish(client: Amqp, numbers: range, **given: Any) -> None:
    for number in numbers:
        client.publish("x", "k", b"%d" % number, **given)


def bodies(numbers: range) -> list[bytes]:
    return [b"%d" % number for number in numbers]


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 6), st.lists(st.integers(0, 5), min_size=1, max_size=4))
def test_each_new_queue_gets_the_last_messages_and_then_all_later_ones(
    length: int, rounds: list[int]
) -> None:
    client = remembering(World(), x_recent_history_length=length)
    published: list[bytes] = []
    wanted: list[list[bytes]] = []
    for at, count in enumerate(rounds):
        client.queue(f"q{at}", "x", "")
        wanted.append(published[-length:])
        numbers = range(len(published), len(published) + count)
        publish(client, numbers)
        published += bodies(numbers)
        for expected in wanted:
            expected += bodies(numbers)
    assert [read(client, f"q{at}") for at in range(len(rounds))] == wanted
    client.world.fates()


def test_twenty_messages_are_kept_by_default() -> None:
    client = remembering(World())
    publish(client, range(25))
    client.queue("q", "x", "")
    assert read(client, "q") == bodies(range(5, 25))


def test_a_message_keeps_its_properties_and_its_expiration_counts_from_publishing() -> None:
    client = remembering(World())
    client.publish("x", "a", b"old", expiration="10")
    client.publish("x", "b", b"new", message_id="m", headers={"h": 1})
    client.world.sleep(10)
    client.queue("q", "x", "")
    frames = client.send(B.Get(queue="q"))
    assert client.bodies(frames) == [b"new"]
    assert (properties(frames).message_id, properties(frames).headers) == ("m", {"h": 1})
    assert (frames[0].exchange, frames[0].routing_key) == ("x", "b")


def test_a_message_with_the_header_no_store_is_routed_but_not_kept() -> None:
    client = remembering(World())
    client.queue("early", "x", "")
    client.publish("x", "k", b"a", headers={"x-recent-history-no-store": True})
    client.publish("x", "k", b"b", headers={"x-recent-history-no-store": 1})
    client.queue("late", "x", "")
    assert (read(client, "early"), read(client, "late")) == ([b"a", b"b"], [b"b"])
    client.world.fates()


def test_a_message_that_only_joins_the_history_is_returned_as_unroutable() -> None:
    client = remembering(World())
    frames = client.publish("x", "k", b"x", mandatory=True)
    assert frames[0].name == "Basic.Return"
    client.queue("q", "x", "")
    assert read(client, "q") == [b"x"]
    client.world.fates()


def test_the_same_binding_gets_the_history_once_and_another_binding_again() -> None:
    client = remembering(World())
    publish(client, range(2))
    client.queue("q", "x", "k")
    client.send(Q.Bind(queue="q", exchange="x", routing_key="k"))
    assert read(client, "q") == bodies(range(2))
    client.send(Q.Bind(queue="q", exchange="x", routing_key="l"))
    assert read(client, "q") == bodies(range(2))


def test_a_bound_exchange_routes_the_history_by_its_own_bindings() -> None:
    client = remembering(World())
    client.publish("x", "a", b"a")
    client.publish("x", "b", b"b")
    client.queue("q", "amq.direct", "b")
    client.send(X.Bind(destination="amq.direct", source="x", routing_key=""))
    assert read(client, "q") == [b"b"]
    client.world.fates()


def test_a_long_history_is_delivered_in_slices() -> None:
    client = remembering(World(), x_recent_history_length=1_000)
    publish(client, range(1_000))
    client.send(Q.Declare(queue="q"))
    world = client.world
    client.connection.receive_data(marshal(1, Q.Bind(queue="q", exchange="x", routing_key="")))
    queue = world.queue("q")
    depths = [int(queue.depth)]
    while not world.broker.agenda.idle:
        world.broker.agenda.turn()
        depths.append(int(queue.depth))
    assert all(after - before <= 100 for before, after in pairwise([0, *depths]))
    client.read()
    assert read(client, "q") == bodies(range(1_000))


def test_a_history_of_large_messages_holds_fewer_of_them_and_then_small_ones_again() -> None:
    client = remembering(World(), x_recent_history_length=100)
    body = bytes(RECENT_BYTES_MAX // 8)
    for number in range(12):
        client.publish("x", "k", body + bytes([number]))
    client.queue("large", "x", "")
    assert [one[-1] for one in read(client, "large")] == list(range(5, 12))
    client.send(Q.Delete(queue="large"))
    # After its expiry, the large message takes no room in the history.
    client.publish("x", "k", body, expiration="1000")
    client.world.sleep(1_001)
    publish(client, range(100))
    client.queue("small", "x", "")
    assert read(client, "small") == bodies(range(100))
    client.world.fates()


def bind_without_turn(client: Amqp, *methods: Any) -> None:
    """Send queue.bind and other methods in one chunk, without a turn in between."""
    client.send(Q.Declare(queue="q"))
    first = Q.Bind(queue="q", exchange="x", routing_key="")
    client.connection.receive_data(b"".join(marshal(1, one) for one in (first, *methods)))


def test_a_queue_that_a_policy_changes_meanwhile_gets_the_rest_of_the_history() -> None:
    client = remembering(World(), x_recent_history_length=300)
    publish(client, range(300))
    bind_without_turn(client)
    world = client.world
    policy = Policy("/", "p", "q", "queues", 0, {"max-length": 1_000})
    world.vhost.applied_policies.set_policy(policy)
    assert world.queue("q").depth < 300
    world.settle(client.connection)
    client.read()
    assert read(client, "q") == bodies(range(300))
    world.fates()


def test_a_binding_that_is_removed_meanwhile_gets_no_more() -> None:
    client = remembering(World(), x_recent_history_length=300)
    publish(client, range(300))
    other = client.world.amqp()
    bind_without_turn(client)
    other.connection.receive_data(marshal(1, Q.Unbind(queue="q", exchange="x", routing_key="")))
    client.world.settle()
    client.read()
    received = read(client, "q")
    assert received == bodies(range(len(received))) and 0 < len(received) < 300
    client.world.fates()


def test_the_methods_after_a_binding_wait_until_the_history_is_delivered() -> None:
    client = remembering(World(), x_recent_history_length=1_000)
    publish(client, range(1_000))
    again = [Q.Bind(queue="q", exchange="x", routing_key=str(number)) for number in range(20)]
    bind_without_turn(client, *again)
    world = client.world
    for _ in range(5):
        world.turn()
    assert world.vhost.exchanges["x"].bindings.count(world.queue("q")) == 1
    world.settle(client.connection)
    assert world.queue("q").depth == 21_000
    world.fates()


def test_a_binding_that_gets_a_history_waits_for_the_end_of_an_alarm() -> None:
    client = remembering(World(), x_recent_history_length=300)
    publish(client, range(300))
    world = client.world
    world.broker.alarms.set("memory", True)
    again = [Q.Bind(queue="q", exchange="x", routing_key=str(number)) for number in range(20)]
    bind_without_turn(client, *again)
    world.settle()
    assert world.queue("q").depth == 300
    other = world.amqp()
    other.send(X.Declare(exchange="y", exchange_type="x-recent-history"))
    assert names(other.send(Q.Bind(queue="q", exchange="y", routing_key=""))) == ["Queue.BindOk"]
    assert names(other.send(Q.Declare(queue="r"))) == ["Queue.DeclareOk"]
    world.broker.alarms.set("memory", False)
    world.settle(client.connection)
    assert world.queue("q").depth == 21 * 300
    assert names(client.send(Q.Declare(queue="s")))[-1] == "Queue.DeclareOk"


@pytest.mark.parametrize("length", [30, 300])
@pytest.mark.parametrize("alarm", [False, True])
def test_a_durable_binding_is_confirmed_after_its_history_once_it_is_durable(
    tmp_path: Path, length: int, alarm: bool
) -> None:
    home = Home(tmp_path / "d")
    client = remembering(home, durable=True, x_recent_history_length=length)
    publish(client, range(length), delivery_mode=2)
    client.send(Q.Declare(queue="q", durable=True))
    home.settle(client.connection)
    home.durable()
    client.read()
    home.broker.alarms.set("memory", alarm)
    client.read()
    client.connection.receive_data(
        marshal(1, Q.Bind(queue="q", exchange="x", routing_key=""))
        + marshal(1, Q.Declare(queue="r"))
    )
    assert client.connection.data_to_send() == b""
    for _ in range(10):
        home.settle(client.connection)
        home.durable()
    assert home.queue("q").depth == length
    wanted = ["Queue.BindOk"] if alarm else ["Queue.BindOk", "Queue.DeclareOk"]
    assert names(client.read()) == wanted
    home.broker.alarms.set("memory", False)
    home.settle(client.connection)
    assert [*wanted, *names(client.read())][-1] == "Queue.DeclareOk"
    home.crash()


@pytest.mark.parametrize("length", [0, -1, 10_001, "5", True])
def test_an_invalid_length_is_refused(length: Any) -> None:
    client = World().amqp()
    error = refusal(
        client.send(
            X.Declare(
                exchange="x",
                exchange_type="x-recent-history",
                arguments={"x-recent-history-length": length},
            )
        )
    )
    assert error.code == 406 and "x-recent-history-length" in error.text


def test_persistent_messages_of_a_durable_exchange_survive_a_restart(tmp_path: Path) -> None:
    home = Home(tmp_path / "d")
    client = remembering(home, durable=True, x_recent_history_length=3)
    publish(client, range(5), delivery_mode=2)
    home.store.sync()
    home.crash()
    home = Home(tmp_path / "d")
    client = home.amqp()
    client.queue("q", "x", "", durable=True)
    assert read(client, "q") == bodies(range(2, 5))
    publish(client, range(5, 6), delivery_mode=2)
    client.queue("r", "x", "", durable=True)
    assert read(client, "r") == bodies(range(3, 6))
    home.fates()
    client.send(X.Delete(exchange="x"))
    home.settle()
    assert not home.vhost.histories
    home.store.sync()
    home.crash()
    assert Home(tmp_path / "d").report.orphaned == 0


def test_the_history_that_a_queue_got_survives_a_restart(tmp_path: Path) -> None:
    home = Home(tmp_path / "d")
    client = remembering(home, durable=True)
    publish(client, range(3), delivery_mode=2)
    client.queue("q", "x", "", durable=True)
    home.store.sync()
    home.crash()
    assert read(Home(tmp_path / "d").amqp(), "q") == bodies(range(3))
