"""The exchange type x-delayed-message."""

from __future__ import annotations

from typing import Any

import pamqp.commands as spec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.clients import Amqp, World
from tests.wire.amqp.speech import deliveries, names, properties, read, refusal

Q, B, X = spec.Queue, spec.Basic, spec.Exchange


def delaying(kind: str = "direct", durable: bool = False, **arguments: Any) -> Amqp:
    client = World().amqp()
    client.send(
        X.Declare(
            exchange="later",
            exchange_type="x-delayed-message",
            durable=durable,
            arguments={"x-delayed-type": kind, **arguments},
        )
    )
    client.queue("q", "later", "k", durable=durable)
    return client


def publish(client: Amqp, body: bytes, delay: Any, key: str = "k", **given: Any) -> list[Any]:
    headers = {} if delay is None else {"x-delay": delay}
    return client.publish(
        "later", key, body, headers={**headers, **given.pop("headers", {})}, **given
    )


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 30), max_size=12))
def test_messages_are_delivered_in_order_of_their_time_then_of_publishing(
    delays: list[int],
) -> None:
    client = delaying()
    for number, delay in enumerate(delays):
        publish(client, b"%d" % number, delay)
    for now in range(31):
        assert read(client, "q") == [
            b"%d" % number for number, delay in enumerate(delays) if delay == now
        ]
        client.world.sleep(1)
        client.world.turn()
    client.world.fates()
    assert client.world.copies().get("released", 0) == sum(delay > 0 for delay in delays)


@pytest.mark.parametrize("delay", [None, 0, -5, "5000", True, [5]])
def test_a_message_without_a_delay_is_routed_at_once(delay: Any) -> None:
    client = delaying()
    publish(client, b"x", delay)
    assert read(client, "q") == [b"x"]


def test_after_the_delay_the_header_is_negative_and_the_rest_is_unchanged() -> None:
    client = delaying()
    publish(client, b"x", 10, headers={"a": 1}, message_id="m", delivery_mode=2)
    client.world.sleep(10)
    client.world.turn()
    frames = client.send(B.Get(queue="q"))
    received = properties(frames)
    assert (
        received.headers == {"x-delay": -10, "a": 1}
        and received.message_id == "m"
        and received.delivery_mode == 2
    )
    assert [(one.exchange, one.key) for one in deliveries(frames)] == [("later", "k")]


def test_a_delayed_message_is_routed_by_the_bindings_at_the_end_of_its_delay() -> None:
    client = delaying("topic")
    publish(client, b"x", 10, key="a.b")
    client.queue("other", "later", "a.*")
    client.world.sleep(10)
    client.world.turn()
    assert read(client, "other") == [b"x"] and read(client, "q") == []


@pytest.mark.parametrize("kind", ["direct", "fanout", "topic", "headers"])
def test_a_delayed_exchange_routes_as_its_x_delayed_type_does(kind: str) -> None:
    client = delaying(kind)
    publish(client, b"now", None)
    publish(client, b"then", 5)
    client.world.sleep(5)
    client.world.turn()
    assert read(client, "q") == [b"now", b"then"]


def test_expiration_counts_from_the_end_of_the_delay() -> None:
    client = delaying()
    publish(client, b"x", 100, expiration="50")
    client.world.sleep(100)
    client.world.turn()
    client.world.sleep(49)
    assert client.world.queue("q").depth == 1
    client.world.sleep(1)
    assert client.world.queue("q").depth == 0


def test_a_confirm_does_not_wait_for_the_delay_and_the_message_counts_as_routed() -> None:
    client = delaying()
    client.send(spec.Confirm.Select())
    assert names(publish(client, b"x", 1_000, mandatory=True)) == ["Basic.Ack"]
    assert client.world.fates() == {"routed": 1}


def test_a_persistent_message_is_stored_during_its_delay_and_in_its_queue() -> None:
    client = delaying(durable=True)
    state = client.world.store.state
    publish(client, b"x", 100, delivery_mode=2)
    [live] = state.messages.values()
    assert live.queues == [int(client.world.vhost.exchanges["later"].number)]
    assert live.message.expires == client.world.broker.agenda.now + 100
    client.world.sleep(100)
    client.world.turn()
    [live] = state.messages.values()
    assert live.queues == [int(client.world.queue("q").number)]
    assert read(client, "q") == [b"x"] and not state.messages


def test_a_transient_message_is_not_stored() -> None:
    client = delaying(durable=True)
    publish(client, b"x", 100)
    assert not client.world.store.state.messages


def test_deleting_the_exchange_deletes_its_delayed_messages() -> None:
    client = delaying(durable=True)
    publish(client, b"x", 100, delivery_mode=2)
    client.send(X.Delete(exchange="later"))
    client.world.sleep(200)
    assert read(client, "q") == [] and not client.world.store.state.messages
    client.world.fates()


def test_a_delayed_exchange_behind_another_delays_its_own_targets_only() -> None:
    client = delaying()
    client.queue("at once", "amq.fanout")
    client.send(X.Bind(destination="later", source="amq.fanout"))
    client.publish("amq.fanout", "k", b"x", headers={"x-delay": 10})
    assert read(client, "at once") == [b"x"] and read(client, "q") == []
    client.world.sleep(10)
    client.world.turn()
    client.world.fates()


def test_dead_letters_are_delayed_once() -> None:
    client = delaying()
    client.queue("work", x_dead_letter_exchange="later", x_dead_letter_routing_key="k")
    client.publish("", "work", b"x", headers={"x-delay": 10})
    client.send(B.Get(queue="work"), B.Reject(1, requeue=False))
    client.world.turn()
    assert read(client, "q") == []
    client.world.sleep(10)
    client.world.turn()
    assert read(client, "q") == [b"x"]


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"x-delayed-type": "x-delayed-message"},
        {"x-delayed-type": "nope"},
        {"x-delayed-type": 5},
    ],
)
def test_a_delayed_exchange_without_a_valid_x_delayed_type_is_refused(arguments: Any) -> None:
    error = refusal(
        World()
        .amqp()
        .send(X.Declare(exchange="x", exchange_type="x-delayed-message", arguments=arguments))
    )
    assert error[:2] == ("channel", 406) and "x-delayed-type" in error.text


def test_a_delayed_exchange_with_another_x_delayed_type_is_not_equivalent() -> None:
    client = delaying()
    error = refusal(
        client.send(
            X.Declare(
                exchange="later",
                exchange_type="x-delayed-message",
                arguments={"x-delayed-type": "topic"},
            )
        )
    )
    assert error.text.startswith(
        "PRECONDITION_FAILED - inequivalent arg 'x-delayed-type' for exchange 'later' in vhost "
        "'/': received 't"
    )


def test_a_delayed_message_goes_to_all_its_routing_keys_and_bcc_stays_hidden() -> None:
    client = delaying()
    publish(client, b"x", 10, headers={"CC": ["open"], "BCC": ["blind"]})
    client.queue("seen", "later", "open")
    client.queue("unseen", "later", "blind")
    client.world.sleep(10)
    client.world.turn()
    for queue in ("q", "seen", "unseen"):
        assert properties(client.send(B.Get(queue=queue, no_ack=True))).headers == {
            "x-delay": -10,
            "CC": ["open"],
        }
    client.world.fates()
