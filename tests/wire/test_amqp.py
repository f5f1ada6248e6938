"""Tests of AMQP 0-9-1: the bytes with which the broker answers the bytes of a client."""

from __future__ import annotations

from typing import Any

import pamqp.body
import pamqp.commands as spec
import pytest

from broker.access.identity import Identity
from broker.messages.fates import EXPIRED
from tests.clients import World, marshal, publication


def kinds(frames: list[Any]) -> list[str]:
    return [frame.name for frame in frames]


def test_handshake_goes_through_start_tune_open() -> None:
    assert kinds(World().amqp().greeting) == [
        "Connection.Start",
        "Connection.Tune",
        "Connection.OpenOk",
        "Channel.OpenOk",
    ]


def test_a_foreign_greeting_is_answered_with_ours_and_closed() -> None:
    connection = World().raw_amqp()
    connection.receive_data(b"GET / HTTP/1.1\r\n\r\n")
    assert connection.data_to_send() == b"AMQP\x00\x00\x09\x01" and connection.finished


def test_a_wrong_password_is_refused_with_403() -> None:
    refusal = World().amqp(user="unknown").greeting[-1]
    assert isinstance(refusal, spec.Connection.Close) and refusal.reply_code == 403


def test_publish_deliver_ack() -> None:
    client = World().amqp()
    client.queue("q", "amq.topic", "sensor.*.temp")
    assert kinds(client.send(spec.Basic.Consume(queue="q", consumer_tag="t"))) == [
        "Basic.ConsumeOk"
    ]
    deliver, header, body = client.publish(
        "amq.topic", "sensor.7.temp", b"21.5", content_type="text/plain"
    )
    assert (
        deliver.consumer_tag,
        deliver.delivery_tag,
        deliver.redelivered,
        deliver.routing_key,
    ) == ("t", 1, False, "sensor.7.temp")
    assert header.properties.content_type == "text/plain" and body.value == b"21.5"
    queue = client.world.vhost.queues["q"]
    assert queue.unacked == 1
    assert client.send(spec.Basic.Ack(1)) == []
    assert queue.unacked == 0 and client.world.fates() == {"routed": 1}


def test_settling_an_unknown_tag_closes_the_channel_with_406() -> None:
    [close] = World().amqp().send(spec.Basic.Ack(7))
    assert isinstance(close, spec.Channel.Close) and close.reply_code == 406


def test_a_closed_channel_ignores_everything_until_close_ok_and_can_be_reopened() -> None:
    client = World().amqp()
    client.send(spec.Queue.Declare(queue="nope", passive=True))
    assert client.publish("", "x", b"ignored") == []
    assert kinds(client.send(spec.Channel.CloseOk(), spec.Channel.Open())) == ["Channel.OpenOk"]


def test_prefetch_bounds_unsettled_deliveries_and_acks_release_more() -> None:
    client = World().amqp()
    client.queue("q")
    client.send(spec.Basic.Qos(prefetch_count=2), spec.Basic.Consume(queue="q", consumer_tag="t"))
    for number in range(5):
        client.publish("", "q", b"%d" % number)
    queue = client.world.vhost.queues["q"]
    assert (queue.depth, queue.unacked) == (3, 2)
    assert client.bodies(client.send(spec.Basic.Ack(2, multiple=True))) == [b"2", b"3"]


def test_consumers_take_turns() -> None:
    world = World()
    first, second, publisher = world.amqp(), world.amqp(), world.amqp()
    first.queue("q")
    first.send(spec.Basic.Consume(queue="q", consumer_tag="a", no_ack=True))
    second.send(spec.Basic.Consume(queue="q", consumer_tag="b", no_ack=True))
    for number in range(4):
        publisher.publish("", "q", b"%d" % number)
    assert (first.bodies(), second.bodies()) == ([b"0", b"2"], [b"1", b"3"])


def test_requeued_messages_come_back_in_their_old_order_marked_redelivered() -> None:
    world = World()
    client, other = world.amqp(), world.amqp()
    client.queue("q")
    client.send(spec.Basic.Qos(prefetch_count=3), spec.Basic.Consume(queue="q", consumer_tag="t"))
    for number in range(5):
        client.publish("", "q", b"%d" % number)
    client.connection.on_closed()
    frames = other.send(spec.Basic.Consume(queue="q", consumer_tag="t"))
    assert other.bodies(frames) == [b"0", b"1", b"2", b"3", b"4"]
    assert [f.redelivered for f in frames if isinstance(f, spec.Basic.Deliver)] == [
        True,
        True,
        True,
        False,
        False,
    ]


def test_get_takes_one_message_and_says_when_there_is_none() -> None:
    client = World().amqp()
    client.queue("q")
    client.publish("", "q", b"one")
    ok, _, body = client.send(spec.Basic.Get(queue="q"))
    assert (ok.delivery_tag, ok.message_count, body.value) == (1, 0, b"one")
    assert kinds(client.send(spec.Basic.Get(queue="q"))) == ["Basic.GetEmpty"]
    assert client.bodies(
        client.send(spec.Basic.Reject(1, requeue=True), spec.Basic.Get(queue="q"))
    ) == [b"one"]


def test_an_unroutable_mandatory_message_is_returned_before_its_confirm() -> None:
    client = World().amqp()
    client.send(spec.Confirm.Select())
    frames = client.publish("amq.topic", "nowhere", b"back", mandatory=True)
    assert kinds(frames) == ["Basic.Return", "ContentHeader", "ContentBody", "Basic.Ack"]
    assert frames[0].reply_code == 312 and client.world.fates() == {"unroutable": 1}


def test_publishing_to_a_missing_exchange_closes_the_channel_with_404() -> None:
    client = World().amqp()
    [close] = client.publish("nope", "x", b"x")
    assert (
        close.reply_code == 404
        and close.reply_text == "NOT_FOUND - no exchange 'nope' in vhost '/'"
    )
    assert client.world.fates() == {"refused": 1}


def test_a_message_without_write_permission_is_refused_with_403() -> None:
    world = World()
    world.guests.identities["reader"] = Identity("reader", write="^$")
    [close] = world.amqp(user="reader").publish("amq.topic", "x", b"x")
    assert close.reply_code == 403


def test_alternate_exchange_gets_unroutable_messages() -> None:
    client = World().amqp()
    client.send(
        spec.Exchange.Declare(
            exchange="main", exchange_type="direct", arguments={"alternate-exchange": "amq.fanout"}
        )
    )
    client.queue("rest", "amq.fanout")
    client.publish("main", "unknown", b"caught")
    assert client.world.vhost.queues["rest"].depth == 1


def test_headers_exchange_matches_all_or_any() -> None:
    client = World().amqp()
    for name, match in (("all", "all"), ("any", "any")):
        client.queue(name)
        client.send(
            spec.Queue.Bind(
                queue=name, exchange="amq.headers", arguments={"x-match": match, "a": 1, "b": 2}
            )
        )
    client.publish("amq.headers", "", b"one", headers={"a": 1})
    client.publish("amq.headers", "", b"both", headers={"a": 1, "b": 2})
    assert (client.world.vhost.queues["all"].depth, client.world.vhost.queues["any"].depth) == (
        1,
        2,
    )


def test_exchanges_bound_to_exchanges_pass_messages_on_once() -> None:
    client = World().amqp()
    client.send(spec.Exchange.Declare(exchange="inner", exchange_type="fanout"))
    client.send(spec.Exchange.Bind(destination="inner", source="amq.topic", routing_key="a.#"))
    client.queue("q", "inner")
    client.send(spec.Queue.Bind(queue="q", exchange="amq.topic", routing_key="a.b"))
    client.publish("amq.topic", "a.b", b"x")
    assert client.world.vhost.queues["q"].depth == 1


@pytest.mark.parametrize("size", [0, 1, 4088, 4089, 10_000])
def test_bodies_are_split_by_the_readers_frame_max(size: int) -> None:
    world = World()
    publisher, reader = world.amqp(), world.amqp(frame_max=4096)
    reader.queue("q")
    reader.send(spec.Basic.Consume(queue="q", consumer_tag="t", no_ack=True))
    publisher.publish("", "q", b"x" * size, message_id="7")
    frames = reader.read()
    assert b"".join(reader.bodies(frames)) == b"x" * size
    assert all(len(body) <= 4088 for body in reader.bodies(frames))
    assert frames[1].properties.message_id == "7"


def test_content_relayed_to_another_channel_number_carries_that_number() -> None:
    world = World()
    publisher, reader = world.amqp(), world.amqp()
    reader.queue("q")
    reader.send(spec.Channel.Open(), channel=9)
    reader.send(spec.Basic.Consume(queue="q", consumer_tag="t", no_ack=True), channel=9)
    publisher.publish("", "q", b"hello")
    data = reader.read_bytes()
    assert data.endswith(marshal(9, pamqp.body.ContentBody(b"hello")))


def test_confirms_of_persistent_messages_wait_for_the_store() -> None:
    client = World().amqp()
    client.queue("q", durable=True)
    client.send(spec.Confirm.Select())
    client.world.slow_disk = True
    assert client.publish("", "q", b"1", delivery_mode=2) == []
    assert client.publish("", "q", b"2", delivery_mode=1) == []
    client.world.durable()
    [ack] = client.read()
    assert (ack.delivery_tag, ack.multiple) == (2, True)


def test_a_settled_persistent_message_leaves_the_store() -> None:
    client = World().amqp()
    client.queue("q", durable=True)
    client.publish("", "q", b"1", delivery_mode=2)
    client.send(spec.Basic.Consume(queue="q", consumer_tag="t"))
    assert len(client.world.store.state.messages) == 1
    client.send(spec.Basic.Ack(1))
    assert not client.world.store.state.messages


def test_expired_messages_are_not_delivered() -> None:
    client = World().amqp()
    client.queue("q")
    client.publish("", "q", b"old", expiration="100")
    client.publish("", "q", b"new", expiration="10000")
    client.world.sleep(100)
    assert client.bodies(client.send(spec.Basic.Consume(queue="q", consumer_tag="t"))) == [b"new"]
    assert client.world.vhost.queues["q"].fates()[EXPIRED] == 1


def test_expired_messages_are_dead_lettered_with_their_history() -> None:
    client = World().amqp()
    client.queue("dead_letters", "amq.fanout")
    client.queue(
        "q", x_message_ttl=50, x_dead_letter_exchange="amq.fanout", x_dead_letter_routing_key="late"
    )
    client.publish("", "q", b"x", headers={"mine": 1})
    client.world.sleep(50)
    ok, header, body = client.send(spec.Basic.Get(queue="dead_letters"))
    assert (
        ok.routing_key == "late" and body.value == b"x" and header.properties.headers["mine"] == 1
    )
    [death] = header.properties.headers["x-death"]
    assert (death["queue"], death["reason"], death["count"], death["routing-keys"]) == (
        "q",
        "expired",
        1,
        ["q"],
    )


def test_a_dead_letter_cycle_without_rejection_ends() -> None:
    client = World().amqp()
    client.queue("q", x_message_ttl=10, x_dead_letter_exchange="", x_dead_letter_routing_key="q")
    client.publish("", "q", b"x")
    for _ in range(3):
        client.world.sleep(10)
    assert client.world.vhost.queues["q"].depth == 0
    assert client.world.fates() == {"routed": 1, "looped": 1}


def test_a_full_queue_drops_its_head() -> None:
    client = World().amqp()
    client.queue("q", x_max_length=2)
    for number in range(4):
        client.publish("", "q", b"%d" % number)
    assert client.bodies(client.send(spec.Basic.Consume(queue="q", consumer_tag="t"))) == [
        b"2",
        b"3",
    ]


def test_a_full_queue_refuses_and_the_publisher_gets_a_nack() -> None:
    client = World().amqp()
    client.queue("q", x_max_length=1, x_overflow="reject-publish")
    client.send(spec.Confirm.Select())
    answers = client.publish("", "q", b"1") + client.publish("", "q", b"2")
    assert [(a.name, a.delivery_tag) for a in answers] == [("Basic.Ack", 1), ("Basic.Nack", 2)]
    assert client.world.fates() == {"routed": 1, "refused": 1}


def test_a_binding_made_later_counts_for_the_next_message() -> None:
    client = World().amqp()
    client.publish("amq.topic", "k", b"0")
    client.queue("q", "amq.topic", "k")
    client.publish("amq.topic", "k", b"1")
    client.send(spec.Queue.Unbind(queue="q", exchange="amq.topic", routing_key="k"))
    client.publish("amq.topic", "k", b"2")
    assert client.world.vhost.queues["q"].depth == 1
    assert client.world.fates() == {"routed": 1, "unroutable": 2}


def test_a_greedy_publisher_is_cut_off_and_resumed() -> None:
    client = World().amqp()
    client.queue("q")
    client.connection.receive_data(publication("", "q", b"") * 25_000)
    assert client.connection.behind and 0 < client.world.vhost.queues["q"].depth < 25_000
    while client.connection.behind:
        client.connection.resume()
    assert client.world.vhost.queues["q"].depth == 25_000


def test_a_choked_reader_gets_the_rest_after_the_flush() -> None:
    client = World().amqp()
    client.queue("q")
    for _ in range(20):
        client.publish("", "q", b"x" * 60_000)
    client.connection.receive_data(
        marshal(1, spec.Basic.Consume(queue="q", consumer_tag="t", no_ack=True))
    )
    slices = []
    while client.world.vhost.queues["q"].depth:
        slices.append(len(client.read_bytes()))
    assert len(slices) == 4 and max(slices) < 400_000


def test_dead_letter_keeps_the_encodable_part_of_odd_properties() -> None:
    client = World().amqp()
    client.queue("dead_letters", "amq.fanout")
    client.queue("q", x_message_ttl=50, x_dead_letter_exchange="amq.fanout")
    client.connection.receive_data(
        publication("", "q", b"x", content_type="t", delivery_mode=1).replace(
            b"t\x01\xce", b"t\x07\xce"
        )
    )
    client.world.sleep(50)
    _, header, _ = client.send(spec.Basic.Get(queue="dead_letters"))
    assert (header.properties.content_type, header.properties.delivery_mode) == ("t", None)


def test_names_may_hold_any_character() -> None:
    client = World().amqp()
    name = "{é!}" * 50
    assert client.send(spec.Queue.Declare(queue=name))[0].queue == name
    client.publish("", name, b"x")
    assert client.send(spec.Basic.Get(queue=name))[0].routing_key == name
    [close] = client.send(spec.Queue.Declare(queue="ß" * 120, passive=True))
    assert close.reply_code == 404


def test_an_exclusive_queue_is_locked_for_others_and_goes_with_its_connection() -> None:
    world = World()
    owner, other = world.amqp(), world.amqp()
    owner.send(spec.Queue.Declare(queue="mine", exclusive=True))
    [close] = other.send(spec.Queue.Declare(queue="mine", passive=True))
    assert close.reply_code == 405
    owner.connection.on_closed()
    assert "mine" not in world.vhost.queues
