"""Tests of unexpected exceptions in bulk work on bindings, exchanges, policies and virtual hosts.

If one part of the work fails, the other parts must be done nevertheless.
"""

from __future__ import annotations

import pamqp.commands as spec
import pytest

from broker.broker import DELETIONS_PER_SLICE, RETRY_PAUSE_MS, SLICE_PAUSE_MS
from broker.queues.policies import Policy
from broker.routing.topology_stream import TopologyStream
from broker.vhost.applied_policies import AppliedPolicies
from broker.vhost.background import (
    BINDINGS_PER_SLICE,
    EXCHANGES_PER_SLICE,
    QUEUES_PER_SLICE,
    SNAPSHOT_ROWS_PER_SLICE,
)
from broker.vhost.bindings import Bindings
from broker.vhost.vhost import VirtualHost
from tests.clients import World
from tests.core.failing import Failing, finish


@pytest.mark.parametrize("record", [False, True])
def test_the_bindings_behind_one_that_fails_are_removed(
    record: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    client = world.amqp()
    client.queue("j", durable=True, x_queue_type="stream", x_journal=True)
    many = 2 * BINDINGS_PER_SLICE + 10
    client.queue("q")
    for number in range(many):
        client.send(spec.Queue.Bind(queue="q", exchange="amq.topic", routing_key=f"k{number}"))
    exchange = world.vhost.exchanges["amq.topic"]
    if record:
        failing = Failing(monkeypatch, TopologyStream, "unbound", 3, BINDINGS_PER_SLICE + 5)
    else:
        failing = Failing(monkeypatch, type(exchange), "unbind_some", 1, 3)
    queue = world.queue("q")
    assert finish(world, lambda: world.vhost.delete_queue(queue)) == failing.failures == 2
    assert queue not in exchange.bindings
    if record:
        assert failing.calls == many


def test_bindings_whose_removal_failed_once_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    client = world.amqp()
    client.queue("q", "amq.topic", "k")
    client.send(spec.Queue.Bind(queue="q", exchange="amq.direct", routing_key="k"))
    topic, direct = (world.vhost.exchanges[name] for name in ("amq.topic", "amq.direct"))
    failing = Failing(monkeypatch, type(topic), "unbind_some", 1)
    queue = world.queue("q")
    finish(world, lambda: world.vhost.delete_queue(queue))
    assert failing.failures == 1
    assert queue not in topic.bindings and queue not in direct.bindings


def test_a_snapshot_of_the_topology_is_completed_behind_a_row_that_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    client = world.amqp()
    many = SNAPSHOT_ROWS_PER_SLICE + 10
    for number in range(many):
        client.queue(f"q{number}")
    client.queue("j", durable=True, x_queue_type="stream", x_journal=True)
    world.settle()
    declared = Failing(monkeypatch, TopologyStream, "declared", 2, SNAPSHOT_ROWS_PER_SLICE)
    completed = Failing(monkeypatch, TopologyStream, "complete")
    finish(world, world.vhost.declarations.journals.record_topology)
    assert declared.failures == 2 and declared.calls == len(world.vhost.queues)
    assert completed.calls == 1


def test_a_policy_reaches_the_queues_and_exchanges_behind_one_that_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    client = world.amqp()
    many = QUEUES_PER_SLICE + 10
    for number in range(many):
        client.queue(f"q{number}")
    queues = Failing(monkeypatch, AppliedPolicies, "apply_policies", 3)
    exchanges = Failing(monkeypatch, AppliedPolicies, "apply_alternate", 2)
    policy = Policy("/", "p", "q", "queues", 0, {"max-length": 10})
    assert finish(world, lambda: world.vhost.applied_policies.set_policy(policy)) == 2
    assert queues.failures == exchanges.failures == 1
    assert exchanges.calls == len(world.vhost.exchanges)
    limits = [queue.arguments.max_length for queue in world.vhost.queues.values()]
    assert limits.count(10) == many - 1


@pytest.mark.parametrize("failing_calls", [(2,), (2, 5)])
def test_a_virtual_host_is_removed_once_its_queues_can_be_deleted(
    failing_calls: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    vhost = world.broker.create_vhost("v")
    for number in range(DELETIONS_PER_SLICE + 10):
        vhost.declare_queue(f"q{number}")
    failing = Failing(monkeypatch, VirtualHost, "delete_queue", *failing_calls)
    world.broker.close_vhost("v")
    reported = 0
    for _ in range(20):
        try:
            world.sleep(SLICE_PAUSE_MS)
        except RuntimeError:
            reported += 1
    assert failing.failures == reported == len(failing_calls)
    # All other queues are deleted now. The queues whose deletion failed are deleted after a pause.
    assert len(vhost.queues) == len(failing_calls) and "v" in world.broker.vhosts
    world.sleep(RETRY_PAUSE_MS)
    world.sleep(SLICE_PAUSE_MS)
    assert "v" not in world.broker.vhosts and not vhost.queues


def test_auto_delete_exchanges_behind_one_that_fails_are_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    client = world.amqp()
    many = 2 * EXCHANGES_PER_SLICE
    client.queue("q")
    client.send(spec.Exchange.Declare(exchange="hub", auto_delete=True))
    client.send(spec.Queue.Bind(queue="q", exchange="hub", routing_key="k"))
    for number in range(many):
        source = f"e{number}"
        client.send(spec.Exchange.Declare(exchange=source, auto_delete=True))
        client.send(spec.Exchange.Bind(destination="hub", source=source, routing_key="k"))
    assert f"e{many - 1}" in world.vhost.exchanges
    # The first call deletes `hub`, and each later one an exchange that was bound to it.
    failing = Failing(monkeypatch, Bindings, "delete_unused", 2, EXCHANGES_PER_SLICE + 5)
    queue = world.queue("q")
    assert finish(world, lambda: world.vhost.delete_queue(queue)) == failing.failures == 2
    assert failing.calls > many
    assert not [name for name in world.vhost.exchanges if name == "hub" or name[0:1] == "e"]


def test_an_auto_delete_exchange_is_deleted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    client = world.amqp()
    client.queue("q")
    for name in ("hub", "e0", "e1", "e2"):
        client.send(spec.Exchange.Declare(exchange=name, auto_delete=True))
        if name != "hub":
            client.send(spec.Exchange.Bind(destination="hub", source=name, routing_key="k"))
    client.send(spec.Queue.Bind(queue="q", exchange="hub", routing_key="k"))
    counted = Failing(monkeypatch, Bindings, "delete_unused")
    finish(world, lambda: world.vhost.delete_queue(world.queue("q")))
    assert counted.calls == 4
    assert not {"hub", "e0", "e1", "e2"} & set(world.vhost.exchanges)


def test_an_auto_delete_exchange_that_cannot_be_deleted_is_tried_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    client = world.amqp()
    client.queue("q")
    for name in ("hub", "e0", "e1", "e2"):
        client.send(spec.Exchange.Declare(exchange=name, auto_delete=True))
        if name != "hub":
            client.send(spec.Exchange.Bind(destination="hub", source=name, routing_key="k"))
    client.send(spec.Queue.Bind(queue="q", exchange="hub", routing_key="k"))
    failing = Failing(monkeypatch, Bindings, "delete_unused", 2, 5)
    queue = world.queue("q")
    assert finish(world, lambda: world.vhost.delete_queue(queue)) == failing.failures == 2
    assert failing.calls == 5
    assert {"hub", "e0", "e1", "e2"} & set(world.vhost.exchanges) == {"e0"}
