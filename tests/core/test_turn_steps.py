"""Tests that one turn of the event loop has few steps, even for the largest request of a client.

A step is one call of a function of the broker or of a protocol, as a trace function counts it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

import pamqp.commands as spec
import pytest

from broker.access.identity import Identity
from broker.queues import heap, recount
from broker.queues.limited import LimitedQueue
from broker.queues.policies import policy_of
from broker.queues.priority import PriorityQueue
from broker.queues.slices import CONSUMERS_PER_SLICE
from broker.vhost.background import BINDINGS_PER_SLICE, QUEUES_PER_SLICE
from broker.vhost.bindings import DELETION_COST
from protocols.amqp.channel import ack_timeout
from protocols.amqp.channel.commit import PARTS_PER_SLICE
from protocols.amqp.channel.exclusive_queues import CLEARED
from protocols.amqp.channel.reauthorization import CHECKED_PER_SLICE
from protocols.mqtt.connection.subscribing import FILTERS_PER_SLICE, READ_SLICE
from tests.clients import Amqp, World, marshal, packet, publication, text
from tests.store.homes import Home
from tests.wire.mqtt.client import ACCEPTED, PINGREQ, PINGRESP, connect

CONNECT_5 = packet(0x10, text("MQTT") + b"\5\2\0\x3c\0" + text("c"))


def steps(work: Callable[[], object], part: str = "") -> int:
    """Call `work`, and return the number of its steps in files whose path contains `part`."""
    count = 0

    def called(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        name = frame.f_code.co_filename
        if part in name and ("/broker/" in name or "/protocols/" in name):
            count += 1

    # Python calls `called` at each call of a Python function. `called` returns None, so Python does
    # not call it for the lines of the function. With setprofile, Python would call it also for each
    # return and each function in C.
    before = sys.gettrace()
    sys.settrace(called)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def turns(world: World, part: str = "") -> list[int]:
    """Run turns until the agenda is idle; return the number of steps of each turn."""
    counts = []
    while not world.broker.agenda.idle:
        counts.append(steps(world.broker.agenda.turn, part))
        assert len(counts) < 5_000, "no end"
    return counts


def begin(client: Amqp, *methods: Any) -> int:
    """Send methods in one chunk; return the number of steps until the broker has read them.

    The steps of later turns do not count.
    """
    data = b"".join(marshal(1, method) for method in methods)
    return steps(lambda: client.connection.receive_data(data))


# -- tx.commit


def test_the_turn_that_applies_a_commit_encodes_no_publication(tmp_path: Path) -> None:
    world = Home(tmp_path)
    client = world.amqp()
    client.queue("d", durable=True)
    client.send(spec.Tx.Select())
    many = 3 * PARTS_PER_SLICE // 2
    for number in range(many):
        client.connection.receive_data(publication("", "d", b"%d" % number, delivery_mode=2))
        world.settle(client.connection)
    begin(client, spec.Tx.Commit())
    applying = 0
    while not world.queue("d").depth:
        applying = steps(world.broker.agenda.turn, "/store/records.py")
    # In this turn, records.py only counts figures of the records for checkpoints. It does not
    # encode the records again.
    assert world.queue("d").depth == many and applying < 3 * many + 100
    world.durable()
    world.crash()
    again = Home(tmp_path)
    reader = again.amqp()
    for number in range(3):
        assert reader.send(spec.Basic.Get(queue="d"))[2].value == b"%d" % number
    assert again.queue("d").depth == many - 3


# -- MQTT: topic filters


def filters(count: int) -> list[str]:
    return [f"f/{number}" for number in range(count)]


@pytest.mark.parametrize("level", [4, 5])
def test_a_packet_of_very_many_topic_filters_is_read_and_carried_out_in_slices(level: int) -> None:
    world = World()
    connection = world.raw_mqtt()
    connection.receive_data(connect("c", level=level) if level == 4 else CONNECT_5)
    world.answer(connection)
    properties = b"\0" if level == 5 else b""
    many = 2 * READ_SLICE + 100
    names = filters(many)
    chosen = b"".join(text(name) + b"\1" for name in [*names, "f/0"])
    listed = b"".join(text(name) for name in [*names, "none"])
    for first, body, codes in (
        (0x82, chosen, b"\1" * (many + 1)),
        (0xA2, listed, b"\0" * many + b"\x11"),
    ):
        data = packet(first, b"\0\7" + properties + body) + PINGREQ
        counts = [steps(lambda data=data: connection.receive_data(data))]  # type: ignore[misc]
        # Reading takes about ten steps a filter, a change of a subscription about fifty.
        assert connection.stalled and len(world.vhost.exchanges["amq.topic"].bindings) <= 1
        counts += turns(world)
        assert (
            max(counts) < 100 * FILTERS_PER_SLICE + 15 * READ_SLICE
            and len(counts) > many / FILTERS_PER_SLICE
        )
        world.durable()
        answer = world.answer(connection)
        reply = b"\0\7" + (properties + codes if first == 0x82 or level == 5 else b"")
        assert answer == packet(first + 0xE, reply) + PINGRESP
    assert not world.vhost.exchanges["amq.topic"].bindings


def test_a_malformed_end_of_a_long_subscribe_closes_the_client_and_changes_nothing() -> None:
    world = World()
    connection = world.raw_mqtt()
    connection.receive_data(connect("c", clean=False))
    world.answer(connection)
    good = b"".join(text(name) + b"\1" for name in filters(2 * READ_SLICE))
    connection.receive_data(packet(0x82, b"\0\7" + good + text("a/#/b") + b"\1"))
    assert not connection.finished
    turns(world)
    assert connection.finished and connection.data_to_send() == b""
    session = world.mqtt_front.sessions.find(world.vhost, "c")
    assert session is not None and len(session.subscriptions) == 0


def test_a_few_very_long_topic_filters_are_read_in_several_turns_too() -> None:
    world = World()
    connection = world.raw_mqtt()
    connection.receive_data(connect("c"))
    world.answer(connection)
    names = [chr(97 + number) * 60_000 for number in range(12)]
    connection.receive_data(packet(0x82, b"\0\7" + b"".join(text(one) + b"\0" for one in names)))
    assert connection.stalled and not world.broker.agenda.idle
    turns(world)
    assert world.answer(connection) == packet(0x90, b"\0\7" + bytes(12))


@pytest.mark.parametrize("shared", [False, True])
def test_a_clean_start_ends_a_session_of_very_many_subscriptions_in_slices(shared: bool) -> None:
    world = World()
    client = world.raw_mqtt()
    client.receive_data(connect("c", clean=False))
    world.answer(client)
    many = 4_000
    names = [f"$share/{name}" if shared else name for name in filters(many)]
    client.receive_data(packet(0x82, b"\0\7" + b"".join(text(one) + b"\1" for one in names)))
    turns(world)
    world.durable()
    client.on_closed()
    world.settle()
    state = world.store.state
    assert len(state.definitions) >= many
    again = world.raw_mqtt()
    counts = [steps(lambda: again.receive_data(connect("c")))]
    while state.definitions or not world.broker.agenda.idle:
        counts.append(steps(world.broker.agenda.turn))
        counts.append(steps(world.store.sync))
        assert len(counts) < 1_000
    assert world.answer(again) == ACCEPTED and len(counts) > 6
    assert 4 * max(counts) < sum(counts)
    assert not world.vhost.exchanges["amq.topic"].bindings and not len(
        world.mqtt_front.sessions.groups
    )


# -- AMQP: deletions


def consuming(world: World, queues: int, consumers: int, auto_delete: bool = False) -> Amqp:
    """Return a client with `queues` queues, and with `consumers` consumers of each queue."""
    client = world.amqp()
    for number in range(queues):
        client.send(spec.Queue.Declare(queue=f"q{number}", auto_delete=auto_delete, nowait=True))
        for tag in range(consumers):
            client.send(
                spec.Basic.Consume(queue=f"q{number}", consumer_tag=f"{number}.{tag}", nowait=True)
            )
    return client


def test_the_consumers_of_a_deleted_queue_are_cancelled_in_slices() -> None:
    world = World()
    client, other = world.amqp(), world.amqp()
    client.send(spec.Basic.Qos(prefetch_count=5, global_=True))
    client.queue("q")
    many = 5 * CONSUMERS_PER_SLICE
    tags = [f"c{number}" for number in range(many)]
    client.send(*[spec.Basic.Consume(queue="q", consumer_tag=tag, nowait=True) for tag in tags])
    assert world.queue("q").consumer_count == many
    counts = [begin(other, spec.Queue.Delete(queue="q"))]
    # Consumers that later slices will cancel get no deliveries, and their tags can be used again.
    begin(
        client,
        spec.Basic.Cancel(consumer_tag=tags[-1], nowait=True),
        spec.Queue.Declare(queue="q"),
        spec.Basic.Consume(queue="q", consumer_tag=tags[-2]),
        spec.Basic.Consume(queue="q", consumer_tag=tags[-1]),
    )
    counts += turns(world)
    assert len(counts) >= 5 and max(counts) < sum(counts) / 3
    frames = client.read()
    cancelled = [str(one.consumer_tag) for one in frames if isinstance(one, spec.Basic.Cancel)]
    assert sorted(cancelled) == sorted(tags[:-1])
    assert [one.name for one in frames if not isinstance(one, spec.Basic.Cancel)] == [
        "Queue.DeclareOk",
        "Basic.ConsumeOk",
        "Basic.ConsumeOk",
    ]
    assert world.queue("q").consumer_count == 2
    other.publish("", "q", b"x")
    assert client.bodies() == [b"x"]


def test_a_channel_that_ends_while_its_consumers_are_cancelled_leaves_nothing() -> None:
    world = World()
    client = consuming(world, 1, 3 * CONSUMERS_PER_SLICE)
    other = world.amqp()
    begin(other, spec.Queue.Delete(queue="q0"))
    client.connection.on_closed()
    world.settle()
    assert world.vhost.queues == {} and client.connection.finished


def test_the_auto_delete_queues_of_an_ended_connection_are_deleted_in_slices() -> None:
    world = World()
    client = consuming(world, 5 * CLEARED, 1, auto_delete=True)
    other = world.amqp()
    counts = [steps(client.connection.on_closed)]
    assert len(world.vhost.queues) == 4 * CLEARED
    # The later slices keep a queue that has a consumer again, and a new queue with an old name.
    kept = next(iter(world.vhost.queues))
    begin(other, spec.Basic.Consume(queue=kept, nowait=True))
    counts += turns(world)
    assert list(world.vhost.queues) == [kept] and len(counts) == 5
    assert max(counts) < sum(counts) / 2


@pytest.mark.parametrize("durable", [False, True])
def test_very_many_auto_delete_exchanges_of_a_deleted_queue_are_deleted_in_slices(
    durable: bool,
) -> None:
    world = World()
    client, other = world.amqp(), world.amqp()
    client.queue("q")
    known = len(world.vhost.exchanges)
    many = 10 * BINDINGS_PER_SLICE // DELETION_COST
    for number in range(many):
        name = f"x{number}"
        client.send(
            spec.Exchange.Declare(
                exchange=name,
                exchange_type="fanout",
                durable=durable,
                auto_delete=True,
                nowait=True,
            ),
            spec.Queue.Bind(queue="q", exchange=name, nowait=True),
        )
    other.publish("x0", "", b"x")
    assert len(world.vhost.exchanges) == known + many
    counts = [begin(other, spec.Queue.Delete(queue="q"))]
    assert len(world.vhost.exchanges) > known + many // 2
    other.publish("x1", "", b"x", mandatory=True)
    counts += turns(world)
    assert len(world.vhost.exchanges) == known and max(counts) < sum(counts) / 4


def test_a_policy_is_applied_to_very_many_exchanges_in_slices() -> None:
    world = World()
    client = world.amqp()
    many = 4 * QUEUES_PER_SLICE
    for number in range(many):
        client.send(
            spec.Exchange.Declare(exchange=f"x{number}", exchange_type="fanout", nowait=True)
        )
    row = {"pattern": "^x", "definition": {"alternate-exchange": "amq.fanout"}}
    policy = policy_of("/", "p", row)
    counts = [steps(lambda: world.vhost.applied_policies.set_policy(policy))]
    counts += turns(world)
    assert max(counts) < sum(counts) / 3
    named = [one for name, one in world.vhost.exchanges.items() if name.startswith("x")]
    assert {one.alternate for one in named} == {"amq.fanout"} and len(named) == many


# -- changed permissions


@pytest.mark.parametrize("queues", [1, 500])
@pytest.mark.parametrize("notified", [True, False])
def test_very_many_consumers_are_checked_in_slices_after_a_change_of_permissions(
    queues: int, notified: bool
) -> None:
    world = World()
    world.guests.identities["u"] = Identity("u")
    client = world.amqp(user="u", consumer_cancel_notify=notified)
    many = 8 * int(CHECKED_PER_SLICE)
    for number in range(queues):
        client.send(spec.Queue.Declare(queue=f"q{number}", nowait=True))
    client.send(spec.Queue.Declare(queue="kept", nowait=True))
    for number in range(many):
        name = "kept" if number % 2 else f"q{number % queues}"
        client.send(spec.Basic.Consume(queue=name, consumer_tag=f"c{number}", nowait=True))
    world.guests.identities["u"] = Identity("u", ".*", ".*", "^kept$")
    world.amqp_front.reauthorize()
    counts = turns(world)
    cancelled = [
        str(one.consumer_tag) for one in client.read() if isinstance(one, spec.Basic.Cancel)
    ]
    if not notified:
        assert cancelled == [] and world.queue("kept").consumer_count == 0
        return
    assert max(counts) < 40 * CHECKED_PER_SLICE and len(counts) >= 8
    assert cancelled == [f"c{number}" for number in range(0, many, 2)]
    assert world.queue("kept").consumer_count == many // 2
    assert not any(world.queue(f"q{number}").consumer_count for number in range(queues))


def test_a_second_change_of_permissions_replaces_the_check_of_the_first() -> None:
    world = World()
    world.guests.identities["u"] = Identity("u")
    client = world.amqp(user="u")
    client.send(spec.Queue.Declare(queue="q", nowait=True))
    many = 3 * int(CHECKED_PER_SLICE)
    for number in range(many):
        client.send(spec.Basic.Consume(queue="q", consumer_tag=f"c{number}", nowait=True))
    world.guests.identities["u"] = Identity("u", ".*", ".*", "^none$")
    world.amqp_front.reauthorize()
    world.broker.agenda.turn()
    left = world.queue("q").consumer_count
    assert 0 < left < many
    world.guests.identities["u"] = Identity("u", ".*", ".*", ".*")
    world.amqp_front.reauthorize()
    turns(world)
    assert world.queue("q").consumer_count == left


# -- policies


def body_bytes(queue: LimitedQueue) -> int:
    """Return the total size of the bodies of the messages that wait in a queue."""
    messages = [one.message for one in queue._waiting.returned.in_order()]
    if isinstance(queue, PriorityQueue):
        messages += [entry[2].message for entry in queue._heap]
    messages += queue._waiting.memory.items()
    assert len(messages) == queue.depth
    return sum(len(one.body) for one in messages)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("returned", [False, True])
@pytest.mark.parametrize("arguments", [{}, {"x_max_priority": 3}])
def test_a_first_limit_in_bytes_counts_the_waiting_messages_in_slices(
    arguments: dict[str, Any], returned: bool, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recount, "COUNTED_PER_SLICE", 500)
    monkeypatch.setattr(heap, "COUNTED_PER_SLICE", 500)
    world = World()
    client, other = world.amqp(), world.amqp()
    client.queue("q", **arguments)
    random = Random(seed)
    for _ in range(200):
        body, priority = b"x" * random.randrange(99), random.randrange(4)
        client.connection.receive_data(publication("", "q", body, priority=priority) * 20)
        world.settle(client.connection)
    if returned:
        reader = world.amqp()
        begin(reader, spec.Basic.Consume(queue="q"))
        while world.queue("q").depth:
            world.settle(reader.connection)
            reader.connection.data_to_send()
        reader.connection.on_closed()
        world.settle()
    client.send(spec.Basic.Qos(prefetch_count=300), spec.Basic.Consume(queue="q"))
    row = {"pattern": "^q$", "definition": {"max-length-bytes": 1 << 30}}
    policy = policy_of("/", "p", row)
    counts = [steps(lambda: world.vhost.applied_policies.set_policy(policy))]
    queue = world.queue("q")
    assert isinstance(queue, LimitedQueue) and queue.depth == 3_700
    tag = 0
    while not world.broker.agenda.idle:
        # While the policy is applied, messages are published, delivered, acknowledged and requeued.
        tag += 20
        begin(client, *random.choices((spec.Basic.Ack(tag, True), spec.Basic.Nack(tag, True)), k=1))
        other.connection.receive_data(publication("", "q", b"more", priority=random.randrange(4)))
        counts.append(steps(world.broker.agenda.turn))
        client.connection.data_to_send()
    assert len(counts) > 6 and max(counts) < sum(counts) / 4
    assert queue.depth > 3_000 and queue.waiting_bytes == body_bytes(queue)
    world.vhost.applied_policies.clear_policy("p")
    world.vhost.applied_policies.set_policy(policy)
    other.send(spec.Queue.Purge(queue="q"))
    client.connection.on_closed()
    world.settle()
    assert queue.waiting_bytes == body_bytes(queue) > 0


def test_the_deliveries_of_very_many_acknowledgement_timeouts_are_compared_in_slices() -> None:
    world = World()
    client = world.amqp()
    client.queue("q")
    client.send(spec.Basic.Consume(queue="q"))
    for number in range(300):
        client.queue(f"q{number}", x_consumer_timeout=1_000 + number)
        client.send(spec.Basic.Consume(queue=f"q{number}"))
    for _ in range(500):
        client.publish("", "q", b"x")
    client.read()
    most = total = 0
    for _ in range(30):
        world.broker.agenda.advance(int(world.broker.agenda.now) + 100, 0.0)
        counts = turns(world)
        most, total = max(most, *counts), total + sum(counts)
    # 500 deliveries are compared with each of 300 timeouts; a comparison takes three steps or more.
    assert total > 3 * 300 * 500
    assert most < 10 * ack_timeout.CHECKED_PER_SLICE
    assert client.read() == []
