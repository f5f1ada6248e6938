"""Tests of the delivery of a long queue, which takes several turns.

In each turn, the number of deliveries and the search for ready consumers are bounded.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pamqp.commands as spec
import pytest

from broker.queues.consumer import MANY_CONSUMERS, SEARCHED_PER_TURN
from broker.queues.slices import DELIVERIES_PER_DRAIN
from protocols.amqp.channel.receiver import CHANGED_PER_UNIT
from protocols.budget import BUDGET
from tests.clients import Amqp, World, marshal, publication, unmarshal

QUEUES: list[dict[str, Any]] = [{}, {"x_max_priority": 2}, {"x_max_length": 1_000_000}]


def consume(client: Amqp, tags: list[str], priority: int = 0, no_ack: bool = False) -> None:
    """Start consumers of the queue q with these tags."""
    client.connection.receive_data(
        b"".join(
            marshal(
                1,
                spec.Basic.Consume(
                    queue="q",
                    consumer_tag=tag,
                    no_ack=no_ack,
                    nowait=True,
                    arguments={"x-priority": priority},
                ),
            )
            for tag in tags
        )
    )
    client.world.settle(client.connection)


@pytest.mark.parametrize("arguments", QUEUES)
def test_many_messages_leave_a_queue_in_slices_and_other_queues_are_drained_between(
    arguments: dict[str, Any],
) -> None:
    world = World()
    client, reader = world.amqp(), world.amqp()
    client.queue("q", **arguments)
    client.queue("other")
    many = 3 * DELIVERIES_PER_DRAIN + 10
    client.connection.receive_data(
        publication("", "q", b"x") * many + publication("", "other", b"y")
    )
    world.settle(client.connection)
    queue, other = world.queue("q"), world.queue("other")
    assert queue.depth == many
    for name in ("q", "other"):
        reader.connection.receive_data(
            marshal(1, spec.Basic.Consume(queue=name, no_ack=True, nowait=True))
        )
    waiting, output = [], b""
    while queue.depth:
        world.broker.agenda.turn()
        output += reader.connection.data_to_send()
        waiting.append((queue.depth, other.depth))
    slices = range(2 * DELIVERIES_PER_DRAIN + 10, 0, -DELIVERIES_PER_DRAIN)
    assert waiting == [*((depth, 0) for depth in slices), (0, 0)]
    assert len(reader.bodies(unmarshal(output))) == many + 1


@pytest.mark.parametrize("priority", [0, 1])
@pytest.mark.parametrize("arguments", QUEUES)
def test_the_search_among_very_many_busy_consumers_is_continued_in_later_turns(
    arguments: dict[str, Any], priority: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that the only ready consumer gets messages, although many consumers have no credit.

    The consumers without credit have the same or a higher priority, so the broker examines them
    first.
    """
    world = World()
    busy, reader, publisher = world.amqp(), world.amqp(), world.amqp()
    busy.queue("q", **arguments)
    busy.send(spec.Basic.Qos(prefetch_count=1))
    count = 10 * MANY_CONSUMERS
    consume(busy, [f"busy-{number}" for number in range(count)], priority)
    publisher.connection.receive_data(publication("", "q", b"busy") * count)
    world.settle(publisher.connection)
    assert len(busy.bodies()) == count
    consume(reader, ["reader"], 0, True)
    for name in ("broker.queues.consumer", "broker.queues.queue", "broker.queues.limited"):
        monkeypatch.setattr(f"{name}.SEARCHED_PER_TURN", 4 * count)
    bodies = [f"{number}".encode() for number in range(50)]
    publisher.connection.receive_data(b"".join(publication("", "q", body) for body in bodies))
    queue = world.queue("q")
    waiting = [queue.depth]
    while queue.depth:
        world.broker.agenda.turn()
        waiting.append(queue.depth)
    assert all(1 <= before - after <= 6 for before, after in pairwise(waiting))
    assert reader.bodies() == bodies


def test_a_standby_consumer_gets_messages_behind_any_number_of_busy_consumers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Check that a ready consumer is found after more busy consumers than one turn may examine.

    A busy consumer has no credit.
    """
    world = World()
    busy, reader, publisher = world.amqp(), world.amqp(), world.amqp()
    busy.queue("q")
    busy.send(spec.Basic.Qos(prefetch_count=1))
    count = 2 * MANY_CONSUMERS
    consume(busy, [f"busy-{number}" for number in range(count)], 1)
    publisher.connection.receive_data(publication("", "q", b"busy") * count)
    world.settle(publisher.connection)
    for name in ("broker.queues.consumer", "broker.queues.queue"):
        monkeypatch.setattr(f"{name}.SEARCHED_PER_TURN", count)
    publisher.connection.receive_data(publication("", "q", b"x") * 5)
    reader.connection.receive_data(marshal(1, spec.Basic.Consume(queue="q", no_ack=True)))
    for _ in range(6):
        world.broker.agenda.turn()
    assert world.queue("q").depth == 0 and reader.bodies() == [b"x"] * 5
    assert world.broker.agenda.idle


def test_messages_that_no_consumer_can_take_cause_no_search_without_end() -> None:
    world = World()
    busy, publisher = world.amqp(), world.amqp()
    busy.queue("q")
    busy.send(spec.Basic.Qos(prefetch_count=1))
    count = 2 * MANY_CONSUMERS
    consume(busy, [f"busy-{number}" for number in range(count)])
    searches = SEARCHED_PER_TURN // count + 2
    for _ in range(int(searches)):
        publisher.connection.receive_data(publication("", "q", b"x") * (count + 1))
        world.settle(publisher.connection)
        publisher.send(spec.Queue.Purge(queue="q"))
    assert world.broker.agenda.idle
    busy.send(spec.Basic.Ack(0, True))
    publisher.connection.receive_data(publication("", "q", b"last") * count)
    world.settle(publisher.connection)
    assert busy.bodies().count(b"last") == count


def test_changing_the_prefetch_of_very_many_consumers_counts_against_the_budget() -> None:
    world = World()
    client = world.amqp()
    client.queue("q")
    consume(client, [f"c-{number}" for number in range(8_000)])
    method = marshal(1, spec.Basic.Qos(prefetch_count=10, global_=True))
    client.connection.receive_data(method * 100)
    turns, output = 1, client.connection.data_to_send()
    while client.connection.behind:
        client.connection.resume()
        output += client.connection.data_to_send()
        turns += 1
    assert turns > 100 * (8_000 // CHANGED_PER_UNIT) // BUDGET
    assert [frame.name for frame in unmarshal(output)] == ["Basic.QosOk"] * 100
