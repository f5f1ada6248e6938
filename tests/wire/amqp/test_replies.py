"""Direct replies, and messages with several routing keys."""

from __future__ import annotations

from typing import Any

import pamqp.commands as spec
import pytest

from tests.clients import Amqp, World
from tests.wire.amqp.speech import (
    deliveries,
    names,
    open_channel,
    properties,
    read,
    refusal,
    reopen,
)

Q, B = spec.Queue, spec.Basic
DIRECT = "amq.rabbitmq.reply-to"


def asker(world: World) -> tuple[Amqp, str]:
    """Return a client that sends requests, and the name of its reply queue."""
    client = world.amqp()
    client.queue("rpc")
    client.send(B.Consume(queue=DIRECT, no_ack=True, consumer_tag="replies"))
    client.publish(
        "",
        "rpc",
        b"question",
        reply_to=DIRECT,
        correlation_id="7",
        headers={"a": 1},
        content_type="text/plain",
    )
    frames = client.send(B.Get(queue="rpc", no_ack=True))
    request = properties(frames)
    assert (request.correlation_id, request.headers, request.content_type) == (
        "7",
        {"a": 1},
        "text/plain",
    )
    assert client.bodies(frames) == [b"question"]
    return client, request.reply_to


# -- direct replies


def test_a_reply_comes_back_without_a_queue() -> None:
    world = World()
    client, name = asker(world)
    assert name.startswith(DIRECT + ".") and name not in world.vhost.queues
    server = world.amqp()
    assert server.publish("", name, b"answer", mandatory=True, correlation_id="7") == []
    frames = client.read()
    [one] = deliveries(frames)
    assert (one.tag, one.exchange, one.key, one.body, one.redelivered) == (
        "replies",
        "",
        name,
        b"answer",
        False,
    )
    assert properties(frames).correlation_id == "7"
    world.fates()


def test_every_channel_that_asks_has_its_own_name() -> None:
    world = World()
    assert asker(world)[1] != asker(world)[1]


@pytest.mark.parametrize("end", ["cancel", "channel", "connection"])
def test_a_reply_without_a_waiting_consumer_is_unroutable(end: str) -> None:
    world = World()
    client, name = asker(world)
    server = world.amqp()
    server.publish("", name, b"first")
    if end == "cancel":
        assert names(client.send(B.Cancel("replies")))[-1] == "Basic.CancelOk"
    elif end == "channel":
        client.send(spec.Channel.Close(0, "", 0, 0))
    else:
        client.connection.on_closed()
    assert names(server.publish("", name, b"answer", mandatory=True))[0] == "Basic.Return"
    assert not world.vhost.replies
    world.fates()


def test_after_a_cancel_a_channel_may_ask_anew_under_another_name() -> None:
    client, name = asker(World())
    client.send(B.Cancel("replies"))
    assert names(client.send(B.Consume(queue=DIRECT, no_ack=True))) == ["Basic.ConsumeOk"]
    client.publish("", "rpc", b"x", reply_to=DIRECT)
    assert properties(client.send(B.Get(queue="rpc", no_ack=True))).reply_to != name


def test_the_name_can_be_asked_for_and_nothing_else_can_be_done_with_it() -> None:
    world = World()
    client, name = asker(world)
    for queue in (DIRECT, name):
        answer = client.send(Q.Declare(queue=queue, passive=True))[0]
        assert (answer.name, answer.queue, answer.consumer_count) == ("Queue.DeclareOk", queue, 1)
    for method in (
        Q.Declare(queue=DIRECT + ".x", passive=True),
        B.Get(queue=DIRECT),
        Q.Bind(queue=name, exchange="amq.topic"),
        Q.Purge(queue=name),
        B.Consume(queue=name),
    ):
        other = world.amqp()
        assert refusal(other.send(method))[:2] == ("channel", 404)
    assert names(client.send(Q.Delete(queue=DIRECT))) == ["Queue.DeleteOk"]


def test_a_request_for_a_direct_reply_needs_a_consumer_of_replies() -> None:
    client = World().amqp()
    error = refusal(client.publish("", "q", b"x", reply_to=DIRECT))
    assert error == (
        "channel",
        406,
        "PRECONDITION_FAILED - fast reply consumer does not exist",
        60,
        40,
    )
    assert client.world.fates() == {"refused": 1}


@pytest.mark.parametrize(
    ("method", "text"),
    [
        (B.Consume(queue=DIRECT), "reply consumer cannot acknowledge"),
        (B.Consume(queue=DIRECT, no_ack=True), "reply consumer already set"),
    ],
)
def test_replies_are_consumed_once_and_without_acknowledgement(method: Any, text: str) -> None:
    client, _ = asker(World())
    assert refusal(client.send(method)) == ("channel", 406, f"PRECONDITION_FAILED - {text}", 60, 20)


def test_other_names_for_replies_are_relayed_as_they_are() -> None:
    client = World().amqp()
    client.queue("q")
    for name in ("mine", DIRECT + "x", "amq.rabbitmq.reply-t"):
        client.publish("", "q", b"x", reply_to=name)
        assert properties(client.send(B.Get(queue="q", no_ack=True))).reply_to == name


def test_channels_wait_for_replies_side_by_side() -> None:
    world = World()
    client, name = asker(world)
    open_channel(client, 2)
    assert names(
        client.send(B.Consume(queue=DIRECT, no_ack=True, consumer_tag="other"), channel=2)
    ) == ["Basic.ConsumeOk"]
    world.amqp().publish("", name, b"x")
    assert [one.tag for one in deliveries(client.read())] == ["replies"]


# -- CC and BCC


def test_a_message_goes_where_all_its_keys_lead_and_once_to_each() -> None:
    client = World().amqp()
    for queue in ("a", "b", "c", "d"):
        client.queue(queue)
    client.send(spec.Confirm.Select())
    assert names(
        client.publish("", "a", b"x", headers={"CC": ["b", "a"], "BCC": ["c", "nowhere"], "z": 1})
    ) == ["Basic.Ack"]
    for queue in ("a", "b", "c"):
        frames = client.send(B.Get(queue=queue, no_ack=True))
        assert properties(frames).headers == {"CC": ["b", "a"], "z": 1}
        assert [(one.key, one.body) for one in deliveries(frames)] == [("a", b"x")]
    assert names(client.send(B.Get(queue="d"))) == ["Basic.GetEmpty"]
    assert client.world.fates() == {"routed": 1}


def test_further_keys_count_for_mandatory() -> None:
    client = World().amqp()
    client.queue("q")
    assert client.publish("", "nowhere", b"x", mandatory=True, headers={"BCC": ["q"]}) == []
    assert (
        names(client.publish("", "nowhere", b"x", mandatory=True, headers={"CC": ["nowhere too"]}))[
            0
        ]
        == "Basic.Return"
    )
    assert read(client, "q") == [b"x"]


def test_a_persistent_copy_is_kept_for_every_queue() -> None:
    client = World().amqp()
    for queue in ("a", "b"):
        client.queue(queue, durable=True)
    client.publish("", "a", b"x", delivery_mode=2, headers={"BCC": ["b"]})
    [live] = client.world.store.state.messages.values()
    assert sorted(live.queues) == sorted(
        int(client.world.queue(queue).number) for queue in ("a", "b")
    )


@pytest.mark.parametrize("headers", [{"CC": "a"}, {"BCC": {}}, {"CC": 1}])
def test_keys_that_are_no_list_are_refused(headers: Any) -> None:
    client = World().amqp()
    error = refusal(client.publish("", "q", b"x", headers=headers))
    assert (
        error[:2] == ("channel", 406)
        and "invalid message: the header '" in error.text
        and error[3:] == (60, 40)
    )
    reopen(client)
    assert client.world.fates() == {"refused": 1}


def test_list_items_that_are_no_routing_keys_are_skipped() -> None:
    client = World().amqp()
    client.queue("q")
    client.publish("", "nowhere", b"x", headers={"CC": [1, None, "q"]})
    assert read(client, "q") == [b"x"]


def test_bytes_that_only_look_like_keys_change_nothing() -> None:
    client = World().amqp()
    client.queue("q")
    client.publish("", "q", b"x", headers={"x": "\x02CC", "y": {"CC": 1}})
    assert properties(client.send(B.Get(queue="q"))).headers == {"x": "\x02CC", "y": {"CC": 1}}


def test_dead_letters_keep_their_open_keys_unless_the_queue_has_another() -> None:
    client = World().amqp()
    for name, arguments in (("plain", {}), ("own", {"x_dead_letter_routing_key": "dead_letters"})):
        client.queue("dead_letters")
        client.queue("more")
        client.queue(name, x_dead_letter_exchange="", x_max_length=0, **arguments)
        client.publish("", name, b"x", headers={"CC": ["more"]})
        client.world.turn()
        [copy] = [properties(client.send(B.Get(queue="more", no_ack=True)))]
        assert copy.headers["CC"] == ["more"]
    frames = client.send(B.Get(queue="dead_letters", no_ack=True))
    headers = properties(frames).headers
    assert "CC" not in headers and headers["x-death"][0]["routing-keys"] == ["own", "more"]
