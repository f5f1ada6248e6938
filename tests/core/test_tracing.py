"""Traces: they report what happens to each message, and change nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import commands

from broker.errors import LimitExceeded
from broker.messages.message import ALWAYS
from broker.routing.tracing import EVENTS_MAX, IDLE_MS, TRACES_MAX, Trace, TraceFilter
from tests.clients import Amqp, Mqtt, World, mqtt_publish, packet
from tests.telemetry.sampling import Sampling

#: Copy fates that a trace reports as a step of its own.
REPORTED = ("acknowledged", "expired", "over_limit", "purged", "dead_lettered", "rejected")


class Traffic:
    """A broker with queues of several kinds, an AMQP client and two MQTT clients."""

    def __init__(self, traced: bool) -> None:
        self.world = Sampling(ratio=1.0, rate=10_000).world if traced else World()
        self.trace = self.world.vhost.traces.begin(TraceFilter(), EVENTS_MAX) if traced else None
        self.amqp = self.world.amqp()
        dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
        self.amqp.queue("dead", "amq.topic", "dead")
        self.amqp.queue("plain", "amq.topic", "a.#")
        self.amqp.queue("short", "amq.topic", "#", **{"x-max-length": 2, **dead})
        self.amqp.queue("brief", "amq.topic", "*.b", **{"x-message-ttl": 50, **dead})
        full = {"x-max-length": 1, "x-overflow": "reject-publish"}
        self.amqp.queue("full", "amq.topic", "a.c", **full)
        self.amqp.queue("ranked", "amq.topic", "a.*", **{"x-max-priority": 3})
        self.reader = self.world.mqtt("reader")
        self.reader.subscribe("a/b", 1)
        self.reader.subscribe("a/c", 0)
        self.reader.subscribe("$share/group/a/+", 1)
        self.writer = self.world.mqtt("writer")
        self.delivered = 0
        self.out: list[bytes] = []

    def do(self, action: str, queue: str, key: str, qos: int) -> None:
        """Carry out one action of a client, and keep the bytes that all clients receive."""
        getattr(self, f"_{action}")(queue, key, qos)
        self.world.turn()
        self.world.durable()
        self.out += [self.amqp.read_bytes(), self.reader.read(), self.writer.read()]

    def _publish(self, _: str, key: str, qos: int) -> None:
        self.amqp.publish("amq.topic", key, b"m", priority=qos, delivery_mode=2 if qos else 1)

    def _publish_over_mqtt(self, _: str, key: str, qos: int) -> None:
        topic = key.replace(".", "/")
        self.writer.send(mqtt_publish(topic, b"m", min(qos, 1), 7 if qos else 0))

    def _get(self, queue: str, _: str, qos: int) -> None:
        frames = self.amqp.send(commands.Basic.Get(queue=queue, no_ack=qos == 0))
        if qos and isinstance(frames[0], commands.Basic.GetOk):
            self.delivered = frames[0].delivery_tag or 0

    def _ack(self, *_: object) -> None:
        self._settle(lambda tag: commands.Basic.Ack(tag, True))

    def _requeue(self, *_: object) -> None:
        self._settle(lambda tag: commands.Basic.Nack(tag, True, True))

    def _reject(self, *_: object) -> None:
        self._settle(lambda tag: commands.Basic.Nack(tag, True, False))

    def _settle(self, method: Callable[[int], Any]) -> None:
        tag, self.delivered = self.delivered, 0
        if tag:
            self.amqp.send(method(tag))

    def _purge(self, queue: str, *_: object) -> None:
        self.amqp.send(commands.Queue.Purge(queue=queue))

    def _sleep(self, *_: object) -> None:
        self.world.sleep(60)

    def _acknowledge_over_mqtt(self, _: str, __: str, qos: int) -> None:
        self.reader.send(packet(0x40, bytes([0, qos + 1])))


ACTIONS = st.tuples(
    st.sampled_from(
        [
            *("publish",) * 3,
            *("publish_over_mqtt",) * 2,
            *("get", "ack", "requeue", "reject", "purge", "sleep", "acknowledge_over_mqtt"),
        ]
    ),
    st.sampled_from(["plain", "short", "brief", "full", "ranked", "dead"]),
    st.sampled_from(["a.b", "a.c", "x", "dead"]),
    st.integers(0, 2),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(ACTIONS, max_size=30))
def test_a_trace_and_a_sampler_change_no_byte_and_no_count(
    actions: list[tuple[str, str, str, int]],
) -> None:
    plain, traced = Traffic(False), Traffic(True)
    for action in actions:
        plain.do(*action)
        traced.do(*action)
        assert traced.out == plain.out
    assert traced.world.fates() == plain.world.fates()
    assert traced.world.copies() == plain.world.copies()
    assert traced.trace is not None
    # A full queue that refuses a message counts the message as over its limit.
    steps = Counter(
        "over_limit" if event.step == "refused" and event.place == "full" else event.step
        for event in traced.trace.read(0, EVENTS_MAX)
    )
    copies = traced.world.copies()
    assert {step: steps[step] for step in REPORTED} == {
        step: copies.get(step, 0) for step in REPORTED
    }


def steps_of(trace: Trace) -> list[tuple[int, str, str]]:
    """Return (message number, step, place) of each event; a place is, for example, a queue."""
    return [(event.message, event.step, event.place) for event in trace.read(0, EVENTS_MAX)]


def details_of(trace: Trace) -> dict[str, str]:
    """Return the detail of the last event of each step."""
    return {event.step: event.detail for event in trace.read(0, EVENTS_MAX)}


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def amqp(world: World) -> Amqp:
    client = world.amqp()
    client.queue("q")
    return client


@pytest.fixture
def reader(world: World) -> Mqtt:
    return world.mqtt("reader")


def begin(world: World, chosen: TraceFilter, rate: int = 100) -> Trace:
    return world.vhost.traces.begin(chosen, rate)


def test_a_dead_letter_keeps_the_number_of_its_message(world: World, amqp: Amqp) -> None:
    dead: dict[str, Any] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"}
    amqp.queue("brief", **{"x-message-ttl": 50, **dead})
    trace = begin(world, TraceFilter(queue="brief"))
    amqp.publish("", "q", b"not traced")
    amqp.publish("", "brief", b"traced")
    world.sleep(60)
    assert [
        body for _ in range(2) for body in amqp.bodies(amqp.send(commands.Basic.Get(queue="q")))
    ]
    assert steps_of(trace) == [
        (1, "published", "amq.default"),
        (1, "routed", "brief"),
        (1, "dead_lettered", "brief"),
        (1, "published_again", "brief"),
        (1, "routed", "q"),
        (1, "delivered", "q"),
    ]
    assert details_of(trace)["dead_lettered"] == "expired"


@pytest.mark.parametrize(
    "chosen",
    [
        TraceFilter(topic="plant/+/temp"),
        TraceFilter(key="plant.*.temp"),
        TraceFilter(exchange="amq.topic", key="plant.1.#"),
        TraceFilter(user="guest", topic="plant/1/#"),
        TraceFilter(client="writer", key="#.temp"),
        TraceFilter(client="writer"),
    ],
)
def test_a_filter_chooses_messages(world: World, chosen: TraceFilter) -> None:
    writer, other = world.mqtt("writer"), world.mqtt("other")
    # The routes are known before the trace begins.
    for topic in ("plant/1/temp", "other/1/x"):
        writer.send(mqtt_publish(topic, b"before"))
    trace = begin(world, chosen)
    other.send(mqtt_publish("other/1/x", b"m"))
    if not chosen.client:
        writer.send(mqtt_publish("other/1/x", b"m"))
    writer.send(mqtt_publish("plant/1/temp", b"m"))
    assert steps_of(trace) == [(1, "published", "amq.topic"), (1, "unroutable", "")]
    assert "from client writer 127.0.0.1:0, QoS 0, 1 B" in details_of(trace)["published"]


def test_a_message_id_chooses_one_message(world: World, amqp: Amqp) -> None:
    trace = begin(world, TraceFilter(message_id="order-2"))
    for number in range(4):
        amqp.publish("", "q", b"m", message_id=f"order-{number}")
    assert [step for _, step, _ in steps_of(trace)] == ["published", "routed"]
    assert details_of(trace)["published"].endswith("message_id 'order-2'")
    assert details_of(trace)["routed"].startswith("waiting messages: 2,")


def test_only_routes_of_the_filter_take_the_slow_path(world: World) -> None:
    def is_slow() -> dict[bytes, bool]:
        """Publish to a/b and c/d; return a dict: topic -> True if its route takes the slow path."""
        for topic in (b"a/b", b"c/d"):
            writer.send(mqtt_publish(topic.decode(), b"m"))
        routes = next(context for context in world.vhost.contexts if b"a/b" in context.routes)
        return {
            name: bool(route.plan.slow_path_mask & ALWAYS) for name, route in routes.routes.items()
        }

    writer = world.mqtt("writer")
    assert is_slow() == {b"a/b": False, b"c/d": False}
    trace = begin(world, TraceFilter(topic="a/#"))
    assert is_slow() == {b"a/b": True, b"c/d": False}
    world.vhost.traces.end(trace)
    assert is_slow() == {b"a/b": False, b"c/d": False}


def test_a_full_queue_and_a_missing_right_are_reasons(world: World, amqp: Amqp) -> None:
    amqp.queue("full", x_max_length=0, x_overflow="reject-publish")
    trace = begin(world, TraceFilter())
    amqp.publish("", "full", b"m")
    assert (1, "refused", "full") in steps_of(trace)
    assert "full" in details_of(trace)["refused"]
    amqp.publish("missing", "k", b"m")
    assert steps_of(trace)[-1] == (2, "refused", "missing")
    assert details_of(trace)["refused"] == "no exchange 'missing' in vhost '/'"


def test_a_client_that_is_away_and_a_purge_are_reasons(world: World, amqp: Amqp) -> None:
    reader = world.mqtt("reader", clean=False)
    reader.subscribe("a", 0)
    reader.connection.on_closed()
    world.turn()
    trace = begin(world, TraceFilter())
    amqp.publish("amq.topic", "a", b"m")
    assert (1, "offline", "reader") in steps_of(trace)
    amqp.publish("", "q", b"m")
    amqp.send(commands.Queue.Purge(queue="q"))
    assert steps_of(trace)[-1] == (2, "purged", "q")


def test_a_transaction_and_a_message_with_copies_are_followed(world: World, amqp: Amqp) -> None:
    trace = begin(world, TraceFilter(key="q"))
    amqp.send(commands.Tx.Select())
    amqp.publish("", "q", b"m")
    assert steps_of(trace) == []
    amqp.send(commands.Tx.Commit())
    assert steps_of(trace) == [(1, "published", "amq.default"), (1, "routed", "q")]
    plain = world.amqp()
    plain.queue("copy")
    plain.publish("", "copy", b"m", headers={"CC": ["q"]})
    assert [
        place for number, step, place in steps_of(trace) if (number, step) == (2, "routed")
    ] == [
        "copy",
        "q",
    ]


def test_the_rate_limits_the_messages_of_a_second(world: World, amqp: Amqp) -> None:
    trace = begin(world, TraceFilter(), rate=3)
    for _ in range(10):
        amqp.publish("", "q", b"m")
    assert (trace.followed, trace.skipped) == (3, 7)
    world.sleep(1_000)
    amqp.publish("", "q", b"m")
    assert (trace.followed, trace.skipped) == (4, 7)


def test_events_that_are_not_read_are_bounded(world: World, amqp: Amqp) -> None:
    trace = begin(world, TraceFilter(), rate=EVENTS_MAX)
    for _ in range(EVENTS_MAX // 2 + 5):
        amqp.publish("", "q", b"m")
    events = trace.read(0, EVENTS_MAX * 2)
    assert (len(events), trace.lost, world.vhost.traces.lost) == (EVENTS_MAX, 10, 10)
    # The reader continues after the last event that it has read.
    assert [event.number for event in trace.read(events[9].number, 2)] == [21, 22]


def test_a_trace_that_is_not_read_ends(world: World, amqp: Amqp) -> None:
    trace = begin(world, TraceFilter())
    world.sleep(IDLE_MS - 1_000)
    trace.read(0, 1)
    world.sleep(IDLE_MS - 1_000)
    assert not trace.ended
    world.sleep(1_000)
    assert (trace.ended, world.vhost.traces.running) == (True, [])
    # The end of the trace does not affect a message that the trace followed.
    amqp.publish("", "q", b"m")
    assert steps_of(trace) == []


def test_the_number_of_traces_is_bounded(world: World) -> None:
    traces = [begin(world, TraceFilter()) for _ in range(TRACES_MAX)]
    with pytest.raises(LimitExceeded, match="8 traces run in this vhost"):
        begin(world, TraceFilter())
    world.vhost.traces.end(traces[3])
    assert begin(world, TraceFilter()).number == TRACES_MAX + 1


def test_a_message_outlives_its_trace(world: World, amqp: Amqp) -> None:
    trace = begin(world, TraceFilter())
    amqp.publish("", "q", b"m")
    world.vhost.traces.end(trace)
    assert amqp.bodies(amqp.send(commands.Basic.Get(queue="q", no_ack=True))) == [b"m"]
    assert steps_of(trace) == []


def test_a_fan_out_names_some_destinations(world: World, amqp: Amqp) -> None:
    for number in range(30):
        amqp.queue(f"f{number}", "amq.fanout")
    trace = begin(world, TraceFilter(exchange="amq.fanout"))
    amqp.publish("amq.fanout", "", b"m")
    steps = steps_of(trace)
    assert len(steps) == 22
    assert details_of(trace)["routed"] == "further destinations: 10"
