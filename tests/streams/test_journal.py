"""A journal gets every published message, once, with the destinations of the message."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pamqp.commands as spec
import pytest

from broker.broker import SLICE_PAUSE_MS, Broker
from tests.clients import Amqp, World, mqtt_publish, packet, text
from tests.store.homes import Home
from tests.streams.tables import rows_of, stream
from tests.streams.test_stream_queues import consume, declare, offsets, reason
from tests.wire.mqtt.client import Client


def columns_of(broker: Broker, *columns: str, name: str = "j") -> list[tuple[Any, ...]]:
    return [tuple(row[column] for column in columns) for row in rows_of(stream(broker, name))]


def journaled(world: World) -> Amqp:
    client = world.amqp()
    declare(client, "j", x_journal=True)
    return client


def test_journal_has_all_publications_with_their_number_of_queues() -> None:
    world = World()
    client = journaled(world)
    client.queue("a", "amq.topic", "x.#")
    client.queue("b", "amq.topic", "x.y")
    client.queue("h", "amq.headers", "")
    for exchange, key in (
        ("", "a"),
        ("", "absent"),
        ("amq.topic", "x.y"),
        ("amq.topic", "x.z"),
        ("amq.topic", "z"),
        ("amq.headers", "k"),
    ):
        client.publish(exchange, key, b"m")
    client.publish("", "a", b"m", headers={"CC": ["b"]})
    client.publish("", "a", b"m", expiration="5000", delivery_mode=2)
    assert columns_of(world.broker, "exchange", "topic", "routed", "protocol", "publisher") == [
        ("", "a", 1, "amqp091", "guest"),
        ("", "absent", 0, "amqp091", "guest"),
        ("amq.topic", "x.y", 2, "amqp091", "guest"),
        ("amq.topic", "x.z", 1, "amqp091", "guest"),
        ("amq.topic", "z", 0, "amqp091", "guest"),
        ("amq.headers", "k", 1, "amqp091", "guest"),
        ("", "a", 2, "amqp091", "guest"),
        ("", "a", 1, "amqp091", "guest"),
    ]
    assert world.fates()["unroutable"] == 2


def test_mqtt_publications_of_every_quality_are_there() -> None:
    world = World()
    journaled(world)
    listener, publisher = world.mqtt("l"), world.mqtt("p")
    listener.subscribe("a/#", 0)
    run = b"".join(mqtt_publish("a/b", b"%d" % number) for number in range(3))
    run += mqtt_publish("c", b"absent") + mqtt_publish("a", b"x" * 200)
    publisher.send(
        run
        + mqtt_publish("a", b"one", 1, 1)
        + mqtt_publish("a", b"kept", 0, flags=1)
        + mqtt_publish("a", b"two", 2, 2)
    )
    assert len(listener.read()) == len(run) - len(mqtt_publish("c", b"absent")) + sum(
        len(mqtt_publish("a", body)) for body in (b"one", b"kept", b"two")
    )
    assert columns_of(world.broker, "topic", "body", "qos", "routed", "protocol", "exchange") == [
        ("a.b", b"0", 0, 1, "mqtt311", "amq.topic"),
        ("a.b", b"1", 0, 1, "mqtt311", "amq.topic"),
        ("a.b", b"2", 0, 1, "mqtt311", "amq.topic"),
        ("c", b"absent", 0, 0, "mqtt311", "amq.topic"),
        ("a", b"x" * 200, 0, 1, "mqtt311", "amq.topic"),
        ("a", b"one", 1, 1, "mqtt311", "amq.topic"),
        ("a", b"kept", 0, 1, "mqtt311", "amq.topic"),
        ("a", b"two", 2, 1, "mqtt311", "amq.topic"),
    ]
    publisher.send(mqtt_publish("$SYS/x", b"no"))
    assert len(columns_of(world.broker, "topic")) == 8
    world.fates()


def test_publications_have_the_name_of_their_protocol() -> None:
    world = World()
    journaled(world)
    levels = [("MQIsdp", 3), ("MQTT", 4), ("MQTT", 5)]
    for name, level in levels:
        end = b"\0" if level == 5 else b""  # No properties.
        head = text(name) + bytes([level, 2, 0, 60]) + end
        publisher = Client(world, packet(0x10, head + text(f"level {level}")))
        plain = mqtt_publish("a", end + b"run")
        publisher.send(plain, plain, packet(0x32, text("a") + b"\0\1" + end + b"one"))
    assert columns_of(world.broker, "body", "qos", "protocol") == [
        (body, qos, protocol)
        for protocol in ("mqtt310", "mqtt311", "mqtt50")
        for body, qos in ((b"run", 0), (b"run", 0), (b"one", 1))
    ]


def test_journal_does_not_change_the_answers_to_publishers() -> None:
    for journal in (False, True):
        world = World()
        client = world.amqp()
        if journal:
            declare(client, "j", x_journal=True)
        client.send(spec.Confirm.Select())
        world.slow_disk = True
        heard = [
            type(frame).__name__ for frame in client.publish("", "absent", b"x", mandatory=True)
        ]
        assert heard == ["Return", "ContentHeader", "ContentBody", "Ack"]


def test_a_confirmed_persistent_message_is_in_the_journal() -> None:
    world = World()
    client = journaled(world)
    client.queue("q", durable=True)
    client.send(spec.Confirm.Select())
    world.slow_disk = True
    assert client.publish("", "q", b"x", delivery_mode=2) == []
    world.durable()
    assert [type(frame) for frame in client.read()] == [spec.Basic.Ack]
    assert columns_of(world.broker, "body") == [(b"x",)]


def test_a_stream_that_is_bound_and_a_journal_gets_a_message_once() -> None:
    world = World()
    client = journaled(world)
    client.send(spec.Queue.Bind(queue="j", exchange="amq.fanout", routing_key=""))
    client.publish("amq.fanout", "", b"x")
    assert columns_of(world.broker, "body", "routed") == [(b"x", 0)]


def test_a_message_that_reaches_only_a_stream_counts_as_routed() -> None:
    world = World()
    client = journaled(world)
    declare(client, "s")
    client.queue("q", "amq.topic", "b")
    for key in ("a", "b"):
        client.send(spec.Queue.Bind(queue="s", exchange="amq.topic", routing_key=key))
    client.send(spec.Tx.Select())
    for key in ("a", "b", "c"):
        client.publish("amq.topic", key, b"m")
    client.send(spec.Tx.Commit())
    mqtt = world.mqtt("p")
    mqtt.send(mqtt_publish("a", b"m") + mqtt_publish("a", b"m", 1, 1))
    rows = [("a", 1), ("b", 2), ("c", 0), ("a", 1), ("a", 1)]
    assert columns_of(world.broker, "topic", "routed") == rows
    assert columns_of(world.broker, "routed", name="s") == [(1,), (2,), (1,), (1,)]
    assert (world.fates()["routed"], world.fates()["unroutable"]) == (4, 1)


def test_a_journal_that_is_deleted_records_no_more() -> None:
    world = World()
    client = journaled(world)
    client.queue("q")
    client.publish("", "q", b"1")
    client.send(spec.Queue.Delete(queue="j"))
    client.publish("", "q", b"2")
    declare(client, "j", x_journal=True)
    client.publish("", "q", b"3")
    assert columns_of(world.broker, "body") == [(b"3",)]
    world.fates()


def test_a_journal_is_a_journal_again_after_a_restart(tmp_path: Path) -> None:
    home = Home(tmp_path / "d")
    journaled(home).publish("", "x", b"1")
    home.crash()
    home = Home(tmp_path / "d")
    home.amqp().publish("", "x", b"2")
    assert columns_of(home.broker, "body") == [(b"1",), (b"2",)]


def test_a_virtual_host_may_name_its_journal() -> None:
    world = World()
    world.vhost.declarations.journals.record_in("all")
    client = world.amqp()
    client.publish("", "x", b"1")
    assert columns_of(world.broker, "body", name="all") == [(b"1",)]
    assert client.bodies(consume(client, name="all")) == [b"1"]
    client.queue("q")
    with pytest.raises(Exception, match="a queue of another type"):
        world.vhost.declarations.journals.record_in("q")


def topology(world: World) -> list[tuple[str, Any]]:
    return [
        (topic, json.loads(body))
        for topic, body in columns_of(world.broker, "topic", "body", name="$topology")
    ]


def led(world: World) -> tuple[set[tuple[str, str]], set[tuple[str, ...]]]:
    """Return (exchanges and queues, bindings) at the end of the stream `$topology`."""
    names: dict[tuple[str, str], None] = {}
    bindings: dict[tuple[str, ...], None] = {}
    known = False
    for event, facts in topology(world):
        if event == "snapshot" and (facts["restarted"] or not known):
            known = False
            names.clear()
            bindings.clear()
        elif event == "complete":
            known = True
        elif event in ("declare", "delete"):
            (names.setdefault if event == "declare" else names.pop)(
                (facts["kind"], facts["name"]), None
            )
        elif event in ("bind", "subscribe"):
            bindings[
                facts["source"],
                facts["destination_type"],
                facts["destination"],
                facts["routing_key"],
            ] = None
        elif event in ("unbind", "unsubscribe"):
            bindings.pop(
                (
                    facts["source"],
                    facts["destination_type"],
                    facts["destination"],
                    facts["routing_key"],
                ),
                None,
            )
    assert known
    return set(names), set(bindings)


def test_the_topology_is_written_from_the_beginning() -> None:
    world = World()
    early = world.amqp()
    early.queue("early", "amq.topic", "a.#")
    journaled(world)
    session = world.mqtt("c", clean=False)
    session.subscribe("x/+", 1)
    early.queue("late", "amq.topic", "b")
    early.send(
        spec.Exchange.Declare(
            exchange="e", exchange_type="fanout", arguments={"alternate-exchange": "amq.direct"}
        )
    )
    early.send(spec.Queue.Unbind(queue="late", exchange="amq.topic", routing_key="b"))
    early.send(spec.Queue.Delete(queue="early"))
    early.send(spec.Connection.Close(200, "", 0, 0), channel=0)
    rows = topology(world)
    events = [event for event, _ in rows]
    whole = events.index("complete")
    assert rows[0] == ("snapshot", {"restarted": True})
    assert {(facts["kind"], facts["name"]) for event, facts in rows[1 : whole - 1]} == {
        ("queue", "early"),
        ("stream", "j"),
        ("stream", "$topology"),
        *(
            ("exchange", name)
            for name in ("", "amq.direct", "amq.fanout", "amq.topic", "amq.headers", "amq.match")
        ),
    }
    assert rows[whole - 1] == (
        "bind",
        {
            "source": "amq.topic",
            "destination": "early",
            "destination_type": "queue",
            "routing_key": "a.#",
            "arguments": {},
            "grammar": "amqp",
            "assurance": rows[whole - 1][1]["assurance"],
        },
    )
    after = rows[whole + 1 :]
    assert [event for event, _ in after] == [
        "connect",
        "subscribe",
        "declare",
        "bind",
        "declare",
        "unbind",
        "delete",
        "unbind",
        "disconnect",
    ]
    assert [after[at][1]["destination"] for at in (3, 5, 7)] == ["late", "late", "early"]
    assert after[4][1] == {
        "kind": "exchange",
        "name": "e",
        "type": "fanout",
        "alternate": "amq.direct",
    }
    assert after[6][1] == {"kind": "queue", "name": "early"}
    assert (after[1][1]["routing_key"], after[1][1]["destination_type"], after[8][1]["user"]) == (
        "x/+",
        "session",
        "guest",
    )
    assert columns_of(world.broker, "topic") == [], "rows of this stream are not published"
    world.fates()


def test_a_will_is_no_connection_in_the_topology() -> None:
    world = World()
    journaled(world)
    world.mqtt("device", will=("gone", b"")).connection.on_closed()
    world.settle()
    events = [event for event, _ in topology(world) if event in ("connect", "disconnect")]
    assert events == ["connect", "disconnect"]


def test_only_the_broker_writes_to_the_topology() -> None:
    world = World()
    journaled(world)
    for method, code, words in (
        (
            spec.Queue.Bind(queue="$topology", exchange="amq.topic", routing_key="#"),
            403,
            "cannot bind queue '$topology'",
        ),
        (
            spec.Queue.Delete(queue="$topology"),
            406,
            "belongs to journal 'j': delete the journal first",
        ),
        (spec.Queue.Purge(queue="$topology"), 540, "purge"),
    ):
        reply_code, text = reason(world.amqp().send(method))
        assert reply_code == code and words in text, text
    for headers in ({}, {"CC": ["$topology"]}):
        reply_code, text = reason(
            world.amqp().publish("", "$topology" if not headers else "q", b"x", headers=headers)
        )
        assert reply_code == 403 and "cannot publish to queue '$topology' in vhost '/'" in text, (
            text
        )
    client = world.amqp()
    client.send(spec.Tx.Select())
    assert reason(client.publish("", "$topology", b"x"))[0] == 403
    assert not any(
        key in ("", "q", "$topology")
        for (key,) in columns_of(world.broker, "topic", name="$topology")
    )
    assert offsets(consume(world.amqp(), name="$topology"))[0] == 0, "all users may read the topic"
    world.fates()


def test_no_dead_letter_comes_to_the_topology() -> None:
    world = World()
    client = journaled(world)
    client.queue(
        "dying", x_max_length=0, x_dead_letter_exchange="", x_dead_letter_routing_key="$topology"
    )
    before = world.queue("$topology").depth
    client.publish("", "dying", b"x")
    assert world.queue("$topology").depth == before and world.queue("dying").depth == 0
    world.fates()


def test_publishers_are_throttled_for_the_disk_only_while_there_is_a_journal() -> None:
    world = World()
    store = world.broker.store
    assert not store.journaling
    client = journaled(world)
    other = world.broker.create_vhost("other")
    for name in ("j", "k"):
        other.declare_queue(name, True, {"x-queue-type": "stream", "x-journal": True})
    client.send(spec.Queue.Delete(queue="j"))
    assert store.journaling
    world.broker.close_vhost("other")
    world.sleep(SLICE_PAUSE_MS)
    assert "other" not in world.broker.vhosts
    assert not store.journaling
    journaled(world)
    assert store.journaling


def test_the_topology_is_deleted_when_no_journal_is_left() -> None:
    world = World()
    client = journaled(world)
    client.send(spec.Queue.Delete(queue="j"))
    [deleted] = client.send(spec.Queue.Delete(queue="$topology"))
    assert isinstance(deleted, spec.Queue.DeleteOk) and "$topology" not in world.vhost.queues
    client.publish("", "$topology", b"x")
    assert client.send(spec.Queue.Declare(queue="$topology", passive=True))[-1].reply_code == 404, (
        "a name like any other"
    )
    world.fates()


def test_each_start_writes_a_snapshot_of_the_topology(tmp_path: Path) -> None:
    home = Home(tmp_path / "d")
    client = journaled(home)
    client.queue("lasting", "amq.topic", "a", durable=True)
    client.queue("passing", "amq.topic", "b")
    home.mqtt("here", clean=True).subscribe("p/#", 0)
    home.mqtt("stays", clean=False).subscribe("s/#", 1)
    assert len(led(home)[1]) == 4
    home.crash()
    home = Home(tmp_path / "d")
    home.amqp()
    names, bindings = led(home)
    assert bindings == {
        ("amq.topic", "queue", "lasting", "a"),
        ("amq.topic", "session", "stays", "s/#"),
    }
    assert {name for kind, name in names if kind != "exchange"} == {"lasting", "j", "$topology"}


def test_each_segment_of_the_topology_has_all_there_is() -> None:
    """Each segment of the stream `$topology` begins with a snapshot of all bindings.

    The snapshot must be complete, even if clients bind and unbind queues while it is written.
    """
    world = World()
    client = journaled(world)
    stream(world.broker, "$topology").local.segment_writer.segment_size = 1 << 18
    client.queue("q", "amq.topic", "0")
    for number in range(1, 1200):
        client.send(spec.Queue.Bind(queue="q", exchange="amq.topic", routing_key=str(number)))
    while [event for event, _ in topology(world)].count("snapshot") < 2:
        world.amqp().send(spec.Connection.Close(200, "", 0, 0), channel=0)
    client.send(spec.Queue.Unbind(queue="q", exchange="amq.topic", routing_key="7"))
    client.send(spec.Queue.Bind(queue="q", exchange="amq.topic", routing_key="late"))
    while [event for event, _ in topology(world)].count("complete") < 2:
        client.read()
    rows = topology(world)
    again = [at for at, (event, _) in enumerate(rows) if event == "snapshot"][-1]
    assert rows[again][1] == {"restarted": False}
    state = {facts["routing_key"] for event, facts in rows[again:] if event == "bind"} - {
        facts["routing_key"] for event, facts in rows[again:] if event == "unbind"
    }
    assert state == {*map(str, range(1200)), "late"} - {"7"}
    assert {binding[3] for binding in led(world)[1]} == state
