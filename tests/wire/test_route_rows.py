"""Tests of the explanation of a route: the list of matching bindings, sessions and queues."""

from __future__ import annotations

from typing import Any

from broker.access.rules import UserPermissions
from broker.routing.binding import Binding
from broker.routing.exchanges.base import ExchangeOptions
from broker.routing.plan_search import SearchSlot
from tests.clients import World
from trellis.cli.route_text import lines_of
from trellis.monitoring.route_question import SECTIONS, RouteQuestion
from trellis.monitoring.route_rows import RouteAnswer


def rows_of(world: World, question: RouteQuestion, limit: int = 0) -> dict[str, Any]:
    """Return the whole answer to a question about a route: its head, and the rows by section."""
    answer = RouteAnswer(world.vhost, question, world.guests.identity_of, 200, limit)
    sections: dict[str, Any] = {section: [] for section in SECTIONS}
    for row in answer.rows():
        if row is not None:
            sections[row[0]].append(row[1])
    return answer.head | sections


def test_a_session_that_may_not_read_the_topic_is_named_with_the_reason() -> None:
    world = World()
    rules = ["deny subscribe a/secret", "allow all #"]
    permissions = UserPermissions("ann", "/", (".*", ".*", ".*"), rules)
    world.guests.identities["ann"] = permissions.identity("")
    world.mqtt("reader", user="ann/guest").subscribe("a/+", 1)
    answer = rows_of(world, RouteQuestion(mqtt="a/secret"))
    assert answer["queues"] == []
    (row,) = answer["bindings"]
    assert row["reason"].endswith("not delivered: the session's user may not read this topic")
    answer = rows_of(world, RouteQuestion(mqtt="a/open"))
    assert [(one["name"], one["type"]) for one in answer["queues"]] == [("reader", "session")]
    (row,) = answer["bindings"]
    assert (row["binding_key"], row["qos"], row["reason"]) == ("a/+", 1, "+ matches 'open'")


def test_the_rights_of_a_user_are_those_of_a_publication() -> None:
    """The answer to a route question says if the user may publish to the topic.

    This answer must agree with the decision that the broker makes for a real publication.
    """
    world = World()
    rules = ["deny publish a/secret/#", "allow publish a/#"]
    permissions = UserPermissions("ann", "/", (".*", "^amq", ".*"), rules)
    world.guests.identities["ann"] = permissions.identity("")
    for exchange in ("amq.topic", "amq.direct", "none"):
        if exchange == "none":
            world.vhost.declare_exchange("none", "fanout", ExchangeOptions())
        for key in ("a.b", "a.secret.x", "b", "a", ""):
            plan = world.vhost.declarations.planner.plan(
                permissions.identity(""), exchange, key, SearchSlot()
            )
            assert plan is not None
            answer = rows_of(world, RouteQuestion(exchange, key, user="ann"))
            assert answer["refusal"] == ("" if plan.refusal is None else str(plan.refusal))
            assert all(one["allows"] for one in answer["rights"]) == (plan.refusal is None)


def test_a_shared_subscription_and_a_retained_message_are_named() -> None:
    world = World()
    world.mqtt("one").subscribe("$share/g/a/#", 1)
    publisher = world.mqtt("publisher")
    publisher.send(b"\x31\x06\x00\x03a/bx")  # a PUBLISH with RETAIN
    answer = rows_of(world, RouteQuestion(mqtt="a/b"))
    assert [(one["name"], one["type"]) for one in answer["queues"]] == [("$share/g/a/#", "session")]
    assert answer["retained"]
    assert "a client is connected" in answer["queues"][0]["text"]


def test_a_session_that_cannot_represent_the_key_is_named() -> None:
    world = World()
    world.mqtt("m").subscribe("#", 0)
    answer = rows_of(world, RouteQuestion("amq.topic", "a+.#"))
    assert [(one["name"], one["verdict"]) for one in answer["queues"]] == [
        ("m", "cannot_represent")
    ]


def test_an_alternate_exchange_that_does_not_exist_and_an_alarm_are_named() -> None:
    world = World()
    options = ExchangeOptions(arguments={"alternate-exchange": "gone"})
    world.vhost.declare_exchange("x", "direct", options)
    world.vhost.alarm(True)
    answer = rows_of(world, RouteQuestion("x", "k"))
    assert answer["exchanges"][0]["alternate"] == "gone"
    assert answer["exchanges"][1] == {"name": "gone", "type": "", "entered": "it does not exist"}
    assert answer["publishers_blocked"]


def test_queues_that_an_exchange_uses_itself_are_internal() -> None:
    world = World()
    options = ExchangeOptions(arguments={"x-delayed-type": "fanout"})
    world.vhost.declare_exchange("later", "x-delayed-message", options)
    answer = rows_of(world, RouteQuestion("later", "k", {"x-delay": 5}))
    assert [(one["type"], one["verdict"]) for one in answer["queues"]] == [("internal", "delays")]


def test_keys_that_are_not_utf_8_are_printable() -> None:
    world = World()
    world.vhost.declare_queue("q")
    world.vhost.bind("amq.direct", Binding("caf\udce9", world.queue("q")))
    answer = rows_of(world, RouteQuestion("amq.direct", "caf\udce9"))
    assert answer["routing_key"] == answer["bindings"][0]["binding_key"] == "caf\\xe9"


def test_an_answer_with_a_limit_lists_few_bindings_and_queues_and_counts_all() -> None:
    world = World()
    world.vhost.declare_exchange("x", "fanout", ExchangeOptions())
    world.vhost.declare_exchange("next", "fanout", ExchangeOptions())
    for number in range(700):
        full = {"x-max-length": 0, "x-overflow": "reject-publish"} if number % 2 else {}
        world.vhost.declare_queue(f"q{number}", arguments=full)
        world.vhost.bind("x", Binding("", world.queue(f"q{number}")))
    world.vhost.bind("x", Binding("", world.vhost.exchange("next")))
    answer = rows_of(world, RouteQuestion("x", "k"), 3)
    assert [one["destination_type"] for one in answer["bindings"]] == ["exchange", "queue", "queue"]
    assert [(one["name"], one["matched"]) for one in answer["exchanges"]] == [
        ("x", 701),
        ("next", 0),
    ]
    assert answer["verdicts"] == {"takes": 350, "refuses": 350}
    assert sorted(one["verdict"] for one in answer["queues"]) == ["refuses"] * 3 + ["takes"] * 3
    lines = list(lines_of(answer))
    assert "  ... and 698 more bindings (--all prints all)" in lines
    more = "with the verdict 'refuses the message' (--all prints all)"
    assert f"... and 347 more queues or sessions {more}" in lines
    whole = rows_of(world, RouteQuestion("x", "k"))
    assert (len(whole["bindings"]), len(whole["queues"])) == (701, 700)
    assert not any("more" in line for line in lines_of(whole))


def test_a_long_explanation_is_not_counted_as_a_paused_publication() -> None:
    world = World()
    world.vhost.declare_exchange("x", "fanout", ExchangeOptions())
    for number in range(1_000):
        world.vhost.declare_queue(f"q{number}")
        world.vhost.bind("x", Binding("", world.queue(f"q{number}")))
    assert len(rows_of(world, RouteQuestion("x", "k"))["queues"]) == 1_000
    assert world.vhost.paused_searches == 0


def test_the_verdicts_of_a_refused_message_are_conditional() -> None:
    world = World()
    rules = ["deny publish closed/#", "allow all #"]
    permissions = UserPermissions("ann", "/", (".*", ".*", ".*"), rules)
    world.guests.identities["ann"] = permissions.identity("")
    for name, arguments in (
        ("full", {"x-max-length": 0, "x-overflow": "reject-publish"}),
        ("log", {}),
        ("new", {"x-max-length": 0}),
    ):
        world.vhost.declare_queue(name, arguments=arguments)
        world.vhost.bind("amq.topic", Binding("*.a", world.queue(name)))
    lines = {
        topic: list(lines_of(rows_of(world, RouteQuestion(mqtt=topic, user="ann"))))
        for topic in ("open/a", "closed/a", "open", "closed/x/y/z")
    }
    assert [line.partition(": ")[0] for line in lines["open/a"][-3:]] == [
        "queue 'full' refuses the message",
        "queue 'log' takes the message",
        "queue 'new' keeps the message only if a consumer is ready",
    ]
    assert [line.partition(": ")[0] for line in lines["closed/a"][-3:]] == [
        "queue 'full' would refuse the message, too, if the broker accepted it",
        "queue 'log' would get the message if the broker accepted it",
        "queue 'new' would keep the message only with a ready consumer if the broker accepted it",
    ]
    assert "the message reaches no queue and no session" in lines["open"]
    assert lines["closed/x/y/z"][-1] == (
        "no queue and no session would get the message, even if the broker accepted it"
    )
    assert not any("the message reaches" in line for line in lines["closed/x/y/z"])
    for topic in ("*/#", "open"):
        assert ("near misses:" in lines_of(rows_of(world, RouteQuestion(mqtt=topic)))) == (
            topic == "open"
        )
