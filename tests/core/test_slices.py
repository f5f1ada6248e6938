"""What is large leaves in slices: it is gone at once for everybody, and its memory and bindings follow."""

from __future__ import annotations

import pamqp.commands as spec

from broker.queue import SLICE as MESSAGES
from broker.vhost import SLICE as BINDINGS
from tests.clients import World, marshal, mqtt_publish, publication


def test_a_deleted_queue_is_gone_at_once_and_its_bindings_follow() -> None:
    world = World()
    client = world.amqp()
    client.queue("q")
    many = 3 * BINDINGS
    client.send(*[spec.Queue.Bind(queue="q", exchange="amq.topic", routing_key=f"a.{number}.#", nowait=True) for number in range(many)])
    exchange = world.vhost.exchange("amq.topic")
    assert len(list(exchange)) == many
    client.connection.receive_data(marshal(1, spec.Queue.Delete(queue="q")))
    assert len(list(exchange)) == many - BINDINGS
    client.publish("amq.topic", "a.7.b", b"x", mandatory=True)
    world.settle(client.connection)
    assert list(exchange) == []
    assert world.fates() == {"unroutable": 1}


def test_a_queue_declared_again_keeps_the_bindings_made_since() -> None:
    world = World()
    client = world.amqp()
    client.queue("q")
    binds = [spec.Queue.Bind(queue="q", exchange="amq.topic", routing_key=f"a.{number}", nowait=True) for number in range(2 * BINDINGS)]
    client.send(*binds)
    client.connection.receive_data(marshal(1, spec.Queue.Delete(queue="q")) + marshal(1, spec.Queue.Declare(queue="q"))
                                   + marshal(1, spec.Queue.Bind(queue="q", exchange="amq.topic", routing_key="a.1999")))
    world.settle(client.connection)
    client.publish("amq.topic", "a.1999", b"new")
    client.publish("amq.topic", "a.7", b"old binding")
    assert world.queue("q").depth == 1
    assert [binding.key for binding in world.vhost.exchange("amq.topic")] == ["a.1999"]


def test_a_purged_queue_is_empty_at_once_and_its_persistent_messages_leave_the_store_in_slices() -> None:
    world = World()
    client = world.amqp()
    client.queue("q", durable=True)
    many = MESSAGES + 500
    client.connection.receive_data(publication("", "q", b"x", delivery_mode=2) * many)
    world.settle(client.connection)
    assert len(world.store.state.messages) == many
    client.connection.receive_data(marshal(1, spec.Queue.Purge(queue="q")))
    assert world.queue("q").depth == 0
    assert len(world.store.state.messages) == 500
    world.settle(client.connection)
    assert not world.store.state.messages
    assert world.copies() == {"purged": many}


def test_many_expired_messages_go_in_slices() -> None:
    world = World()
    client = world.amqp()
    client.queue("q", x_message_ttl=100)
    many = MESSAGES + 500
    client.connection.receive_data(publication("", "q", b"x") * many)
    world.settle(client.connection)
    agenda = world.broker.agenda
    agenda.advance(int(agenda.now) + 100, agenda.wall)
    agenda.turn()
    assert world.queue("q").depth == 500
    agenda.turn()
    assert world.queue("q").depth == 0
    assert world.copies() == {"expired": many}


def test_retained_messages_are_sent_in_slices_while_others_are_served() -> None:
    world = World()
    writer, reader = world.mqtt("w"), world.mqtt("r")
    writer.connection.receive_data(b"".join(mqtt_publish(f"t/{number}", b"x", flags=1) for number in range(1_200)))
    world.settle(writer.connection)
    reader.connection.receive_data(b"\x82\x08\x00\x01" + b"\x00\x03t/#" + b"\x00")
    first = reader.connection.data_to_send()
    assert first.count(b"t/") == 500
    world.settle()
    assert reader.connection.data_to_send().count(b"t/") == 700
    assert world.copies()["auto_acknowledged"] == 1_200
