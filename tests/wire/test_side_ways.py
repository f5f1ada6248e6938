"""Ways around permissions, and their refusal: topic rules, journals, further routing keys."""

from __future__ import annotations

from typing import Any

import pamqp.commands as spec
import pytest

from broker.access.identity import Identity
from broker.access.rules import UserPermissions
from tests.clients import Amqp, World
from tests.wire.amqp.speech import names, refusal

Q, X = spec.Queue, spec.Exchange
MINE = "allow publish mine/#"
#: Methods that lead messages into amq.topic. The last method of each list completes the way.
WAYS: dict[str, list[Any]] = {
    "fanout exchange": [
        X.Declare(exchange="own", exchange_type="fanout"),
        X.Bind(destination="amq.topic", source="own"),
    ],
    "headers exchange": [
        X.Declare(exchange="own", exchange_type="headers"),
        X.Bind(destination="amq.topic", source="own", arguments={"x-match": "any", "a": 1}),
    ],
    "direct exchange": [
        # The header CC gives a message further keys, which the binding does not limit.
        X.Declare(exchange="own", exchange_type="direct"),
        X.Bind(destination="amq.topic", source="own", routing_key="mine.a"),
    ],
    "delayed exchange": [
        X.Declare(
            exchange="own",
            exchange_type="x-delayed-message",
            arguments={"x-delayed-type": "fanout"},
        ),
        X.Bind(destination="amq.topic", source="own"),
    ],
    "hash exchange": [
        X.Declare(exchange="own", exchange_type="x-consistent-hash"),
        X.Bind(destination="amq.topic", source="own", routing_key="1"),
    ],
    "alternate exchange": [
        X.Declare(
            exchange="own",
            exchange_type="fanout",
            arguments={"alternate-exchange": "amq.topic"},
        )
    ],
    "dead letters with a key": [
        Q.Declare(
            queue="own",
            arguments={
                "x-dead-letter-exchange": "amq.topic",
                "x-dead-letter-routing-key": "secret.a",
                "x-message-ttl": 0,
            },
        )
    ],
    "dead letters": [Q.Declare(queue="own", arguments={"x-dead-letter-exchange": "amq.topic"})],
    "dead letters to an exchange that does not exist yet": [
        Q.Declare(queue="own", arguments={"x-dead-letter-exchange": "later"})
    ],
}


def rights(*rules: str, read: str = ".*") -> Identity:
    return UserPermissions("u", "/", (".*", ".*", read), rules).identity("")


def client_of(*rules: str, read: str = ".*") -> Amqp:
    world = World()
    world.guests.identities["u"] = rights(*rules, read=read)
    return world.amqp(user="u")


@pytest.mark.parametrize("way", WAYS)
def test_topic_rules_hold_on_every_way_into_a_topic_exchange(way: str) -> None:
    client = client_of(MINE, "allow subscribe #")
    *before, last = WAYS[way]
    assert not [one for one in names(client.send(*before)) if one.endswith("Close")]
    found = refusal(client.send(last))
    assert (found.scope, found.code) == ("channel", 403)
    assert "topic rules" in found.text and "'u'" in found.text
    vhost = client.world.vhost
    assert "own" not in vhost.queues
    assert "own" not in vhost.exchanges or not vhost.exchanges["own"].bindings


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("rules", [(), ("deny subscribe #", "allow publish #")])
def test_a_user_who_may_publish_everything_may_use_them_all(
    way: str, rules: tuple[str, ...]
) -> None:
    answers = names(client_of(*rules).send(*WAYS[way]))
    assert not [one for one in answers if one.endswith("Close")]


def test_dead_letters_with_an_allowed_key_are_allowed() -> None:
    arguments: Any = {
        "x-dead-letter-exchange": "amq.topic",
        "x-dead-letter-routing-key": "mine.a",
    }
    assert names(client_of(MINE).send(Q.Declare(queue="own", arguments=arguments))) == [
        "Queue.DeclareOk"
    ]


def test_a_declaration_again_needs_no_more_than_the_first() -> None:
    client = client_of(MINE)
    way = WAYS["dead letters"][0]
    assert names(client.world.amqp().send(way)) == ["Queue.DeclareOk"]
    assert names(client.send(way)) == ["Queue.DeclareOk"]


def test_a_way_to_another_exchange_stays_free() -> None:
    client = client_of(MINE)
    steps = [
        X.Declare(exchange="one", exchange_type="fanout"),
        X.Declare(exchange="two", exchange_type="fanout", arguments={"alternate-exchange": "one"}),
        X.Bind(destination="two", source="one"),
        Q.Declare(queue="q", arguments={"x-dead-letter-exchange": "two"}),
        Q.Declare(queue="p", arguments={"x-dead-letter-exchange": ""}),
    ]
    assert not [one for one in names(client.send(*steps)) if one.endswith("Close")]


def test_topic_permissions_of_rabbitmq_hold_there_too() -> None:
    world = World()
    for user, write in (("u", "^mine"), ("v", ".*")):
        world.guests.identities[user] = UserPermissions(
            user, "/", (".*", ".*", ".*"), (), {"amq.topic": (write, ".*")}
        ).identity("")
    way = WAYS["alternate exchange"][0]
    assert refusal(world.amqp(user="u").send(way)).code == 403
    assert names(world.amqp(user="v").send(way)) == ["Exchange.DeclareOk"]


@pytest.mark.parametrize("cc", [{}, {"CC": ["secret.b"]}, {"BCC": ["secret.b"]}])
def test_a_delayed_exchange_that_routes_topics_is_under_the_rules(cc: dict[str, Any]) -> None:
    client = client_of(MINE, "deny all #")
    topics: Any = {"x-delayed-type": "topic"}
    client.send(X.Declare(exchange="d", exchange_type="x-delayed-message", arguments=topics))
    client.queue("q")
    assert client.publish("d", "mine.a", b"x", headers={"x-delay": 10}) == []
    key = "mine.a" if cc else "secret.a"
    answer = client.publish("d", key, b"x", headers={"x-delay": 10} | cc)
    assert refusal(answer).code == 403


def test_a_binding_from_a_delayed_topic_exchange_is_under_the_rules() -> None:
    client = client_of("allow publish #", "allow subscribe mine/#")
    topics: Any = {"x-delayed-type": "topic"}
    client.send(X.Declare(exchange="d", exchange_type="x-delayed-message", arguments=topics))
    client.queue("q")
    assert names(client.send(Q.Bind(queue="q", exchange="d", routing_key="mine.a"))) == [
        "Queue.BindOk"
    ]
    assert refusal(client.send(Q.Bind(queue="q", exchange="d", routing_key="#"))).code == 403


# -- journals

JOURNAL: Any = {"x-queue-type": "stream", "x-journal": True}


@pytest.mark.parametrize(
    ("read", "rules", "allowed"),
    [
        (".*", (), True),
        ("^mine", (), False),
        (".*", ("allow all #",), True),
        (".*", ("allow all mine/#",), False),
    ],
)
def test_a_journal_needs_permission_to_read_everything(
    read: str, rules: tuple[str, ...], allowed: bool
) -> None:
    client = client_of(*rules, read=read)
    answer = client.send(Q.Declare(queue="mine", durable=True, arguments=JOURNAL))
    assert names(answer) == ["Queue.DeclareOk" if allowed else "Channel.Close"]
    assert ("mine" in client.world.vhost.queues) is allowed
    if not allowed:
        assert "a journal records all messages of the vhost" in refusal(answer).text


def test_an_administrator_may_declare_a_journal_without_permission_to_read() -> None:
    world = World()
    world.guests.identities["u"] = rights(read="^mine")
    world.guests.identities["u"].administrator = True
    answer = world.amqp(user="u").send(Q.Declare(queue="mine", durable=True, arguments=JOURNAL))
    assert names(answer) == ["Queue.DeclareOk"]


# -- further routing keys


@pytest.mark.parametrize("header", ["CC", "BCC"])
@pytest.mark.parametrize("transaction", [False, True])
def test_each_further_key_of_a_publisher_is_judged(header: str, transaction: bool) -> None:
    client = client_of(MINE, "deny all #")
    reader = client.world.amqp()
    reader.queue("q", "amq.topic", "#")
    if transaction:
        client.send(spec.Tx.Select())
    client.publish("amq.topic", "mine.a", b"1", headers={header: ["mine.b"]})
    answer = client.publish("amq.topic", "mine.a", b"2", headers={header: ["mine.b", "secret.b"]})
    assert refusal(answer).code == 403
    assert client.world.queue("q").depth == (0 if transaction else 1)


@pytest.mark.parametrize("header", ["CC", "BCC"])
def test_each_further_key_is_judged_for_a_subscriber_who_may_read_some_topics(header: str) -> None:
    world = World()
    world.guests.identities["u"] = rights("deny subscribe secret/#", "allow all #")
    client = world.mqtt("c", user="u/guest")
    client.subscribe("+/only", 0)
    publisher = world.amqp()

    def arrives(key: str, *more: str) -> bool:
        publisher.publish("amq.topic", key, b"body", headers={header: list(more)})
        return b"body" in client.read()

    assert arrives("open.only")
    assert arrives("open.other", "open.only")
    assert arrives("open.only", "secret.only")
    assert arrives("open.other", "secret.only", "open.only")
    assert not arrives("open.other", "secret.only")
    assert not arrives("secret.only", "open.only")
