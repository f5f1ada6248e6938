"""Tests that the expiry and the dead letters of many messages do not block the event loop.

Each test counts turns of the agenda, or the actions in one turn; no test reads a clock.
"""

from __future__ import annotations

import itertools
import sys
import tracemalloc

import pamqp.commands as spec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp.commands import Basic as B

from broker.messages.x_death import COPIES_MAX
from broker.routing.binding import Binding
from broker.routing.plan_search import STEPS_PER_TURN
from broker.vhost.dead_letters import MOVES_MAX
from tests.clients import World, marshal, mqtt_publish, publication
from tests.wire.amqp.bulk import MANY, TURN_MAX, expire, fill, turns, unmarshalled
from tests.wire.amqp.speech import deliveries, read


def test_messages_expired_behind_a_live_head_do_not_delay_another_queue() -> None:
    world = World()
    client, other = world.amqp(), world.amqp()
    client.queue("dead_letters")
    client.queue("q", x_dead_letter_exchange="", x_dead_letter_routing_key="dead_letters")
    client.publish("", "q", b"head")
    fill(client, "q", MANY, expiration="10")
    other.queue("r")
    other.send(B.Qos(prefetch_count=1), B.Consume(queue="r", consumer_tag="r"))
    fill(other, "r", 2)
    [first] = deliveries(other.read())
    expire(world, 100)
    client.connection.receive_data(marshal(1, B.Consume(queue="q", consumer_tag="t", no_ack=True)))
    other.connection.receive_data(marshal(1, B.Ack(first.number)))
    world.broker.agenda.turn()
    assert len(deliveries(unmarshalled(other))) == 1
    assert 0 < MANY - world.queue("q").depth <= TURN_MAX
    # Deliveries of other queues continue, one turn after each acknowledgement, while the queue
    # expires the rest of its messages.
    world.settle(client.connection)
    assert (world.queue("q").depth, world.queue("dead_letters").depth) == (0, MANY)
    world.fates()


def test_a_retry_queue_expires_in_slices_and_another_queue_is_served_in_each_turn() -> None:
    world = World()
    client, other = world.amqp(), world.amqp()
    client.queue("work")
    client.queue(
        "retry", x_message_ttl=50, x_dead_letter_exchange="", x_dead_letter_routing_key="work"
    )
    fill(client, "retry", MANY)
    other.queue("r")
    other.send(B.Qos(prefetch_count=1), B.Consume(queue="r", consumer_tag="r"))
    fill(other, "r", 100)
    [last] = deliveries(other.read())
    expire(world, 50)
    moved = 0
    for _ in range(99):
        other.connection.receive_data(marshal(1, B.Ack(last.number)))
        world.broker.agenda.turn()
        [last] = deliveries(unmarshalled(other))
        assert world.queue("work").depth - moved <= TURN_MAX
        moved = int(world.queue("work").depth)
    world.settle()
    assert [one.body for one in deliveries(client.send(B.Get(queue="work", no_ack=True)))] == [b"0"]
    assert world.queue("work").depth == MANY - 1


def test_the_dead_letters_of_two_queues_take_turns() -> None:
    world = World()
    client = world.amqp()
    for name in "ab":
        client.queue(f"from-{name}")
        client.queue(name, x_dead_letter_exchange="", x_dead_letter_routing_key=f"from-{name}")
    fill(client, "a", 5_000, expiration="10")
    fill(client, "b", 10, expiration="10")
    expire(world, 50)
    assert turns(world, lambda: world.queue("from-b").depth == 10) <= 3
    assert world.queue("from-a").depth < 5_000
    world.settle()
    assert world.queue("from-a").depth == 5_000


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["publish", "expire", "reject", "turn", "overflow"]), st.integers(1, 40)
        ),
        max_size=40,
    )
)
def test_dead_letters_of_a_queue_keep_their_order(steps: list[tuple[str, int]]) -> None:
    world = World()
    client = world.amqp()
    client.queue("dead_letters")
    client.queue(
        "q",
        x_dead_letter_exchange="",
        x_dead_letter_routing_key="dead_letters",
        x_max_length=60,
        x_message_ttl=100,
    )
    number = itertools.count()
    for step, count in steps:
        if step in ("publish", "overflow"):
            for _ in range(count if step == "publish" else 4 * count):
                client.connection.receive_data(publication("", "q", b"%d" % next(number)))
        elif step == "expire":
            expire(world, 4 * count)
        elif step == "reject":
            for _ in range(count):
                for one in deliveries(client.send(B.Get(queue="q"))):
                    client.connection.receive_data(marshal(1, B.Reject(one.number, requeue=False)))
        else:
            for _ in range(count):
                world.broker.agenda.turn()
    expire(world, 1_000)
    world.settle(client.connection)
    bodies = [int(body) for body in read(client, "dead_letters")]
    assert bodies == list(range(next(number)))


def test_a_dead_letter_whose_search_pauses_keeps_its_place() -> None:
    world = World()
    client = world.amqp()
    client.send(spec.Exchange.Declare(exchange="fan", exchange_type="fanout"))
    client.queue("dead_letters")
    client.queue("q", x_dead_letter_exchange="fan")
    many = int(STEPS_PER_TURN) + 100
    for number in range(many):
        world.vhost.bind("fan", Binding(str(number), world.queue("dead_letters")))
    fill(client, "q", 4, expiration="10")
    expire(world, 50)
    world.broker.agenda.turn()
    assert world.queue("q").depth == 0 and world.queue("dead_letters").depth == 0
    assert turns(world, lambda: world.queue("dead_letters").depth == 4) >= 4
    world.settle()
    assert read(client, "dead_letters") == [b"0", b"1", b"2", b"3"]
    assert not world.vhost.moves


def test_a_queue_keeps_expired_messages_while_its_dead_letters_wait() -> None:
    world = World()
    client = world.amqp()
    client.queue("dead_letters")
    client.queue("q", x_dead_letter_exchange="", x_dead_letter_routing_key="dead_letters")
    fill(client, "q", 2 * MOVES_MAX, expiration="10")
    expire(world, 100)
    most = 0
    while world.queue("dead_letters").depth < 2 * MOVES_MAX:
        world.broker.agenda.turn()
        most = max(most, sum(job.waiting for job in world.vhost.moves.values()))
    assert MOVES_MAX <= most <= MOVES_MAX + TURN_MAX
    world.settle()
    assert not world.vhost.moves
    world.fates()


@pytest.mark.parametrize("count", [3, 6, 9])
def test_queues_that_dead_letter_to_each_other_do_not_multiply_a_message(count: int) -> None:
    world = World()
    client = world.amqp()
    client.send(spec.Exchange.Declare(exchange="all", exchange_type="fanout"))
    for number in range(count):
        client.queue(f"q{number}", "all", "", x_message_ttl=0, x_dead_letter_exchange="all")
    client.publish("all", "", b"x")
    most = 0
    while not world.broker.agenda.idle:
        world.turn()
        waiting = sum(job.waiting for job in world.vhost.moves.values())
        most = max(most, waiting + sum(int(queue.depth) for queue in world.vhost.queues.values()))
    # Without a bound, 9 queues make 986,409 dead letters.
    letters = sum(world.vhost.dead_letters.values())
    assert letters == {3: 15, 6: 516, 9: 585}[count]
    assert most <= count * COPIES_MAX
    assert world.fates()["looped"] == {3: 6, 6: 360, 9: 504}[count]
    # The queues still route and deliver messages.
    client.publish("all", "", b"y")
    world.settle()
    assert world.broker.agenda.idle


def test_a_consumer_that_rejects_decides_itself_how_long_a_message_goes_round() -> None:
    world = World()
    client = world.amqp()
    client.send(spec.Exchange.Declare(exchange="both", exchange_type="fanout"))
    for name in "ab":
        client.queue(name, "both", "", x_dead_letter_exchange="both")
    client.publish("", "a", b"x")
    for _ in range(12):
        [one] = deliveries(client.send(B.Get(queue="a")))
        client.send(B.Reject(one.number, requeue=False))
    assert (world.queue("a").depth, world.queue("b").depth) == (1, 12)
    assert "looped" not in world.fates()


@pytest.mark.parametrize("protocol", ["amqp", "mqtt"])
def test_a_dead_letter_takes_at_most_600_bytes_beside_its_body_and_names(protocol: str) -> None:
    count, body, key = 1_000, b"b" * 100, "t.key"
    world = World()
    client, device = world.amqp(), world.mqtt("d")
    client.queue("dead_letters")
    client.queue(
        "q",
        "amq.topic",
        "t.#",
        x_dead_letter_exchange="",
        x_dead_letter_routing_key="dead_letters",
        x_message_ttl=10,
    )
    published_by_amqp = publication("amq.topic", key, body)
    frames = published_by_amqp[len(marshal(1, B.Publish(exchange="amq.topic", routing_key=key))) :]
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(count):
        if protocol == "amqp":
            client.connection.receive_data(published_by_amqp)
        else:
            device.connection.receive_data(mqtt_publish("t/key", body))
    world.settle(client.connection, device.connection)
    published = tracemalloc.get_traced_memory()[0]
    world.sleep(20)
    world.settle()
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert world.queue("dead_letters").depth == count
    # Size of the names (queue, exchange, routing key) that x-death and the x-first-death headers
    # repeat.
    named = len("q" * 3 + "amq.topic" * 3 + key)
    # The body of an AMQP message is kept in the frames in which it was published.
    content = body if protocol == "mqtt" else frames
    assert (after - before) / count - sys.getsizeof(content) - named <= 600
    assert after > published, "the headers of a dead letter are not free"
    [one] = deliveries(client.send(B.Get(queue="dead_letters")))
    assert one.body == body
