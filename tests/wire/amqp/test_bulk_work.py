"""Bulk work of one client does not block the event loop: it is spread over many turns.

Each test counts turns of the agenda, or the actions in one turn; no test reads a clock.
"""

from __future__ import annotations

import itertools
import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

import pamqp.commands as spec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp.commands import Basic as B
from pamqp.commands import Tx as T

from broker.access.identity import Identity
from broker.limits import BrokerLimits
from broker.messages.outlet import FunctionSender
from broker.messages.x_death import COPIES_MAX
from broker.queues.policies import Policy
from broker.routing.binding import Binding
from broker.routing.plan_search import STEPS_PER_TURN
from broker.vhost.dead_letters import MOVES_MAX
from tests.clients import Amqp, World, marshal, mqtt_publish, publication, unmarshal
from tests.wire.amqp.speech import deliveries, names, read, refusal

MANY = 12_000
TOO_MANY_PARTS = (
    "the transaction has more than 10 parts (copies of messages and settlements): commit more often"
)
TOO_LARGE = (
    "the first 100 messages of queue 'q' in vhost '/' have properties that do not fit into "
    "frame_max 4096: connect with a larger frame_max"
)
QOS = B.Qos(0, 10, False)
#: Number of messages that a test lets expire, moves, settles or drops in one turn.
TURN_MAX = 5_000


def fill(client: Amqp, queue: str, count: int, **properties: Any) -> None:
    """Publish `count` messages to a queue, each with its number as the body."""
    for at in range(0, count, 1_000):
        client.connection.receive_data(
            b"".join(
                publication("", queue, b"%d" % number, **properties)
                for number in range(at, min(count, at + 1_000))
            )
        )
        client.world.settle(client.connection)


def deliver_many(world: World, client: Amqp) -> None:
    """Deliver MANY messages of the queue `q` to the consumer `t` of a client."""
    fill(client, "q", MANY)
    client.connection.receive_data(marshal(1, B.Consume(queue="q", consumer_tag="t")))
    while world.queue("q").unacked < MANY:
        client.read_bytes()


def expire(world: World, milliseconds: int) -> None:
    """Advance the clock without running a turn."""
    agenda = world.broker.agenda
    agenda.advance(int(agenda.now) + milliseconds, agenda.wall + milliseconds / 1_000)


def turns(world: World, done: Callable[[], bool]) -> int:
    """Run turns of the agenda until `done`, and return their number."""
    for count in range(1_000):
        if done():
            return count
        world.broker.agenda.turn()
    raise AssertionError("the work has not ended after 1,000 turns")


# -- expiry and dead letters


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


def unmarshalled(client: Amqp) -> list[Any]:
    """Return the frames that a connection has written, without running a turn."""
    return unmarshal(client.connection.data_to_send())


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


# -- many deliveries settled with one method


@pytest.mark.parametrize("how", ["ack", "reject", "requeue", "recover", "close", "lost"])
def test_many_deliveries_are_settled_in_slices_and_later_methods_wait(how: str) -> None:
    world = World()
    client, other = world.amqp(), world.amqp()
    client.queue("q")
    deliver_many(world, client)
    client.send(B.Cancel("t"))
    method = {
        "ack": B.Ack(0, multiple=True),
        "reject": B.Nack(0, multiple=True, requeue=False),
        "requeue": B.Nack(0, multiple=True, requeue=True),
        "recover": B.Recover(requeue=True),
        "close": spec.Channel.Close(200, "", 0, 0),
        "lost": None,
    }[how]
    if method is None:
        client.connection.on_closed()
    else:
        client.connection.receive_data(
            marshal(1, method) + marshal(2, spec.Channel.Open()) + marshal(2, QOS)
        )
    unacked, depth = int(world.queue("q").unacked), int(world.queue("q").depth)
    assert MANY - unacked <= TURN_MAX, "the first slice"
    # While the broker settles the deliveries in slices, it serves other clients.
    assert names(other.send(spec.Queue.Declare(queue="q", passive=True))) == ["Queue.DeclareOk"]
    while world.queue("q").unacked:
        if how not in ("close", "lost"):
            assert client.connection.stalled
        world.broker.agenda.turn()
        assert unacked - int(world.queue("q").unacked) <= TURN_MAX
        unacked = int(world.queue("q").unacked)
    world.settle(client.connection)
    assert not client.connection.stalled
    if how in ("ack", "reject"):
        assert (depth, world.queue("q").depth) == (0, 0)
    else:
        assert world.queue("q").depth == MANY
        taken = other.send(*[B.Get(queue="q", no_ack=True)] * 3)
        assert [one.body for one in deliveries(taken)] == [b"0", b"1", b"2"]
        last = MANY - 4
        while last:
            last -= 1
            other.connection.receive_data(marshal(1, B.Get(queue="q", no_ack=True)))
            if last % 500 == 0:
                world.settle(other.connection)
                other.connection.data_to_send()
        [one] = deliveries(other.send(B.Get(queue="q", no_ack=True)))
        assert one.body == b"%d" % (MANY - 1)
    if how not in ("close", "lost"):
        assert "Basic.QosOk" in names(client.read())
    world.fates()


def test_a_channel_that_closes_while_its_deliveries_are_rejected_requeues_only_later_ones() -> None:
    world = World()
    client = world.amqp()
    client.queue("q")
    deliver_many(world, client)
    client.connection.receive_data(marshal(1, B.Nack(MANY - 5, multiple=True, requeue=False)))
    client.connection.on_closed()
    world.settle()
    assert world.copies() == {"rejected": MANY - 5}
    assert [int(body) for body in read(world.amqp(), "q")] == list(range(MANY - 5, MANY))


def test_many_small_settlements_end_a_turn_of_input() -> None:
    world = World()
    client = world.amqp()
    client.queue("q")
    deliver_many(world, client)
    client.connection.receive_data(
        b"".join(marshal(1, B.Ack(tag, multiple=True)) for tag in range(500, MANY + 1, 500))
        + marshal(1, B.Ack(0, multiple=True)) * 5
    )
    assert not client.connection.finished
    world.settle(client.connection)
    assert world.copies() == {"acknowledged": MANY}


# -- transactions


@pytest.mark.parametrize("kind", ["publications", "copies", "settlements", "multiple"])
def test_a_transaction_has_a_bounded_number_of_parts(kind: str) -> None:
    limits = BrokerLimits()
    limits.transaction_parts = 10
    world = World(limits)
    client, other = world.amqp(), world.amqp()
    for number in range(6):
        other.queue(f"q{number}", "amq.fanout")
    fill(other, "q0", 40)
    client.send(B.Consume(queue="q0", consumer_tag="t"), T.Select())
    client.read()
    exchange = "amq.fanout" if kind == "copies" else ""

    def step(number: int) -> list[Any]:
        if kind in ("publications", "copies"):
            return client.publish(exchange, "q1", b"x")
        if kind == "settlements":
            return client.send(B.Ack(number + 1))
        return client.send(B.Ack(5 * (number + 1), multiple=True))

    fits = {"publications": 10, "copies": 1, "settlements": 10, "multiple": 2}[kind]
    depth = int(world.queue("q1").depth)
    for number in range(fits):
        assert step(number) == []
    assert refusal(step(fits)) == (
        "channel",
        406,
        "PRECONDITION_FAILED - " + TOO_MANY_PARTS,
        60,
        40 if kind in ("publications", "copies") else 80,
    )
    # The refused transaction has had no effect, and the next transaction of that size is committed.
    assert (world.queue("q1").depth, world.queue("q0").unacked) == (depth, 0)
    client.send(spec.Channel.CloseOk(), spec.Channel.Open(), T.Select())
    client.send(B.Consume(queue="q0", consumer_tag="t"))
    client.read()
    for number in range(fits):
        assert step(number) == []
    assert "Tx.CommitOk" in names(client.send(T.Commit()))
    assert world.queue("q0").acknowledged == (10 if kind in ("settlements", "multiple") else 0)
    world.fates()


def test_repeated_settlements_of_one_transaction_do_not_look_at_all_deliveries_again() -> None:
    world = World()
    client = world.amqp()
    client.queue("q")
    fill(client, "q", 300)
    client.send(B.Consume(queue="q", consumer_tag="t"), T.Select())
    client.read()
    client.connection.receive_data(
        b"".join(marshal(1, B.Ack(tag, multiple=True)) for tag in range(1, 301))
    )
    assert names(client.send(B.Ack(0, multiple=True), T.Commit())) == ["Tx.CommitOk"]
    assert world.copies() == {"acknowledged": 300}


# -- purge, deletion, policies


@pytest.mark.parametrize("arguments", [{}, {"x_max_priority": 5}, {"x_max_length": 100_000}])
@pytest.mark.parametrize("method", [spec.Queue.Purge(queue="q"), spec.Queue.Delete(queue="q")])
def test_a_queue_is_emptied_at_once_and_its_messages_are_released_in_slices(
    method: Any, arguments: dict[str, Any]
) -> None:
    world = World()
    client = world.amqp()
    client.queue("q", durable=True, **arguments)
    fill(client, "q", MANY, delivery_mode=2)
    assert len(world.store.state.messages) == MANY
    client.connection.receive_data(marshal(1, method))
    assert "q" not in world.vhost.queues or world.queue("q").depth == 0
    left = len(world.store.state.messages)
    assert 0 < MANY - left <= TURN_MAX
    while left:
        world.broker.agenda.turn()
        now = len(world.store.state.messages)
        assert 0 < left - now <= TURN_MAX
        left = now
    assert world.copies() == {"purged": MANY}


def test_a_policy_that_lowers_the_length_of_a_queue_trims_it_in_slices() -> None:
    world = World()
    client = world.amqp()
    client.queue("q")
    fill(client, "q", MANY)
    world.vhost.applied_policies.set_policy(Policy("/", "p", "q", "queues", 0, {"max-length": 10}))
    depth = int(world.queue("q").depth)
    assert MANY - depth <= TURN_MAX
    while depth > 10:
        client.connection.receive_data(publication("", "q", b"new"))
        world.broker.agenda.turn()
        assert 0 < depth - int(world.queue("q").depth) <= TURN_MAX
        depth = int(world.queue("q").depth)
    assert set(read(client, "q")) == {b"new"} or depth == 10
    world.fates()


# -- basic.get


def test_basic_get_waits_while_expired_messages_are_discarded() -> None:
    world = World()
    client, other = world.amqp(), world.amqp()
    client.queue("q", x_max_priority=1)
    fill(client, "q", MANY, expiration="10", priority=1)
    client.publish("", "q", b"live", priority=0)
    expire(world, 50)
    client.connection.receive_data(marshal(1, B.Get(queue="q", no_ack=True)) + marshal(1, QOS))
    assert client.connection.stalled and MANY + 1 - world.queue("q").depth <= TURN_MAX
    assert names(other.send(QOS)) == ["Basic.QosOk"]
    world.settle(client.connection)
    answers = client.read()
    assert [one.body for one in deliveries(answers)] == [b"live"]
    assert names(answers)[-1] == "Basic.QosOk"


def waiting_get(world: World, no_ack: bool) -> Amqp:
    """Return a client whose basic.get waits while the queue `q` discards expired messages."""
    client = world.amqp(user="u", consumer_cancel_notify=False)
    client.queue("q")
    client.queue("other")
    client.send(B.Consume(queue="other", consumer_tag="t"))
    fill(client, "q", MANY, expiration="10")
    client.publish("", "q", b"live")
    expire(world, 50)
    client.connection.receive_data(marshal(1, B.Get(queue="q", no_ack=no_ack)))
    assert client.connection.stalled
    return client


@pytest.mark.parametrize("no_ack", [True, False])
@pytest.mark.parametrize("end", ["connection", "channel"])
def test_a_get_that_waits_takes_no_message_once_its_channel_has_closed(
    end: str, no_ack: bool
) -> None:
    world = World()
    world.guests.identities["u"] = Identity("u")
    client, other = waiting_get(world, no_ack), world.amqp()
    if end == "connection":
        client.connection.close("expelled")
    else:
        world.guests.identities["u"] = Identity("u", read="^q$")
        world.review()
        assert names(client.read()) == ["Channel.Close"]
    world.settle(client.connection)
    assert (world.queue("q").depth, world.queue("q").unacked) == (1, 0)
    assert world.copies() == {"expired": MANY}
    [one] = deliveries(other.send(B.Get(queue="q", no_ack=True)))
    assert (one.body, one.redelivered) == (b"live", False)
    if end == "channel":
        # The connection handles input again, and its new channel can fetch messages.
        other.publish("", "q", b"more")
        client.send(spec.Channel.CloseOk(), spec.Channel.Open())
        [one] = deliveries(client.send(B.Get(queue="q", no_ack=no_ack)))
        assert one.body == b"more"
    client.connection.on_closed()
    world.settle()
    world.fates()


def test_a_get_that_waits_takes_its_message_from_the_queue_that_a_policy_puts_there() -> None:
    world = World()
    world.guests.identities["u"] = Identity("u")
    client = waiting_get(world, True)
    world.vhost.applied_policies.set_policy(
        Policy("/", "p", "q", "queues", 0, {"max-length": 50_000})
    )
    world.settle(client.connection)
    [one] = deliveries(client.read())
    assert one.body == b"live"
    assert world.copies() == {"expired": MANY, "auto_acknowledged": 1}


@pytest.mark.parametrize("arguments", [{}, {"x_max_length": 10_000}, {"x_max_priority": 2}])
def test_messages_that_do_not_fit_into_the_frames_of_a_client_stay_for_other_clients(
    arguments: dict[str, Any],
) -> None:
    world = World()
    publisher, reader = world.amqp(), world.amqp(frame_max=4_096)
    publisher.queue("q", **arguments)
    for number in range(90):
        publisher.publish("", "q", b"%d" % number, headers={"h": "x" * 5_000})
    publisher.publish("", "q", b"fits")
    [one] = deliveries(reader.send(B.Get(queue="q", no_ack=True)))
    assert one.body == b"fits"
    assert names(reader.send(B.Get(queue="q", no_ack=True))) == ["Basic.GetEmpty"]
    assert world.queue("q").depth == 90
    taken = publisher.send(*[B.Get(queue="q", no_ack=True)] * 45)
    messages = deliveries(taken)
    assert [(one.body, one.redelivered) for one in messages] == [
        (b"%d" % number, False) for number in range(45)
    ]
    publisher.send(B.Consume(queue="q", consumer_tag="t", no_ack=True))
    messages = deliveries(publisher.read())
    assert not any(one.redelivered for one in messages)
    assert world.copies() == {"auto_acknowledged": 91}
    world.fates()


def test_basic_get_looks_at_a_bounded_number_of_messages_that_do_not_fit() -> None:
    world = World()
    publisher, reader = world.amqp(), world.amqp(frame_max=4_096)
    publisher.queue("q")
    fill(publisher, "q", 3_000, headers={"h": "x" * 5_000})
    assert refusal(reader.send(B.Get(queue="q"))) == (
        "channel",
        406,
        "PRECONDITION_FAILED - " + TOO_LARGE,
        60,
        70,
    )
    assert world.queue("q").depth == 3_000 and world.copies() == {}
    [one] = deliveries(publisher.send(B.Get(queue="q", no_ack=True)))
    assert (one.body, one.redelivered) == (b"0", False)


# -- events that resume a connection, and states after an exception


@pytest.mark.parametrize("size", [10, 16_383, 16_384, 40_000])
def test_a_returned_message_of_any_size_wakes_the_connection(size: int) -> None:
    world = World()
    client = world.amqp()
    wakes: list[int] = []
    client.connection.sender = FunctionSender(lambda: wakes.append(1))
    client.connection.receive_data(publication("", "nowhere", b"x" * size, mandatory=True))
    assert wakes == [1]
    assert names(client.read())[0] == "Basic.Return"
