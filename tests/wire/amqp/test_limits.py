"""Time to live, maximum length, overflow, and dead letters."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pamqp.commands as spec
import pytest

from tests.clients import Amqp, World, marshal, mqtt_publish, publication
from tests.wire.amqp.speech import (
    Frame,
    body,
    content,
    deliveries,
    header,
    long,
    names,
    properties,
    publish,
    read,
    short,
    split,
)

Q, B, X = spec.Queue, spec.Basic, spec.Exchange


def got(client: Amqp, queue: str, no_ack: bool = True) -> list[Frame]:
    """Return the replies to basic.get, after a turn that delivers dead letters."""
    client.world.turn()
    client.connection.receive_data(marshal(1, B.Get(queue=queue, no_ack=no_ack)))
    return split(client.read_bytes())


def numbered(client: Amqp, queue: str, count: int, first: int = 0, **given: Any) -> None:
    client.connection.receive_data(
        b"".join(
            publication("", queue, b"%d" % number, **given)
            for number in range(first, first + count)
        )
    )
    client.read()


# -- time


@pytest.mark.parametrize(
    ("ttl", "expiration", "lives"),
    [
        (None, "100", 100),
        (100, None, 100),
        (100, "50", 50),
        (50, "100", 50),
        (0, None, 0),
        (None, "0", 0),
        (0, "100", 0),
        (None, "0000100", 100),
    ],
)
def test_a_message_lives_as_long_as_the_shorter_of_both(
    ttl: int | None, expiration: str | None, lives: int
) -> None:
    client = World().amqp()
    arguments: Any = {} if ttl is None else {"x_message_ttl": ttl}
    client.queue("q", **arguments)
    client.publish("", "q", b"x", expiration=expiration)
    if lives:
        client.world.sleep(lives - 1)
        assert client.world.queue("q").depth == 1
        client.world.sleep(1)
    else:
        client.world.sleep(0)
    assert client.world.queue("q").depth == 0 and client.world.copies() == {"expired": 1}
    client.world.fates()


def test_a_message_without_life_reaches_a_consumer_that_is_ready() -> None:
    client = World().amqp()
    client.queue("q", x_message_ttl=0)
    client.send(B.Consume(queue="q", consumer_tag="t", no_ack=True))
    assert [
        one.body
        for one in deliveries(
            client.publish("", "q", b"x") + client.publish("", "q", b"y", expiration="0")
        )
    ] == [b"x", b"y"]


def test_an_expired_message_is_neither_got_nor_delivered_before_its_alarm() -> None:
    client = World().amqp()
    for queue in ("p", "q"):
        client.queue(queue)
        numbered(client, queue, 1, expiration="10")
    agenda = client.world.broker.agenda
    agenda.now += 10
    assert names(client.send(B.Get(queue="p"))) == ["Basic.GetEmpty"]
    assert names(client.send(B.Consume(queue="q", consumer_tag="t"))) == ["Basic.ConsumeOk"]


def test_what_is_held_does_not_expire_until_it_comes_back() -> None:
    client = World().amqp()
    client.queue("q", x_message_ttl=100)
    client.publish("", "q", b"x")
    client.send(B.Get(queue="q"))
    client.world.sleep(500)
    assert client.world.queue("q").unacked == 1
    client.send(B.Nack(1, requeue=True))
    client.world.sleep(0)
    assert client.world.copies() == {"expired": 1} and client.world.queue("q").depth == 0


def test_a_long_lived_head_does_not_let_what_is_behind_it_out_when_that_expired() -> None:
    client = World().amqp()
    client.queue("q")
    for expiration in ("100", "10", "10", "200"):
        client.publish("", "q", expiration.encode(), expiration=expiration)
    client.world.sleep(50)
    assert (
        client.world.queue("q").depth == 4
    )  # As in RabbitMQ, only messages at the head of the queue expire.
    assert read(client, "q") == [b"100", b"200"] and client.world.copies() == {
        "expired": 2,
        "auto_acknowledged": 2,
    }


def test_expiration_travels_with_the_message() -> None:
    client = World().amqp()
    client.queue("q")
    client.publish("", "q", b"x", expiration="10000")
    assert properties(client.send(B.Get(queue="q"))).expiration == "10000"


# -- length


@pytest.mark.parametrize(
    ("limit", "left"),
    [(0, []), (1, [b"4"]), (3, [b"2", b"3", b"4"]), (10, [b"0", b"1", b"2", b"3", b"4"])],
)
@pytest.mark.parametrize("overflow", [None, "drop-head"])
def test_a_full_queue_drops_its_oldest(limit: int, left: list[bytes], overflow: str | None) -> None:
    client = World().amqp()
    client.queue("q", x_max_length=limit, **({"x_overflow": overflow} if overflow else {}))
    numbered(client, "q", 5)
    assert read(client, "q") == left
    assert client.world.copies().get("over_limit", 0) == 5 - len(left)
    client.world.fates()


def test_length_counts_what_waits_and_not_what_is_held() -> None:
    client = World().amqp()
    client.queue("q", x_max_length=2)
    client.send(B.Qos(prefetch_count=2), B.Consume(queue="q", consumer_tag="t"))
    numbered(client, "q", 6)
    assert (client.world.queue("q").depth, client.world.queue("q").unacked) == (2, 2)
    client.send(B.Cancel("t"), B.Nack(0, multiple=True, requeue=True))
    assert client.world.queue("q").depth == 2
    assert read(client, "q") == [b"4", b"5"]  # The requeued message is older, so it goes first.
    client.world.fates()


def test_what_comes_back_into_a_full_queue_is_over_the_limit() -> None:
    client = World().amqp()
    client.queue("graves", "amq.fanout")
    client.queue("q", x_max_length=1, x_dead_letter_exchange="amq.fanout")
    numbered(client, "q", 1)
    client.send(B.Get(queue="q"))
    numbered(client, "q", 1, 1)
    client.send(B.Reject(1, requeue=True))
    assert (read(client, "q"), read(client, "graves")) == ([b"1"], [b"0"])


# -- dead letters


def buried(**arguments: Any) -> Amqp:
    """Return a client with a queue `q` whose dead letters go to `graves`."""
    client = World().amqp()
    client.queue("graves", "amq.fanout")
    client.queue("q", x_dead_letter_exchange="amq.fanout", **arguments)
    return client


def deaths(client: Amqp, queue: str = "graves") -> Any:
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
    client = buried(**arguments)
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
    [ok, *_] = frames = client.send(B.Get(queue="graves"))
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
    client = buried(x_max_length=0)
    client.publish("", "q", b"x")
    [_, head, _] = got(client, "graves")
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
    told = b"".join(
        short(f"x-{which}-death-{what}") + b"S" + long(value)
        for which in ("first", "last")
        for what, value in (("queue", b"q"), ("reason", b"maxlen"), ("exchange", b""))
    )
    assert head.data == header(
        1, b"\x20\0" + long(short("x-death") + b"A" + long(b"F" + long(death)) + told)
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
    client = buried(x_max_length=0, **arguments)
    client.publish("", "q", b"x")
    assert client.send(B.Get(queue="graves"))[0].routing_key == key


def test_a_dead_letter_loses_its_expiration_and_remembers_it() -> None:
    client = buried()
    client.publish("", "q", b"x", expiration="10", message_id="m")
    client.world.sleep(10)
    client.world.sleep(1_000)
    given = properties(client.send(B.Get(queue="graves")))
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
    client.queue("graves")
    client.send(Q.Bind(queue="graves", exchange="amq.headers", arguments={"v": 1}))
    client.queue("q", x_max_length=0, x_dead_letter_exchange="dead")
    client.publish("", "q", b"no", headers={"v": 2})
    client.publish("", "q", b"yes", headers={"v": 1})
    assert read(client, "graves") == [b"yes"]


def test_an_internal_exchange_takes_dead_letters() -> None:
    client = World().amqp()
    client.send(X.Declare(exchange="dead", exchange_type="fanout", internal=True))
    client.queue("graves", "dead")
    client.queue("q", x_max_length=0, x_dead_letter_exchange="dead")
    client.publish("", "q", b"x")
    assert read(client, "graves") == [b"x"]


def test_purged_and_deleted_messages_are_not_dead_lettered() -> None:
    client = buried()
    numbered(client, "q", 3)
    client.send(B.Get(queue="q"), Q.Purge(queue="q"), Q.Delete(queue="q"))
    assert client.world.queue("graves").depth == 0 and client.world.copies() == {"purged": 3}


def test_refused_publications_are_dead_lettered_only_with_reject_publish_dlx() -> None:
    client = buried(x_max_length=1, x_overflow="reject-publish-dlx")
    client.send(spec.Confirm.Select())
    assert names(client.publish("", "q", b"1") + client.publish("", "q", b"2")) == [
        "Basic.Ack",
        "Basic.Nack",
    ]
    assert (read(client, "q"), read(client, "graves")) == ([b"1"], [b"2"])
    client = buried(x_max_length=1, x_overflow="reject-publish")
    numbered(client, "q", 2)
    assert (read(client, "q"), read(client, "graves")) == ([b"0"], [])


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("mode", [None, 1, 2])
def test_a_persistent_message_stays_so_as_a_letter_however_it_came_in(
    mode: int | None, whole: bool
) -> None:
    client = World().amqp()
    client.queue("graves", durable=True)
    client.queue("q", x_max_length=0, x_dead_letter_exchange="", x_dead_letter_routing_key="graves")
    data = publication("", "q", b"x", delivery_mode=mode)
    for piece in [data] if whole else [data[:-2], data[-2:]]:
        client.connection.receive_data(piece)
    client.read()
    assert len(client.world.store.state.messages) == (mode == 2)
    client.send(B.Get(queue="graves", no_ack=True))
    assert not client.world.store.state.messages


def test_a_persistent_letter_leaves_the_store_of_the_queue_it_died_in() -> None:
    client = World().amqp()
    client.queue("graves", "amq.fanout")
    client.queue("q", durable=True, x_dead_letter_exchange="amq.fanout")
    client.publish("", "q", b"x", delivery_mode=2)
    client.send(B.Get(queue="q"))
    assert len(client.world.store.state.messages) == 1
    client.send(B.Reject(1, requeue=False))
    assert not client.world.store.state.messages and client.world.queue("graves").depth == 1


@pytest.mark.parametrize("size", [0, 1, 5_000, 300_000])
def test_a_letter_has_the_body_it_was_sent_with(size: int) -> None:
    client = World().amqp(frame_max=4096)
    client.queue("graves", "amq.fanout")
    client.queue("q", x_max_length=0, x_dead_letter_exchange="amq.fanout")
    client.connection.receive_data(
        publish("", "q")
        + header(size)
        + b"".join(body(b"x" * min(1_000, size - at)) for at in range(0, size, 1_000))
    )
    client.read()
    frames = client.send(B.Get(queue="graves"))
    assert [one.body for one in deliveries(frames)] == [b"x" * size]
    assert all(len(one) <= 4_088 for one in client.bodies(frames))


#: Every property, as a client writes it, and headers of every type.
TYPES = {
    "bool": b"t\1",
    "i8": b"b\xff",
    "u8": b"B\xff",
    "i16": b"s\xff\xfe",
    "u16": b"u\xff\xfe",
    "i32": b"I\xff\xff\xff\xfe",
    "u32": b"i\xff\xff\xff\xfe",
    "i64": b"l" + b"\xff" * 7 + b"\xfe",
    "I64": b"L\0\0\0\0\0\0\0\7",
    "float": b"f\x40\x49\x0f\xdb",
    "double": b"d\x3f\xb9\x99\x99\x99\x99\x99\x9a",
    "nan": b"d\x7f\xf8" + bytes(6),
    "decimal": b"D\2\0\0\1\x3b",
    "negative": b"D\2\xff\xff\xfe\xc5",
    "text": b"S" + long("é".encode()),
    "string of bytes": b"S" + long(b"\xff\0"),
    "array": b"A" + long(b"t\0" + b"S" + long(b"x") + b"A" + long(b"")),
    "time": b"T\0\0\0\0\x65\0\0\0",
    "later": b"T\0\0\1\x8b\xcf\xe5\x68\0",
    "never": b"T" + b"\xff" * 8,
    "table": b"F" + long(short("in") + b"F" + long(b"")),
    "void": b"V",
    "void too": b"\0",
    "bytes": b"x" + long(b"\0\xff"),
    "x" * 255: b"t\0",
    "": b"t\1",
}
EVERY = (
    b"\xff\xfc"
    + short("text/plain")
    + short("utf-8")
    + long(b"".join(short(name) + value for name, value in TYPES.items()))
    + b"\x02\x09"
    + short("correlation")
    + short("reply")
    + short("60000")
    + short("message")
    + (2**40).to_bytes(8, "big")
    + short("type")
    + short("guest")
    + short("app")
    + short("cluster")
)


def test_a_letter_keeps_every_property_and_header_as_it_was_written() -> None:
    client = buried(x_max_length=0)
    client.connection.receive_data(publish("", "q") + content(b"x", EVERY))
    [_, head, _] = got(client, "graves")
    assert head.payload[12:14] == b"\xfe\xfc"  # All flags but expiration.
    rest = head.payload[14:]
    before = short("text/plain") + short("utf-8")
    headers = rest[len(before) + 4 :][: int.from_bytes(rest[len(before) :][:4], "big")]
    assert headers.startswith(
        b"".join(short(name) + value for name, value in TYPES.items()) + short("x-death") + b"A"
    )
    assert rest.replace(long(headers), b"") == (
        before
        + b"\x02\x09"
        + short("correlation")
        + short("reply")
        + short("message")
        + (2**40).to_bytes(8, "big")
        + short("type")
        + short("guest")
        + short("app")
        + short("cluster")
    )


@pytest.mark.parametrize(
    "odd",
    [
        b"\x20\0" + long(short("x-death") + b"t\1"),
        b"\x20\0" + long(short("x-death") + b"A" + long(b"t\1S" + long(b"x"))),
        b"\x20\0"
        + long(
            short("x-death")
            + b"A"
            + long(
                b"F"
                + long(
                    short("queue")
                    + b"S"
                    + long(b"q")
                    + short("reason")
                    + b"S"
                    + long(b"maxlen")
                    + short("count")
                    + b"l"
                    + b"\x7f"
                    + b"\xff" * 7
                )
            )
        ),
        b"\x20\0"
        + long(
            short("x-death")
            + b"A"
            + long(
                b"F"
                + long(
                    short("d")
                    + b"D\xff\x80\0\0\0"
                    + short("t")
                    + b"T"
                    + b"\xff" * 8
                    + short("f")
                    + b"f\x7f\x80\0\0"
                )
            )
        ),
        b"\x20\0"
        + long(short("x-death") + b"V" + short("x-death") + b"V" + short("kept") + b"t\1"),
        b"\x20\0" + long(b"\x01a?"),
        b"\x20\0" + long(b"\xff"),
        b"\x20\0\xff\xff\xff\xff",
        b"\x20\0",
        b"\x90\0\x01t\x07",
        b"\x02\0\xff",
        b"\0\3",
        b"\xc0\1\1a\1b",
    ],
)
def test_invalid_properties_are_left_out_of_dead_letters(odd: bytes) -> None:
    client = buried()
    client.connection.receive_data(publish("", "q") + content(b"x", odd))
    assert [frame.kind for frame in got(client, "q", no_ack=False)] == [1, 2, 3]
    client.send(B.Reject(1, requeue=False))
    [_, head, last] = got(client, "graves")
    assert last.payload == b"x"
    first = head.payload[head.payload.index(short("x-death") + b"A") + 13 :]
    assert (
        first.startswith(b"F")
        and short("count")
        + b"l"
        + (1).to_bytes(8, "big")
        + short("reason")
        + b"S"
        + long(b"rejected")
        in first
    )
    client.world.fates()


def test_a_message_from_mqtt_may_become_a_letter() -> None:
    client = buried(x_max_length=0)
    client.send(Q.Bind(queue="q", exchange="amq.topic", routing_key="a.b"))
    client.world.mqtt("m").send(mqtt_publish("a/b", b"x", 1, 1))
    frames = client.send(B.Get(queue="graves"))
    assert [(one.exchange, one.key, one.body) for one in deliveries(frames)] == [
        ("amq.fanout", "a.b", b"x")
    ]
    assert (
        properties(frames).delivery_mode,
        properties(frames).headers["x-death"][0]["exchange"],
    ) == (2, "amq.topic")


def test_a_letter_may_reach_mqtt() -> None:
    client = World().amqp()
    reader = client.world.mqtt("m")
    reader.subscribe("dead/q", 1)
    client.queue(
        "q", x_max_length=0, x_dead_letter_exchange="amq.topic", x_dead_letter_routing_key="dead.q"
    )
    client.publish("", "q", b"x", delivery_mode=2)
    assert reader.read().endswith(b"x")


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
