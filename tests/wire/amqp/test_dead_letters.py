"""Dead letters: the reasons, queues and times in their headers, and their routing."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pamqp.commands as spec
import pytest

from tests.clients import Amqp, World, publication
from tests.wire.amqp.dead_lettering import B, Q, X, dead_lettering, got, numbered
from tests.wire.amqp.speech import (
    deliveries,
    header,
    long,
    names,
    properties,
    read,
    short,
    split,
)


def deaths(client: Amqp, queue: str = "dead_letters") -> Any:
    return properties(client.send(B.Get(queue=queue, no_ack=True))).headers["x-death"]


@pytest.mark.parametrize(
    ("reason", "arguments"),
    [
        ("expired", {"x_message_ttl": 10}),
        ("maxlen", {"x_max_length": 0}),
        ("maxlen", {"x_max_length": 0, "x_overflow": "drop-head"}),
        ("maxlen", {"x_max_length": 0, "x_overflow": "reject-publish-dlx"}),
        ("rejected", {}),
        ("rejected by nack", {}),
        ("rejected many", {}),
    ],
)
def test_a_dead_letter_tells_why_where_and_when_it_died(reason: str, arguments: Any) -> None:
    client = dead_lettering(**arguments)
    client.send(Q.Bind(queue="q", exchange="amq.direct", routing_key="k"))
    client.publish("amq.direct", "k", b"x")
    if reason == "expired":
        client.world.sleep(10)
    elif reason.startswith("rejected"):
        client.send(B.Get(queue="q"))
        client.send(
            {
                "rejected": B.Reject(1, requeue=False),
                "rejected by nack": B.Nack(1, requeue=False),
            }.get(reason, B.Nack(1, multiple=True, requeue=False))
        )
    [ok, *_] = frames = client.send(B.Get(queue="dead_letters"))
    assert (ok.exchange, ok.routing_key, ok.redelivered) == ("amq.fanout", "k", False)
    [death] = properties(frames).headers["x-death"]
    when = datetime.fromtimestamp(int(client.world.broker.agenda.wall), UTC)
    assert death == {
        "count": 1,
        "reason": reason.split()[0],
        "queue": "q",
        "time": when,
        "exchange": "amq.direct",
        "routing-keys": ["k"],
    }
    assert client.world.fates() == {
        "refused" if "dlx" in str(arguments) else "routed": 1,
        "routed": 1 if "dlx" in str(arguments) else 2,
    }


def test_x_death_is_written_in_the_types_that_clients_cast_to() -> None:
    client = dead_lettering(x_max_length=0)
    client.publish("", "q", b"x")
    [_, head, _] = got(client, "dead_letters")
    wall = int(client.world.broker.agenda.wall)
    death = (
        short("count")
        + b"l"
        + (1).to_bytes(8, "big")
        + short("reason")
        + b"S"
        + long(b"maxlen")
        + short("queue")
        + b"S"
        + long(b"q")
        + short("time")
        + b"T"
        + wall.to_bytes(8, "big")
        + short("exchange")
        + b"S"
        + long(b"")
        + short("routing-keys")
        + b"A"
        + long(b"S" + long(b"q"))
    )
    summary = b"".join(
        short(f"x-{which}-death-{what}") + b"S" + long(value)
        for which in ("first", "last")
        for what, value in (("queue", b"q"), ("reason", b"maxlen"), ("exchange", b""))
    )
    assert head.data == header(
        1, b"\x20\0" + long(short("x-death") + b"A" + long(b"F" + long(death)) + summary)
    )


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        ({}, "q"),
        ({"x_dead_letter_routing_key": "other"}, "other"),
        ({"x_dead_letter_routing_key": ""}, ""),
    ],
)
def test_a_dead_letter_keeps_its_key_unless_the_queue_has_another(arguments: Any, key: str) -> None:
    client = dead_lettering(x_max_length=0, **arguments)
    client.publish("", "q", b"x")
    assert client.send(B.Get(queue="dead_letters"))[0].routing_key == key


def test_a_dead_letter_loses_its_expiration_and_remembers_it() -> None:
    client = dead_lettering()
    client.publish("", "q", b"x", expiration="10", message_id="m")
    client.world.sleep(10)
    client.world.sleep(1_000)
    given = properties(client.send(B.Get(queue="dead_letters")))
    assert (given.expiration, given.message_id) == (None, "m")
    assert given.headers["x-death"][0]["original-expiration"] == "10"


def test_deaths_are_counted_by_queue_and_reason_the_latest_first() -> None:
    client = World().amqp()
    client.queue("a", x_dead_letter_exchange="", x_dead_letter_routing_key="b")
    client.queue("b", x_dead_letter_exchange="", x_dead_letter_routing_key="a", x_message_ttl=10)
    client.publish("", "a", b"x")
    for round_ in range(1, 4):
        client.send(B.Get(queue="a"))
        client.send(B.Reject(round_, requeue=False))
        client.world.sleep(10)
    assert [(death["queue"], death["reason"], death["count"]) for death in deaths(client, "a")] == [
        ("b", "expired", 3),
        ("a", "rejected", 3),
    ]
    client.world.fates()


@pytest.mark.parametrize("hops", [1, 2, 3])
def test_dead_letters_in_a_cycle_without_a_rejection_are_dropped(hops: int) -> None:
    client = World().amqp()
    for hop in range(hops):
        client.queue(
            f"q{hop}",
            x_dead_letter_exchange="",
            x_dead_letter_routing_key=f"q{(hop + 1) % hops}",
            x_message_ttl=10,
        )
    client.publish("", "q0", b"x")
    for _ in range(20):
        client.world.sleep(10)
    assert sum(queue.depth for queue in client.world.vhost.queues.values()) == 0
    assert client.world.fates() == {"routed": hops, "looped": 1}


def test_a_dead_letter_cycle_with_rejections_goes_on() -> None:
    client = World().amqp()
    client.queue("work", x_dead_letter_exchange="", x_dead_letter_routing_key="wait")
    client.queue(
        "wait", x_dead_letter_exchange="", x_dead_letter_routing_key="work", x_message_ttl=1_000
    )
    client.send(B.Consume(queue="work", consumer_tag="t"))
    client.publish("", "work", b"x")
    for number in range(1, 30):
        client.send(B.Nack(number, requeue=False))
        assert client.world.queue("wait").depth == 1
        client.world.sleep(1_000)
        assert [one.number for one in deliveries(client.read())] == [number + 1]
    assert "looped" not in client.world.fates()


@pytest.mark.parametrize("target", ["nope", "amq.direct"])
def test_a_letter_to_nowhere_is_gone_and_counted(target: str) -> None:
    client = World().amqp()
    client.queue("q", x_max_length=0, x_dead_letter_exchange=target)
    client.publish("", "q", b"x")
    assert client.world.fates() == {"routed": 1, "refused" if target == "nope" else "unroutable": 1}
    assert client.world.copies() == {"dead_lettered": 1}


def test_a_letter_goes_through_exchange_bindings_alternates_and_headers() -> None:
    client = World().amqp()
    client.send(
        X.Declare(
            exchange="dead", exchange_type="direct", arguments={"alternate-exchange": "amq.headers"}
        )
    )
    client.queue("dead_letters")
    client.send(Q.Bind(queue="dead_letters", exchange="amq.headers", arguments={"v": 1}))
    client.queue("q", x_max_length=0, x_dead_letter_exchange="dead")
    client.publish("", "q", b"no", headers={"v": 2})
    client.publish("", "q", b"yes", headers={"v": 1})
    assert read(client, "dead_letters") == [b"yes"]


def test_an_internal_exchange_takes_dead_letters() -> None:
    client = World().amqp()
    client.send(X.Declare(exchange="dead", exchange_type="fanout", internal=True))
    client.queue("dead_letters", "dead")
    client.queue("q", x_max_length=0, x_dead_letter_exchange="dead")
    client.publish("", "q", b"x")
    assert read(client, "dead_letters") == [b"x"]


def test_purged_and_deleted_messages_are_not_dead_lettered() -> None:
    client = dead_lettering()
    numbered(client, "q", 3)
    client.send(B.Get(queue="q"), Q.Purge(queue="q"), Q.Delete(queue="q"))
    assert client.world.queue("dead_letters").depth == 0 and client.world.copies() == {"purged": 3}


def test_refused_publications_are_dead_lettered_only_with_reject_publish_dlx() -> None:
    client = dead_lettering(x_max_length=1, x_overflow="reject-publish-dlx")
    client.send(spec.Confirm.Select())
    assert names(client.publish("", "q", b"1") + client.publish("", "q", b"2")) == [
        "Basic.Ack",
        "Basic.Nack",
    ]
    assert (read(client, "q"), read(client, "dead_letters")) == ([b"1"], [b"2"])
    client = dead_lettering(x_max_length=1, x_overflow="reject-publish")
    numbered(client, "q", 2)
    assert (read(client, "q"), read(client, "dead_letters")) == ([b"0"], [])


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("mode", [None, 1, 2])
def test_a_persistent_message_stays_so_as_a_letter_however_it_came_in(
    mode: int | None, whole: bool
) -> None:
    client = World().amqp()
    client.queue("dead_letters", durable=True)
    client.queue(
        "q", x_max_length=0, x_dead_letter_exchange="", x_dead_letter_routing_key="dead_letters"
    )
    data = publication("", "q", b"x", delivery_mode=mode)
    for piece in [data] if whole else [data[:-2], data[-2:]]:
        client.connection.receive_data(piece)
    client.read()
    assert len(client.world.store.state.messages) == (mode == 2)
    client.send(B.Get(queue="dead_letters", no_ack=True))
    assert not client.world.store.state.messages


def test_a_persistent_letter_leaves_the_store_of_the_queue_it_died_in() -> None:
    client = World().amqp()
    client.queue("dead_letters", "amq.fanout")
    client.queue("q", durable=True, x_dead_letter_exchange="amq.fanout")
    client.publish("", "q", b"x", delivery_mode=2)
    client.send(B.Get(queue="q"))
    assert len(client.world.store.state.messages) == 1
    client.send(B.Reject(1, requeue=False))
    assert not client.world.store.state.messages and client.world.queue("dead_letters").depth == 1


def test_two_readers_on_different_channels_get_the_same_letter() -> None:
    client = World().amqp()
    client.send(spec.Channel.Open(), channel=2)
    for queue, channel in (("g1", 1), ("g2", 2)):
        client.queue(queue, "amq.fanout")
        client.send(B.Consume(queue=queue, consumer_tag="t", no_ack=True), channel=channel)
    client.queue("q", x_max_length=0, x_dead_letter_exchange="amq.fanout")
    for _ in range(2):
        client.connection.receive_data(publication("", "q", b"x", headers={"v": Decimal("1.5")}))
        frames = split(client.read_bytes())
        one, two = (
            [(frame.kind, frame.payload) for frame in frames if frame.channel == number]
            for number in (1, 2)
        )
        assert len(one) == 3 and one == two


def test_a_dead_letter_may_push_another_one_out_of_its_own_queue() -> None:
    client = World().amqp()
    client.queue("q", x_max_length=1, x_dead_letter_exchange="", x_dead_letter_routing_key="q")
    client.publish("", "q", b"rejected")
    client.send(B.Get(queue="q"))
    client.publish("", "q", b"pushed out")
    client.send(B.Reject(1, requeue=False))
    for _ in range(3):
        client.world.turn()
    assert not client.world.broker.vhosts["/"].moves
    assert got(client, "q")[-1].payload == b"rejected"
    assert client.world.queue("q").depth == 0


def test_death_headers_of_a_publisher_are_no_history() -> None:
    """The broker replaces `x-death` headers that a publisher has set.

    RabbitMQ 4 replaces them, too; RabbitMQ 3 added to the publisher's counts.
    """
    client = dead_lettering(x_max_length=0)
    forged = {
        "x-death": [{"queue": "q", "reason": "maxlen", "count": 7}, {"queue": "dead_letters"}],
        "x-first-death-queue": "forged",
        "x-first-death-reason": "forged",
        "x-first-death-exchange": "forged",
        "kept": 1,
    }
    client.publish("", "q", b"x", headers=forged)
    headers = properties(client.send(B.Get(queue="dead_letters", no_ack=True))).headers
    [death] = headers["x-death"]
    assert (death["queue"], death["reason"], death["count"]) == ("q", "maxlen", 1)
    assert [headers[f"x-first-death-{what}"] for what in ("queue", "reason")] == ["q", "maxlen"]
    assert headers["kept"] == 1


def test_a_publisher_cannot_make_a_dead_letter_seem_to_go_round() -> None:
    client = dead_lettering(x_max_length=0)
    client.publish(
        "", "q", b"x", headers={"x-death": [{"queue": "dead_letters", "reason": "expired"}]}
    )
    assert client.world.queue("dead_letters").depth == 1
    client.world.fates()


@pytest.mark.parametrize("between", ["nothing", "delayed exchange"])
def test_the_broker_counts_its_own_deaths_on(between: str) -> None:
    client = World().amqp()
    client.send(
        X.Declare(
            exchange="slow",
            exchange_type="x-delayed-message",
            arguments={"x-delayed-type": "fanout"},
        )
    )
    exchange = "" if between == "nothing" else "slow"
    client.queue("q", x_dead_letter_exchange=exchange, x_dead_letter_routing_key="q")
    client.send(Q.Bind(queue="q", exchange="slow"))
    client.publish("", "q", b"x", headers={"x-delay": 5, "x-death": [{"queue": "q", "count": 9}]})
    for count in (1, 2, 3):
        [got, *_] = client.send(B.Get(queue="q"))
        client.send(B.Reject(got.delivery_tag, requeue=False))
        client.world.sleep(5)
        frames = client.send(B.Get(queue="q"))
        [death] = properties(frames).headers["x-death"]
        assert (death["queue"], death["reason"], death["count"]) == ("q", "rejected", count)
        client.send(B.Nack(frames[0].delivery_tag, requeue=True))
