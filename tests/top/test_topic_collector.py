"""Tests that the collector of the topic history works in slices."""

from __future__ import annotations

import pamqp.commands as spec

from broker.access.identity import Identity
from tests.clients import publication
from tests.top.running import Running
from tests.turn_counter import TurnCounter
from trellis.server.topic_collector import ROUTES_SLICE


async def test_contexts_of_idle_users_are_collected_over_several_turns(running: Running) -> None:
    """Check that 1,000 users without a publication are not collected in one turn of the loop."""
    contexts = running.node.broker.vhosts["/"].contexts
    entered = [contexts.enter(Identity(f"user-{number}"), "mqtt") for number in range(1_000)]
    with TurnCounter() as counter:
        await running.node.topic_collector.collect()
    assert counter.turns >= len(entered) // ROUTES_SLICE
    for context in entered:
        contexts.leave(context)


async def test_each_route_is_collected_once(running: Running) -> None:
    publisher = await running.amqp()
    topics = 2 * ROUTES_SLICE + 1
    await publisher.queue("all", "amq.topic", "#")
    for number in range(topics):
        await publisher.socket.send(publication("amq.topic", f"t.{number}", b"x"))
    await publisher.call(spec.Basic.Qos(prefetch_count=1), spec.Basic.QosOk)
    await running.node.topic_collector.collect()
    await running.node.topic_collector.collect()
    (slot,) = running.node.broker.history.slots
    assert slot.published["/", "amq.topic"] == {f"t.{number}": 1 for number in range(topics)}
