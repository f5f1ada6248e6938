"""The steps of messages in a broker become the right spans: names, kinds, parents, attributes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import commands

from broker.access.rules import UserPermissions
from tests.clients import mqtt_publish, packet, publication
from tests.telemetry.sampling import PARENT, RECORDED, TRACE, Sampling
from tests.wire.mqtt5.client import Client5, publish
from trellis.telemetry import contract
from trellis.telemetry.assembly import (
    CONSUMER,
    INTERNAL,
    MESSAGES_MAX,
    PLACES_MAX,
    PRODUCER,
    SERVER,
    FinishedSpan,
    SpanAssembler,
)
from trellis.telemetry.attributes import client_attributes, destination_of
from trellis.telemetry.contract import Step, StepOrigin
from trellis.telemetry.service import steps_of

HEADERS = {"traceparent": RECORDED, "tracestate": "vendor=1"}


def tree(spans: list[FinishedSpan]) -> dict[str, str]:
    """Return the name of each span's parent, by the span's name."""
    names = {span.span_id: span.name for span in spans}
    return {span.name: names.get(span.parent_id, span.parent_id) for span in spans}


@pytest.fixture
def sampling() -> Sampling:
    return Sampling()


def test_a_message_from_mqtt_5_to_amqp_has_four_spans(sampling: Sampling) -> None:
    consumer = sampling.world.amqp()
    consumer.queue("temps", "amq.topic", "sensors.#")
    writer = Client5(sampling.world)
    context = list(HEADERS.items())
    writer.send(publish("sensors/k/temp", b"21.5", 1, user_properties=context))
    [delivery] = [
        frame
        for frame in consumer.send(commands.Basic.Consume(queue="temps", consumer_tag="c"))
        if isinstance(frame, commands.Basic.Deliver)
    ]
    consumer.send(commands.Basic.Ack(delivery.delivery_tag or 0))
    spans = sampling.spans()
    assert [(span.name, span.kind) for span in spans] == [
        ("publish amq.topic", CONSUMER),
        ("route amq.topic", INTERNAL),
        ("deliver temps", PRODUCER),
        ("settle temps", SERVER),
    ]
    assert tree(spans) == {
        "publish amq.topic": PARENT,
        "route amq.topic": "publish amq.topic",
        "deliver temps": "publish amq.topic",
        "settle temps": "deliver temps",
    }
    assert {span.trace_id for span in spans} == {TRACE}
    assert {span.state for span in spans} == {"vendor=1"}
    first, route, deliver, settle = (span.attributes for span in spans)
    assert first["messaging.system"] == "trellis"
    assert first["messaging.operation.type"] == "receive"
    assert first["messaging.operation.name"] == "publish"
    assert first["messaging.destination.name"] == "sensors/k/temp"
    assert first["messaging.message.body.size"] == 4
    assert first["network.protocol.name"] == "mqtt"
    assert first["network.protocol.version"] == "5.0"
    assert (route["trellis.destinations"], route["trellis.outcome"]) == (("temps",), "routed")
    assert deliver["messaging.operation.type"] == "send"
    assert deliver["messaging.destination.name"] == "sensors/k/temp:temps"
    assert settle["trellis.outcome"] == "acknowledged"
    # The span of the delivery is linked to the publisher's span. It lasts as long as the message
    # waits in the queue.
    assert [span.link for span in spans] == ["", "", PARENT, ""]
    assert spans[2].start < spans[2].end <= spans[3].start < spans[3].end
    assert [span.remote for span in spans] == [True, False, False, False]


def test_a_message_without_a_context_begins_a_trace() -> None:
    sampling = Sampling(ratio=1.0)
    reader = sampling.world.mqtt("reader")
    reader.subscribe("a", 0)
    sampling.world.mqtt("writer").send(mqtt_publish("a", b"m"))
    spans = sampling.spans()
    assert tree(spans) == {
        "publish amq.topic": "",
        "route amq.topic": "publish amq.topic",
        "deliver reader": "publish amq.topic",
    }
    assert spans[0].attributes["network.protocol.version"] == "3.1.1"
    assert spans[0].attributes["messaging.client.id"] == "writer"
    assert all(span.link == "" and len(span.trace_id) == 32 for span in spans)


def test_each_session_of_a_fan_out_has_its_delivery_and_settlement(sampling: Sampling) -> None:
    readers = [sampling.world.mqtt(f"reader{number}") for number in range(3)]
    for reader in readers:
        reader.subscribe("a", 1)
    amqp = sampling.world.amqp()
    amqp.publish("amq.topic", "a", b"m", headers=HEADERS, delivery_mode=2)
    for reader in readers:
        reader.send(packet(0x40, b"\0\1"))
    parents = tree(sampling.spans())
    for number in range(3):
        assert parents[f"deliver mqtt-subscription-reader{number}qos1"] == "publish amq.topic"
        assert (
            parents[f"settle mqtt-subscription-reader{number}qos1"]
            == f"deliver mqtt-subscription-reader{number}qos1"
        )
    assert len(parents) == 8


def test_a_requeued_message_is_delivered_in_a_further_span(sampling: Sampling) -> None:
    amqp = sampling.world.amqp()
    amqp.queue("q")
    amqp.publish("", "q", b"m", headers=HEADERS, message_id="7", correlation_id="c")
    for settlement in (commands.Basic.Nack, commands.Basic.Ack):
        [got, *_] = amqp.send(commands.Basic.Get(queue="q"))
        amqp.send(settlement(got.delivery_tag))
    spans = sampling.spans()
    assert [span.name for span in spans[2:]] == ["deliver q", "settle q"] * 2
    assert [span.attributes.get("trellis.outcome") for span in spans[2:]] == [
        None,
        "requeued",
        None,
        "acknowledged",
    ]
    assert [span.parent_id for span in (spans[3], spans[5])] == [spans[2].span_id, spans[4].span_id]
    # The second span `deliver q` begins when the message is requeued.
    assert spans[4].start == spans[3].end
    for span in spans:
        assert span.attributes["messaging.message.id"] == "7"
        assert span.attributes["messaging.message.conversation_id"] == "c"


def test_a_dead_letter_stays_in_the_trace(sampling: Sampling) -> None:
    amqp = sampling.world.amqp()
    amqp.queue("dead")
    dead: dict[str, Any] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    amqp.queue("brief", **{"x-message-ttl": 50, **dead})
    amqp.publish("", "brief", b"m", headers=HEADERS)
    sampling.world.sleep(60)
    amqp.send(commands.Basic.Get(queue="dead", no_ack=True))
    spans = sampling.spans()
    assert [span.name for span in spans] == [
        "publish amq.default",
        "route amq.default",
        "settle brief",
        "route amq.default",
        "deliver dead",
    ]
    assert spans[2].attributes["trellis.outcome"] == "dead_lettered"
    assert spans[2].attributes["trellis.detail"] == "expired"
    assert spans[3].parent_id == spans[2].span_id
    assert spans[3].attributes["trellis.destinations"] == ("dead",)


@pytest.mark.parametrize(
    ("exchange", "outcome"), [("missing", "refused"), ("amq.direct", "unroutable")]
)
def test_a_message_without_a_queue_says_why(
    sampling: Sampling, exchange: str, outcome: str
) -> None:
    sampling.world.amqp().publish(exchange, "a", b"m", headers=HEADERS)
    first, route = sampling.spans()
    assert route.attributes["trellis.outcome"] == outcome
    assert first.error == route.error == ("refused" if outcome == "refused" else "")
    if outcome == "refused":
        assert route.attributes["error.type"] == "refused"
        assert "no exchange 'missing'" in str(route.attributes["trellis.detail"])


def test_a_refused_key_that_is_not_utf_8_drops_no_steps(sampling: Sampling) -> None:
    """Check that a step whose detail names a routing key that is not UTF-8 can be encoded.

    The steps of all messages are encoded together, so an error would drop all of them.
    """
    world = sampling.world
    permissions = UserPermissions("ann", "/", (".*", ".*", ".*"), ["allow publish a/#"])
    world.guests.identities["ann"] = permissions.identity("")
    client = world.amqp(user="ann")
    client.publish("amq.topic", "a.1", b"good", headers=HEADERS)
    frames = publication("amq.topic", "XY", b"bad", headers=HEADERS)
    client.connection.receive_data(frames.replace(b"\x02XY", b"\x02\xff\xfe"))
    assert b"write access to topic" in client.read_bytes()
    steps = steps_of(sampling.steps)
    line = contract.line(contract.Steps(steps))
    assert contract.to_worker.decode(line) == contract.Steps(steps)
    [refused] = [step for step in steps if step.step == "refused"]
    assert r"write access to topic '\xff\xfe' in exchange 'amq.topic'" in refused.detail


def test_a_full_queue_that_refuses_is_an_error(sampling: Sampling) -> None:
    amqp = sampling.world.amqp()
    amqp.queue("full", x_max_length=0, x_overflow="reject-publish")
    amqp.publish("", "full", b"m", headers=HEADERS)
    first, route = sampling.spans()
    assert (first.error, route.error) == ("refused", "refused")
    assert "full" in str(route.attributes["trellis.detail"])


# --- any steps

STEPS = st.sampled_from(
    ["published", "routed", "delivered", "acknowledged", "requeued", "published_again", "paged"]
)


def step(name: str, place: str, message: int, time: int, origin: StepOrigin | None = None) -> Step:
    return Step(TRACE, f"{message:016x}", time, name, place, "", (), origin)


@settings(max_examples=200)
@given(st.lists(st.tuples(STEPS, st.sampled_from("ab"), st.integers(1, 3)), max_size=30))
def test_any_steps_make_valid_spans(steps: list[tuple[str, str, int]]) -> None:
    """Check that random steps, which may lack the first steps of their message, make valid spans.

    The assembler gets such steps after a start of its worker, or if steps were dropped.
    """
    assembler = SpanAssembler()
    listed = [step(*one, time) for time, one in enumerate(steps)]
    spans = list(assembler.add(listed[:10])) + list(assembler.add(listed[10:]))
    assert all(span.start <= span.end for span in spans)
    assert all(int(span.span_id, 16) and len(span.span_id) == 16 for span in spans)
    ids = {span.span_id for span in spans} | {f"{number:016x}" for number in range(1, 4)}
    assert all(span.parent_id in ids for span in spans)
    assert sum(span.name.startswith("deliver") for span in spans) == sum(
        one.step == "delivered" for one in listed
    )


def test_the_messages_that_are_remembered_are_bounded() -> None:
    assembler = SpanAssembler()
    origin = StepOrigin(PARENT, "", "/", "", "q", "guest", "amqp091", (), 1, "", "")
    for number in range(MESSAGES_MAX + 1):
        list(assembler.add([step("published", "", number, 5, origin)]))
    [late] = assembler.add([step("delivered", "q", 0, 9)])
    [kept] = assembler.add([step("delivered", "q", MESSAGES_MAX, 9)])
    assert assembler.remembered == MESSAGES_MAX
    # The assembler had forgotten message 0. Its delivery takes the place of message 1.
    assert assembler.unknown == 1
    assert (late.parent_id, late.link) == (f"{0:016x}", "")
    assert (kept.parent_id, kept.link) == (f"{MESSAGES_MAX:016x}", PARENT)


def test_the_sessions_that_got_the_remembered_messages_are_bounded() -> None:
    """Check that the assembler limits the deliveries that it remembers of QoS 0 messages.

    A message of QoS 0 is never settled, so its deliveries stay until the message is forgotten.
    """
    assembler = SpanAssembler()
    origin = StepOrigin(PARENT, "", "/", "", "q", "guest", "mqtt50", (), 1, "", "")
    sessions = 1_000
    for number in range(PLACES_MAX // sessions + 5):
        steps = [step("published", "", number, 5, origin)]
        steps += [step("delivered", f"session{each}", number, 9) for each in range(sessions)]
        assert len(list(assembler.add(steps))) == sessions + 2
    assert assembler.remembered == PLACES_MAX // sessions and assembler.unknown == 0
    settled = [step("requeued", f"session{each}", number, 9) for each in range(sessions)]
    assert len(list(assembler.add(settled))) == sessions
    list(assembler.add([step("published", "", number + 1, 5, origin)]))
    assert assembler.remembered == PLACES_MAX // sessions + 1


@pytest.mark.parametrize(
    ("exchange", "key", "protocol", "queue", "name"),
    [
        ("orders", "new", "amqp091", "", "orders:new"),
        ("orders", "new", "amqp091", "q", "orders:new:q"),
        ("", "q", "amqp091", "q", "q"),
        ("", "q", "amqp091", "", "q"),
        ("amq.fanout", "", "amqp091", "", "amq.fanout"),
        ("", "", "amqp091", "", "amq.default"),
        ("amq.topic", "a.b/c", "mqtt50", "", "a/b.c"),
    ],
)
def test_destinations_are_named_as_the_conventions_say(
    exchange: str, key: str, protocol: str, queue: str, name: str
) -> None:
    origin = StepOrigin("", "", "/", exchange, key, "u", protocol, (), 0, "", "")
    assert destination_of(origin, queue) == name


def test_clients_have_their_identifier_and_address() -> None:
    assert client_attributes(()) == {}
    assert client_attributes(("/run/socket",)) == {}
    assert client_attributes(("[::1]:5",)) == {
        "network.peer.address": "::1",
        "network.peer.port": 5,
    }
    assert client_attributes(("lamp", "10.0.0.1:7")) == {
        "messaging.client.id": "lamp",
        "network.peer.address": "10.0.0.1",
        "network.peer.port": 7,
    }
