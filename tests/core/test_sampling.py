"""The sampler chooses messages by their trace context, and its steps are bounded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands

from broker.messages.message import ALWAYS
from broker.messages.sampled import BUCKETS, STEPS_MAX, TEXT_MAX, DeliveryTimes, SampledStep
from broker.messages.trace_context import TRACESTATE_MAX, parse_trace_context
from broker.routing.sampling import WINDOW_MS
from broker.routing.tracing import TraceFilter
from tests.clients import Amqp, mqtt_publish
from tests.telemetry.sampling import IGNORED, PARENT, RECORDED, TRACE, Sampling
from tests.wire.mqtt5.client import Client5, publish

HEX = st.text("0123456789abcdef", min_size=1)


def consumer(sampling: Sampling) -> Amqp:
    client = sampling.world.amqp()
    client.queue("q", "amq.topic", "#")
    return client


# --- the trace context


@given(
    st.integers(1, (1 << 128) - 1),
    st.integers(1, (1 << 64) - 1),
    st.integers(0, 255),
    st.sampled_from(["00", "01", "cc", "fe"]),
)
def test_a_valid_context_is_read(trace: int, span: int, flags: int, version: str) -> None:
    text = f"{version}-{trace:032x}-{span:016x}-{flags:02x}"
    further = "" if version == "00" else "-more"
    context = parse_trace_context(text + further, "a=b")
    assert context is not None
    assert (context.trace_id, context.span_id) == (f"{trace:032x}", f"{span:016x}")
    assert (context.flags, context.sampled, context.state) == (flags, bool(flags & 1), "a=b")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00",
        f"ff-{TRACE}-{PARENT}-01",
        f"00-{TRACE}-{PARENT}-01-more",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{PARENT}-01",
        f"00-{TRACE}-{PARENT}-0",
        f"00-{TRACE[:-1]}-{PARENT}-01",
        f" 00-{TRACE}-{PARENT}-01",
        f"00-{TRACE}-{PARENT}-01\n",
        f"cc-{TRACE}-{PARENT}-01more",
    ],
)
def test_an_invalid_context_is_no_context(text: str) -> None:
    assert parse_trace_context(text, "") is None


@given(st.text() | HEX)
def test_no_text_breaks_the_parser(text: str) -> None:
    parse_trace_context(text, text)
    context = parse_trace_context(RECORDED, text)
    assert context is not None
    assert context.state == (text if text.isascii() and text.isprintable() else "")


def test_a_state_that_is_too_long_is_left_out() -> None:
    context = parse_trace_context(RECORDED, "a" * (TRACESTATE_MAX + 1))
    assert context is not None and context.state == ""


# --- which messages are sampled


def test_the_flag_in_traceparent_decides_over_amqp() -> None:
    sampling = Sampling()
    client = consumer(sampling)
    for headers in (None, {"traceparent": IGNORED}, {"traceparent": "x"}, {"other": RECORDED}):
        client.publish("amq.topic", "a", b"m", headers=headers)
    assert sampling.names() == []
    client.publish("amq.topic", "a", b"m", headers={"traceparent": RECORDED})
    assert sampling.names() == ["publish amq.topic", "route amq.topic"]
    assert sampling.sampler.sampled == 1


@pytest.mark.parametrize("mode", [1, 2])
def test_only_messages_with_traceparent_leave_the_fast_path(mode: int) -> None:
    sampling = Sampling()
    client = consumer(sampling)
    client.queue("kept", "amq.topic", "#", durable=True)
    seen = []
    for headers in (None, {"other": "x"}, {"traceparent": RECORDED}):
        client.publish("amq.topic", "a", b"m", headers=headers, delivery_mode=mode)
        context = next(c for c in sampling.world.vhost.contexts if c.routes)
        [route] = [route for route in context.routes.values() if route.exchange == "amq.topic"]
        # The fast path counts a message in its route, the slow path in the context.
        seen.append((bool(route.plan.slow_path_mask & ALWAYS), int(route.count)))
    # The first message makes the route; the second one takes the fast path.
    assert seen == [(False, 0), (False, 1), (False, 1)]
    assert sampling.sampler.sampled == 1


@pytest.mark.parametrize("qos", [0, 1])
def test_the_flag_in_traceparent_decides_over_mqtt_5(qos: int) -> None:
    sampling = Sampling()
    consumer(sampling)
    writer = Client5(sampling.world)
    for context in (IGNORED, RECORDED):
        writer.send(publish("a", b"m", qos, qos, user_properties=[("traceparent", context)]))
    [first, _] = sampling.spans()
    assert (first.trace_id, first.parent_id) == (TRACE, PARENT)


def test_a_word_in_the_body_is_no_header() -> None:
    sampling = Sampling()
    client = consumer(sampling)
    client.publish("amq.topic", "a", b"traceparent", headers={"a": "b"})
    client.publish("amq.topic", "a", b"traceparent" + RECORDED.encode())
    sampling.world.mqtt("writer").send(mqtt_publish("a", b"traceparent"))
    assert sampling.names() == []


def test_a_ratio_samples_messages_without_a_context() -> None:
    sampling = Sampling(ratio=0.25, rate=10_000)
    writer = sampling.world.mqtt("writer")
    consumer(sampling)
    for _ in range(800):
        writer.send(mqtt_publish("a", b"m"))
        sampling.steps.take()
    assert 150 < sampling.sampler.sampled < 250


def test_a_sampler_that_ignores_the_flag_decides_by_the_trace_id() -> None:
    for ratio, expected in ((1.0, 1), (0.0, 0)):
        sampling = Sampling(ratio=ratio, parent_based=False)
        client = consumer(sampling)
        client.publish("amq.topic", "a", b"m", headers={"traceparent": IGNORED})
        assert sampling.sampler.sampled == expected


def test_the_rate_bounds_the_messages_of_a_window() -> None:
    sampling = Sampling(rate=30)
    client = consumer(sampling)
    for _ in range(5):
        client.publish("amq.topic", "a", b"m", headers={"traceparent": RECORDED})
    assert (sampling.sampler.sampled, sampling.sampler.skipped) == (3, 2)
    sampling.world.sleep(int(WINDOW_MS))
    client.publish("amq.topic", "a", b"m", headers={"traceparent": RECORDED})
    assert (sampling.sampler.sampled, sampling.sampler.skipped) == (4, 2)


def test_the_texts_of_a_step_are_bounded() -> None:
    sampling = Sampling(ratio=1.0)
    reader, writer = sampling.world.mqtt("r" * 10_000), sampling.world.mqtt("w" * 10_000)
    reader.subscribe("#", 1)
    writer.send(mqtt_publish("t" * 60_000, b"m", qos=1, packet_id=1))
    steps = sampling.steps.take()
    assert {step.step for step in steps} >= {"published", "delivered"}
    assert max(map(len, texts_of(steps))) == TEXT_MAX


def texts_of(steps: list[SampledStep]) -> list[str]:
    texts = [text for step in steps for text in (step.place, step.detail, *step.client)]
    origins = [step.origin for step in steps if step.origin is not None]
    return texts + [text for one in origins for text in (one.exchange, one.key, *one.client)]


@pytest.mark.parametrize("rate", [1, 3, 9])
def test_a_low_rate_bounds_the_messages_of_a_second(rate: int) -> None:
    sampling = Sampling(rate=rate)
    client = consumer(sampling)
    for _ in range(40):  # Ten seconds.
        client.publish("amq.topic", "a", b"m", headers={"traceparent": RECORDED})
        sampling.world.sleep(250)
    # With rate N, a second has N windows, and one message of each window is sampled. Only 4
    # messages are published in a second, so at most 4 are sampled.
    assert sampling.sampler.sampled == pytest.approx(10 * min(rate, 4), abs=1)


def test_steps_that_are_not_taken_are_bounded_and_taken_again() -> None:
    sampling = Sampling(rate=10_000)
    woken: list[int] = []
    sampling.steps.wake = lambda: woken.append(1)
    client = consumer(sampling)
    for _ in range(STEPS_MAX // 2 + 5):
        client.publish("amq.topic", "a", b"m", headers={"traceparent": RECORDED})
        sampling.world.sleep(1)
    assert (len(sampling.steps.take()), sampling.steps.dropped) == (STEPS_MAX, 10)
    client.publish("amq.topic", "a", b"m", headers={"traceparent": RECORDED})
    assert (len(sampling.steps.take()), sampling.steps.dropped, len(woken)) == (2, 10, 2)


def test_an_operators_trace_and_the_sampler_follow_the_same_message() -> None:
    sampling = Sampling()
    client = consumer(sampling)
    trace = sampling.world.vhost.traces.begin(TraceFilter(key="a"), 10)
    client.publish("amq.topic", "a", b"m", headers={"traceparent": RECORDED})
    client.send(commands.Basic.Get(queue="q", no_ack=True))
    events = [event.step for event in trace.read(0, 10)]
    assert events == ["published", "routed", "delivered"]
    assert sampling.names() == ["publish amq.topic", "route amq.topic", "deliver q"]
    sampling.world.vhost.traces.end(trace)
    client.publish("amq.topic", "a", b"m", headers={"traceparent": RECORDED})
    assert sampling.names() == ["publish amq.topic", "route amq.topic"]


def test_a_new_virtual_host_samples_too() -> None:
    sampling = Sampling()
    assert sampling.world.broker.create_vhost("other").traces.sampler is sampling.sampler


# --- the histogram


@given(st.lists(st.floats(0, 1_000), max_size=30))
def test_each_delivery_is_in_the_first_bucket_that_holds_it(durations: list[float]) -> None:
    times = DeliveryTimes()
    for at, seconds in enumerate(durations):
        times.add(seconds, f"{at:032x}", float(at))
    bounds = (*BUCKETS, float("inf"))
    for bucket, (low, high) in enumerate(zip((-1.0, *BUCKETS), bounds, strict=True)):
        expected = [(at, one) for at, one in enumerate(durations) if low < one <= high]
        assert times.counts[bucket] == len(expected)
        last = expected[-1] if expected else None
        assert times.exemplars[bucket] == (
            None if last is None else (f"{last[0]:032x}", last[1], float(last[0]))
        )
    assert times.total == pytest.approx(sum(durations))
