"""Tests of routing by the bindings that existed in the minute of each message.

The answers are compared with the answers of a model that routes each message on its own. Bindings,
subscriptions and queues come and go. Some sessions do not receive the messages of their own user,
or may read only some topics. The short tests check the answers that are computed with Arrow; a long
test checks the answers of Spark.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from broker.access.rules import Rule
from pyspark_trellis import history as hist
from pyspark_trellis.arrow_feed import JournalFeed
from pyspark_trellis.arrow_topics import ArrowTopics
from pyspark_trellis.audit import Audit, audit
from pyspark_trellis.counts import KEYS
from pyspark_trellis.definitions import SESSION
from pyspark_trellis.job_bindings import JobBindings, read_bindings
from pyspark_trellis.periods import ALWAYS, MINUTE, Existence, Periods
from pyspark_trellis.read_scope import ReadScope
from pyspark_trellis.spark_topics import SparkTopics
from pyspark_trellis.topics import PublishedTopics
from pyspark_trellis.whatif import WhatIf, what_if
from tests.pipeline.test_ask import by_topic_alone
from tests.pipeline.traffic import (
    SPECIAL,
    Document,
    Subscription,
    bound,
    change,
    definitions,
    goes,
    numbered,
    snapshot,
    subscribed,
    subscriptions,
    topics,
)
from tests.pipeline.written import START, Row, journal, row
from trellis.cli import parser

EXCHANGES = ("t", "u", "d", "f", "", "amq.topic")
USERS = ("ann", "bob", "guest")
MINUTES = 12


@dataclass(frozen=True)
class Reader:
    """A subscription whose session may receive only a part of the matching messages.

    `not_of` is the user whose messages are not delivered (No Local); None for no such user. `rules`
    are the topic rules (allowed, filter) of the session's user; None permits all topics.
    """

    subscription: Subscription
    not_of: str | None = None
    rules: tuple[tuple[bool, str], ...] | None = None

    def receives(self, topic: str, publisher: str) -> bool:
        """True if No Local and the topic rules let the session receive a matching message."""
        if self.not_of == publisher:
            return False
        if self.rules is None:
            return True
        name = topic.translate(str.maketrans("./", "/."))
        for allow, text in self.rules:
            rule = Rule(f"{'allow' if allow else 'deny'} subscribe {text}", "u", "/")
            if rule.matches(name.split("/")):
                return allow
        return False

    def change(self, at: datetime, event: str = "subscribe") -> Row:
        """Return the row of `$topology` for the begin or the end (`event`) of the subscription."""
        subscription_row = subscribed(self.subscription, at, event)
        facts = json.loads(subscription_row["body"])
        if self.not_of is not None:
            facts["arguments"]["no-local"] = True
        if self.rules is not None:
            facts["arguments"]["partly-allowed"] = True
        if event == "subscribe" and facts["arguments"]:
            facts |= {"user": self.not_of or "someone", "rules": self.rules}
        return subscription_row | {"body": json.dumps(facts).encode()}


@dataclass
class Past:
    """Random messages of the past, with the bindings and subscriptions that existed in the minute
    of each message.
    """

    messages: list[Row] = field(default_factory=list)
    changes: list[Row] = field(default_factory=list)
    states: dict[int, tuple[Document, list[Reader]]] = field(default_factory=dict)
    proposed: Document = field(default_factory=dict)

    def receivers(self, number: int, each: Row, document: Document | None = None) -> set[str]:
        """Return the queues and sessions that the message `each` reached in minute `number`.

        With `document`, return the queues and sessions that the message would reach with these
        definitions.
        """
        then, readers = self.states[number]
        heard = [
            reader.subscription
            for reader in readers
            if reader.receives(each["topic"], each["publisher"])
        ]
        return goes(document or then, each["exchange"], each["topic"], heard)[0]


def reader(rng: random.Random) -> Reader:
    [subscription] = subscriptions(rng, 1)
    if subscription.session.startswith("$share") or rng.random() < 0.5:
        return Reader(subscription)
    rules = tuple(
        (rng.random() < 0.6, "/".join(rng.choice(["a", "b", "+", "$x"]) for _ in range(2)) + "/#")
        for _ in range(2)
    )
    return Reader(
        subscription,
        rng.choice(USERS) if rng.random() < 0.6 else None,
        (*rules, (True, "#"))[: rng.randrange(4)] if rng.random() < 0.6 else None,
    )


def past(seed: int, path: Path) -> Past:
    """Draw a past, and write its journal and its stream `$topology`."""
    rng = random.Random(seed)
    document = by_topic_alone(definitions(rng, 12))
    bindings = [each | {"arguments": {"n": at}} for at, each in enumerate(document["bindings"])]
    document = {**document, "bindings": bindings}
    drawn = (reader(rng) for _ in range(6))
    readers = list({each.subscription: each for each in drawn}.values())
    history = Past(proposed=by_topic_alone(definitions(rng, 6)))
    history.changes = _with_readers(snapshot(document, [], START), readers, START)
    pool = [*topics(rng, 15), *SPECIAL]
    for number in range(MINUTES):
        at = START + timedelta(minutes=number)
        if number:
            document, readers = _changed(rng, document, readers, at, history.changes)
        history.states[number] = (document, list(readers))
        for _ in range(15):
            offset = len(history.messages)
            message = row(
                offset,
                rng.choice(pool),
                exchange=rng.choice(EXCHANGES),
                publisher=rng.choice(USERS),
                published_at=at + timedelta(seconds=rng.randrange(60)),
            )
            history.messages.append(message | {"routed": len(history.receivers(number, message))})
    journal(path / "journal", history.messages, 20, 60)
    journal(path / "%24topology", numbered(history.changes), 10, 50)
    (path / "proposed.json").write_text(json.dumps(history.proposed))
    return history


def _with_readers(rows: list[Row], readers: list[Reader], at: datetime) -> list[Row]:
    """Return the rows of a snapshot, with the readers' subscriptions before the last row."""
    return [*rows[:-1], *(each.change(at) for each in readers), rows[-1]]


def _changed(
    rng: random.Random,
    document: Document,
    readers: list[Reader],
    at: datetime,
    changes: list[Row],
) -> tuple[Document, list[Reader]]:
    """Draw a change of a binding, queue or subscription, or a snapshot, or no change.

    Append its rows of `$topology`, with the time `at`, to `changes`. Return the definitions and the
    readers after the change.
    """
    what = rng.random()
    if what < 0.25:
        gone = rng.choice(document["bindings"])
        changes.append(bound(gone, at, "unbind"))
        return {
            **document,
            "bindings": [each for each in document["bindings"] if each is not gone],
        }, readers
    if what < 0.5:
        new_reader = reader(rng)
        changes += [
            each.change(at, "unsubscribe")
            for each in readers
            if each.subscription == new_reader.subscription
        ]
        changes.append(new_reader.change(at))
        return document, [
            *(each for each in readers if each.subscription != new_reader.subscription),
            new_reader,
        ]
    if what < 0.7 and readers:
        gone_reader = rng.choice(readers)
        changes.append(gone_reader.change(at, "unsubscribe"))
        return document, [each for each in readers if each is not gone_reader]
    if what < 0.8:
        name = f"q{rng.randrange(6)}"
        lost = [each for each in document["bindings"] if each["destination"] == name]
        changes += [bound(each, at, "unbind") for each in lost]
        changes.append(change("delete", at, {"kind": "queue", "name": name}))
        return {
            **document,
            "queues": [each for each in document["queues"] if each["name"] != name],
            "bindings": [each for each in document["bindings"] if each not in lost],
        }, readers
    if what < 0.9:
        changes += _with_readers(snapshot(document, [], at), readers, at)
    return document, readers


def question(path: Path, job: str, *words: str) -> JobBindings:
    arguments = ["pipeline", job, "--journal", str(path / "journal"), *words]
    return read_bindings(parser().parse(arguments))


def check(history: Past, answer: Audit, change_of: WhatIf) -> None:
    """Compare the answers of the jobs with the model of the random past."""
    lost: Counter[tuple[str, str]] = Counter()
    unroutable: Counter[tuple[str, str]] = Counter()
    before: Counter[str] = Counter()
    after: Counter[str] = Counter()
    document, readers = history.states[MINUTES - 1]
    present = {each["name"] for each in document["queues"]} | {
        SESSION + each.subscription.session for each in readers
    }
    sessions = {receiver for receiver in present if receiver.startswith(SESSION)}
    for each in history.messages:
        number = int((each["published_at"] - START) / timedelta(minutes=1))
        then = history.receivers(number, each)
        next_ = history.receivers(number, each, history.proposed)
        next_ = {
            receiver
            for receiver in next_
            if not receiver.startswith(SESSION) or receiver in sessions
        }
        unroutable[each["exchange"], each["topic"]] += not then
        lost[each["exchange"], each["topic"]] += bool(then & present and not next_)
        before.update(then & present)
        after.update(next_)
    assert (
        Counter({(each.exchange, each.topic): each.messages for each in answer.unroutable})
        == +unroutable
    )
    counts = {place_of(each): (each.before, each.after) for each in change_of.queues}
    assert {receiver: one for receiver, (one, _) in counts.items() if one is not None} == {
        receiver: before[receiver] for receiver in present
    }
    assert {receiver: other for receiver, (_, other) in counts.items() if other} == dict(after)
    assert Counter({(each.exchange, each.topic): each.messages for each in change_of.lost}) == +lost


def place_of(each: Any) -> str:
    return str(SESSION + each.name if each.kind == "session" else each.name)


def answers(published: PublishedTopics, path: Path) -> tuple[Audit, WhatIf]:
    about = question(path, "audit")
    change_of = question(path, "whatif", "--definitions", str(path / "proposed.json"))
    assert about.splits == change_of.splits or about.splits is not None
    return (
        audit(published, about.effective, about.then),
        what_if(published, change_of.routing, change_of.proposed_routing),
    )


def by_arrow(path: Path) -> PublishedTopics:
    splits = question(path, "audit").splits
    return ArrowTopics(JournalFeed({"path": str(path / "journal")}, KEYS).sums(splits))


@pytest.mark.parametrize("seed", range(6))
def test_each_message_is_routed_by_the_bindings_of_its_minute(seed: int, tmp_path: Path) -> None:
    history = past(seed, tmp_path)
    check(history, *answers(by_arrow(tmp_path), tmp_path))


@pytest.mark.parametrize("seed", range(2))
def test_spark_gives_the_same_answers(seed: int, spark: SparkSession, tmp_path: Path) -> None:
    history = past(100 + seed, tmp_path)
    splits = question(tmp_path, "audit").splits
    rows = spark.read.format("trellis").schema(hist.PROJECTION).load(str(tmp_path / "journal"))
    parts = hist.rollup(rows, splits)
    published = SparkTopics(hist.summed(parts, *hist.keys_of(parts)).cache())
    mine = answers(published, tmp_path)
    check(history, *mine)
    theirs = answers(by_arrow(tmp_path), tmp_path)
    assert mine == theirs


def test_a_binding_is_dead_if_no_message_matched_it_while_it_existed(tmp_path: Path) -> None:
    document = by_topic_alone(definitions(random.Random(1), 0))
    to_queue = {"source": "amq.topic", "destination": "q1", "destination_type": "queue"}
    early: dict[str, Any] = {**to_queue, "routing_key": "early.*", "arguments": {}}
    late = {**early, "routing_key": "late.*"}
    document = {**document, "bindings": [early]}
    changes = [
        *snapshot(document, [], START),
        bound(early, START + timedelta(minutes=5), "unbind"),
        bound(late, START + timedelta(minutes=5)),
    ]
    messages = [
        row(at, topic, exchange="amq.topic", published_at=START + timedelta(minutes=minute))
        for at, (topic, minute) in enumerate([("late.x", 2), ("early.x", 2), ("early.x", 7)])
    ]
    journal(tmp_path / "journal", messages)
    journal(tmp_path / "%24topology", numbered(changes))
    about = question(tmp_path, "audit")
    answer = audit(by_arrow(tmp_path), about.effective, about.then)
    assert answer.bindings == 1
    assert [each.key for each in answer.dead] == ["late.*"]
    assert [(each.topic, each.messages) for each in answer.unroutable] == [
        ("early.x", 1),
        ("late.x", 1),
    ]
    assert "routed by the bindings of the minute" in about.sources[0]
    assert question(tmp_path, "audit", "--as-of", "2026-03-01T12:06").splits is None


def test_the_topology_of_every_vhost_is_read(tmp_path: Path) -> None:
    streams = tmp_path / "streams"
    document = definitions(random.Random(2), 3)
    for vhost, session in (("%2F", "one"), ("eu", "two")):
        changes = snapshot(document, [Subscription(session, "a/#")], START)
        name = "/" if vhost == "%2F" else vhost
        journal(
            streams / vhost / "%24topology", numbered([each | {"vhost": name} for each in changes])
        )
    journal(streams / "%2F" / "journal", [row(0, "a", published_at=START)])
    about = question(streams / "%2F", "audit")
    assert {vhost: host.sessions for vhost, host in about.effective.hosts.items()} == {
        "/": {"one"},
        "eu": {"two"},
    }
    assert [each for each in about.sources if "vhost 'eu'" in each]
    by_name = read_bindings(
        parser().parse(["ask", "audit", "--journal", str(streams), "--stream", "%2F/journal"])
    )
    assert (by_name.sources, by_name.recorded) == (about.sources, about.recorded)
    (tmp_path / "both.json").write_text(json.dumps({"vhosts": [{"name": "/"}, {"name": "eu"}]}))
    about = question(streams / "%2F", "audit", "--definitions", str(tmp_path / "both.json"))
    assert about.effective.hosts["eu"].sessions == {"two"}
    assert not [each for each in about.sources if "unknown" in each]


# -- periods and rules


@given(
    st.lists(st.lists(st.integers(0, 20 * MINUTE), max_size=6, unique=True).map(sorted), max_size=4)
)
def test_a_binding_exists_in_each_minute_in_which_it_existed_for_a_moment(
    changes: list[list[int]],
) -> None:
    existences = [Existence({}, each) for each in changes]
    periods = Periods(existences)
    for minute in range(22):
        [period] = periods.numbers(_times([minute * MINUTE]))
        lifetimes = periods.lifetimes(existences)
        exists = sum(at <= period for at in lifetimes) % 2 == 1
        expected = any(
            begin < (minute + 1) * MINUTE and (end is None or end > minute * MINUTE and end > begin)
            for each in changes
            for begin, end in zip(each[::2], [*each[1::2], None], strict=False)
        )
        assert exists == expected


def test_what_the_first_snapshot_has_always_existed() -> None:
    always = Existence({}, [ALWAYS])
    assert Periods([always]).begins == []
    assert Periods([always]).lifetimes([always]) == (0,)


def _times(micros: list[int]) -> Any:
    import pyarrow as pa

    return pa.array(micros, pa.timestamp("us", tz="UTC"))


@given(
    st.lists(
        st.tuples(
            st.booleans(),
            st.lists(st.sampled_from(["a", "$x", "+", "$+"]), min_size=1, max_size=3).map("/".join),
            st.booleans(),
        ),
        max_size=4,
    ),
    st.lists(st.sampled_from(["a", "b", "$x", ""]), min_size=1, max_size=3).map("/".join),
)
def test_rules_decide_as_in_the_broker(rules: list[tuple[bool, str, bool]], topic: str) -> None:
    texts = []
    for allow, text, all_ in rules:
        words = text.split("/")
        words = [words[0], *(word if word != "$+" else "+" for word in words[1:])]
        texts.append((allow, "/".join([*words, "#"] if all_ else words)))
    mine = ReadScope(None, tuple(texts)).allows(topic)
    theirs = next(
        (
            allow
            for allow, text in texts
            if Rule(f"allow subscribe {text}", "u", "/").matches(topic.split("/"))
        ),
        False,
    )
    assert mine == theirs


def test_times_before_1970_are_before_every_change() -> None:
    assert list(Periods([Existence({}, [MINUTE])]).numbers(_times([-5, 0, MINUTE]))) == [0, 0, 1]
    assert datetime(1970, 1, 1, tzinfo=UTC) < START
