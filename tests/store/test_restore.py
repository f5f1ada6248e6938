"""A broker that starts again has all definitions that clients made, and they work as before."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pamqp.commands as spec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.queues.policies import Policy
from broker.store.entries import Defined
from broker.vhost.background import BINDINGS_PER_SLICE
from protocols.amqp.codec.tables import write_table
from tests.clients import World, marshal, publication
from tests.store.homes import Home, bindings, listing, numbers
from tests.store.redeclared import Step, amqp, bind, exchange, queue, visit
from tests.wire.amqp.speech import header, long, method, names, read, short, split
from tests.wire.mqtt.client import (
    DISCONNECT,
    RESUMED,
    Client,
    connect,
    publications,
    subscribe,
    unsubscribe,
)


def deliveries(world: World) -> dict[str, list[bytes]]:
    """Publish a message for each exchange, routing key and kind of headers.

    Return the messages that each queue and each session got.
    """
    writer = world.amqp()
    received: dict[str, list[bytes]] = {}
    for name in sorted(world.vhost.exchanges):
        if not world.vhost.exchanges[name].options.internal:
            for key in KEYS:
                for kind in HEADERS:
                    writer.connection.receive_data(
                        publication(
                            name, key, f"{name} {key} {kind}".encode(), headers=HEADERS[kind]
                        )
                    )
                    writer.read()
    for name in sorted(world.vhost.queues):
        received[f"queue {name}"] = sorted(read(world.amqp(), name))
    for session in world.mqtt_front.sessions.all():
        if session.persistent:
            reader = Client(world, connect(session.name, clean=False))
            assert reader.greeting[:4] == RESUMED
            received[f"session {session.name}"] = sorted(
                one.topic.encode() + b" " + one.body for one in publications(reader.greeting)
            )
    return received


KEYS = ["", "a", "a.b", "b", "a.b.c", "q0", "q1", "$x.a"]

HEADERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "red": {"colour": "red"},
    "blue": {"colour": "blue", "size": 2},
}


# -- random declarations


EXCHANGES = ["e0", "e1", "e2"]

SOURCES = [*EXCHANGES, *EXCHANGES, "amq.topic", "amq.fanout", "amq.headers", "amq.direct", "gone"]

QUEUES = ["q0", "q1", "q2"]

SESSIONS = ["s0", "s1"]

PATTERNS = ["", "a", "a.*", "#", "a.#", "*.b", "b", "q0"]

FILTERS = ["a", "a/#", "+", "#", "+/b", "b", "a/b"]

ARGUMENTS: list[dict[str, Any]] = [
    {},
    {},
    {"x_max_length": 100},
    {"x_message_ttl": 60_000, "x_overflow": "reject-publish"},
    {"x_dead_letter_exchange": "e0", "x_dead_letter_routing_key": "a"},
]

OPTIONS: list[dict[str, Any]] = [
    {},
    {},
    {},
    {"auto_delete": True},
    {"internal": True},
    {"arguments": {"alternate-exchange": "e2"}},
    {"arguments": {"alternate-exchange": "amq.fanout", "x-matcher": "bitmap"}},
]

BINDING_ARGUMENTS: list[dict[str, Any]] = [
    {},
    {},
    {"colour": "red"},
    {"x-match": "any", "colour": "blue", "size": 2},
]

some = st.sampled_from

declarations: st.SearchStrategy[Step] = st.one_of(
    st.builds(
        lambda name, kind, more: amqp(exchange(name, kind, **more)),
        some(EXCHANGES),
        some(["topic", "topic", "fanout", "headers"]),
        some(OPTIONS),
    ),
    st.builds(
        lambda name, arguments, auto: amqp(
            spec.Queue.Declare(
                queue=name,
                durable=True,
                auto_delete=auto,
                arguments={key.replace("_", "-"): value for key, value in arguments.items()},
            )
        ),
        some(QUEUES),
        some(ARGUMENTS),
        st.booleans(),
    ),
    st.builds(
        lambda source, name, key, more: amqp(bind(source, name, key, arguments=more)),
        some(SOURCES),
        some(QUEUES),
        some(PATTERNS),
        some(BINDING_ARGUMENTS),
    ),
    st.builds(
        lambda source, name, key, more: amqp(
            spec.Exchange.Bind(source=source, destination=name, routing_key=key, arguments=more)
        ),
        some(SOURCES),
        some(EXCHANGES),
        some(PATTERNS),
        some(BINDING_ARGUMENTS),
    ),
    st.builds(
        lambda source, name, key, more: amqp(
            spec.Queue.Unbind(exchange=source, queue=name, routing_key=key, arguments=more)
        ),
        some(SOURCES),
        some(QUEUES),
        some(PATTERNS),
        some(BINDING_ARGUMENTS),
    ),
    st.builds(
        lambda source, name, key: amqp(
            spec.Exchange.Unbind(source=source, destination=name, routing_key=key)
        ),
        some(SOURCES),
        some(EXCHANGES),
        some(PATTERNS),
    ),
    st.builds(lambda name: amqp(spec.Exchange.Delete(exchange=name)), some(EXCHANGES)),
    st.builds(lambda name: amqp(spec.Queue.Delete(queue=name)), some(QUEUES)),
    st.builds(
        lambda name, wanted: lambda world: visit(world, name, subscribe(1, *wanted)),
        some(SESSIONS),
        st.lists(st.tuples(some(FILTERS), st.integers(0, 2)), min_size=1, max_size=3),
    ),
    st.builds(
        lambda name, wanted: lambda world: visit(world, name, unsubscribe(1, wanted)),
        some(SESSIONS),
        some(FILTERS),
    ),
    st.builds(
        lambda name: lambda world: Client(world, connect(name)).send(DISCONNECT), some(SESSIONS)
    ),
    # The exclusive queues are not durable, and end with their connection.
    st.builds(
        lambda source, key: amqp(
            spec.Queue.Declare(queue="", exclusive=True, durable=True), bind(source, "", key)
        ),
        some(SOURCES),
        some(PATTERNS),
    ),
    st.builds(
        lambda wanted: (
            lambda world: Client(world, connect("fleeting")).send(subscribe(1, (wanted, 1)))
        ),
        some(FILTERS),
    ),
)


def go(world: World) -> None:
    """Close all AMQP and MQTT connections, and run turns until no work is left."""
    for front in (world.amqp_front, world.mqtt_front):
        for connection in list(front.connections):
            connection.on_closed()
    world.settle()


@settings(deadline=None, max_examples=40)
@given(st.lists(st.lists(declarations, max_size=12), min_size=1, max_size=3))
def test_a_broker_that_was_started_again_is_the_one_that_never_stopped(
    lives: list[list[Step]],
) -> None:
    with TemporaryDirectory() as directory:
        steady, restarted = World(), Home(Path(directory))
        for steps in lives:
            for step in steps:
                step(steady)
                step(restarted)
            go(steady)
            go(restarted)
            before, known = listing(restarted), numbers(restarted)
            restarted.crash()
            restarted = Home(Path(directory))
            assert restarted.report.refused == []
            assert listing(restarted) == listing(steady) == before
            assert numbers(restarted) == known
            assert restarted.store.position >= max(known.values())
        assert deliveries(restarted) == deliveries(steady)
        restarted.crash()


# -- definitions with unusual bytes and arguments


def test_arguments_of_every_type_survive_a_restart(tmp_path: Path) -> None:
    odd = {
        "$bytes": "no tag",
        "": None,
        "yes": True,
        "small": -7,
        "large": (1 << 63) - 1,
        "float": 1.5,
        "text": "ü\0",
        "bytes": b"\xff\0",
        "money": Decimal("-1.50"),
        "when": datetime(2024, 2, 29, 12, tzinfo=UTC),
        "list": [1, [b"\x80", {}], {"a": None}],
        "inside": {"inside": {"$table": b""}},
    }
    world = Home(tmp_path)
    table = write_table(odd)
    client = world.amqp()
    client.connection.receive_data(method(1, 50, 10, b"\0\0" + short("q") + b"\x02" + long(b"")))
    assert names(client.read()) == ["Queue.DeclareOk"]
    client.connection.receive_data(
        method(1, 50, 20, b"\0\0" + short("q") + short("amq.headers") + short("k") + b"\0" + table)
    )
    assert names(client.read()) == ["Queue.BindOk"]
    before = bindings(world)
    world.crash()
    world = Home(tmp_path)
    assert bindings(world) == before
    [binding] = list(world.vhost.exchanges["amq.headers"])
    assert repr(dict(binding.arguments)) == repr(odd)
    client = world.amqp()
    flags = (1 << 13).to_bytes(2, "big")
    for content in (table, write_table({**odd, "small": 7})):
        client.connection.receive_data(
            method(1, 60, 40, b"\0\0" + short("amq.headers") + short("") + b"\0")
            + header(0, flags + content)
        )
    client.read()
    assert world.queue("q").depth == 1
    # The binding is equal to the old one: it is not added again, and can be removed.
    client.connection.receive_data(
        method(1, 50, 20, b"\0\0" + short("q") + short("amq.headers") + short("k") + b"\0" + table)
    )
    client.read()
    assert bindings(world) == before
    client.connection.receive_data(
        method(1, 50, 50, b"\0\0" + short("q") + short("amq.headers") + short("k") + table)
    )
    assert names(client.read()) == ["Queue.UnbindOk"]
    world.crash()
    world = Home(tmp_path)
    assert bindings(world) == set()
    world.crash()


def test_an_exchange_keeps_unknown_arguments(tmp_path: Path) -> None:
    world = Home(tmp_path)
    amqp(
        exchange(
            "e",
            "fanout",
            arguments={"x-note": [True, {"a": Decimal("1.5")}], "alternate-exchange": "amq.topic"},
        )
    )(world)
    before = listing(world)
    world.crash()
    world = Home(tmp_path)
    assert listing(world) == before
    assert names(
        world.amqp().send(exchange("e", "fanout", arguments={"alternate-exchange": "amq.topic"}))
    ) == ["Exchange.DeclareOk"]
    assert names(world.amqp().send(exchange("e", "fanout"))) == ["Channel.Close"]
    world.crash()


def test_a_binding_key_may_have_any_bytes(tmp_path: Path) -> None:
    world = Home(tmp_path)
    client = world.amqp()
    client.queue("q", durable=True)
    for key in (b"\xff.\x80", b"a\0b", b"\xc3\xbc"):
        client.connection.receive_data(
            method(
                1,
                50,
                20,
                b"\0\0" + short("q") + short("amq.direct") + short(key) + b"\0" + long(b""),
            )
        )
        answers = split(client.read_bytes())
        assert [answer.payload[:4] for answer in answers] == [b"\0\x32\0\x15"]
    before = bindings(world)
    assert len(before) == 3
    world.crash()
    world = Home(tmp_path)
    assert bindings(world) == before
    client = world.amqp()
    for key in (b"\xff.\x80", b"a\0b", b"\xc3\xbc", b"\xfe"):
        client.connection.receive_data(
            method(1, 60, 40, b"\0\0" + short("amq.direct") + short(key) + b"\0") + header(0)
        )
    client.read()
    assert world.queue("q").depth == 3
    world.crash()


# -- removed definitions, and new definitions of the same name


def test_bindings_of_a_deleted_queue_leave_in_slices_and_its_successor_keeps_its_own(
    tmp_path: Path,
) -> None:
    """Create a queue, an exchange and a session again while their old bindings are being removed.

    The old bindings are removed in slices, over several turns. If the broker crashes after any of
    these turns, a start must find the bindings that the broker had before the crash.
    """
    most = 2 * BINDINGS_PER_SLICE + 100
    world = Home(tmp_path / "first")
    client = world.amqp()
    client.send(queue("q"), exchange("e"), exchange("f", "fanout"))
    keys = [f"k{number}" for number in range(most)]
    client.connection.receive_data(
        # Bind the queue by queue.bind, and the exchanges by exchange.bind. All requests have
        # nowait.
        b"".join(
            method(
                1,
                50,
                20,
                b"\0\0" + short("q") + short("amq.topic") + short(key) + b"\1" + long(b""),
            )
            + method(1, 40, 30, b"\0\0" + short("f") + short("e") + short(key) + b"\1" + long(b""))
            for key in keys
        )
    )
    client.read()
    visit(world, "s", subscribe(1, *[(key, 1) for key in keys]))
    world.settle()
    assert len(bindings(world)) == 3 * most
    world.crash()
    for crash_after in range(9):
        shutil.copytree(tmp_path / "first", tmp_path / str(crash_after))
        world = Home(tmp_path / str(crash_after))
        assert len(bindings(world)) == 3 * most
        client, leaver, back = world.amqp(), Client(world, b""), Client(world, b"")
        leaver.connection.receive_data(connect("s"))
        client.connection.receive_data(
            b"".join(
                marshal(1, one)
                for one in [
                    spec.Queue.Delete(queue="q"),
                    spec.Exchange.Delete(exchange="f"),
                    queue("q"),
                    exchange("f", "fanout"),
                    bind("amq.topic", "q", "k7"),
                    bind("amq.topic", "q", keys[-1]),
                    spec.Exchange.Bind(source="e", destination="f", routing_key=keys[-2]),
                ]
            )
        )
        back.connection.receive_data(
            connect("s", clean=False) + subscribe(1, (keys[-3], 2), ("k3", 0))
        )
        slices = 0
        for _ in range(crash_after):
            world.broker.agenda.turn()
            world.store.sync()
            slices += not world.broker.agenda.idle
            for connection in (client.connection, leaver.connection, back.connection):
                connection.data_to_send()
                if connection.behind and not connection.stalled and not connection.finished:
                    connection.resume()
        expected = bindings(world)
        world.store.sync()
        world.crash()
        world = Home(tmp_path / str(crash_after))
        assert world.report.refused == []
        assert bindings(world) == expected
        world.crash()
    assert slices > 0
    assert {(row[0], row[1], row[4], row[5]) for row in expected} == {
        ("amq.topic", "queue", "k7", 0),
        ("amq.topic", "queue", keys[-1], 0),
        ("e", "exchange", keys[-2], 0),
        ("amq.topic", "session", keys[-3], 2),
        ("amq.topic", "session", "k3", 0),
    }


@pytest.mark.parametrize("changed", ["a", "b"])
@pytest.mark.parametrize("operator", [False, True])
def test_the_same_policy_of_equal_priority_applies_after_a_restart(
    changed: str, operator: bool, tmp_path: Path
) -> None:
    world = Home(tmp_path)

    def put(name: str, length: int) -> None:
        policy = Policy("/", name, "^q$", "queues", 0, {"max-length": length})
        policies = world.vhost.applied_policies
        if operator:
            policies.set_operator_policy(policy)
        else:
            policies.set_policy(policy)
        world.settle()

    put("b", 50)
    put("a", 500)
    world.amqp().queue("q", durable=True)
    put(changed, 5)
    limit = world.queue("q").arguments.max_length
    assert limit == (5 if changed == "a" else 500)
    world.crash()
    world = Home(tmp_path)
    assert world.queue("q").arguments.max_length == limit
    world.crash()


@pytest.mark.parametrize(
    ("policy", "arguments"),
    [
        ({"dead-letter-exchange": "amq.fanout"}, {"x-dead-letter-routing-key": "k"}),
        ({"delayed-retry-min": 5}, {"x-delayed-retry-type": "all"}),
    ],
)
def test_a_queue_outlives_the_policy_that_its_arguments_need(
    policy: dict[str, object], arguments: dict[str, Any], tmp_path: Path
) -> None:
    world = Home(tmp_path)
    policies = world.vhost.applied_policies
    policies.set_policy(Policy("/", "p", "^q$", "all", 0, policy))
    client = world.amqp()
    declare = spec.Queue.Declare(queue="q", durable=True, arguments=arguments)
    assert isinstance(client.send(declare)[0], spec.Queue.DeclareOk)
    client.publish("", "q", b"kept", delivery_mode=2)
    policies.clear_policy("p")
    world.settle()
    queue = world.queue("q")
    assert (queue.arguments.dead_letter_exchange, queue.arguments.retry_type) == (None, "disabled")
    assert isinstance(client.send(declare)[0], spec.Queue.DeclareOk)
    assert isinstance(
        client.send(spec.Queue.Declare(queue="other", arguments=arguments))[0], spec.Channel.Close
    )
    world.crash()
    world = Home(tmp_path)
    assert world.report.refused == [] and world.queue("q").depth == 1
    world.crash()


@pytest.mark.parametrize(
    "arguments",
    [
        {"x-consumer-timeout": "soon"},
        {"x-delayed-retry-type": "all"},
        {"x-delayed-retry-type": "sometimes", "x-delayed-retry-min": -1},
        {"x-queue-type": "stream", "x-consumer-timeout": 1_000},
    ],
)
def test_a_queue_with_arguments_that_an_earlier_version_did_not_check_is_restored(
    arguments: dict[str, object], tmp_path: Path
) -> None:
    others = {key: value for key, value in arguments.items() if key == "x-queue-type"}
    others["x-max-length-bytes"] = 1_000_000
    world = Home(tmp_path)
    definition = {"auto_delete": False, "arguments": arguments | others}
    world.store.append(Defined("/", "queue", "old", definition), None)
    world.store.sync()
    for messages in range(3):
        world.crash()
        world = Home(tmp_path)
        assert world.report.refused == []
        [adapted] = world.report.adapted
        assert adapted.name == "old" and "x-" in adapted.reason
        queue = world.queue("old")
        assert queue.depth == messages
        assert queue.arguments.given == others
        world.amqp().publish("", "old", b"kept", delivery_mode=2)
        world.store.sync()
    world.crash()


def test_restore_drops_entries_that_were_not_durable(tmp_path: Path) -> None:
    world = Home(tmp_path)
    world.slow_disk = True
    client = world.amqp()
    assert client.send(queue("q")) == []
    world.crash()
    world = Home(tmp_path)
    assert listing(world)["queues"] == {}
    assert world.report.restored == {}
    world.crash()


def test_a_queue_declared_anew_has_a_number_of_its_own(tmp_path: Path) -> None:
    seen = set[int]()
    for _ in range(4):
        world = Home(tmp_path)
        amqp(spec.Queue.Delete(queue="q"), queue("q"))(world)
        assert int(world.queue("q").number) not in seen
        seen.add(int(world.queue("q").number))
        world.crash()
