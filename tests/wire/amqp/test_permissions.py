"""Tests that each AMQP method needs the permissions (configure, write, read) as in RabbitMQ."""

from __future__ import annotations

import re
from typing import Any

import pamqp.commands as spec
import pytest

from broker.access.identity import Identity
from tests.clients import Amqp, World, publication
from tests.wire.amqp.speech import names, read, refusal

Q, X = spec.Queue, spec.Exchange
DEAD: Any = {"x-dead-letter-exchange": "x2"}
ALTERNATE: Any = {"alternate-exchange": "x2"}

#: A method, and each permission that it needs as (permission, kind of object, name).
NEEDED: list[tuple[Any, list[tuple[str, str, str]]]] = [
    (X.Declare(exchange="new"), [("configure", "exchange", "new")]),
    (X.Declare(exchange="x"), [("configure", "exchange", "x")]),
    (
        X.Declare(exchange="new", arguments=ALTERNATE),
        [
            ("configure", "exchange", "new"),
            ("read", "exchange", "new"),
            ("write", "exchange", "x2"),
        ],
    ),
    (X.Declare(exchange="x", passive=True), []),
    (X.Delete(exchange="x"), [("configure", "exchange", "x")]),
    (X.Delete(exchange="nope"), [("configure", "exchange", "nope")]),
    (
        X.Bind(destination="x", source="x2"),
        [("write", "exchange", "x"), ("read", "exchange", "x2")],
    ),
    (
        X.Unbind(destination="x", source="x2"),
        [("write", "exchange", "x"), ("read", "exchange", "x2")],
    ),
    (
        X.Unbind(destination="nope", source="x2"),
        [("write", "exchange", "nope"), ("read", "exchange", "x2")],
    ),
    (Q.Declare(queue="new"), [("configure", "queue", "new")]),
    (Q.Declare(queue="q"), [("configure", "queue", "q")]),
    (
        Q.Declare(queue="new", arguments=DEAD),
        [("configure", "queue", "new"), ("read", "queue", "new"), ("write", "exchange", "x2")],
    ),
    (Q.Declare(queue="q", passive=True), []),
    (Q.Delete(queue="q"), [("configure", "queue", "q")]),
    (Q.Delete(queue="nope"), [("configure", "queue", "nope")]),
    (Q.Bind(queue="q", exchange="x"), [("write", "queue", "q"), ("read", "exchange", "x")]),
    (Q.Unbind(queue="q", exchange="x"), [("write", "queue", "q"), ("read", "exchange", "x")]),
    (Q.Unbind(queue="nope", exchange="x"), [("write", "queue", "nope"), ("read", "exchange", "x")]),
    (Q.Purge(queue="q"), [("read", "queue", "q")]),
    (spec.Basic.Get(queue="q"), [("read", "queue", "q")]),
    (spec.Basic.Consume(queue="q", consumer_tag="t"), [("read", "queue", "q")]),
    (publication("x", "k", b"x"), [("write", "exchange", "x")]),
    (publication("", "q", b"x"), [("write", "exchange", "amq.default")]),
    (publication("amq.topic", "k", b"x"), [("write", "exchange", "amq.topic")]),
]
FREE = [
    spec.Basic.Qos(prefetch_count=1),
    spec.Basic.Recover(requeue=True),
    spec.Confirm.Select(),
    spec.Basic.Cancel("t"),
    spec.Channel.Flow(active=True),
]


def client_who_may(configure: str, write: str, read: str) -> Amqp:
    world = World()
    world.guests.identities["u"] = Identity("u", configure, write, read)
    world.amqp().send(Q.Declare(queue="q"), X.Declare(exchange="x"), X.Declare(exchange="x2"))
    return world.amqp(user="u")


def done(client: Amqp, what: Any) -> list[Any]:
    if isinstance(what, bytes):
        client.connection.receive_data(what)
        return client.read()
    return client.send(what)


@pytest.mark.parametrize(("what", "needed"), NEEDED)
def test_every_method_asks_for_its_rights_and_for_no_others(
    what: Any, needed: list[tuple[str, str, str]]
) -> None:
    rules = {
        operation: "|".join(
            f"^{re.escape(name)}$" for right, _, name in needed if right == operation
        )
        or "^$"
        for operation in ("configure", "write", "read")
    }
    answers = done(client_who_may(**rules), what)
    assert not [one for one in answers if one.name.endswith(".Close")], answers[0].reply_text
    for missing, kind, name in needed:
        others = (
            "|".join(
                f"^{re.escape(one)}$"
                for right, _, one in needed
                if right == missing and one != name
            )
            or "^$"
        )
        client = client_who_may(**rules | {missing: others})
        state = describe(client)
        assert refusal(done(client, what)) == (
            "channel",
            403,
            (
                f"ACCESS_REFUSED - {missing} access to {kind} '{name}' in vhost '/' refused for "
                "user "
                "'u'"
            ),
            *about(what),
        )
        assert describe(client) == state
        client.world.fates()


def describe(client: Amqp) -> Any:
    vhost = client.world.vhost
    return (
        sorted(vhost.queues),
        sorted(vhost.exchanges),
        [len(list(one)) for one in vhost.exchanges.values()],
        client.world.queue("q").depth,
    )


def about(what: Any) -> tuple[int, int]:
    return (60, 40) if isinstance(what, bytes) else (what.index >> 16, what.index & 0xFFFF)


def test_methods_without_names_need_no_permission() -> None:
    client = client_who_may("^$", "^$", "^$")
    assert names(client.send(*FREE)) == [
        "Basic.QosOk",
        "Basic.RecoverOk",
        "Confirm.SelectOk",
        "Basic.CancelOk",
        "Channel.FlowOk",
    ]


@pytest.mark.parametrize(
    "what",
    [
        X.Bind(destination="nope", source="x"),
        X.Bind(destination="x", source="nope"),
        Q.Bind(queue="nope", exchange="x"),
        Q.Bind(queue="q", exchange="nope"),
        Q.Purge(queue="nope"),
        spec.Basic.Get(queue="nope"),
        spec.Basic.Consume(queue="nope"),
        Q.Delete(queue="nope"),
        X.Delete(exchange="nope"),
    ],
)
def test_a_refused_user_does_not_learn_which_names_exist(what: Any) -> None:
    assert refusal(client_who_may("^$", "^$", "^$").send(what)).code == 403


def test_rights_are_found_somewhere_in_a_name_as_in_rabbitmq() -> None:
    client = client_who_may("", "^x", "^$")
    assert client.publish("x", "k", b"x") == []
    client.world.amqp().send(X.Declare(exchange="x2"), X.Declare(exchange="2x"))
    assert client.publish("x2", "k", b"x") == []
    assert refusal(client.publish("2x", "k", b"x")).code == 403
    client.send(spec.Channel.CloseOk(), spec.Channel.Open())
    assert refusal(client.send(Q.Declare(queue="q"))).code == 403


def test_a_publisher_without_permission_is_refused_every_time_and_counted() -> None:
    client = client_who_may("^$", "amq.topic", "^$")
    for _ in range(3):
        assert refusal(client.publish("x", "k", b"x")).code == 403
        client.send(spec.Channel.CloseOk(), spec.Channel.Open())
    assert client.publish("amq.topic", "k", b"x") == []
    assert client.world.fates() == {"denied": 3, "unroutable": 1}


def test_two_users_get_each_their_own_verdict_on_one_route() -> None:
    world = World()
    world.guests.identities["u"] = Identity("u", write="^$")
    may, may_not = world.amqp(), world.amqp(user="u")
    may.queue("q", "amq.topic", "k")
    for _ in range(2):
        assert may.publish("amq.topic", "k", b"x") == []
        assert refusal(may_not.publish("amq.topic", "k", b"x")).code == 403
        may_not.send(spec.Channel.CloseOk(), spec.Channel.Open())
    assert read(may, "q") == [b"x", b"x"] and world.fates() == {"routed": 2, "denied": 2}


def test_dead_letters_need_no_permission_of_their_publisher() -> None:
    world = World()
    world.guests.identities["u"] = Identity("u", write="amq.default")
    owner, writer = world.amqp(), world.amqp(user="u")
    owner.queue("dead_letters", "amq.fanout")
    owner.queue("q", x_dead_letter_exchange="amq.fanout", x_max_length=0)
    assert writer.publish("", "q", b"x") == []
    assert read(owner, "dead_letters") == [b"x"]


class Fenced(Identity):
    """An identity that may read and write only topics that begin with its user name."""

    def may_publish(self, topic: bytes) -> bool:
        return topic.startswith(self.name.encode())

    def may_subscribe(self, topic_filter: str) -> bool:
        return topic_filter.startswith(self.name)


@pytest.mark.parametrize(
    ("key", "fine"),
    [
        ("u", True),
        ("u.a", True),
        ("u.#", True),
        ("u.*", True),
        ("v", False),
        ("#", False),
        ("*.a", False),
        ("", False),
    ],
)
def test_rules_about_topics_hold_for_bindings_of_topic_exchanges(key: str, fine: bool) -> None:
    world = World()
    world.guests.identities["u"] = Fenced("u")
    client = world.amqp(user="u")
    client.send(Q.Declare(queue="q"), X.Declare(exchange="x", exchange_type="fanout"))
    for bind in (
        Q.Bind(queue="q", exchange="amq.topic", routing_key=key),
        X.Bind(destination="x", source="amq.topic", routing_key=key),
    ):
        answers = client.send(bind)
        if fine:
            assert answers[0].name in ("Queue.BindOk", "Exchange.BindOk")
            continue
        assert refusal(answers).text == (
            f"ACCESS_REFUSED - read access to topic '{key}' in exchange 'amq.topic' in vhost '/' "
            "refused for user 'u'"
        )
        client.send(spec.Channel.CloseOk(), spec.Channel.Open())
    assert names(client.send(Q.Bind(queue="q", exchange="amq.direct", routing_key=key))) == [
        "Queue.BindOk"
    ]


def test_rules_about_topics_hold_for_publications_to_topic_exchanges() -> None:
    world = World()
    world.guests.identities["u"] = Fenced("u")
    client = world.amqp(user="u")
    assert client.publish("amq.topic", "u.a", b"x") == [] == client.publish("amq.direct", "v", b"x")
    assert refusal(client.publish("amq.topic", "v.a", b"x")).text == (
        "ACCESS_REFUSED - write access to topic 'v.a' in exchange 'amq.topic' in vhost '/' "
        "refused for user 'u'"
    )
