"""Messages between AMQP and MQTT: bodies, delivery modes, QoS, properties, and topics that cannot
cross.
"""

from __future__ import annotations

from typing import Any

import pamqp.body
import pamqp.commands as spec
import pamqp.header
import pytest

from broker.access.identity import Identity
from broker.vhost.vhost import VirtualHost
from protocols.mqtt.options import MqttOptions
from tests.clients import Amqp, World, marshal, mqtt_publish, publication, unmarshal
from tests.wire.mqtt.client import (
    DUP,
    RESUMED,
    RETAIN,
    Client,
    Will,
    connect,
    here,
    puback,
    pubcomp,
    publications,
    pubrec,
    pubrel,
    suback,
    subscribe,
)

#: All properties of AMQP.
EVERYTHING: dict[str, Any] = {
    "content_type": "application/json",
    "content_encoding": "gzip",
    "headers": {"a": 1, "b": "text", "c": {"d": [True, None]}},
    "priority": 3,
    "correlation_id": "7",
    "reply_to": "somewhere",
    "expiration": "100000",
    "message_id": "m",
    "message_type": "t",
    "user_id": "guest",
    "app_id": "tests",
}


def consumer(
    world: World,
    key: str,
    queue: str = "q",
    durable: bool = False,
    frame_max: int = 131_072,
    no_ack: bool = False,
) -> Amqp:
    client = world.amqp(frame_max=frame_max)
    client.queue(queue, "amq.topic", key, durable=durable)
    client.send(spec.Basic.Consume(queue=queue, consumer_tag="t", no_ack=no_ack))
    return client


def listener(
    world: World, topic_filter: str, qos: int = 0, name: str = "reader", clean: bool = True
) -> Client:
    client = Client(world, connect(name, clean=clean))
    client.send(subscribe(1, (topic_filter, qos)))
    return client


def delivered(frames: list[Any]) -> list[tuple[str, str, bool, bytes, dict[str, Any]]]:
    """Return (exchange, routing key, redelivered, body, properties) of every message."""
    messages: list[tuple[str, str, bool, bytes, dict[str, Any]]] = []
    for frame in frames:
        if isinstance(frame, pamqp.body.ContentBody):
            exchange, key, again, body, properties = messages.pop()
            messages.append((exchange, key, again, body + frame.value, properties))
        elif isinstance(frame, pamqp.header.ContentHeader):
            exchange, key, again, body, _ = messages.pop()
            properties = {
                name: value for name, value in frame.properties if value not in (None, "")
            }  # pamqp adds an empty table of headers.
            messages.append((exchange, key, again, body, properties))
        else:
            messages.append((frame.exchange, frame.routing_key, frame.redelivered, b"", {}))
    return messages


# -- from MQTT to AMQP


@pytest.mark.parametrize(("qos", "mode"), [(0, 1), (1, 2), (2, 2)])
@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("flags", [0, RETAIN, DUP])
def test_qos_becomes_the_delivery_mode_and_a_header_only_if_needed(
    qos: int, mode: int, durable: bool, flags: int
) -> None:
    if qos == 0 and flags == DUP:
        flags = 0
    world = World()
    client = consumer(world, "sensor.#", durable=durable)
    here(world, "w").send(mqtt_publish("sensor/7.1/temp", b"21.5", qos, 9 if qos else 0, flags))
    headers = ({"x-mqtt-retain": True} if flags == RETAIN else {}) | (
        {"x-mqtt-qos": 2} if qos == 2 else {}
    )
    assert delivered(client.read()) == [
        (
            "amq.topic",
            "sensor.7/1.temp",
            False,
            b"21.5",
            ({"headers": headers} if headers else {}) | {"delivery_mode": mode},
        )
    ]
    assert len(world.store.state.messages) == (durable and qos > 0)
    client.send(spec.Basic.Ack(1))
    assert not world.store.state.messages
    assert world.copies() == {"acknowledged": 1}


@pytest.mark.parametrize(
    "size", [0, 1, 4_087, 4_088, 4_089, 8_176, 8_177, 131_064, 131_065, 300_000]
)
@pytest.mark.parametrize("qos", [0, 1])
def test_a_body_is_cut_into_frames_that_the_consumer_takes(size: int, qos: int) -> None:
    world = World()
    clients = [
        consumer(world, "a", queue=f"q{frame_max}", frame_max=frame_max)
        for frame_max in (4_096, 10_000, 131_072)
    ]
    body = bytes(number % 253 for number in range(size))
    here(world, "w").send(mqtt_publish("a", body, qos, 1 if qos else 0))
    for client in clients:
        data = b""
        while more := client.read_bytes():
            data += more
        sizes = [
            frame.value for frame in unmarshal(data) if isinstance(frame, pamqp.body.ContentBody)
        ]
        assert all(0 < len(part) <= client.frame_max - 8 for part in sizes)
        assert len(sizes) == -(-size // (client.frame_max - 8))
        assert [one[3] for one in delivered(unmarshal(data))] == [body]


def test_a_queue_hears_no_retained_messages() -> None:
    world = World()
    here(world, "w").send(mqtt_publish("a", b"kept", 1, 1, RETAIN))
    client = consumer(world, "#")
    assert client.read() == []
    assert world.queue("q").depth == 0


def test_a_publication_that_is_resent_is_a_second_message_or_not_as_its_qos_says() -> None:
    world = World()
    client = consumer(world, "a", no_ack=True)
    here(world, "w").send(
        mqtt_publish("a", b"1", 1, 1),
        mqtt_publish("a", b"1", 1, 1, DUP),
        mqtt_publish("a", b"2", 2, 2),
        mqtt_publish("a", b"2", 2, 2, DUP),
        pubrel(2),
    )
    assert [one[3] for one in delivered(client.read())] == [b"1", b"1", b"2"]


def test_messages_that_a_consumer_returns_come_again_and_are_dead_lettered() -> None:
    world = World()
    client = world.amqp()
    client.queue("dead", "amq.topic", "dead.#")
    client.queue(
        "q",
        "amq.topic",
        "a.#",
        x_dead_letter_exchange="amq.topic",
        x_dead_letter_routing_key="dead.a/b",
    )
    reader = listener(world, "dead/#", 2)
    client.send(spec.Basic.Consume(queue="q", consumer_tag="t"))
    here(world, "w").send(mqtt_publish("a/b", b"x", 2, 1))
    assert [one[2:4] for one in delivered(client.read())] == [(False, b"x")]
    assert [one[2:4] for one in delivered(client.send(spec.Basic.Nack(1, requeue=True)))] == [
        (True, b"x")
    ]
    assert client.send(spec.Basic.Nack(2, requeue=False)) == []
    assert reader.read() == mqtt_publish("dead/a.b", b"x", 2, 1)
    [(exchange, key, _, body, properties)] = delivered(client.send(spec.Basic.Get(queue="dead")))
    assert (exchange, key, body, properties["delivery_mode"]) == ("amq.topic", "dead.a/b", b"x", 2)
    assert properties["headers"]["x-death"][0]["routing-keys"] == ["a.b"]


def test_a_publisher_with_no_right_to_the_exchange_reaches_no_consumer_on_either_side() -> None:
    world = World()
    world.guests.identities["reader"] = Identity("reader", write="other")
    client, reader = consumer(world, "#"), listener(world, "#")
    writer = Client(world, connect("w", user="reader", password=b"guest", will=Will("a", b"will")))
    assert writer.send(mqtt_publish("a", b"x", 1, 1)) == puback(1)
    writer.vanish()
    assert (client.read(), reader.read()) == ([], b"")
    assert world.fates() == {"denied": 2}


# -- from AMQP to MQTT


@pytest.mark.parametrize("mode", [None, 1, 2])
@pytest.mark.parametrize("granted", [0, 1, 2])
@pytest.mark.parametrize("clean", [True, False])
def test_the_delivery_mode_becomes_qos_0_or_1(mode: int | None, granted: int, clean: bool) -> None:
    world = World()
    amqp, reader = world.amqp(), listener(world, "sensor/+/temp", granted, clean=clean)
    properties: dict[str, Any] = {} if mode is None else {"delivery_mode": mode}
    amqp.publish("amq.topic", "sensor.7/1.temp", b"21.5", **properties)
    qos = min(granted, 1 if mode == 2 else 0)
    assert reader.read() == mqtt_publish("sensor/7.1/temp", b"21.5", qos, qos)
    assert len(world.store.state.messages) == (qos == 1 and not clean)
    reader.send(puback(1))
    assert not world.store.state.messages
    assert world.fates() == {"routed": 1}


@pytest.mark.parametrize(
    "properties", [{name: value} for name, value in EVERYTHING.items()] + [EVERYTHING]
)
@pytest.mark.parametrize("mode", [1, 2])
def test_properties_are_dropped_and_kept_for_the_queue_beside(
    properties: dict[str, Any], mode: int
) -> None:
    world = World()
    client, reader = consumer(world, "a"), listener(world, "a", 1)
    world.amqp().publish("amq.topic", "a", b"x", delivery_mode=mode, **properties)
    assert reader.read() == mqtt_publish("a", b"x", mode - 1, mode - 1)
    [(_, _, _, body, kept)] = delivered(client.read())
    assert (body, kept) == (b"x", properties | {"delivery_mode": mode})


@pytest.mark.parametrize("size", [0, 1, 4_088, 4_089, 16_384, 131_064, 131_065, 400_000])
@pytest.mark.parametrize("frame_max", [4_096, 131_072])
@pytest.mark.parametrize("mode", [1, 2])
def test_a_body_in_several_frames_arrives_whole(size: int, frame_max: int, mode: int) -> None:
    world = World()
    zero, one = listener(world, "a", 0, "zero"), listener(world, "a", 1, "one")
    queue = consumer(world, "a", frame_max=frame_max)
    body = bytes(number % 251 for number in range(size))
    for chunk in (1 << 30, 5_000):
        publisher = world.amqp(frame_max=frame_max)
        data = publication("amq.topic", "a", body, frame_max=frame_max, delivery_mode=mode)
        for at in range(0, len(data), chunk):
            publisher.connection.receive_data(data[at : at + chunk])
        publisher.connection.on_closed()
        assert [got.body for got in publications(zero.all())] == [body]
        assert [(got.body, got.qos) for got in publications(one.all())] == [(body, mode - 1)]
        data = b""
        while more := queue.read_bytes():
            data += more
        assert [got[3] for got in delivered(unmarshal(data))] == [body]


def test_empty_body_frames_add_nothing() -> None:
    world = World()
    reader, publisher = listener(world, "a"), world.amqp()
    data = publication("amq.topic", "a", b"xy")
    head = data[: data.rindex(b"\x03\x00\x01")]
    empty, parts = (
        b"\x03\x00\x01\x00\x00\x00\x00\xce",
        [b"\x03\x00\x01\x00\x00\x00\x01" + part + b"\xce" for part in (b"x", b"y")],
    )
    publisher.connection.receive_data(head + empty + parts[0] + empty + parts[1])
    assert reader.read() == mqtt_publish("a", b"xy")


def test_an_amqp_publication_is_not_retained_unless_it_says_so() -> None:
    world = World()
    world.amqp().publish("amq.topic", "a", b"x", delivery_mode=2, headers={"x-mqtt-retained": True})
    assert len(world.vhost.retained) == 0
    assert here(world, "late").send(subscribe(1, ("#", 1))) == suback(1, 1)


def test_a_session_is_a_destination_for_mandatory_and_a_confirm_waits_for_its_session() -> None:
    world = World()
    amqp, reader = world.amqp(), listener(world, "a", 1, clean=False)
    amqp.send(spec.Confirm.Select())
    [ack] = amqp.publish("amq.topic", "a", b"x", mandatory=True)
    assert ack.name == "Basic.Ack"
    world.slow_disk = True
    assert amqp.publish("amq.topic", "a", b"y", mandatory=True, delivery_mode=2) == []
    world.durable()
    assert [frame.name for frame in amqp.read()] == ["Basic.Ack"]
    returned = amqp.publish("amq.topic", "b", b"z", mandatory=True)
    assert [frame.name for frame in returned] == [
        "Basic.Return",
        "ContentHeader",
        "ContentBody",
        "Basic.Ack",
    ]
    assert [one.body for one in publications(reader.read())] == [b"x", b"y"]


@pytest.mark.parametrize("expiration", ["0", "50"])
def test_expired_message_does_not_wait_for_a_disconnected_session(expiration: str) -> None:
    world = World()
    amqp, reader = world.amqp(), listener(world, "a", 1, clean=False)
    reader.vanish()
    amqp.publish("amq.topic", "a", b"short", delivery_mode=2, expiration=expiration)
    amqp.publish("amq.topic", "a", b"long", delivery_mode=2, expiration="5000")
    world.sleep(50)
    assert Client(world, connect("reader", clean=False)).greeting == RESUMED + mqtt_publish(
        "a", b"long", 1, 2
    )
    world.sleep(10_000)
    assert world.copies() == {"expired": 1}
    assert Client(world, connect("reader", clean=False)).greeting == RESUMED + mqtt_publish(
        "a", b"long", 1, 2, DUP
    )


def test_only_persistent_messages_wait_for_disconnected_sessions() -> None:
    world = World()
    amqp, reader = world.amqp(), listener(world, "a", 2, clean=False)
    reader.vanish()
    for number in range(6):
        amqp.publish("amq.topic", "a", b"%d" % number, delivery_mode=1 + number % 2)
    assert [
        one.body for one in publications(Client(world, connect("reader", clean=False)).greeting)
    ] == [b"1", b"3", b"5"]
    assert world.copies() == {"offline": 3}


def test_exchange_bindings_and_alternates_lead_to_listeners_too() -> None:
    world = World()
    amqp, reader = world.amqp(), listener(world, "a/+", 1)
    amqp.send(
        spec.Exchange.Declare(
            exchange="in", exchange_type="direct", arguments={"alternate-exchange": "fan"}
        ),
        spec.Exchange.Declare(exchange="fan", exchange_type="fanout"),
        spec.Exchange.Bind(destination="amq.topic", source="in", routing_key="a.b"),
        spec.Exchange.Bind(destination="amq.topic", source="fan", routing_key=""),
    )
    amqp.publish("in", "a.b", b"1", delivery_mode=2)
    amqp.publish("in", "a.c", b"2", delivery_mode=2)
    amqp.publish("in", "b.c", b"3", delivery_mode=2)
    assert reader.read() == mqtt_publish("a/b", b"1", 1, 1) + mqtt_publish("a/c", b"2", 1, 2)
    assert world.fates() == {"routed": 2, "unroutable": 1}


def test_other_exchanges_of_the_other_protocol_are_not_heard() -> None:
    world = World()
    amqp, reader = world.amqp(), listener(world, "#", 1)
    amqp.send(spec.Exchange.Declare(exchange="another", exchange_type="topic"))
    amqp.queue("q")
    for exchange, key in (
        ("", "q"),
        ("amq.direct", "a"),
        ("amq.fanout", "a"),
        ("another", "a"),
        ("amq.headers", "a"),
    ):
        amqp.publish(exchange, key, b"x", delivery_mode=2)
    assert reader.read() == b""
    assert world.fates() == {"routed": 1, "unroutable": 4}


def test_a_slow_listener_holds_up_neither_queues_nor_publishers() -> None:
    world = World()
    amqp, reader, client = world.amqp(), listener(world, "a", 1), consumer(world, "a")
    reader.connection.pause_writing()
    for mode in (1, 2):
        amqp.publish("amq.topic", "a", b"x", delivery_mode=mode)
    assert len(delivered(client.read())) == 2
    assert reader.read() == b""
    reader.connection.resume_writing()
    assert reader.read() == mqtt_publish("a", b"x", 1, 1)
    assert world.copies() == {"dropped": 1}


def test_another_virtual_host_gets_no_message() -> None:
    world = World()
    world.broker.vhosts["dev"] = VirtualHost(
        "dev", world.broker.agenda, world.store, world.broker.limits
    )
    reader = Client(world, connect("r", user="dev:guest", password=b"guest"))
    reader.send(subscribe(1, ("#", 1)))
    world.amqp().publish("amq.topic", "a", b"x")
    assert reader.read() == b""
    reader.send(mqtt_publish("a", b"y", 1, 1))
    assert world.fates() == {"unroutable": 1}


# -- messages that the other protocol cannot represent


@pytest.mark.parametrize(
    "key",
    [
        b"",
        b"+",
        b"#",
        b"a.+.b",
        b"a.#",
        b"a+",
        b"+a",
        b"a#b",
        b"a\0b",
        b"\0",
        b"\xff",
        b"a.\xc3\x28",
        b"\xed\xa0\x80",
        b"$SYS",
        b"$SYS.broker.uptime",
        b"$share.group.a",
    ],
)
@pytest.mark.parametrize("mode", [1, 2])
def test_a_key_that_mqtt_cannot_say_reaches_queues_only_and_is_counted(
    key: bytes, mode: int
) -> None:
    options = MqttOptions()
    options.sys_interval_s = 0
    world = World(mqtt=options)
    amqp = world.amqp()
    amqp.queue("q", "amq.topic", "#")
    readers = [
        listener(world, topic_filter, 1, name, clean)
        for topic_filter, name, clean in (
            ("#", "1", True),
            ("+/#", "2", False),
            ("$SYS/#", "3", True),
            ("$share", "4", True),
            ("$SYS", "5", True),
            ("elsewhere", "6", True),
        )
    ]
    method = b"\x00\x3c\x00\x28\x00\x00\x09amq.topic" + bytes([len(key)]) + key + b"\x00"
    content = publication("", "", b"x", delivery_mode=mode)
    content = content[content.index(b"\xce\x02") + 1 :]
    for _ in range(3):
        amqp.connection.receive_data(
            b"\x01\x00\x01" + len(method).to_bytes(4, "big") + method + b"\xce" + content
        )
    assert amqp.read() == []
    assert [reader.read() for reader in readers] == [b""] * 6
    assert world.queue("q").depth == 3
    matched = {b"$SYS": 2, b"$SYS.broker.uptime": 1, b"$share.group.a": 0}.get(key, 2)
    assert world.copies() == ({"not_representable": 3 * matched} if matched else {})
    assert world.fates() == {"routed": 3}


@pytest.mark.parametrize(
    ("topic", "sayable"),
    [
        ("t" * 255, True),
        ("t" * 256, False),
        ("ä" * 127, True),
        ("ä" * 128, False),
        ("/" * 190 + "t" * 66, False),
        ("t" * 65_535, False),
        ("t/" * 127 + "t", True),
    ],
)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_topic_above_255_bytes_reaches_sessions_only_and_is_counted(
    topic: str, sayable: bool, qos: int
) -> None:
    world = World()
    client, reader = consumer(world, "#", no_ack=True), listener(world, "#", 2)
    away = listener(world, "+/#", 1, "away", clean=False)
    away.vanish()
    writer = here(world, "w")
    for number in range(3):
        writer.send(mqtt_publish(topic, b"x", qos, 1 + number if qos else 0))
    assert len(publications(reader.read())) == 3
    got = delivered(client.read())
    assert [one[1] for one in got] == [topic.replace("/", ".")] * 3 * sayable
    copies = world.copies()
    assert copies.get("not_representable", 0) == (0 if sayable else 3)
    assert copies.get("offline", 0) == (0 if qos else 3)
    assert world.fates() == {"routed": 3}


def test_a_will_and_a_retained_message_above_255_bytes_are_no_exception() -> None:
    world = World()
    amqp = world.amqp()
    amqp.queue("q", "amq.topic", "#")
    topic = "t" * 300
    Client(world, connect("c", will=Will(topic, b"x", 1, True))).vanish()
    assert world.queue("q").depth == 0
    assert here(world, "late").send(subscribe(1, (topic, 0))) == suback(1, 0) + mqtt_publish(
        topic, b"x", flags=RETAIN
    )
    assert world.copies() == {"not_representable": 1, "auto_acknowledged": 1}


def test_sessions_that_cannot_get_a_message_do_not_count_for_mandatory() -> None:
    world = World()
    amqp = world.amqp()
    listener(world, "#")
    amqp.send(spec.Confirm.Select())
    frames = amqp.publish("amq.topic", "a+b", b"x", mandatory=True)
    assert [frame.name for frame in frames] == [
        "Basic.Return",
        "ContentHeader",
        "ContentBody",
        "Basic.Ack",
    ]
    assert world.fates() == {"unroutable": 1}
    assert world.copies() == {"not_representable": 1}


# -- messages to clients of both protocols at once


def test_exactly_once_on_one_side_is_at_least_once_on_the_other() -> None:
    world = World()
    client, reader = consumer(world, "a", durable=True), listener(world, "a", 2, clean=False)
    writer = here(world, "w")
    assert writer.send(mqtt_publish("a", b"x", 2, 7)) == pubrec(7)
    assert writer.send(mqtt_publish("a", b"x", 2, 7, DUP), pubrel(7)) == pubrec(7) + pubcomp(7)
    assert len(world.store.state.messages) == 1
    assert reader.read() == mqtt_publish("a", b"x", 2, 1)
    assert len(delivered(client.read())) == 1
    reader.send(pubrec(1), pubcomp(1))
    assert len(world.store.state.messages) == 1
    client.send(spec.Basic.Ack(1))
    assert not world.store.state.messages


def test_one_message_for_many_readers_of_both_kinds() -> None:
    options = MqttOptions()
    world = World(mqtt=options)
    queues = [
        consumer(world, "a.#", f"q{number}", frame_max=4_096 * (1 + number)) for number in range(3)
    ]
    readers = [
        listener(world, "a/#", number % 3, f"r{number}", clean=number % 2 == 0)
        for number in range(6)
    ]
    body = bytes(10_000)
    writer, amqp = here(world, "w"), world.amqp()
    writer.send(mqtt_publish("a/1", body, 2, 1))
    amqp.publish("amq.topic", "a.2", body, delivery_mode=2, content_type="x")
    for queue in queues:
        data = b""
        while more := queue.read_bytes():
            data += more
        assert [(one[1], one[3] == body) for one in delivered(unmarshal(data))] == [
            ("a.1", True),
            ("a.2", True),
        ]
    for number, reader in enumerate(readers):
        assert [(one.topic, one.body == body, one.qos) for one in publications(reader.all())] == [
            ("a/1", True, number % 3),
            ("a/2", True, min(number % 3, 1)),
        ]


def test_a_service_answers_over_the_other_protocol() -> None:
    world = World()
    service, dashboard = consumer(world, "ask.*"), listener(world, "answer/+", 1)
    dashboard.send(mqtt_publish("ask/7", b"2+2", 1, 3))
    [(_, key, _, body, _)] = delivered(service.read())
    assert (key, body) == ("ask.7", b"2+2")
    service.connection.receive_data(
        marshal(1, spec.Basic.Ack(1)) + publication("amq.topic", "answer.7", b"4", delivery_mode=2)
    )
    service.read()
    assert dashboard.read() == mqtt_publish("answer/7", b"4", 1, 1)
