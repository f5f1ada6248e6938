"""Ways around permissions, and their refusal: topic rules, journals, further routing keys."""

from __future__ import annotations

from typing import Any

import pamqp.commands as spec
import pytest

from broker.access.identity import Identity
from broker.access.rules import UserPermissions
from broker.queues.policies import Policy
from tests.clients import Amqp, World, marshal, publication
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
    error = refusal(client.send(last))
    assert (error.scope, error.code) == ("channel", 403)
    assert "topic rules" in error.text and "'u'" in error.text
    vhost = client.world.vhost
    assert "own" not in vhost.queues
    assert "own" not in vhost.exchanges or not vhost.exchanges["own"].bindings


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("rules", [(), ("deny subscribe #", "allow publish #")])
def test_user_with_all_publish_rights_may_use_all_side_ways(
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


@pytest.mark.parametrize(
    ("write", "allowed"), [("^(own)?$", False), ("", False), (r"^amq\.default$", True)]
)
@pytest.mark.parametrize(
    "declaration",
    [
        Q.Declare(
            queue="own",
            arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "victim"},
        ),
        X.Declare(exchange="own", exchange_type="fanout", arguments={"alternate-exchange": ""}),
    ],
)
def test_the_default_exchange_is_amq_default_in_permissions(
    declaration: Any, write: str, allowed: bool
) -> None:
    world = World()
    world.guests.identities["u"] = UserPermissions("u", "/", (".*", write, ".*")).identity("")
    client = world.amqp(user="u")
    if allowed:
        assert names(client.send(declaration))[0].endswith("DeclareOk")
    else:
        error = refusal(client.send(declaration))
        assert error.code == 403 and "write access to exchange 'amq.default'" in error.text


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


# -- a policy and an argument that lead into amq.topic only together

DEAD_LETTERS: Any = {"dead-letter-exchange": "amq.topic"}
FIXED: Any = DEAD_LETTERS | {"dead-letter-routing-key": "mine.a"}


def add_policy(
    client: Amqp, definition: dict[str, Any], name: str = "p", priority: int = 0
) -> None:
    policy = Policy("/", name, "^own", "all", priority, definition)
    client.world.vhost.applied_policies.set_policy(policy)


@pytest.mark.parametrize(
    ("definition", "arguments", "allowed"),
    [
        (FIXED, {"x-dead-letter-routing-key": "secret.a"}, False),
        (DEAD_LETTERS, {"x-dead-letter-routing-key": "secret.a"}, False),
        (DEAD_LETTERS, {"x-dead-letter-routing-key": "mine.b"}, True),
        (DEAD_LETTERS, {}, False),
        (FIXED, {}, True),
        (FIXED, {"x-dead-letter-exchange": "amq.fanout"}, True),
        (DEAD_LETTERS, {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"}, True),
        ({"dead-letter-routing-key": "mine.a"}, {"x-dead-letter-exchange": "amq.topic"}, False),
        ({"dead-letter-exchange": "amq.direct"}, {"x-dead-letter-routing-key": "secret.a"}, True),
        (DEAD_LETTERS, {"x-queue-type": "stream"}, True),
    ],
)
def test_the_arguments_of_a_queue_are_judged_with_its_policy(
    definition: dict[str, Any], arguments: dict[str, Any], allowed: bool
) -> None:
    client = client_of(MINE)
    add_policy(client, definition)
    answer = client.send(Q.Declare(queue="own", durable=True, arguments=arguments))
    assert names(answer) == ["Queue.DeclareOk" if allowed else "Channel.Close"]
    assert ("own" in client.world.vhost.queues) is allowed
    if not allowed:
        assert refusal(answer).code == 403
        assert "topic rules" in refusal(answer).text


def test_a_policy_that_another_one_hides_is_judged_too() -> None:
    """A declaration is checked against all policies that match, not only against the effective one.

    A user could remove the policy of the highest priority, and so put another policy into effect.
    """
    client = client_of(MINE)
    add_policy(client, DEAD_LETTERS, "hidden")
    add_policy(client, {"dead-letter-exchange": "amq.fanout"}, "first", 1)
    arguments: Any = {"x-dead-letter-routing-key": "secret.a"}
    error = refusal(client.send(Q.Declare(queue="own", arguments=arguments)))
    assert error.code == 403 and "policy 'hidden'" in error.text


def test_an_exchange_is_judged_with_the_alternate_exchange_of_its_policy() -> None:
    client = client_of(MINE)
    add_policy(client, {"alternate-exchange": "amq.topic"})
    error = refusal(client.send(X.Declare(exchange="own", exchange_type="fanout")))
    assert error.code == 403 and "policy 'p'" in error.text
    client = client.world.amqp(user="u")
    other: Any = {"alternate-exchange": "amq.fanout"}
    steps = [
        X.Declare(exchange="own.a", exchange_type="fanout", arguments=other),
        X.Declare(exchange="other", exchange_type="fanout"),
    ]
    assert names(client.send(*steps)) == ["Exchange.DeclareOk"] * 2


# -- a target that becomes a topic exchange later

FANOUT = X.Declare(exchange="ev", exchange_type="fanout")
TOPIC = X.Declare(exchange="ev", exchange_type="topic")
DELAYED_TOPIC = X.Declare(
    exchange="ev", exchange_type="x-delayed-message", arguments={"x-delayed-type": "topic"}
)
TO_EV: Any = {"x-dead-letter-exchange": "ev"}
ALTERNATE: Any = {"alternate-exchange": "ev"}
#: Methods that name the exchange `ev`, and methods that remove the name again.
REFERENCES: dict[str, tuple[Any, Any]] = {
    "dead letters": (
        Q.Declare(queue="own", arguments=TO_EV),
        Q.Delete(queue="own"),
    ),
    "dead letters with a denied key": (
        Q.Declare(queue="own", arguments=TO_EV | {"x-dead-letter-routing-key": "secret.a"}),
        Q.Delete(queue="own"),
    ),
    "alternate exchange": (
        X.Declare(exchange="own", exchange_type="fanout", arguments=ALTERNATE),
        X.Delete(exchange="own"),
    ),
}


@pytest.mark.parametrize("reference", REFERENCES)
@pytest.mark.parametrize("again", [TOPIC, DELAYED_TOPIC])
def test_the_target_of_a_way_cannot_become_a_topic_exchange(reference: str, again: Any) -> None:
    client = client_of(MINE)
    way, removal = REFERENCES[reference]
    steps = [FANOUT, way, X.Delete(exchange="ev")]
    assert not [one for one in names(client.send(*steps)) if one.endswith("Close")]
    error = refusal(client.send(again))
    assert error.code == 403 and "topic rules" in error.text and "'own'" in error.text
    assert "ev" not in client.world.vhost.exchanges
    client = client.world.amqp(user="u")
    # The user may declare `ev` with another type, and with the type topic once no method names it.
    steps = [FANOUT, X.Delete(exchange="ev"), removal, again]
    assert not [one for one in names(client.send(*steps)) if one.endswith("Close")]


@pytest.mark.parametrize("key", ["dead-letter-exchange", "alternate-exchange"])
def test_the_target_of_a_policy_cannot_become_a_topic_exchange(key: str) -> None:
    client = client_of(MINE)
    add_policy(client, {key: "ev"})
    error = refusal(client.send(TOPIC))
    assert error.code == 403 and "policy 'p'" in error.text
    client = client.world.amqp(user="u")
    client.world.vhost.applied_policies.clear_policy("p")
    assert names(client.send(TOPIC)) == ["Exchange.DeclareOk"]


def test_dead_letters_of_a_deleted_queue_count_until_they_are_published() -> None:
    client = client_of(MINE)
    arguments = TO_EV | {"x-message-ttl": 10}
    client.send(FANOUT, Q.Declare(queue="own", arguments=arguments))
    for _ in range(5_000):
        client.connection.receive_data(publication("", "own", b"x"))
    client.read()
    vhost = client.world.vhost
    client.world.sleep(20)
    assert [queue.name for queue in vhost.moves] == ["own"]
    *deleted, close = client.send(Q.Delete(queue="own"), X.Delete(exchange="ev"), TOPIC)
    assert names(deleted) == ["Queue.DeleteOk", "Exchange.DeleteOk"]
    error = refusal([close])
    assert error.code == 403 and "queue 'own'" in error.text
    assert "own" not in vhost.queues
    client.world.settle(client.connection)
    assert not vhost.moves
    assert names(client.world.amqp(user="u").send(TOPIC)) == ["Exchange.DeclareOk"]


def test_the_target_of_allowed_dead_letters_may_become_a_topic_exchange() -> None:
    client = client_of(MINE)
    arguments = TO_EV | {"x-dead-letter-routing-key": "mine.a"}
    steps = [FANOUT, Q.Declare(queue="own", arguments=arguments), X.Delete(exchange="ev"), TOPIC]
    assert names(client.send(*steps))[-1] == "Exchange.DeclareOk"


def test_user_with_all_publish_rights_may_declare_such_a_topic_exchange() -> None:
    client = client_of()
    steps = [FANOUT, Q.Declare(queue="own", arguments=TO_EV), X.Delete(exchange="ev"), TOPIC]
    assert names(client.send(*steps))[-1] == "Exchange.DeclareOk"


@pytest.mark.parametrize(("rules", "behind"), [((MINE,), True), ((), False)])
def test_the_search_for_such_ways_counts_against_a_turn(
    rules: tuple[str, ...], behind: bool
) -> None:
    client = client_of(*rules)
    vhost = client.world.vhost
    for number in range(10_000):
        vhost.declare_queue(f"q{number}")
    before = len(vhost.exchanges)
    declarations = [X.Declare(exchange=f"t{n}", exchange_type="topic") for n in range(20)]
    client.connection.receive_data(b"".join(marshal(1, one) for one in declarations))
    assert client.connection.behind is behind
    assert (len(vhost.exchanges) < before + 20) is behind
    assert names(client.read()) == ["Exchange.DeclareOk"] * 20


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
def test_each_further_key_is_judged_for_a_subscriber_that_may_read_some_topics(header: str) -> None:
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


def test_a_repeated_sequence_number_is_confirmed_only_to_users_that_may_publish() -> None:
    world = World()
    world.guests.identities["u"] = UserPermissions("u", "/", (".*", "", ".*")).identity("")
    headers: dict[str, Any] = {"x-trellis-producer": "p", "x-trellis-sequence": 5}
    assert world.amqp().publish("", "k", b"x", headers=headers) == []
    client = world.amqp(user="u")
    client.send(spec.Confirm.Select())
    assert refusal(client.publish("", "k", b"x", headers=headers)).code == 403
