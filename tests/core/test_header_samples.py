"""Tests of samples of headers: all messages of a rare topic, some messages of a frequent topic."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.routing import header_samples
from broker.routing.header_samples import (
    SAMPLES_PER_TOPIC,
    HeaderSamples,
    MessageSamples,
    WeightedSamples,
)
from broker.routing.topic_history import ALL_OFFERED, SLOT_SECONDS, HistorySum, TopicHistory

TOPIC = ("/", "x", "k")


def offered(samples: HeaderSamples, numbers: range, topic: tuple[str, str, str] = TOPIC) -> None:
    for number in numbers:
        samples.offer(*topic, {"headers": {"n": number}, "app_id": "not needed"})


def of_topic(samples: HeaderSamples, topic: tuple[str, str, str] = TOPIC) -> MessageSamples:
    message_samples = samples.find(*topic)
    assert message_samples is not None
    return message_samples


def kept(samples: HeaderSamples, topic: tuple[str, str, str] = TOPIC) -> list[Any]:
    return [one["headers"]["n"] for one in of_topic(samples, topic).kept]  # type: ignore[index]


def test_all_messages_of_a_rare_topic_are_kept() -> None:
    samples = HeaderSamples()
    offered(samples, range(SAMPLES_PER_TOPIC))
    assert kept(samples) == list(range(SAMPLES_PER_TOPIC))
    assert of_topic(samples).kept[0] == {"headers": {"n": 0}}


def test_each_message_of_a_frequent_topic_is_kept_with_the_same_probability() -> None:
    tenths: Counter[int] = Counter()
    for seed in range(250):
        samples = HeaderSamples()
        topic = ("/", "x", f"k{seed}")
        offered(samples, range(5_000), topic)
        assert of_topic(samples, topic).seen == 5_000
        assert len(set(kept(samples, topic))) == SAMPLES_PER_TOPIC
        tenths.update(number // 500 for number in kept(samples, topic))
    # 8,000 draws: 800 of each tenth of the messages, with a standard deviation of 27. The draws are
    # hashes of counters, so they are the same in each run.
    assert all(690 < tenths[tenth] < 910 for tenth in range(10)), tenths


def test_samples_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(header_samples, "SAMPLES_MAX", 30)
    samples = HeaderSamples()
    for number in range(5):
        offered(samples, range(10), ("/", "x", f"k{number}"))
    kept_samples = [samples.find("/", "x", f"k{number}") for number in range(5)]
    assert (
        samples.count == 30
        and [one is not None for one in kept_samples] == [True] * 3 + [False] * 2
    )
    # The number of samples is at its limit, so a topic gets no further samples. New messages of the
    # topic replace some of its samples at random.
    offered(samples, range(10, 500), ("/", "x", "k2"))
    assert samples.count == 30 and len(kept(samples, ("/", "x", "k2"))) == 10
    assert max(kept(samples, ("/", "x", "k2"))) > 100


def test_large_and_nested_headers_are_not_kept() -> None:
    samples = HeaderSamples()
    too_large: list[dict[str, Any]] = [
        {"h": "x" * 1_100},
        {"h": [1]},
        {"h": {"k": 1}},
        {"h" * 1_100: 1},
    ]
    for headers in too_large:
        samples.offer(*TOPIC, {"headers": headers})
    samples.offer(*TOPIC, {"message_id": "x" * 1_100})
    assert samples.find(*TOPIC) is None and samples.count == 0
    samples.offer(*TOPIC, {"message_id": "m", "headers": {"h": b"x"}})
    assert of_topic(samples).kept == [{"message_id": "m", "headers": {"h": b"x"}}]
    assert of_topic(samples).seen == 1


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(0, 1_000)), min_size=1, max_size=5),
    st.integers(0, 100_000),
)
def test_the_samples_stand_for_all_messages(slots: list[tuple[int, int]], messages: int) -> None:
    weighted = WeightedSamples()
    for size, more in slots:
        part = MessageSamples(1)
        part.kept, part.seen = [{}] * size, size + more
        weighted.add(part)
    shares = [count for _, count in weighted.shares(messages)]
    assert len(shares) == len(weighted) and sum(shares) == messages
    seen, at = sum(size + more for size, more in slots), 0
    for size, more in slots:
        for count in shares[at : at + size]:
            assert abs(count - messages * (size + more) / (size * seen)) < 1 + 1e-6
        at += size


def test_estimates_of_a_busy_slot_are_not_biased() -> None:
    """Check that the estimated numbers of messages by header are right for a very busy topic.

    All of the first ALL_OFFERED messages of a slot are offered as samples, but few later messages.
    """
    messages = 20_000
    early: list[int] = []
    rests: Counter[int] = Counter()
    for number in range(40):
        history = TopicHistory()
        history.advance(1_000.0)
        for at in range(messages):
            history.offer("/", "x", f"k{number}", {"headers": {"at": at}})
        shares = HistorySum(history).samples("/", "x", f"k{number}").shares(messages)
        assert sum(count for _, count in shares) == messages
        ats = [(one["headers"]["at"], count) for one, count in shares]  # type: ignore[index]
        early.append(sum(count for at, count in ats if at < ALL_OFFERED))
        for at, count in ats:
            rests[at % 4] += count
    # The samples of the first messages stand for these messages alone.
    first = int(ALL_OFFERED)
    assert all(0.9 * first < count < 1.1 * first for count in early), early
    # Headers that repeat with every fourth message are sampled like others.
    assert all(0.2 < rests[rest] / (40 * messages) < 0.3 for rest in range(4)), rests


def test_the_samples_of_an_hour_are_forgotten_with_their_slot() -> None:
    history = TopicHistory()
    history.advance(1_000.0)
    history.offer(*TOPIC, {"headers": {"n": 1}})
    for number in range(1, 7):
        history.advance(1_000.0 + number * SLOT_SECONDS)
        assert len(HistorySum(history).samples(*TOPIC)) == 1
    history.advance(1_000.0 + 7 * SLOT_SECONDS)
    assert len(HistorySum(history).samples(*TOPIC)) == 0
