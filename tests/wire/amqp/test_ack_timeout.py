"""The acknowledgement timeout: x-consumer-timeout, its policy key, and the setting."""

from __future__ import annotations

from typing import Any

import pamqp.commands as spec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.limits import BrokerLimits
from broker.queues.arguments import QueueArguments
from broker.queues.policies import Policy
from tests.clients import Amqp, World
from tests.wire.amqp.speech import deliveries, names, read, refusal

Q, B = spec.Queue, spec.Basic
TIMEOUT = 1_000
TEXT = (
    "PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out. Timeout value used: "
    "1000 ms. This timeout value can be configured, see consumers doc guide to learn more"
)


def consuming(world: World, prefetch: int = 0, **arguments: Any) -> Amqp:
    client = world.amqp()
    client.queue("q", **arguments)
    if prefetch:
        client.send(B.Qos(prefetch_count=prefetch))
    client.send(B.Consume(queue="q", consumer_tag="c"))
    return client


def pass_time(client: Amqp, milliseconds: int) -> list[Any]:
    """Advance the clock in steps of 50 ms; return the frames that the client receives."""
    frames = []
    for _ in range(0, milliseconds, 50):
        client.world.sleep(50)
        frames += client.read()
    return frames


def test_a_delivery_that_is_not_acknowledged_closes_the_channel_and_is_requeued() -> None:
    client = consuming(World(), x_consumer_timeout=TIMEOUT)
    client.publish("", "q", b"x")
    assert pass_time(client, TIMEOUT - 50) == []
    assert refusal(pass_time(client, 400)) == ("channel", 406, TEXT, 0, 0)
    assert client.world.amqp_front.tally.acknowledgements_expired == 1
    other = client.world.amqp()
    [message] = deliveries(other.send(B.Get(queue="q")))
    assert message.body == b"x" and message.redelivered
    # The client continues with a new channel.
    client.send(spec.Channel.CloseOk())
    assert names(client.send(spec.Channel.Open())) == ["Channel.OpenOk"]
    client.world.fates()


def test_a_fetched_message_times_out_too() -> None:
    client = World().amqp()
    client.queue("q", x_consumer_timeout=TIMEOUT)
    client.publish("", "q", b"x")
    client.send(B.Get(queue="q"))
    assert refusal(pass_time(client, TIMEOUT + 400)).code == 406


def test_a_delivery_to_a_cancelled_consumer_times_out_too() -> None:
    client = consuming(World(), x_consumer_timeout=TIMEOUT)
    client.publish("", "q", b"x")
    client.send(B.Cancel(consumer_tag="c"))
    assert refusal(pass_time(client, TIMEOUT + 400)).code == 406


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(1, 20)), min_size=1, max_size=12))
def test_a_channel_closes_between_one_timeout_and_a_fifth_more(
    steps: list[tuple[int, int]],
) -> None:
    """A channel closes when its oldest delivery is unacknowledged for 1.0 to 1.2 times the timeout.

    Each step publishes messages, lets time pass and acknowledges the oldest delivery.
    """
    client = consuming(World(), x_consumer_timeout=TIMEOUT)
    agenda = client.world.broker.agenda
    outstanding: list[tuple[int, int]] = []
    tag = 0
    for count, pause in steps:
        for _ in range(count):
            tag += 1
            outstanding.append((tag, int(agenda.now)))
            client.publish("", "q", b"x")
        frames = pass_time(client, pause * 50)
        oldest = int(agenda.now) - outstanding[0][1] if outstanding else 0
        if "Channel.Close" in names(frames):
            assert oldest >= TIMEOUT
            return
        assert oldest <= TIMEOUT * 6 // 5 + 50
        if outstanding:
            client.send(B.Ack(delivery_tag=outstanding.pop(0)[0]))


def test_only_deliveries_of_the_queue_with_the_timeout_count() -> None:
    client = consuming(World(), x_consumer_timeout=TIMEOUT)
    client.queue("other")
    client.send(B.Consume(queue="other"))
    client.publish("", "other", b"x")
    assert pass_time(client, 5 * TIMEOUT) == []
    client.publish("", "q", b"y")
    client.read()
    assert refusal(pass_time(client, TIMEOUT + 400)).code == 406


def test_many_deliveries_of_a_queue_without_a_timeout_hide_no_late_one() -> None:
    client = consuming(World(), x_consumer_timeout=TIMEOUT)
    client.queue("other")
    client.send(B.Consume(queue="other"))
    for _ in range(2_500):
        client.publish("", "other", b"x")
    client.publish("", "q", b"y")
    assert refusal(pass_time(client, TIMEOUT + 400)).code == 406
    assert client.world.queue("other").depth == 2_500


def test_a_consumer_without_acknowledgements_never_times_out() -> None:
    client = World().amqp()
    client.queue("q", x_consumer_timeout=TIMEOUT)
    client.send(B.Consume(queue="q", no_ack=True))
    client.publish("", "q", b"x")
    assert pass_time(client, 3 * TIMEOUT) == []
    assert client.world.broker.agenda.deadline == 0


def test_without_a_timeout_no_timer_is_set() -> None:
    client = consuming(World())
    client.publish("", "q", b"x")
    client.read()
    assert client.world.broker.agenda.deadline == 0


def test_the_setting_applies_to_queues_without_the_argument() -> None:
    limits = BrokerLimits()
    limits.consumer_timeout = TIMEOUT
    world = World(limits)
    free = consuming(world, x_consumer_timeout=0)
    free.publish("", "q", b"x")
    free.read()
    assert pass_time(free, 2 * TIMEOUT) == []
    client = world.amqp()
    client.queue("plain")
    client.send(B.Consume(queue="plain"))
    client.publish("", "plain", b"x")
    client.read()
    assert refusal(pass_time(client, TIMEOUT + 400)).text == TEXT


def test_a_policy_sets_and_removes_the_timeout() -> None:
    client = consuming(World(), x_consumer_timeout=60_000)
    policies = client.world.vhost.applied_policies
    policy = Policy("/", "p", "q", "queues", 0, {"consumer-timeout": TIMEOUT})
    policies.set_policy(policy)
    client.publish("", "q", b"x")
    client.world.settle()
    client.read()
    policies.clear_policy("p")
    assert pass_time(client, 4 * TIMEOUT) == []
    policies.set_policy(policy)
    client.world.settle()
    # A channel with outstanding deliveries checks the policy at its next tick, a tenth of 60 s
    # later.
    assert refusal(pass_time(client, 6_000 + TIMEOUT + 400)).text == TEXT


@pytest.mark.parametrize(
    ("argument", "policy", "timeout"),
    [(0, 60_000, 60_000), (60_000, 0, 60_000), (50_000, 60_000, 50_000), (0, 0, 0)],
)
def test_no_timeout_is_longer_than_each_timeout(argument: int, policy: int, timeout: int) -> None:
    """The shorter timeout of the queue's argument and the policy applies; 0 means no timeout."""
    key = "x-consumer-timeout"
    assert QueueArguments("q", "/", {key: argument}, {key: policy}).consumer_timeout == timeout


def test_a_policy_shortens_the_timeout_of_a_delivery_that_was_looked_at_before() -> None:
    client = consuming(World(), x_consumer_timeout=TIMEOUT)
    client.queue("other", x_consumer_timeout=60 * TIMEOUT)
    client.send(B.Consume(queue="other"))
    client.publish("", "other", b"x")
    client.read()
    assert pass_time(client, 3 * TIMEOUT) == []
    policy = Policy("/", "p", "other", "queues", 0, {"consumer-timeout": TIMEOUT})
    client.world.vhost.applied_policies.set_policy(policy)
    assert refusal(pass_time(client, TIMEOUT + 400)).text == TEXT


def test_a_fetched_message_has_the_timeout_of_the_queue_that_replaces_its_queue() -> None:
    client = consuming(World(), x_consumer_timeout=TIMEOUT)
    client.queue("other")
    client.publish("", "other", b"x")
    client.send(B.Get(queue="other"))
    definition = {"consumer-timeout": TIMEOUT, "max-length": 9}
    policy = Policy("/", "p", "other", "queues", 0, definition)
    client.world.vhost.applied_policies.set_policy(policy)
    assert refusal(pass_time(client, TIMEOUT + 400)).text == TEXT


def test_a_deleted_queue_is_not_watched_while_other_deliveries_are_outstanding() -> None:
    client = consuming(World(), x_consumer_timeout=60 * TIMEOUT)
    client.publish("", "q", b"x")
    client.read()
    for number in range(5):
        name = f"q{number}"
        client.queue(name, x_consumer_timeout=TIMEOUT)
        client.publish("", name, b"x")
        client.send(B.Get(queue=name), Q.Delete(queue=name))
    assert pass_time(client, 50 * TIMEOUT) == []
    assert refusal(pass_time(client, 23 * TIMEOUT)).code == 406


def test_the_timer_ends_with_the_channel() -> None:
    client = consuming(World(), x_consumer_timeout=TIMEOUT)
    client.publish("", "q", b"x")
    client.send(spec.Channel.Close(0, "", 0, 0))
    client.world.sleep(2 * TIMEOUT)
    assert client.world.broker.agenda.deadline == 0
    client.send(spec.Channel.Open())
    assert read(client, "q") == [b"x"]


def test_a_timeout_does_not_count_as_a_failed_delivery_for_delayed_retry() -> None:
    client = consuming(
        World(), x_consumer_timeout=TIMEOUT, x_delayed_retry_type="failed", x_delayed_retry_min=9
    )
    client.publish("", "q", b"x")
    assert refusal(pass_time(client, TIMEOUT + 400)).code == 406
    assert client.world.queue("q").depth == 1


@pytest.mark.parametrize("timeout", [-1, "1000", True, 1 << 51])
def test_an_invalid_timeout_is_refused(timeout: Any) -> None:
    arguments = {"x-consumer-timeout": timeout}
    error = refusal(World().amqp().send(Q.Declare(queue="q", arguments=arguments)))
    assert error.code == 406 and "x-consumer-timeout" in error.text
