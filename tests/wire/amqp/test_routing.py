"""Routing: every exchange type, bindings between exchanges, alternate exchanges."""

from __future__ import annotations

from typing import Any

import pamqp.commands as spec
import pytest

from tests.clients import Amqp, World
from tests.wire.amqp.speech import (
    body,
    content,
    deliveries,
    header,
    long,
    method,
    names,
    publish,
    short,
    split,
)

Q, X = spec.Queue, spec.Exchange
V1: Any = {"v": 1}
A1: Any = {"a": 1}
NO: Any = {}


def reached(client: Amqp, exchange: str, key: str, **properties: Any) -> set[str]:
    """Return the names of the queues that get a message.

    The message is published twice, the second time with the cached route.
    """
    counts = {name: queue.depth for name, queue in client.world.vhost.queues.items()}
    for expected in (1, 2):
        client.publish(exchange, key, b"x", **properties)
        here = {
            name
            for name, queue in client.world.vhost.queues.items()
            if queue.depth == counts[name] + expected
        }
        if expected == 1:
            first = here
    assert here == first
    assert all(
        queue.depth in (counts[name], counts[name] + 2)
        for name, queue in client.world.vhost.queues.items()
    )
    client.world.fates()
    return here


# -- direct, default, fanout


def test_direct_exchanges_compare_keys_byte_by_byte() -> None:
    client = World().amqp()
    keys = ["", "a", "A", "a.b", "#", "*", "é", "a ", "\n", "x" * 255]
    for number, key in enumerate(keys):
        client.queue(f"q{number}")
        client.send(Q.Bind(queue=f"q{number}", exchange="amq.direct", routing_key=key))
    for number, key in enumerate(keys):
        assert reached(client, "amq.direct", key) == {f"q{number}"}
    assert reached(client, "amq.direct", "b") == set()


def test_the_default_exchange_routes_to_the_queue_of_that_name_only() -> None:
    client = World().amqp()
    for name in ("q", "p", "é" * 127):
        client.queue(name)
        assert reached(client, "", name) == {name}
    assert reached(client, "", "") == set() == reached(client, "", "nope")
    client.send(Q.Delete(queue="q"))
    assert reached(client, "", "q") == set()


def test_a_fanout_exchange_ignores_the_key_and_reaches_a_queue_once() -> None:
    client = World().amqp()
    for name in ("a", "b"):
        client.queue(name)
        client.send(
            Q.Bind(queue=name, exchange="amq.fanout", routing_key="x"),
            Q.Bind(queue=name, exchange="amq.fanout", routing_key="y"),
        )
    assert reached(client, "amq.fanout", "") == reached(client, "amq.fanout", "other") == {"a", "b"}
    client.send(Q.Unbind(queue="a", exchange="amq.fanout", routing_key="x"))
    assert reached(client, "amq.fanout", "") == {"a", "b"}
    client.send(Q.Unbind(queue="a", exchange="amq.fanout", routing_key="y"))
    assert reached(client, "amq.fanout", "") == {"b"}


# -- topic

TOPICS = [
    ("#", ["", "a", "a.b", ".", "..", "a..b", "*", "#"], []),
    ("*", ["a", "*", "#", "a b"], ["", ".", "a.b", "a.", ".a"]),
    ("a.#", ["a", "a.", "a.b", "a.b.c", "a..", "a.#"], ["", "b", "ab", ".a", "b.a"]),
    ("#.a", ["a", "b.a", ".a", "b.c.a", "a.a"], ["", "a.", "ab", "a.b"]),
    ("*.b", [".b", "a.b", "b.b"], ["b", "", "a.c.b", "a.b.", "..b"]),
    ("a.*", ["a.", "a.b"], ["a", "a.b.c", "b.a"]),
    ("a.*.", ["a..", "a.b."], ["a.", "a.b", "a.b.c", "a.b.."]),
    ("a.b*", ["a.b*"], ["a.b", "a.bc", "a.b.c"]),
    ("a.#b", ["a.#b"], ["a.b", "a.c.b", "a"]),
    ("#.#", ["", "a", "a.b", "."], []),
    ("*.#", ["a", "a.b", "a.", ".", "a.b.c"], [""]),
    ("#.*", ["a", "a.b", "a.", ".", "a.b.c"], [""]),
    ("*.*", ["a.b", ".", "a.", ".a"], ["a", "", "a.b.c"]),
    ("a.#.b", ["a.b", "a.c.b", "a.c.d.b", "a..b", "a.b.b"], ["a", "b", "a.bb", "b.a"]),
    ("#.a.#", ["a", "b.a", "a.b", "b.a.c", "a.a.a"], ["", "b", "ab", "b.c"]),
    ("#.a.#.b.#", ["a.b", "x.a.y.b.z", "a.a.b.b", "a..b"], ["b.a", "a", "ab"]),
    ("a", ["a"], ["", "a.", "A", "a.b"]),
    ("", [""], ["a", ".", " "]),
    (".", ["."], ["", "a", ".."]),
    ("a..b", ["a..b"], ["a.b", "a.x.b"]),
    ("é.*", ["é.ß", "é."], ["e.x"]),
    ("*.*.1.#", ["0.1.1.q", "1.1.1", "0.0.1.a.b"], ["0.0.0.q", "0.0"]),
]


@pytest.mark.parametrize(("pattern", "taken", "left"), TOPICS)
def test_topic_patterns_match_the_expected_keys(
    pattern: str, taken: list[str], left: list[str]
) -> None:
    client = World().amqp()
    client.queue("q", "amq.topic", pattern or "")
    if not pattern:
        client.send(Q.Bind(queue="q", exchange="amq.topic", routing_key=""))
    client.queue("all")
    client.send(Q.Bind(queue="all", exchange="amq.topic", routing_key="#"))
    for key in taken:
        assert reached(client, "amq.topic", key) == {"q", "all"}, key
    for key in left:
        assert reached(client, "amq.topic", key) == {"all"}, key
    client.send(Q.Unbind(queue="q", exchange="amq.topic", routing_key=pattern))
    for key in taken:
        assert reached(client, "amq.topic", key) == {"all"}, key


@pytest.mark.parametrize("matcher", ["auto", "trie", "shapes", "bitmap"])
def test_a_queue_whose_bindings_overlap_is_reached_once_by_every_matcher(matcher: str) -> None:
    client = World().amqp()
    client.send(X.Declare(exchange="t", exchange_type="topic", arguments={"x-matcher": matcher}))
    client.queue("q")
    for key in ("a.b", "a.*", "a.#", "#", "*.b"):
        client.send(Q.Bind(queue="q", exchange="t", routing_key=key))
    for gone in ("a.b", "a.*", "a.#", "#"):
        assert reached(client, "t", "a.b") == {"q"}
        client.send(Q.Unbind(queue="q", exchange="t", routing_key=gone))
    client.send(Q.Unbind(queue="q", exchange="t", routing_key="*.b"))
    assert reached(client, "t", "a.b") == set()


def test_an_unknown_matcher_is_refused_with_406() -> None:
    client = World().amqp()
    [close] = client.send(
        X.Declare(exchange="t", exchange_type="topic", arguments={"x-matcher": "magic"})
    )
    names = "auto, trie, shapes, bitmap"
    assert close.reply_text == (
        "PRECONDITION_FAILED - invalid arg 'x-matcher' for exchange 't': must be one of "
        f"{names}, not 'magic'"
    )


def test_patterns_with_many_hashes_cost_no_more_than_others() -> None:
    client = World().amqp()
    client.queue("q", "amq.topic", ".".join(["#"] * 60 + ["end"]))
    client.send(Q.Bind(queue="q", exchange="amq.topic", routing_key=".".join(["#.a"] * 60)))
    assert reached(client, "amq.topic", ".".join(["a"] * 120) + ".end") == {"q"}
    assert reached(client, "amq.topic", ".".join(["a"] * 120)) == {"q"}
    assert reached(client, "amq.topic", ".".join(["b"] * 120)) == set()


# -- keys that are not text

NON_TEXT = [b"\xff", b"a.\xfe.b", b"\xc3", bytes(range(128, 256)), b"\xed\xa0\x80", b"a\0b"]


@pytest.mark.parametrize("key", NON_TEXT)
@pytest.mark.parametrize("exchange", ["amq.direct", "amq.topic", "amq.fanout", "amq.headers"])
@pytest.mark.parametrize("whole", [True, False])
def test_keys_that_are_not_utf_8_bind_match_and_come_out_unharmed(
    key: bytes, exchange: str, whole: bool
) -> None:
    client = World().amqp()
    client.queue("q")
    bound = method(
        1, 50, 20, b"\0\0" + short("q") + short(exchange) + short(key) + b"\0" + long(b"")
    )
    client.connection.receive_data(bound)
    assert names(client.read()) == ["Queue.BindOk"]
    client.send(spec.Basic.Consume(queue="q", consumer_tag="t", no_ack=True))
    for _ in range(2):
        frames = publish(exchange, key) + content(b"x")
        for piece in [frames] if whole else [frames[:-3], frames[-3:]]:
            client.connection.receive_data(piece)
    delivered = split(client.read_bytes())
    assert [
        one.payload.endswith(short(exchange) + short(key)) for one in delivered if one.kind == 1
    ] == [True, True]
    client.connection.receive_data(
        bound.replace(b"\0\x32\0\x14", b"\0\x32\0\x32")
        .replace(b"\0\0\0\0\0\xce", b"\0\0\0\0\xce")
        .replace(len(bound[7:-1]).to_bytes(4, "big"), (len(bound[7:-1]) - 1).to_bytes(4, "big"), 1)
    )
    assert names(client.read()) == ["Queue.UnbindOk"]
    assert not list(client.world.vhost.exchange(exchange))


@pytest.mark.parametrize("key", NON_TEXT)
def test_keys_that_are_not_utf_8_are_returned_got_and_dead_lettered_unharmed(key: bytes) -> None:
    client = World().amqp()
    client.connection.receive_data(publish("amq.topic", key, 1) + content(b"back"))
    assert split(client.read_bytes())[0].payload.endswith(short("amq.topic") + short(key))
    client.queue("q", "amq.topic", "#", x_dead_letter_exchange="amq.fanout", x_message_ttl=10)
    client.queue("dead_letters", "amq.fanout")
    client.connection.receive_data(publish("amq.topic", key) + content(b"x"))
    client.world.sleep(10)
    client.connection.receive_data(method(1, 60, 70, b"\0\0" + short("dead_letters") + b"\1"))
    got, head, _ = split(client.read_bytes())
    assert short("amq.fanout") + short(key) in got.payload
    assert short("routing-keys") + b"A" + long(b"S" + long(key)) in head.payload


# -- headers

HEADERS: list[tuple[dict[str, Any], list[dict[str, Any]], list[dict[str, Any]]]] = [
    (
        {"x-match": "all", "a": 1, "b": "two"},
        [{"a": 1, "b": "two"}, {"a": 1, "b": "two", "c": 3}],
        [{}, {"a": 1}, {"a": 1, "b": 2}, {"a": 2, "b": "two"}],
    ),
    (
        {"a": 1},
        [{"a": 1}, {"a": 1, "x": 0}],
        [{}, {"a": 2}, {"A": 1}, {"a": "1"}, {"a": True}, {"a": 1.0}],
    ),
    (
        {"x-match": "any", "a": 1, "b": "two"},
        [{"a": 1}, {"b": "two"}, {"a": 1, "b": 0}],
        [{}, {"a": 2, "b": "one"}, {"c": 1}],
    ),
    ({"x-match": "all"}, [{}, {"a": 1}], []),
    ({"x-match": "any"}, [], [{}, {"a": 1}]),
    ({}, [{}, {"a": 1}], []),
    ({"x-match": "all", "a": None}, [{"a": 1}, {"a": "any"}, {"a": None}], [{}, {"b": 1}]),
    ({"x-match": "any", "a": None, "b": None}, [{"b": {}}, {"a": []}], [{}, {"c": 1}]),
    ({"x-match": "all", "a": 1, "x-b": 2}, [{"a": 1}, {"a": 1, "x-b": 3}], [{"x-b": 2}]),
    ({"x-match": "any", "a": 1, "x-b": 2}, [{"a": 1}], [{"x-b": 2}, {}]),
    (
        {"x-match": "all-with-x", "a": 1, "x-b": 2},
        [{"a": 1, "x-b": 2}],
        [{"a": 1}, {"x-b": 2}, {"a": 1, "x-b": 3}],
    ),
    ({"x-match": "any-with-x", "a": 1, "x-b": 2}, [{"a": 1}, {"x-b": 2}], [{}, {"x-b": 1}]),
    ({"x-match": "all-with-x", "x-match-not": 1}, [{"x-match-not": 1, "x-match": "all"}], [{}]),
    (
        {"a": {"deep": [1, 2, {"er": True}]}},
        [{"a": {"deep": [1, 2, {"er": True}]}}],
        [{"a": {"deep": [1, 2, {"er": False}]}}, {"a": {}}],
    ),
    ({"a": 70_000}, [{"a": 70_000}], [{"a": 70_001}]),
    ({"a": -1}, [{"a": -1}], [{"a": 255}]),
    ({"a": False}, [{"a": False}], [{"a": 0}, {"a": True}]),
    ({"a": ""}, [{"a": ""}], [{"a": None}, {}]),
]


@pytest.mark.parametrize(("wanted", "taken", "left"), HEADERS)
@pytest.mark.parametrize("exchange", ["amq.headers", "amq.match"])
def test_headers_exchanges_compare_values_and_types(
    exchange: str, wanted: Any, taken: list[Any], left: list[Any]
) -> None:
    client = World().amqp()
    client.queue("q")
    client.send(Q.Bind(queue="q", exchange=exchange, routing_key="ignored", arguments=wanted))
    for headers in taken:
        assert reached(client, exchange, "", headers=headers) == {"q"}, headers
        assert reached(
            client, exchange, "any key", headers=headers, content_type="t", message_id="1"
        ) == {"q"}
    for headers in left:
        assert reached(client, exchange, "ignored", headers=headers) == set(), headers
    client.send(Q.Unbind(queue="q", exchange=exchange, routing_key="ignored", arguments=wanted))
    assert not list(client.world.vhost.exchange(exchange))


def test_a_headers_exchange_takes_messages_without_headers_and_with_odd_ones() -> None:
    client = World().amqp()
    for name, wanted in (("all", NO), ("one", A1)):
        client.queue(name)
        client.send(Q.Bind(queue=name, exchange="amq.headers", arguments=wanted))
    assert reached(client, "amq.headers", "k") == {"all"}
    for properties in (
        b"\x20\0" + long(b"\x01a?"),
        b"\x20\0\xff\xff\xff\xff",
        b"\x20\0",
        b"\x20\0\0\0\0\x09\x01aI\0\0\0\1",
        b"\xe0\0\xff",
    ):
        before = client.world.queue("all").depth
        client.connection.receive_data(publish("amq.headers", "k") + content(b"x", properties))
        assert client.read() == [] and client.world.queue("all").depth == before + 1
    assert client.world.queue("one").depth == 0


# -- between exchanges


def test_bindings_between_exchanges_use_the_key_of_every_step() -> None:
    client = World().amqp()
    client.send(
        X.Declare(exchange="t", exchange_type="topic"),
        X.Declare(exchange="d", exchange_type="direct"),
        X.Declare(exchange="f", exchange_type="fanout"),
        X.Declare(exchange="h", exchange_type="headers"),
    )
    client.send(
        X.Bind(destination="d", source="t", routing_key="a.*"),
        X.Bind(destination="f", source="d", routing_key="a.b"),
        X.Bind(destination="h", source="t", routing_key="#"),
    )
    for name, exchange, key, arguments in (
        ("qd", "d", "a.c", NO),
        ("qf", "f", "", NO),
        ("qh", "h", "", V1),
        ("qt", "t", "a.b", NO),
    ):
        client.queue(name)
        client.send(Q.Bind(queue=name, exchange=exchange, routing_key=key, arguments=arguments))
    assert reached(client, "t", "a.b") == {"qf", "qt"}
    assert reached(client, "t", "a.c") == {"qd"}
    assert reached(client, "t", "a.c", headers={"v": 1}) == {"qd", "qh"}
    assert reached(client, "t", "x", headers={"v": 2}) == set()
    client.send(X.Unbind(destination="d", source="t", routing_key="a.*"))
    assert reached(client, "t", "a.b") == {"qt"}


def test_a_circle_of_exchanges_reaches_every_queue_once() -> None:
    client = World().amqp()
    for name in ("a", "b", "c"):
        client.send(X.Declare(exchange=name, exchange_type="fanout"))
        client.queue(f"q{name}", name)
    client.send(
        X.Bind(destination="b", source="a"),
        X.Bind(destination="c", source="b"),
        X.Bind(destination="a", source="c"),
        X.Bind(destination="a", source="a"),
    )
    for name in ("a", "b", "c"):
        assert reached(client, name, "") == {"qa", "qb", "qc"}


def test_an_internal_exchange_takes_messages_from_other_exchanges_only() -> None:
    client = World().amqp()
    client.send(
        X.Declare(exchange="in", exchange_type="fanout", internal=True),
        X.Bind(destination="in", source="amq.fanout"),
    )
    client.queue("q", "in")
    assert reached(client, "amq.fanout", "") == {"q"}
    assert client.publish("in", "", b"x")[0].reply_code == 403


# -- alternate exchanges


def test_an_alternate_exchange_takes_unroutable_messages_and_may_have_one_itself() -> None:
    client = World().amqp()
    client.send(
        X.Declare(exchange="first", arguments={"alternate-exchange": "second"}),
        X.Declare(exchange="second", arguments={"alternate-exchange": "third"}),
        X.Declare(exchange="third", exchange_type="fanout"),
    )
    for name, exchange, key in (("q1", "first", "1"), ("q2", "second", "2"), ("q3", "third", "")):
        client.queue(name)
        client.send(Q.Bind(queue=name, exchange=exchange, routing_key=key))
    assert reached(client, "first", "1") == {"q1"}
    assert reached(client, "first", "2") == {"q2"}
    assert reached(client, "first", "3") == {"q3"}
    assert client.publish("first", "4", b"x", mandatory=True) == []
    client.send(X.Delete(exchange="third"))
    assert names(client.publish("first", "4", b"x", mandatory=True)) == [
        "Basic.Return",
        "ContentHeader",
        "ContentBody",
    ]
    client.send(X.Delete(exchange="second"))
    assert reached(client, "first", "2") == set()


def test_an_alternate_exchange_may_come_later_and_may_be_its_own() -> None:
    client = World().amqp()
    client.send(
        X.Declare(exchange="x", arguments={"alternate-exchange": "later"}),
        X.Declare(exchange="self", arguments={"alternate-exchange": "self"}),
    )
    assert reached(client, "x", "k") == reached(client, "self", "k") == set()
    client.send(X.Declare(exchange="later", exchange_type="fanout"))
    client.queue("q", "later")
    assert reached(client, "x", "k") == {"q"}


def test_an_alternate_exchange_by_headers_looks_at_every_message() -> None:
    client = World().amqp()
    client.send(X.Declare(exchange="x", arguments={"alternate-exchange": "amq.headers"}))
    client.queue("q")
    client.send(Q.Bind(queue="q", exchange="amq.headers", arguments=V1))
    assert reached(client, "x", "k", headers={"v": 1}) == {"q"}
    assert reached(client, "x", "k", headers={"v": 2}) == set()


def test_a_headers_exchange_has_an_alternate_exchange_too() -> None:
    client = World().amqp()
    client.send(
        X.Declare(
            exchange="h", exchange_type="headers", arguments={"alternate-exchange": "amq.fanout"}
        )
    )
    client.queue("rest", "amq.fanout")
    client.queue("q")
    client.send(Q.Bind(queue="q", exchange="h", arguments=V1))
    assert reached(client, "h", "k", headers={"v": 1}) == {"q"}
    assert reached(client, "h", "k", headers={"v": 2}) == {"rest"}


# -- mandatory


@pytest.mark.parametrize("size", [0, 1, 20_000, 300_000])
@pytest.mark.parametrize("whole", [True, False])
def test_a_returned_message_equals_the_published_one(size: int, whole: bool) -> None:
    client = World().amqp()
    properties = b"\x80\0" + short("text/plain")
    frames = (
        publish("amq.topic", "nowhere", 1)
        + header(size, properties)
        + b"".join(body(b"x" * min(100_000, size - at)) for at in range(0, size, 100_000))
    )
    for piece in [frames] if whole else [frames[:30], frames[30:]]:
        client.connection.receive_data(piece)
    back, head, *bodies = split(client.read_bytes())
    assert back == (
        1,
        1,
        b"\0\x3c\0\x32\x01\x38" + short("NO_ROUTE") + short("amq.topic") + short("nowhere"),
    )
    assert (
        head.data == header(size, properties)
        and b"".join(one.payload for one in bodies) == b"x" * size
    )


def test_a_mandatory_message_that_reaches_a_queue_is_not_returned() -> None:
    client = World().amqp()
    client.queue("q", "amq.topic", "a")
    client.send(spec.Basic.Consume(queue="q", consumer_tag="t", no_ack=True))
    for _ in range(2):
        assert [
            one.body for one in deliveries(client.publish("amq.topic", "a", b"x", mandatory=True))
        ] == [b"x"]
    assert client.world.fates() == {"routed": 2}
