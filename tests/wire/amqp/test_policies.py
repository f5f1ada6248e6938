"""Tests of policies, which also apply to queues and exchanges that exist already."""

from __future__ import annotations

from typing import Any

import pamqp.commands as spec
import pytest

from broker.errors import PreconditionFailed
from broker.queues.limited import LimitedQueue
from broker.queues.policies import Policy
from broker.vhost.background import QUEUES_PER_SLICE
from tests.clients import Amqp, World, marshal
from tests.wire.amqp.speech import deliveries, names, read

Q, B, X = spec.Queue, spec.Basic, spec.Exchange


def say(
    world: World,
    name: str,
    definition: dict[str, Any],
    pattern: str = ".*",
    priority: int = 0,
    apply_to: str = "all",
) -> None:
    world.vhost.applied_policies.set_policy(
        Policy("/", name, pattern, apply_to, priority, definition)
    )
    world.settle()


def numbered(client: Amqp, count: int, queue: str = "q") -> None:
    for number in range(count):
        client.publish("", queue, b"%d" % number)


@pytest.mark.parametrize(
    ("own", "bound", "limit"), [(-1, 5, 5), (7, 5, 5), (3, 5, 3), (3, -1, 3), (-1, -2, -1)]
)
def test_an_operator_policy_bounds_a_policy_without_a_delivery_limit(
    own: int, bound: int, limit: int
) -> None:
    world = World()
    world.amqp().queue("q", durable=True, x_queue_type="quorum")
    say(world, "unlimited", {"delivery-limit": own})
    row = {"pattern": ".*", "definition": {"delivery-limit": bound}}
    world.vhost.applied_policies.set_parameter("operator_policy", "bound", row)
    world.settle()
    assert world.queue("q").arguments.delivery_limit == limit


def test_a_policy_that_does_not_change_x_expires_does_not_prolong_the_life_of_a_queue() -> None:
    world = World()
    client = world.amqp()
    client.queue("declared", x_expires=100)
    client.queue("q")
    say(world, "expiring", {"expires": 100}, "^q$")
    for number in range(9):
        world.sleep(10)
        say(world, "other", {"max-length": number + 1}, "^other$" if number % 2 else "^declared$")
    assert set(world.vhost.queues) == {"declared", "q"}
    world.sleep(10)
    assert set(world.vhost.queues) == set()


@pytest.mark.parametrize("first", ["queue", "policy"])
def test_a_policy_applies_to_queues_declared_before_and_after_it(first: str) -> None:
    world = World()
    client = world.amqp()
    if first == "queue":
        client.queue("q")
        numbered(client, 5)
    say(world, "short", {"max-length": 2}, "^q")
    if first == "policy":
        client.queue("q")
        numbered(client, 5)
    client.queue("other")
    numbered(client, 5, "other")
    assert read(client, "q") == [b"3", b"4"] and len(read(client, "other")) == 5
    world.fates()


def test_only_the_policy_of_highest_priority_applies_and_the_lower_of_two_limits() -> None:
    world = World()
    client = world.amqp()
    client.queue("q", x_max_length=3)
    say(world, "low", {"max-length": 1, "expires": 10}, priority=1)
    say(world, "high", {"max-length": 2}, priority=5)
    numbered(client, 5)
    assert read(client, "q") == [b"3", b"4"]
    say(world, "high", {"max-length": 9}, priority=5)
    numbered(client, 5)
    assert read(client, "q") == [b"2", b"3", b"4"]
    world.sleep(100)
    assert "q" in world.vhost.queues


def test_an_argument_of_the_queue_takes_precedence_over_the_policy() -> None:
    world = World()
    client = world.amqp()
    for queue, arguments in (
        ("mine", {"x_dead_letter_exchange": "", "x_dead_letter_routing_key": "own"}),
        ("plain", {}),
    ):
        client.queue(queue, x_max_length=0, **arguments)
    for queue in ("own", "said"):
        client.queue(queue)
    say(
        world,
        "dead_letters",
        {"dead-letter-exchange": "", "dead-letter-routing-key": "said"},
        "^(mine|plain)$",
    )
    client.publish("", "mine", b"mine")
    client.publish("", "plain", b"plain")
    world.settle()
    assert read(client, "own") == [b"mine"] and read(client, "said") == [b"plain"]


def test_a_plain_queue_is_replaced_by_a_limited_queue_that_keeps_its_contents() -> None:
    world = World()
    client, other = world.amqp(), world.amqp()
    client.queue("q", "amq.topic", "a.#", durable=True)
    client.send(B.Qos(prefetch_count=2), B.Consume(queue="q", consumer_tag="t"))
    for number in range(6):
        client.publish("amq.topic", "a.b", b"%d" % number, delivery_mode=2)
    gotten = other.send(B.Get(queue="q"))
    assert [one.body for one in deliveries(gotten)] == [b"2"]
    before = world.queue("q")
    say(
        world,
        "dead_letters",
        {
            "dead-letter-exchange": "",
            "dead-letter-routing-key": "dead_letters",
            "delivery-limit": 5,
        },
    )
    after = world.queue("q")
    assert (
        after is not before
        and isinstance(after, LimitedQueue)
        and (after.depth, after.unacked) == (3, 3)
    )
    client.queue("dead_letters")
    client.send(B.Reject(1, requeue=False))
    other.send(B.Reject(1, requeue=False))
    world.settle()
    assert read(client, "dead_letters") == [b"0", b"2"]
    client.send(B.Ack(2), B.Nack(3, requeue=True), B.Cancel("t"))
    client.publish("amq.topic", "a.c", b"6", delivery_mode=2)
    client.send(B.Nack(0, multiple=True, requeue=True))
    assert read(client, "q") == [b"3", b"4", b"5", b"6"]
    assert not world.store.state.messages and names(client.send(Q.Delete(queue="q"))) == [
        "Queue.DeleteOk"
    ]
    world.fates()


def test_an_exclusive_queue_replaced_by_a_policy_is_deleted_with_its_connection() -> None:
    world = World()
    client = world.amqp()
    client.send(Q.Declare(queue="q", exclusive=True))
    say(world, "short", {"max-length": 2})
    client.connection.on_closed()
    assert not world.vhost.queues


def test_a_replaced_auto_delete_queue_is_deleted_with_its_last_consumer() -> None:
    world = World()
    client = world.amqp()
    client.send(Q.Declare(queue="q", auto_delete=True), B.Consume(queue="q", consumer_tag="t"))
    say(world, "short", {"max-length": 2})
    client.send(B.Cancel("t"))
    assert not world.vhost.queues


def test_clearing_the_policy_restores_the_declared_arguments() -> None:
    world = World()
    client = world.amqp()
    client.queue("q")
    say(world, "short", {"max-length": 1, "overflow": "reject-publish"})
    client.send(spec.Confirm.Select())
    client.publish("", "q", b"0")
    assert names(client.publish("", "q", b"1")) == ["Basic.Nack"]
    world.vhost.applied_policies.clear_policy("short")
    world.settle()
    assert names(client.publish("", "q", b"1")) == ["Basic.Ack"]
    assert read(client, "q") == [b"0", b"1"]
    assert names(client.send(Q.Declare(queue="q"))) == ["Queue.DeclareOk"]


@pytest.mark.parametrize("later", [None, {"dead-letter-exchange": "later"}])
def test_a_dead_letter_goes_to_the_exchange_of_the_time_of_its_death(
    later: dict[str, Any] | None,
) -> None:
    """Change the dead letter exchange in a policy while the broker publishes many dead letters in
    slices.

    Each dead letter goes to the exchange that the policy named when the message died.
    """
    world = World()
    client = world.amqp()
    client.send(X.Declare(exchange="later", exchange_type="fanout"))
    client.queue("dead", "amq.fanout")
    client.queue("wrong", "later")
    client.queue("q")
    say(world, "p", {"dead-letter-exchange": "amq.fanout"}, "^q$")
    numbered(client, 500)
    client.send(B.Consume(queue="q", consumer_tag="c"))
    client.send(B.Cancel("c"))
    client.connection.receive_data(marshal(1, B.Nack(0, multiple=True, requeue=False)))
    if later is None:
        world.vhost.applied_policies.clear_policy("p")
    else:
        say(world, "p", later, "^q$")
    world.settle()
    assert read(client, "dead") == [b"%d" % number for number in range(500)]
    assert world.queue("q").depth == world.queue("wrong").depth == 0
    assert world.copies() == {"dead_lettered": 500, "auto_acknowledged": 500}
    world.fates()


def test_a_policy_can_set_time_to_live_size_limit_and_expiry() -> None:
    world = World()
    client = world.amqp()
    client.queue("q")
    client.publish("", "q", b"xx")
    say(world, "all", {"message-ttl": 50, "max-length-bytes": 3, "expires": 500})
    client.publish("", "q", b"yy")
    assert read(client, "q") == [b"yy"]
    client.publish("", "q", b"zz")
    world.sleep(50)
    assert world.queue("q").depth == 0
    world.sleep(500)
    assert not world.vhost.queues


def test_a_policy_sets_the_alternate_exchange_unless_the_declaration_does() -> None:
    world = World()
    client = world.amqp()
    client.queue("lost", "amq.fanout")
    client.send(X.Declare(exchange="x"))
    say(world, "lost", {"alternate-exchange": "amq.fanout"}, "^x", apply_to="exchanges")
    client.send(
        X.Declare(exchange="x2"),
        X.Declare(exchange="x3", arguments={"alternate-exchange": "amq.direct"}),
    )
    for exchange in ("x", "x2", "x3"):
        client.publish(exchange, "k", exchange.encode())
    assert read(client, "lost") == [b"x", b"x2"]
    world.vhost.applied_policies.clear_policy("lost")
    client.publish("x", "k", b"again")
    assert read(client, "lost") == []


@pytest.mark.parametrize(
    ("apply_to", "left"),
    [("queues", 1), ("classic_queues", 2), ("quorum_queues", 1), ("exchanges", 2)],
)
def test_a_policy_applies_to_the_kinds_of_objects_it_names(apply_to: str, left: int) -> None:
    world = World()
    client = world.amqp()
    client.queue("q", durable=True, x_queue_type="quorum")
    say(world, "short", {"max-length": 1}, apply_to=apply_to)
    numbered(client, 2)
    assert len(read(client, "q")) == left


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"pattern": "("}, "not a regular expression"),
        ({"apply_to": "people"}, "'people', not one of"),
        ({"definition": {}}, "the definition is empty"),
        (
            {"definition": {"max-lenght": 5}},
            "unknown key 'max-lenght'; the nearest is max-length; ",
        ),
        ({"definition": {"z" * 9_999: 5}}, f"unknown key '{'z' * 100}'; the nearest is "),
        ({"definition": {"max-length": -5}}, "'/': 'max-length' is -5: -5 is too small"),
        ({"definition": {"max-length": "ten"}}, "'/': 'max-length' is \"ten\": must be a number"),
        ({"definition": {"max-length": True}}, "'/': 'max-length' is true: must be a number"),
        ({"definition": {"expires": ["7"] * 99}}, '"7",...: must be a number'),
        ({"definition": {"max-age": 7}}, "'max-age' is 7: must be an age such as '7D'"),
        (
            {"definition": {"delayed-retry-type": "all"}},
            "'delayed-retry-type' is \"all\": 'all' needs 'delayed-retry-min'",
        ),
        ({"definition": {"overflow": "up"}}, "'overflow' is \"up\": must be one of"),
        ({"definition": {"alternate-exchange": 5}}, "'alternate-exchange' is 5: must be a string"),
        ({"priority": 1 << 40}, "priority"),
    ],
)
def test_an_invalid_policy_is_refused(given: Any, says: str) -> None:
    row = {
        "pattern": ".*",
        "apply_to": "all",
        "priority": 0,
        "definition": {"max-length": 1},
    } | given
    with pytest.raises(PreconditionFailed, match="policy 'p' in vhost '/'") as refused:
        Policy("/", "p", **row)
    assert says in str(refused.value) and "'x-" not in str(refused.value)


def test_a_policy_is_applied_to_many_queues_in_slices() -> None:
    world = World()
    for number in range(1_200):
        world.vhost.declare_queue(f"q{number}")
    world.vhost.applied_policies.set_policy(Policy("/", "p", "", "queues", 0, {"max-length": 1}))
    followed = sum(isinstance(queue, LimitedQueue) for queue in world.vhost.queues.values())
    assert 0 < followed < 1_200
    world.settle()
    assert all(isinstance(queue, LimitedQueue) for queue in world.vhost.queues.values())


def test_many_policies_set_in_one_turn_are_applied_together() -> None:
    """Policies that are set in one turn cause one pass over the queues, not one pass each.

    An import of definitions sets many policies in one turn.
    """
    world = World()
    many, policies = 3 * QUEUES_PER_SLICE, 20
    for number in range(many):
        world.vhost.declare_queue(f"q{number}")
    applied = world.vhost.applied_policies
    for number in range(policies):
        definition = {"max-length": 100 + number}
        applied.set_policy(Policy("/", f"p{number}", "^q", "queues", number, definition))
    agenda = world.broker.agenda
    assert len(agenda._bulk) == 1
    turns = 0
    while not agenda.idle:
        agenda.turn()
        turns += 1
    assert turns <= many // QUEUES_PER_SLICE + 1
    assert {queue.arguments.max_length for queue in world.vhost.queues.values()} == {
        100 + policies - 1
    }
    # A policy that is set after the update starts a new update.
    applied.set_policy(Policy("/", "last", "^q", "queues", policies, {"max-length": 7}))
    world.settle()
    assert {queue.arguments.max_length for queue in world.vhost.queues.values()} == {7}
