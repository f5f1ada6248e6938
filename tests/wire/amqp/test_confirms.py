"""Tests of publisher confirms.

One ack confirms all messages that are ready. A message is returned before it is confirmed.
"""

from __future__ import annotations

from typing import Any

import pamqp.commands as spec
import pytest

from tests.clients import Amqp, World, marshal, publication
from tests.wire.amqp.speech import names, open_channel, refusal

Q, B = spec.Queue, spec.Basic


def confirming(**queue: Any) -> Amqp:
    """Return a client in confirm mode with a transient queue `q` and a durable one `d`."""
    client = World().amqp()
    client.queue("q", **queue)
    client.queue("d", durable=True)
    assert names(client.send(spec.Confirm.Select())) == ["Confirm.SelectOk"]
    return client


def outcomes(frames: list[Any]) -> list[tuple[str, int, bool]]:
    """Return (kind, delivery tag, `multiple` flag) of each ack, nack and return."""
    return [
        (
            one.name.removeprefix("Basic.").lower(),
            getattr(one, "delivery_tag", 0),
            getattr(one, "multiple", False),
        )
        for one in frames
        if isinstance(one, (B.Ack, B.Nack, B.Return))
    ]


def say(client: Amqp, *publications: bytes) -> list[tuple[str, int, bool]]:
    client.connection.receive_data(b"".join(publications))
    return outcomes(client.read())


def test_a_run_is_confirmed_by_one_frame_and_numbers_begin_with_one() -> None:
    client = confirming()
    assert say(client, publication("", "q", b"x")) == [("ack", 1, False)]
    assert say(client, *[publication("", "q", b"x")] * 5) == [("ack", 6, True)]
    assert say(client, publication("amq.topic", "nowhere", b"x")) == [("ack", 7, False)]
    assert names(client.send(spec.Confirm.Select())) == ["Confirm.SelectOk"]
    assert say(client, publication("", "q", b"")) == [("ack", 8, False)]
    assert (
        client.world.amqp_front.tally.confirmed
        == 8
        == client.world.amqp_front.tally.received_confirm
    )


def test_only_publications_after_select_are_confirmed() -> None:
    client = World().amqp()
    client.queue("q")
    client.publish("", "q", b"before")
    assert names(client.send(spec.Confirm.Select())) == ["Confirm.SelectOk"]
    assert say(client, publication("", "q", b"after")) == [("ack", 1, False)]


def test_every_channel_counts_for_itself() -> None:
    client = confirming()
    open_channel(client, 2)
    client.send(spec.Confirm.Select(), channel=2)
    client.connection.receive_data(
        b"".join(publication("", "q", b"x", channel) for channel in (1, 2, 2, 1, 2))
    )
    by_channel: dict[int, int] = {}
    data = client.read_bytes()
    while data:
        channel, end = data[2], 8 + int.from_bytes(data[3:7], "big")
        number, multiple = int.from_bytes(data[11:19], "big"), data[19]
        assert multiple or number == by_channel.get(channel, 0) + 1
        by_channel[channel], data = number, data[end:]
    assert by_channel == {1: 2, 2: 3}


def test_confirms_come_before_any_other_answer_of_the_channel() -> None:
    client = confirming()
    client.connection.receive_data(
        publication("", "q", b"x") * 2
        + marshal(1, Q.Declare(queue="q"))
        + publication("", "q", b"x")
        + marshal(1, spec.Channel.Close(0, "", 0, 0))
    )
    assert names(client.read()) == ["Basic.Ack", "Queue.DeclareOk", "Basic.Ack", "Channel.CloseOk"]


def test_returns_come_before_the_run_that_holds_their_number() -> None:
    client = confirming()
    lost = publication("amq.topic", "nowhere", b"back", mandatory=True)
    fine = publication("", "q", b"x")
    assert say(client, fine, lost, fine, lost, fine) == [
        ("return", 0, False),
        ("return", 0, False),
        ("ack", 5, True),
    ]


@pytest.mark.parametrize("cut", [1, 30, 60])
def test_publication_in_pieces_is_confirmed_when_it_is_complete(cut: int) -> None:
    client = confirming()
    data = publication("", "q", b"x" * 50)
    assert say(client, data[:cut]) == []
    assert say(client, data[cut:]) == [("ack", 1, False)]


# -- the disk


def test_a_persistent_message_is_confirmed_when_the_disk_has_it() -> None:
    client = confirming()
    client.world.slow_disk = True
    assert say(client, publication("", "d", b"x", delivery_mode=2)) == []
    client.world.durable()
    assert outcomes(client.read()) == [("ack", 1, False)]


@pytest.mark.parametrize(
    ("queue", "mode"), [("q", 2), ("d", 1), ("d", None), ("nowhere", 2), ("q", 1)]
)
def test_message_without_a_durable_queue_is_confirmed_at_once(queue: str, mode: int | None) -> None:
    client = confirming()
    client.world.slow_disk = True
    assert say(client, publication("", queue, b"x", delivery_mode=mode)) == [("ack", 1, False)]


def test_no_message_overtakes_a_persistent_message_that_waits() -> None:
    client = confirming()
    world = client.world
    world.slow_disk = True
    quick, safe = publication("", "q", b"x"), publication("", "d", b"x", delivery_mode=2)
    assert say(client, quick, quick, safe, quick) == [("ack", 2, True)]
    assert say(client, quick, safe, quick) == []
    first = world.store.take()  # The records of the messages published so far.
    assert say(client, safe, quick) == []
    first.write()
    world.store.written(first)
    assert outcomes(client.read()) == [("ack", 7, True)]
    world.durable()
    assert outcomes(client.read()) == [("ack", 9, True)]


def test_a_mandatory_return_does_not_wait_for_the_disk_and_its_confirm_waits_in_line() -> None:
    client = confirming()
    client.world.slow_disk = True
    safe = publication("", "d", b"x", delivery_mode=2)
    assert say(client, safe, publication("", "nowhere", b"x", mandatory=True)) == [
        ("return", 0, False)
    ]
    client.world.durable()
    assert outcomes(client.read()) == [("ack", 2, True)]


def test_other_answers_do_not_wait_for_a_confirm_that_waits() -> None:
    client = confirming()
    client.world.slow_disk = True
    client.connection.receive_data(publication("", "d", b"x", delivery_mode=2))
    assert names(client.send(Q.Declare(queue="q"))) == ["Queue.DeclareOk"]
    client.world.durable()
    assert outcomes(client.read()) == [("ack", 1, False)]


def test_a_message_in_two_durable_queues_is_confirmed_once() -> None:
    client = confirming()
    client.queue("e", "amq.fanout", durable=True)
    client.send(Q.Bind(queue="d", exchange="amq.fanout"), Q.Bind(queue="q", exchange="amq.fanout"))
    client.world.slow_disk = True
    assert say(client, publication("amq.fanout", "", b"x", delivery_mode=2)) == []
    client.world.durable()
    assert outcomes(client.read()) == [("ack", 1, False)]
    client.world.durable()
    assert client.read() == []


def test_message_consumed_before_it_was_durable_is_confirmed() -> None:
    client = confirming()
    client.send(B.Consume(queue="d", consumer_tag="t"))
    client.world.slow_disk = True
    client.connection.receive_data(publication("", "d", b"x", delivery_mode=2))
    assert "Basic.Deliver" in names(client.read())
    client.send(B.Ack(1))
    client.world.durable()
    assert outcomes(client.read()) == [("ack", 1, False)]


@pytest.mark.parametrize("end", ["channel", "error", "connection", "lost", "shutdown"])
def test_a_closed_channel_sends_no_confirm(end: str) -> None:
    client = confirming()
    client.world.slow_disk = True
    client.connection.receive_data(publication("", "d", b"x", delivery_mode=2))
    if end == "channel":
        client.send(spec.Channel.Close(0, "", 0, 0), spec.Channel.Open(), spec.Confirm.Select())
    elif end == "error":
        client.send(B.Ack(9))
    elif end == "connection":
        client.send(spec.Connection.Close(0, "", 0, 0), channel=0)
    elif end == "lost":
        client.connection.on_closed()
    else:
        client.connection.close("shutdown")
    client.read()
    client.world.durable()
    assert client.read() == []


# -- nacks


def test_a_full_queue_that_refuses_nacks_in_order_between_acks() -> None:
    client = confirming(x_max_length=2, x_overflow="reject-publish")
    q, d = publication("", "q", b"x"), publication("", "d", b"x")
    assert say(client, q, q, q, d, d, q, q, d) == [
        ("ack", 2, True),
        ("nack", 3, False),
        ("ack", 5, True),
        ("nack", 6, False),
        ("nack", 7, False),
        ("ack", 8, False),
    ]
    assert client.world.fates() == {"routed": 5, "refused": 3} and client.world.copies() == {
        "over_limit": 3
    }


def test_a_nack_waits_for_its_turn() -> None:
    client = confirming(x_max_length=0, x_overflow="reject-publish")
    client.world.slow_disk = True
    safe, refused = publication("", "d", b"x", delivery_mode=2), publication("", "q", b"x")
    assert say(client, safe, refused, safe, refused) == []
    client.world.durable()
    assert outcomes(client.read()) == [
        ("ack", 1, False),
        ("nack", 2, False),
        ("ack", 3, False),
        ("nack", 4, False),
    ]


def test_refusing_queue_of_several_nacks_and_the_others_keep_the_message() -> None:
    client = confirming(x_max_length=0, x_overflow="reject-publish")
    for queue in ("q", "d"):
        client.send(Q.Bind(queue=queue, exchange="amq.fanout"))
    client.world.slow_disk = True
    assert say(client, publication("amq.fanout", "", b"x", delivery_mode=2)) == []
    client.world.durable()
    assert outcomes(client.read()) == [("nack", 1, False)]
    assert (client.world.queue("q").depth, client.world.queue("d").depth) == (0, 1)
    assert client.world.fates() == {"refused": 1}
    [live] = client.world.store.state.messages.values()
    assert live.queues == [client.world.queue("d").number]


def test_a_full_queue_refuses_silently_without_confirms_and_returns_nothing() -> None:
    client = World().amqp()
    client.queue("q", x_max_length=1, x_overflow="reject-publish")
    for _ in range(3):
        assert client.publish("", "q", b"x", mandatory=True) == []
    assert client.world.queue("q").depth == 1


def test_room_made_by_a_consumer_is_room() -> None:
    client = confirming(x_max_length=1, x_overflow="reject-publish")
    q = publication("", "q", b"x")
    assert say(client, q, q) == [("ack", 1, False), ("nack", 2, False)]
    client.send(B.Get(queue="q"))
    assert say(client, q, q) == [("ack", 3, False), ("nack", 4, False)]
    client.send(B.Nack(1, requeue=True))
    # The requeued message is kept, new messages are refused.
    assert client.world.queue("q").depth == 2
    assert say(client, q) == [("nack", 5, False)]


# -- refusals


def test_a_refused_publication_has_no_confirm() -> None:
    client = confirming()
    client.connection.receive_data(publication("", "q", b"x") + publication("nope", "q", b"x"))
    ack, close = client.read()
    assert (ack.delivery_tag, close.reply_code) == (1, 404)
    client.send(spec.Channel.CloseOk(), spec.Channel.Open(), spec.Confirm.Select())
    assert say(client, publication("", "q", b"x")) == [("ack", 1, False)]


def test_hard_error_sends_ready_confirms_first() -> None:
    client = confirming()
    client.connection.receive_data(
        publication("", "q", b"x") * 3 + publication("", "q", b"x", immediate=True)
    )
    ack, *close = client.read()
    assert (ack.delivery_tag, ack.multiple) == (3, True) and refusal(close).code == 540
