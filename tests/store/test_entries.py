"""The records that requests produce: some changes share a record, and some need no record."""

from __future__ import annotations

from pathlib import Path

import pamqp.commands as spec

from tests.clients import marshal, mqtt_publish
from tests.store.homes import Home
from tests.wire.mqtt.client import Client, connect, here, pubcomp, pubrec, pubrel, subscribe

B, T = spec.Basic, spec.Tx


def stored_kinds(world: Home) -> list[str]:
    """Make all work durable; return the kind of each record, except delivery marks.

    For a record of several entries, the kinds of these entries follow.
    """
    world.durable()
    kinds = []
    for line in world.records():
        _, kind, rest = line.split(" ", 2)
        inner = rest.partition(": ")[2].split("; ") if kind == "many" else []
        if kind != "marked":
            kinds.append(" ".join([kind, *(part.split()[0] for part in inner)]))
    return kinds


def test_a_commit_is_one_record(tmp_path: Path) -> None:
    world = Home(tmp_path)
    client, other = world.amqp(), world.amqp()
    client.queue("q")
    client.queue("d", durable=True)
    for body in (b"1", b"2"):
        other.publish("", "d", body, delivery_mode=2)
    assert stored_kinds(world) == ["kept", "kept"]
    client.send(T.Select(), B.Get(queue="d"), B.Get(queue="d"))
    client.publish("", "d", b"new", delivery_mode=2)
    client.publish("", "q", b"transient", delivery_mode=1)
    client.publish("", "d", b"transient", delivery_mode=1)
    client.send(B.Ack(1), B.Reject(2, requeue=False))
    assert stored_kinds(world) == ["kept", "kept"]
    client.send(T.Commit())
    assert stored_kinds(world)[2:] == ["many kept settled settled"]
    world.crash()


def test_dead_letter_and_its_original_are_one_record(tmp_path: Path) -> None:
    world = Home(tmp_path)
    client = world.amqp()
    client.queue("grave", "amq.fanout", durable=True)
    client.queue("d", durable=True, x_dead_letter_exchange="amq.fanout", x_max_length=1)
    client.publish("", "d", b"1", delivery_mode=2)
    client.publish("", "d", b"2", delivery_mode=2)
    assert stored_kinds(world) == ["kept", "kept", "many kept settled"]
    world.crash()
    world = Home(tmp_path)
    assert world.complaints == [] and (world.queue("d").depth, world.queue("grave").depth) == (1, 1)
    client = world.amqp()
    frames = client.send(B.Get(queue="grave", no_ack=True))
    assert (
        client.bodies(frames) == [b"1"]
        and frames[1].properties.headers["x-death"][0]["reason"] == "maxlen"
    )
    world.crash()


def test_deaths_before_a_crash_count_and_deaths_of_a_publisher_do_not(tmp_path: Path) -> None:
    world = Home(tmp_path)
    client = world.amqp()
    client.queue("q", durable=True, x_dead_letter_exchange="", x_dead_letter_routing_key="q")
    forged = {"x-death": [{"queue": "q", "reason": "rejected", "count": 7}]}
    client.publish("", "q", b"x", delivery_mode=2, headers=forged)
    for count in (1, 2, 3):
        world.crash()
        world = Home(tmp_path)
        client = world.amqp()
        client.send(B.Get(queue="q"), B.Reject(1, requeue=False))
        frames = client.send(B.Get(queue="q"))
        [death] = frames[1].properties.headers["x-death"]
        assert (death["queue"], death["reason"], death["count"]) == ("q", "rejected", count)
        world.durable()
    world.crash()


def test_a_dead_letter_is_settled_in_a_queue_that_is_deleted_meanwhile_too(tmp_path: Path) -> None:
    world = Home(tmp_path)
    client = world.amqp()
    client.queue("dead", durable=True)
    client.queue("q", durable=True, x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
    client.publish("", "q", b"x", delivery_mode=2)
    client.send(B.Get(queue="q"))
    client.connection.receive_data(
        marshal(1, B.Reject(1, requeue=False)) + marshal(1, spec.Queue.Delete(queue="q"))
    )
    client.read()
    assert stored_kinds(world) == ["kept", "many kept settled"]
    world.crash()


def test_an_unroutable_dead_letter_is_a_settlement(tmp_path: Path) -> None:
    world = Home(tmp_path)
    client = world.amqp()
    client.queue("d", durable=True, x_dead_letter_exchange="gone", x_max_length=1)
    client.publish("", "d", b"1", delivery_mode=2)
    client.publish("", "d", b"2", delivery_mode=2)
    assert stored_kinds(world) == ["kept", "kept", "settled"]
    world.crash()


def test_a_qos_2_message_and_its_identifier_are_one_record(tmp_path: Path) -> None:
    world = Home(tmp_path)
    keeper = Client(world, connect("keeper", clean=False))
    keeper.send(subscribe(1, ("#", 2)))
    lasting, fleeting = Client(world, connect("w", clean=False)), here(world, "f")
    lasting.send(mqtt_publish("a", b"x", 2, 7))
    assert stored_kinds(world) == ["many kept received"]
    keeper.read()
    keeper.send(pubrec(1))
    keeper.send(pubcomp(1))
    assert stored_kinds(world)[1:] == ["stepped", "settled"]
    lasting.send(pubrel(7))
    assert stored_kinds(world)[3:] == ["released"]
    assert fleeting.send(mqtt_publish("a", b"x", 2, 7), pubrel(7)) == pubrec(7) + pubcomp(7)
    assert stored_kinds(world)[4:] == ["kept"]
    world.crash()


def test_transient_traffic_and_transient_queues_write_nothing(tmp_path: Path) -> None:
    world = Home(tmp_path)
    client = world.amqp()
    client.queue("q", "amq.topic", "#")
    client.queue("d", "amq.topic", "#", durable=True)
    ear = here(world, "e")
    ear.send(subscribe(1, ("#", 2)))
    client.publish("amq.topic", "a", b"1", delivery_mode=1)
    client.publish("", "q", b"2", delivery_mode=2)
    here(world, "w").send(mqtt_publish("a", b"3"))
    client.send(B.Get(queue="d", no_ack=True), B.Get(queue="q", no_ack=True))
    assert stored_kinds(world) == []
    client.publish("amq.topic", "a", b"4", delivery_mode=2)
    assert stored_kinds(world) == ["kept"]
    world.crash()


def test_a_queue_that_is_deleted_takes_its_messages_with_it_without_a_word(tmp_path: Path) -> None:
    world = Home(tmp_path)
    client = world.amqp()
    for name in ("one", "two"):
        client.queue(name, "amq.fanout", durable=True)
    client.publish("amq.fanout", "", b"x", delivery_mode=2)
    client.send(spec.Queue.Delete(queue="one"))
    assert stored_kinds(world) == ["kept"]
    world.crash()
    world = Home(tmp_path)
    assert list(world.vhost.queues) == ["two"] and world.queue("two").depth == 1
    world.crash()
