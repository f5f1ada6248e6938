"""The load generator finds lost, repeated, reordered and changed messages.

Its errors name the expected message.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trellis.bench import amqp, mqtt
from trellis.bench.amqp_readers import AmqpPublisher, BenchAmqpConsumer
from trellis.bench.check import Competing, CompetingCounts, Ordered, Receipts, TrafficPlan, body
from trellis.bench.encoding import BenchEncoding, BenchNames
from trellis.bench.errors import BenchError, WrongAnswer
from trellis.bench.mqtt_readers import MqttPublisher, MqttSubscriber
from trellis.bench.reader import BenchReader
from trellis.bench.workloads import WORKLOADS

RING = 64
SIZE = 24
NAMES = BenchNames(replace(WORKLOADS["mqtt-qos0"], size=SIZE), "0")


def script(publishers: int = 1, sent: int = 3 * RING) -> TrafficPlan:
    plan = TrafficPlan(publishers, RING, SIZE, False)
    for published in plan.published:
        published.send(sent, 0)
    return plan


class Mqtt:
    """A subscriber of the load generator over MQTT with QoS 0 or 1, which checks each message.

    `packet` encodes a PUBLISH packet, which the test then passes to `reader`.
    """

    def __init__(
        self, qos: int = 0, known: bool = True, publishers: int = 1, sent: int = 3 * RING
    ) -> None:
        workload = replace(WORKLOADS["mqtt-qos0"], size=SIZE, qos=qos)
        encoding = BenchEncoding(workload, NAMES, RING, 131_072)
        self.script = script(publishers, sent)
        self.qos = qos
        stream, lap = encoding.stream(0, 1) if known else (b"", 0)
        checker = Ordered("subscriber 0", self.script)
        self.reader = MqttSubscriber(
            checker, encoding.topics(), qos, stream, lap, encoding.packet_size("mqtt", qos)
        )

    def packet(self, message: int, publisher: int = 0) -> bytes:
        return mqtt.publish(
            NAMES.topic(message),
            body(publisher, message % RING, self.script.filler),
            self.qos,
            message + 1,
        )


class Amqp:
    """A consumer of the load generator over AMQP, which checks each message of its queue.

    `packet` encodes a basic.deliver, which the test then passes to `reader`.
    """

    def __init__(self, sent: int = 3 * RING) -> None:
        workload = replace(WORKLOADS["amqp-auto"], size=SIZE)
        self.script = script(1, sent)
        self.names = BenchNames(workload, "0")
        encoding = BenchEncoding(workload, self.names, RING, 131_072)
        self.reader = BenchAmqpConsumer(
            Ordered("subscriber 0", self.script), encoding.routes(), True
        )
        self._tag = 0

    def packet(self, message: int, publisher: int = 0) -> bytes:
        self._tag += 1
        return delivery(
            self._tag,
            self.names.exchange,
            self.names.key(message),
            body(publisher, message % RING, self.script.filler),
        )


def delivery(tag: int, exchange: str, key: str, content: bytes, redelivered: bool = False) -> bytes:
    deliver = (
        b"\0\x3c\0\x3c"
        + amqp.short_string("bench")
        + tag.to_bytes(8, "big")
        + bytes([redelivered])
        + amqp.short_string(exchange)
        + amqp.short_string(key)
    )
    header = b"\0\x3c\0\0" + len(content).to_bytes(8, "big") + b"\0\0"
    return amqp.frame(1, 1, deliver) + amqp.frame(2, 1, header) + amqp.frame(3, 1, content)


def kinds() -> list[Callable[[], Mqtt | Amqp]]:
    return [
        Mqtt,
        lambda: Mqtt(known=False),
        lambda: Mqtt(qos=1, known=False),
        lambda: Mqtt(qos=2, known=False),
        Amqp,
    ]


any_kind = pytest.mark.parametrize(
    "kind", kinds(), ids=["mqtt-stream", "mqtt-packets", "mqtt-qos1", "mqtt-qos2", "amqp"]
)


@any_kind
@given(choice=st.data())
@settings(max_examples=25, deadline=None)
def test_correct_messages_are_accepted_in_chunks_of_any_size(
    kind: Callable[[], Mqtt | Amqp], choice: st.DataObject
) -> None:
    flow = kind()
    data = b"".join(flow.packet(message) for message in range(2 * RING + 3))
    cuts = sorted(choice.draw(st.lists(st.integers(0, len(data)), max_size=12), "cuts"))
    for start, stop in pairwise([0, *cuts, len(data)]):
        flow.reader.receive(data[start:stop], 0)
    assert flow.reader.count() == 2 * RING + 3
    assert flow.reader.rest == b""


@any_kind
def test_correct_messages_are_accepted_byte_by_byte(kind: Callable[[], Mqtt | Amqp]) -> None:
    flow = kind()
    for byte in b"".join(flow.packet(message) for message in range(3)):
        flow.reader.receive(bytes([byte]), 0)
    assert flow.reader.count() == 3


@any_kind
@given(choice=st.data())
@settings(max_examples=60, deadline=None)
def test_lost_repeated_and_reordered_messages_are_found(
    kind: Callable[[], Mqtt | Amqp], choice: st.DataObject
) -> None:
    flow = kind()
    messages = list(range(RING + 8))
    at = choice.draw(st.integers(0, RING + 5), "at")
    harm = choice.draw(st.sampled_from(["lose", "repeat", "swap"]), "harm")
    if harm == "lose":
        del messages[at]
    elif harm == "repeat":
        messages.insert(at + 1, messages[at])
    else:
        messages[at], messages[at + 1] = messages[at + 1], messages[at]
    with pytest.raises(WrongAnswer, match="subscriber 0") as caught:
        flow.reader.receive(b"".join(flow.packet(message) for message in messages), 0)
    assert f"expected message {at + (harm == 'repeat')} of publisher 0" in str(caught.value)


@any_kind
@given(choice=st.data())
@settings(max_examples=60, deadline=None)
def test_one_changed_byte_is_found(kind: Callable[[], Mqtt | Amqp], choice: st.DataObject) -> None:
    flow = kind()
    data = bytearray(b"".join(flow.packet(message) for message in range(4)))
    bodies = [at for at in range(len(data)) if data[at : at + SIZE - 8] == flow.script.filler]
    place = choice.draw(st.sampled_from(bodies), "body") + choice.draw(
        st.integers(-8, SIZE - 9), "byte"
    )
    data[place] ^= choice.draw(st.integers(1, 255), "flipped")
    with pytest.raises(WrongAnswer, match=r"subscriber 0: .*: expected .*, got "):
        flow.reader.receive(bytes(data), 0)


@any_kind
def test_message_that_was_never_sent_is_an_error(kind: Callable[[], Mqtt | Amqp]) -> None:
    flow = kind()
    flow.script.published[0].count = 2
    with pytest.raises(WrongAnswer, match="expected no more than 2, got another"):
        flow.reader.receive(b"".join(flow.packet(message) for message in range(3)), 0)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (
            mqtt.publish(NAMES.topic(1), body(0, 0, Mqtt().script.filler)),
            "topic of message 0 of publisher 0 is wrong: expected b'b0/room/0000/temp'",
        ),
        (b"\x31" + Mqtt().packet(0)[1:], "QoS, DUP or RETAIN is wrong .*: expected 0x30, got 0x31"),
        (
            mqtt.publish(NAMES.topic(0), body(0, 0, Mqtt().script.filler), 1, 7),
            "expected 0x30, got 0x32",
        ),
        (
            mqtt.publish(NAMES.topic(0), body(0, 0, b"short")),
            "size of a body is wrong: expected 24 bytes, got 13 bytes",
        ),
        (
            mqtt.publish(NAMES.topic(0), b"x"),
            "size of a body is wrong: expected 24 bytes, got 1 bytes",
        ),
        (
            mqtt.publish(NAMES.topic(0), body(7, 0, Mqtt().script.filler)),
            "a body has an invalid publisher number: expected a number below 1, got 7",
        ),
        (
            mqtt.publish(NAMES.topic(0), body(0, 900, Mqtt().script.filler)),
            "a body of publisher 0 has an invalid message number: expected number 0, got 900",
        ),
        (b"\x62\x02\x00\x01", "an unexpected packet of type 6"),
        (b"\x30\x01\x00", "without a topic"),
        (b"\x30\xff\xff\xff\xff\x01", "remaining length of more than four bytes"),
    ],
)
def test_other_wrong_mqtt_packets(data: bytes, problem: str) -> None:
    with pytest.raises(BenchError, match=problem):
        Mqtt().reader.receive(data, 0)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (delivery(2, "bench-0", NAMES.key(0), b""), "delivery tag is wrong: expected 1, got 2"),
        (
            delivery(1, "bench-0", NAMES.key(0), b"12"),
            "size of the body of message 0 of publisher 0 is wrong: expected 24 bytes, got 2 bytes",
        ),
        (
            delivery(1, "other", NAMES.key(0), body(0, 0, Amqp().script.filler)),
            "message 0 of publisher 0 has a wrong redelivered flag, exchange or routing key",
        ),
        (
            delivery(1, "bench-0", NAMES.key(1), body(0, 0, Amqp().script.filler)),
            "message 0 of publisher 0 has a wrong redelivered flag, exchange or routing key",
        ),
        (
            delivery(1, "bench-0", NAMES.key(0), body(0, 0, Amqp().script.filler), True),
            "redelivered",
        ),
        (amqp.frame(3, 1, b"12"), "an unexpected frame of type 3"),
        (
            amqp.frame(1, 1, b"\0\x14\0\x28\x01\x9c\x04gone\0\0\0\0"),
            "the broker closed the channel: 412 gone",
        ),
        (
            amqp.frame(1, 1, b"\0\x3c\0\x32\x01\x38\x08NO_ROUTE\0\0"),
            "the broker returned a message: 312 NO_ROUTE",
        ),
        (amqp.frame(1, 1, b"\0\x3c\0\x1f"), "sent method 60.31 unexpectedly"),
        (amqp.frame(8, 0, b"")[:-1] + b"\0", "without a frame end"),
        (b"\x01\0\1\xff\xff\xff\xff\0", "4294967295 bytes"),
    ],
)
def test_other_wrong_amqp_frames(data: bytes, problem: str) -> None:
    with pytest.raises(BenchError, match=problem):
        Amqp().reader.receive(data, 0)


def test_publishers_are_distinguished() -> None:
    flow = Mqtt(known=False, publishers=3)
    flow.reader.receive(
        b"".join(flow.packet(number, publisher) for number in range(5) for publisher in (2, 0, 1)),
        0,
    )
    assert flow.reader.count() == 15
    with pytest.raises(WrongAnswer, match="expected message 5 of publisher 1, got message 6"):
        flow.reader.receive(flow.packet(6, 1), 0)


def test_first_difference_is_located_in_an_incomplete_packet() -> None:
    flow = Mqtt()
    right, wrong = flow.packet(0), bytearray(flow.packet(0))
    flow.reader.receive(right[:-1], 0)
    assert "bytes" in flow.reader.pending()
    wrong[-1] ^= 1
    with pytest.raises(
        WrongAnswer,
        match="byte 23 of the body of message 0 of publisher 0 is wrong: expected 0x30, got 0x31",
    ):
        flow.reader.receive(bytes(wrong[-1:]), 0)


def test_subscriber_ignores_messages_on_topics_of_others() -> None:
    plan = script()
    checker = Ordered("subscriber 3", plan, 3, 16)
    for number in (3, 19, 35, 51, 3):
        checker.accept(0, number, 0)
    with pytest.raises(WrongAnswer, match="expected message 83 of publisher 0, got message 99"):
        checker.accept(0, 35, 0)


def test_competing_consumers_receive_each_message_once_and_in_order() -> None:
    plan = script(sent=RING + 4)
    pile = CompetingCounts(plan)
    one, other = (Competing(f"subscriber {index}", plan, pile) for index in range(2))
    for number in range(RING + 2):
        (one if number % 3 else other).accept(0, number % RING, 0)
    assert one.received + other.received == RING + 2
    with pytest.raises(WrongAnswer, match=r"message of publisher 0 came twice .*, got message 5"):
        other.accept(0, 5, 0)
    one.accept(0, 3, 0)
    with pytest.raises(
        WrongAnswer,
        match="order of messages is wrong: expected a message after message 67 of publisher 0, got "
        "message 66",
    ):
        one.accept(0, 2, 0)
    with pytest.raises(WrongAnswer, match="invalid publisher number"):
        one.accept(1, 2, 0)
    with pytest.raises(WrongAnswer, match="invalid message number"):
        one.accept(0, RING, 0)


@pytest.mark.parametrize(
    ("qos", "data", "problem"),
    [
        (1, b"\x40\x02\x00\x01\x40\x02\x00\x01", "PUBACK came for a message that was not sent"),
        (
            1,
            b"\x40\x02\x00\x63",
            "identifier of an acknowledgement is wrong: expected a number from 1 to 64, got 99",
        ),
        (
            1,
            b"\x40\x02\x00\x09",
            "PUBACK came for a message that was not sent: expected one of 0 to 3, got 8",
        ),
        (1, b"\x50\x02\x00\x01", "no acknowledgement of QoS 1"),
        (2, b"\x50\x02\x00\x01\x50\x02\x00\x01", "PUBREC came for a message that was not sent"),
        (2, b"\x70\x02\x00\x01", "answer to message 0 is wrong: expected PUBREC, got PUBCOMP"),
        (0, b"\xd0\x00", "no acknowledgement of QoS 0"),
    ],
)
def test_wrong_acknowledgements_are_errors(qos: int, data: bytes, problem: str) -> None:
    with pytest.raises(BenchError, match=problem):
        MqttPublisher("publisher 0", script(sent=4), 0, qos).receive(data, 0)


def test_qos_2_takes_two_answers_per_message() -> None:
    reader = MqttPublisher("publisher 0", script(sent=4), 0, 2)
    reader.receive(b"\x50\x02\x00\x01\x50\x02\x00\x02\x70\x02", 0)
    assert reader.out.getvalue() == b"\x62\x02\x00\x01\x62\x02\x00\x02"
    reader.receive(b"\x00\x02\x70\x02\x00\x01", 0)
    assert reader.count() == 2 and reader.steps() == 4


def test_qos_2_subscriber_waits_for_pubrels() -> None:
    flow = Mqtt(qos=2, known=False)
    flow.reader.receive(flow.packet(0) + flow.packet(1), 0)
    assert flow.reader.pending() == "2 PUBRELs"
    flow.reader.receive(b"\x62\x02\x00\x01\x62\x02\x00\x02", 0)
    assert flow.reader.pending() == ""
    assert (
        flow.reader.out.getvalue()
        == b"\x50\x02\x00\x01\x50\x02\x00\x02\x70\x02\x00\x01\x70\x02\x00\x02"
    )
    with pytest.raises(WrongAnswer, match=r"more PUBRELs than messages: .* than 2 PUBRELs, got 3"):
        flow.reader.receive(b"\x62\x02\x00\x03", 0)


def confirm(tag: int, multiple: bool = False, nack: bool = False) -> bytes:
    return amqp.frame(
        1,
        1,
        b"\0\x3c\0" + (b"\x78" if nack else b"\x50") + tag.to_bytes(8, "big") + bytes([multiple]),
    )


def test_confirms_may_come_in_any_order_but_only_once() -> None:
    reader: BenchReader = AmqpPublisher("publisher 0", script(sent=10), 0)
    reader.receive(confirm(2) + confirm(5) + confirm(3, multiple=True) + confirm(4), 0)
    assert reader.count() == 5
    with pytest.raises(
        WrongAnswer,
        match="confirm came for a message that is already acknowledged: expected one of 5 to 9, "
        "got 4",
    ):
        reader.receive(confirm(5), 0)
    with pytest.raises(WrongAnswer, match="confirm came for a message that was not sent"):
        reader.receive(confirm(11, multiple=True), 0)
    with pytest.raises(
        WrongAnswer, match=r"refused message 5: expected basic\.ack, got basic\.nack"
    ):
        reader.receive(confirm(6, nack=True), 0)


@given(st.permutations(range(12)))
def test_receipts_in_any_order_are_counted(order: list[int]) -> None:
    plan = script(sent=12)
    receipts = Receipts("publisher 0", "confirm", plan.published[0])
    for count, message in enumerate(order):
        assert receipts.count == count and not receipts.has(message)
        receipts.settle(message)
        assert receipts.has(message)
        with pytest.raises(WrongAnswer):
            receipts.settle(message)
    assert receipts.first == 12
