"""Tests of queues: declarations, repeated declarations with equal or other arguments, deletions."""

from __future__ import annotations

from typing import Any

import pamqp.commands as spec
import pytest

from broker.queues.policies import policy_of
from broker.vhost.options import VirtualHostOptions
from tests.clients import World, marshal
from tests.wire.amqp.declared import Q, args, depth
from tests.wire.amqp.speech import names, open_channel, read, refusal


def test_a_server_names_queues_that_have_none_each_differently() -> None:
    client = World().amqp()
    [first, second] = client.send(Q.Declare(queue=""), Q.Declare(queue=""))
    assert (
        first.queue.startswith("amq.gen-")
        and second.queue.startswith("amq.gen-")
        and first.queue != second.queue
    )
    client.publish("", first.queue, b"x")
    assert depth(client, first.queue) == (1, 0)


def test_declare_ok_tells_ready_messages_and_consumers() -> None:
    client = World().amqp()
    client.queue("q")
    for _ in range(3):
        client.publish("", "q", b"x")
    client.send(spec.Basic.Get(queue="q"))
    [ok] = client.send(Q.Declare(queue="q"))
    assert (ok.queue, ok.message_count, ok.consumer_count) == ("q", 2, 0)
    client.send(
        spec.Basic.Qos(prefetch_count=1),
        spec.Basic.Consume(queue="q", consumer_tag="a"),
        spec.Basic.Consume(queue="q", consumer_tag="b"),
    )
    assert depth(client, "q") == (0, 2)


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"durable": True},
        {"auto_delete": True},
        {"exclusive": True},
        {"durable": True, "exclusive": True},
    ],
)
def test_a_queue_may_be_declared_again_alike(flags: Any) -> None:
    client = World().amqp()
    declare = Q.Declare(queue="q", **flags)
    assert (
        names(
            client.send(declare)
            + client.send(declare)
            + client.send(Q.Declare(queue="q", passive=True))
        )
        == ["Queue.DeclareOk"] * 3
    )
    text = (
        "PRECONDITION_FAILED - inequivalent arg '{}' for queue 'q' in vhost '/': received "
        "'{}' but current is '{}'"
    )
    for flag in ("durable", "auto_delete"):
        other: Any = {**flags, flag: not flags.get(flag, False)}
        answer = refusal(client.send(Q.Declare(queue="q", **other)))
        assert (answer.code, answer.text) == (
            406,
            text.format(flag, str(other[flag]).lower(), str(not other[flag]).lower()),
        )
        client.send(spec.Channel.CloseOk(), spec.Channel.Open())
    other = {**flags, "exclusive": not flags.get("exclusive", False)}
    assert refusal(client.send(Q.Declare(queue="q", **other))).code == 405


@pytest.mark.parametrize(
    ("first", "second", "text"),
    [
        (
            args(x_message_ttl=1000),
            {},
            "'x-message-ttl' {} received none but current is the value '1000' of type 'signedint'",
        ),
        (
            {},
            args(x_message_ttl=1000),
            "'x-message-ttl' {} received the value '1000' of type 'signedint' but current is none",
        ),
        (
            args(x_max_length=1),
            args(x_max_length=2),
            "'x-max-length' {} received '2' but current is '1'",
        ),
        (
            args(x_dead_letter_exchange="a"),
            args(x_dead_letter_exchange="b"),
            "'x-dead-letter-exchange' {} received 'b' but current is 'a'",
        ),
        (
            args(x_dead_letter_exchange="a", x_dead_letter_routing_key="k"),
            args(x_dead_letter_exchange="a"),
            (
                "'x-dead-letter-routing-key' {} received none but current is the value 'k' of type "
                "'longstr'"
            ),
        ),
        (
            args(x_overflow="drop-head"),
            args(x_overflow="reject-publish"),
            "'x-overflow' {} received 'reject-publish' but current is 'drop-head'",
        ),
    ],
)
def test_other_queue_arguments_are_refused_with_406(first: Any, second: Any, text: str) -> None:
    client = World().amqp()
    client.send(Q.Declare(queue="q", arguments=first))
    assert refusal(client.send(Q.Declare(queue="q", arguments=second))).text == (
        "PRECONDITION_FAILED - inequivalent arg " + text.format("for queue 'q' in vhost '/':")
    )


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (args(x_max_length=5), args(x_max_length=5, x_unheard_of="yes")),
        (args(x_unheard_of=1), {}),
        ({}, args(x_queue_mode="lazy")),
        (args(x_queue_type="classic"), args(x_queue_version=2)),
    ],
)
def test_unknown_arguments_are_ignored_when_a_queue_is_declared_again(
    first: Any, second: Any
) -> None:
    client = World().amqp()
    assert (
        names(
            client.send(
                Q.Declare(queue="q", arguments=first), Q.Declare(queue="q", arguments=second)
            )
        )
        == ["Queue.DeclareOk"] * 2
    )


@pytest.mark.parametrize(
    "kind",
    [
        b"b\x64",
        b"B\x64",
        b"s\0\x64",
        b"u\0\x64",
        b"I\0\0\0\x64",
        b"i\0\0\0\x64",
        b"l" + bytes(7) + b"\x64",
        b"L" + bytes(7) + b"\x64",
    ],
)
def test_integers_of_every_width_are_equal_by_value(kind: bytes) -> None:
    client = World().amqp()
    client.send(Q.Declare(queue="q", arguments=args(x_max_length=100)))
    data = marshal(1, Q.Declare(queue="q", arguments=args(x_max_length=100)))
    entry = b"\x0cx-max-lengthb\x64"
    assert entry in data
    table = b"\x0cx-max-length" + kind
    head = data[7 : data.index(entry) - 4]
    payload = head + len(table).to_bytes(4, "big") + table
    client.connection.receive_data(
        b"\x01\0\x01" + len(payload).to_bytes(4, "big") + payload + b"\xce"
    )
    assert names(client.read()) == ["Queue.DeclareOk"]


INVALID: list[tuple[Any, str]] = [
    (args(x_message_ttl=-1), "'x-message-ttl' {}: -1 is too small; the minimum is 0"),
    (args(x_max_length=-5), "'x-max-length' {}: -5 is too small; the minimum is 0"),
    (args(x_message_ttl="1000"), "'x-message-ttl' {}: must be a number"),
    (args(x_message_ttl=True), "'x-message-ttl' {}: must be a number"),
    (args(x_message_ttl=1.5), "'x-message-ttl' {}: must be a number"),
    (args(x_message_ttl=None), "'x-message-ttl' {}: must be a number"),
    (
        args(x_message_ttl=2**63 - 1),
        "'x-message-ttl' {}: 9223372036854775807 is too large; the maximum is 1125899906842624",
    ),
    (args(x_max_length=[1]), "'x-max-length' {}: must be a number"),
    (
        args(x_overflow="explode"),
        (
            "'x-overflow' {}: must be one of drop-head, reject-publish, reject-publish-dlx, not "
            "'explode'"
        ),
    ),
    (args(x_overflow=1), "'x-overflow' {}: must be a string"),
    (args(x_dead_letter_exchange=1), "'x-dead-letter-exchange' {}: must be a string"),
    (args(x_dead_letter_exchange=None), "'x-dead-letter-exchange' {}: must be a string"),
    (
        args(x_dead_letter_routing_key="k"),
        "'x-dead-letter-routing-key' {}: the argument 'x-dead-letter-exchange' must be set, too",
    ),
    (
        args(x_dead_letter_exchange="", x_dead_letter_routing_key={}),
        "'x-dead-letter-routing-key' {}: must be a string",
    ),
    (
        args(x_dead_letter_exchange="x" * 256),
        "'x-dead-letter-exchange' {}: must not be longer than 255 bytes",
    ),
    (
        args(x_dead_letter_exchange="x", x_dead_letter_routing_key="é" * 128),
        "'x-dead-letter-routing-key' {}: must not be longer than 255 bytes",
    ),
]


@pytest.mark.parametrize(("arguments", "text"), INVALID)
def test_invalid_queue_arguments_are_refused_with_406(arguments: Any, text: str) -> None:
    client = World().amqp()
    assert refusal(client.send(Q.Declare(queue="q", arguments=arguments))) == (
        "channel",
        406,
        "PRECONDITION_FAILED - invalid arg " + text.format("for queue 'q' in vhost '/'"),
        50,
        10,
    )
    assert "q" not in client.world.vhost.queues


@pytest.mark.parametrize(
    "use",
    [
        lambda: Q.Declare(queue="", passive=True),
        lambda: Q.Bind(queue="", exchange="amq.fanout"),
        lambda: Q.Unbind(queue="", exchange="amq.fanout"),
        lambda: Q.Purge(queue=""),
        lambda: spec.Basic.Get(queue=""),
        lambda: spec.Basic.Consume(queue=""),
        lambda: Q.Delete(queue=""),
    ],
)
def test_no_name_means_the_queue_declared_last_on_this_channel(use: Any) -> None:
    client = World().amqp()
    open_channel(client, 2)
    client.send(Q.Declare(queue="first"), Q.Declare(queue="second"))
    client.send(Q.Declare(queue="other"), channel=2)
    before = set(client.world.vhost.queues)
    [answer] = client.send(use())
    assert answer.name not in ("Channel.Close", "Connection.Close")
    if answer.name == "Queue.DeclareOk":
        assert answer.queue == "second"
    elif answer.name == "Queue.DeleteOk":
        assert before - set(client.world.vhost.queues) == {"second"}
    elif answer.name == "Basic.ConsumeOk":
        assert len(client.world.queue("second").consumers) == 1


def test_a_passive_declare_sets_the_last_queue_too() -> None:
    client = World().amqp()
    client.send(Q.Declare(queue="a"), Q.Declare(queue="b"), Q.Declare(queue="a", passive=True))
    client.publish("", "a", b"x")
    assert client.send(Q.Purge(queue=""))[0].message_count == 1


def test_binding_without_queue_and_key_takes_the_last_queues_name_for_both() -> None:
    client = World().amqp()
    client.send(Q.Declare(queue="q"), Q.Bind(queue="", exchange="amq.direct"))
    client.publish("amq.direct", "q", b"1")
    client.publish("amq.direct", "", b"no")
    client.send(Q.Unbind(queue="", exchange="amq.direct"))
    client.publish("amq.direct", "q", b"no")
    client.send(Q.Bind(queue="q", exchange="amq.direct"))
    client.publish("amq.direct", "", b"2")
    assert read(client, "q") == [b"1", b"2"]


def test_purge_removes_ready_messages_and_leaves_deliveries() -> None:
    client = World().amqp()
    client.queue("q")
    for number in range(5):
        client.publish("", "q", b"%d" % number)
    client.send(spec.Basic.Get(queue="q"), spec.Basic.Get(queue="q"))
    assert client.send(Q.Purge(queue="q"))[0].message_count == 3
    assert client.send(Q.Purge(queue="q"))[0].message_count == 0
    client.send(spec.Basic.Nack(2, multiple=True, requeue=True))
    assert read(client, "q") == [b"0", b"1"] and client.world.copies() == {
        "purged": 3,
        "auto_acknowledged": 2,
    }


def test_delete_tells_how_many_messages_were_ready() -> None:
    client = World().amqp()
    client.queue("q", "amq.fanout")
    for _ in range(3):
        client.publish("", "q", b"x")
    client.send(spec.Basic.Get(queue="q"))
    assert client.send(Q.Delete(queue="q"))[0].message_count == 2
    # The delivery's queue is deleted; its tag is still valid.
    assert client.send(spec.Basic.Ack(1)) == []
    client.publish("amq.fanout", "", b"x")
    client.publish("", "q", b"x")
    assert client.world.fates() == {"routed": 3, "unroutable": 2} and client.world.copies() == {
        "purged": 3
    }


def test_delete_if_unused_and_if_empty_wait_for_it() -> None:
    client = World().amqp()
    client.queue("q")
    client.publish("", "q", b"x")
    assert "not empty" in refusal(client.send(Q.Delete(queue="q", if_empty=True))).text
    client.send(spec.Channel.CloseOk(), spec.Channel.Open())
    client.send(spec.Basic.Consume(queue="q", consumer_tag="t"))
    assert "in use" in refusal(client.send(Q.Delete(queue="q", if_unused=True, if_empty=True))).text
    client.send(spec.Channel.CloseOk(), spec.Channel.Open(), spec.Basic.Get(queue="q", no_ack=True))
    assert names(client.send(Q.Delete(queue="q", if_unused=True, if_empty=True))) == [
        "Queue.DeleteOk"
    ]


def test_a_queue_deleted_and_made_again_has_no_bindings_and_no_messages() -> None:
    client = World().amqp()
    client.queue("q", "amq.topic", "a.#")
    client.publish("amq.topic", "a.b", b"old")
    client.send(Q.Delete(queue="q"), Q.Declare(queue="q"))
    client.publish("amq.topic", "a.b", b"lost")
    client.publish("", "q", b"new")
    assert read(client, "q") == [b"new"]


def test_an_auto_delete_queue_goes_with_its_last_consumer_but_not_before_it_had_one() -> None:
    world = World()
    client, other = world.amqp(), world.amqp()
    client.send(Q.Declare(queue="q", auto_delete=True))
    client.send(spec.Basic.Get(queue="q"), Q.Purge(queue="q"))
    client.send(
        spec.Basic.Consume(queue="q", consumer_tag="a"),
        spec.Basic.Consume(queue="q", consumer_tag="b"),
    )
    other.send(spec.Basic.Consume(queue="q", consumer_tag="a"))
    client.send(spec.Basic.Cancel("a"), spec.Basic.Cancel("b"))
    assert "q" in world.vhost.queues
    other.send(spec.Basic.Cancel("a"))
    assert "q" not in world.vhost.queues


@pytest.mark.parametrize("end", ["channel", "connection", "lost"])
def test_an_auto_delete_queue_goes_when_its_last_consumers_channel_or_connection_does(
    end: str,
) -> None:
    client = World().amqp()
    client.send(
        Q.Declare(queue="q", auto_delete=True),
        spec.Basic.Consume(queue="q", consumer_tag="a"),
        spec.Basic.Consume(queue="q", consumer_tag="b"),
    )
    client.publish("", "q", b"held")
    if end == "channel":
        client.send(spec.Channel.Close(0, "", 0, 0))
    elif end == "connection":
        client.send(spec.Connection.Close(0, "", 0, 0), channel=0)
    else:
        client.connection.on_closed()
    assert "q" not in client.world.vhost.queues
    client.world.fates()
    assert client.world.copies() == {"purged": 1}


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("name", ["mine", ""])
def test_exclusive_queues_go_with_their_connection_and_not_with_their_channel(
    durable: bool, name: str
) -> None:
    world = World()
    client, other = world.amqp(), world.amqp()
    open_channel(client, 2)
    [ok] = client.send(Q.Declare(queue=name, exclusive=True, durable=durable), channel=2)
    client.send(spec.Channel.Close(0, "", 0, 0), channel=2)
    assert names(client.send(Q.Declare(queue=ok.queue, passive=True))) == ["Queue.DeclareOk"]
    other.publish("", ok.queue, b"anybody may publish")
    assert depth(client, ok.queue) == (1, 0)
    client.send(spec.Connection.Close(0, "", 0, 0), channel=0)
    assert ok.queue not in world.vhost.queues and not world.store.state.definitions
    assert names(other.send(Q.Declare(queue="mine"))) == ["Queue.DeclareOk"]


@pytest.mark.parametrize("auto_delete", [False, True])
def test_a_connection_forgets_exclusive_queues_that_are_gone(auto_delete: bool) -> None:
    client = World().amqp()
    for _ in range(5):
        client.send(Q.Declare(queue="mine", exclusive=True, auto_delete=auto_delete))
        if auto_delete:
            client.send(spec.Basic.Consume(queue="mine", consumer_tag="t"), spec.Basic.Cancel("t"))
        else:
            client.send(Q.Delete(queue="mine"))
    assert "mine" not in client.world.vhost.queues and not client.connection.exclusive_queues


def test_a_connection_forgets_exclusive_queues_that_have_expired() -> None:
    world = World()
    client = world.amqp()
    client.send(Q.Declare(queue="kept", exclusive=True))
    # The policy makes the broker replace the object of the queue.
    row = {"pattern": "^kept$", "definition": {"max-length": 5}}
    world.vhost.applied_policies.set_policy(policy_of("/", "p", row))
    for number in range(100):
        arguments: dict[str, Any] = {"x-expires": 5}
        client.send(Q.Declare(queue=f"q{number}", exclusive=True, arguments=arguments))
        agenda = world.broker.agenda
        agenda.advance(int(agenda.now) + 10, agenda.wall)
        world.settle(client.connection)
    assert list(world.vhost.queues) == ["kept"] and len(client.connection.exclusive_queues) < 10
    client.connection.on_closed()
    world.settle()
    assert not world.vhost.queues


def test_line_breaks_are_removed_from_the_names_of_declarations_and_bindings() -> None:
    """The broker removes line breaks from the names of queues and exchanges.

    The test puts line breaks at another place each time it writes a name.
    """
    client = World().amqp()
    vhost = client.world.vhost
    declared = client.send(
        spec.Queue.Declare(queue="a\nb\r"), spec.Exchange.Declare(exchange="\r\nx\ny")
    )
    assert names(declared) == ["Queue.DeclareOk", "Exchange.DeclareOk"]
    assert declared[0].queue == "ab" and "ab" in vhost.queues and "xy" in vhost.exchanges
    passive = client.send(
        spec.Queue.Declare(queue="\nab", passive=True),
        spec.Exchange.Declare(exchange="x\ry", passive=True),
    )
    assert names(passive) == ["Queue.DeclareOk", "Exchange.DeclareOk"]
    client.send(
        spec.Queue.Bind(queue="a\rb", exchange="xy\n", routing_key="k\n"),
        spec.Exchange.Bind(destination="x\ny", source="amq.\nfanout"),
    )
    assert [one.key for one in vhost.exchanges["xy"]] == ["k\n"]
    assert [one.destination.name for one in vhost.exchanges["amq.fanout"]] == ["xy"]
    client.send(
        spec.Queue.Unbind(queue="ab\n", exchange="x\ny", routing_key="k\n"),
        spec.Exchange.Unbind(destination="xy\n", source="amq.fa\rnout"),
    )
    assert not list(vhost.exchanges["xy"]) and not list(vhost.exchanges["amq.fanout"])
    client.send(spec.Queue.Delete(queue="a\nb"), spec.Exchange.Delete(exchange="x\ny"))
    assert "ab" not in vhost.queues and "xy" not in vhost.exchanges


def test_a_queue_name_of_line_breaks_asks_for_a_generated_name() -> None:
    client = World().amqp()
    assert client.send(spec.Queue.Declare(queue="\r\n"))[0].queue.startswith("amq.gen-")


@pytest.mark.parametrize("name", ["", "\r\n"])
def test_a_queue_with_a_generated_name_has_no_default_type(name: str) -> None:
    client = World().amqp()
    client.world.vhost.options = VirtualHostOptions(default_queue_type="quorum")
    [declared] = client.send(spec.Queue.Declare(queue=name, durable=True))
    assert not client.world.queue(declared.queue).arguments.quorum


@pytest.mark.parametrize(
    "method",
    [
        spec.Queue.Purge(queue="a\nb"),
        spec.Basic.Consume(queue="a\nb"),
        spec.Basic.Get(queue="a\nb"),
    ],
)
def test_other_methods_take_line_breaks_in_names_as_they_are(method: Any) -> None:
    client = World().amqp()
    client.queue("ab")
    assert refusal(client.send(method))[1] == 404
