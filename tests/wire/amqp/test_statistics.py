"""Message statistics of queues, exchanges and channels, compared with the counts of a client."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pamqp.commands as spec
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.queues.peeking import put_aside_back, set_head_aside
from broker.queues.policies import Policy
from broker.queues.statistics import STATISTICS
from tests.clients import Amqp, World
from tests.store.test_features import Lasting
from tests.wire.amqp.filled import B

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.booleans()),
        st.tuples(st.just("get"), st.booleans()),
        st.tuples(st.just("ack"), st.integers(0, 6)),
        st.tuples(st.just("requeue"), st.integers(0, 6)),
        st.tuples(st.just("reject"), st.integers(0, 6)),
        st.tuples(st.just("consume"), st.booleans()),
        st.tuples(st.just("cancel"), st.just(0)),
        st.tuples(st.just("purge"), st.just(0)),
        st.tuples(st.just("all"), st.booleans()),
    ),
    max_size=40,
)


class Ledger:
    """An AMQP client with one channel, which counts the deliveries that it reads."""

    def __init__(self, overflow: str) -> None:
        self.world = World()
        self.client: Amqp = self.world.amqp()
        self.client.queue("q", x_max_length=4, x_overflow=overflow)
        self.client.queue("plain", "amq.fanout")
        self.client.send(spec.Confirm.Select())
        self.seen: Counter[str] = Counter()
        self.held: list[int] = []
        #: True if the consumer is in no-ack mode; None without a consumer.
        self.no_ack: bool | None = None

    def take(self, frames: list[Any], got_no_ack: bool = False) -> None:
        for frame in frames:
            if isinstance(frame, spec.Basic.GetOk):
                self.seen["get_no_ack" if got_no_ack else "get"] += 1
                self.seen["redeliver"] += frame.redelivered
                if not got_no_ack:
                    self.held.append(int(frame.delivery_tag or 0))
            elif isinstance(frame, spec.Basic.Deliver):
                self.seen["deliver_no_ack" if self.no_ack else "deliver"] += 1
                self.seen["redeliver"] += frame.redelivered
                if not self.no_ack:
                    self.held.append(int(frame.delivery_tag or 0))
            elif isinstance(frame, spec.Basic.Ack):
                self.seen["publish"] += 1
            elif isinstance(frame, spec.Basic.Nack):
                self.seen["refused"] += 1

    def step(self, what: str, choice: Any) -> None:
        client = self.client
        if what == "publish":
            self.take(client.publish("", "q", b"m", delivery_mode=2 if choice else 1))
        elif what == "get":
            self.take(client.send(B.Get(queue="q", no_ack=choice)), choice)
        elif what in ("ack", "requeue", "reject") and choice < len(self.held):
            tag = self.held.pop(choice)
            self.seen["ack"] += what == "ack"
            method = B.Ack(tag) if what == "ack" else B.Nack(tag, requeue=what == "requeue")
            self.take(client.send(method))
        elif what == "consume" and self.no_ack is None:
            self.no_ack = choice
            self.take(client.send(B.Consume(queue="q", consumer_tag="t", no_ack=choice)))
        elif what == "cancel":
            client.send(B.Cancel(consumer_tag="t"))
            self.no_ack = None
        elif what == "purge":
            client.send(spec.Queue.Purge(queue="q"))
        elif what == "all" and self.held:
            # Settle first, then deliver: a requeued message may be delivered again at once.
            held, self.held = self.held, []
            self.seen["ack"] += len(held) if choice else 0
            method = B.Ack(0, True) if choice else B.Nack(0, True, requeue=True)
            self.take(client.send(method))

    def check(self) -> None:
        world, client = self.world, self.client
        counts = dict(zip(STATISTICS, world.queue("q").statistics(), strict=True))
        assert counts == {name: self.seen[name] for name in STATISTICS}
        (channel,) = client.connection.channels.open.values()
        own = channel.statistics()
        assert own.pop("publish") == self.seen["publish"] + self.seen["refused"]
        assert own.pop("confirm") == self.seen["publish"] + self.seen["refused"]
        assert own.pop("return_unroutable") == 0
        assert own == {name: self.seen[name] for name in own}
        world.vhost.contexts.ingress_counters()
        default = world.vhost.exchanges[""]
        assert int(default.published) == self.seen["publish"]


@settings(max_examples=150, deadline=None)
@given(steps=STEPS, overflow=st.sampled_from(["drop-head", "reject-publish"]))
def test_statistics_count_the_deliveries_of_the_client(
    steps: list[tuple[str, Any]], overflow: str
) -> None:
    ledger = Ledger(overflow)
    for what, choice in steps:
        ledger.step(what, choice)
    ledger.check()


def test_statistics_of_a_queue_that_a_policy_replaces_go_on() -> None:
    world = World()
    client = world.amqp()
    client.queue("q")
    client.publish("", "q", b"1")
    client.publish("", "q", b"2")
    client.send(B.Get(queue="q"), B.Get(queue="q"))
    world.vhost.applied_policies.set_policy(Policy("/", "p", ".*", "queues", 0, {"max-length": 9}))
    world.turn()
    client.send(B.Ack(1), B.Nack(2, requeue=True))
    counts = dict(zip(STATISTICS, world.queue("q").statistics(), strict=True))
    assert (counts["publish"], counts["get"], counts["deliver"], counts["ack"]) == (2, 2, 0, 1)


def test_a_deleted_queue_stays_in_the_totals_of_its_virtual_host() -> None:
    world = World()
    client = world.amqp()
    client.queue("q")
    for _ in range(3):
        client.publish("", "q", b"m")
    client.send(B.Consume(queue="q", consumer_tag="t"))
    client.send(B.Ack(1))
    before = world.vhost.totals().whole().statistics
    client.send(spec.Queue.Delete(queue="q"))
    assert world.vhost.totals().whole().statistics == before
    assert dict(zip(STATISTICS, before, strict=True)) | {"publish": 0} == {
        "publish": 0,
        "deliver": 3,
        "deliver_no_ack": 0,
        "get": 0,
        "get_no_ack": 0,
        "redeliver": 0,
        "ack": 1,
    }


def test_a_message_that_waits_for_a_delayed_retry_counts_as_one_delivery() -> None:
    """Check that the statistics count no further delivery while a requeued message is delayed.

    Until the delay is over, the queue counts the message as unacknowledged, but no client holds it.
    """
    world = World()
    client = world.amqp()
    client.queue("q", x_delayed_retry_type="all", x_delayed_retry_min=10)
    client.queue("deleted", x_delayed_retry_type="all", x_delayed_retry_min=10)

    def fetched(queue: str, times: int, delivered: int) -> bool:
        counts = dict(zip(STATISTICS, world.queue(queue).statistics(), strict=True))
        return counts["get"] == times and counts["deliver"] == delivered

    for queue in ("q", "deleted"):
        client.publish("", queue, b"1")
        client.publish("", queue, b"2")
        client.send(B.Get(queue=queue))
        client.send(B.Consume(queue=queue, consumer_tag=queue))
        client.send(B.Cancel(queue))
        assert fetched(queue, 1, 1)
    client.send(B.Nack(0, multiple=True, requeue=True))
    assert world.queue("q").unacked == world.queue("deleted").unacked == 2
    assert fetched("q", 1, 1) and fetched("deleted", 1, 1)
    client.send(spec.Queue.Delete(queue="deleted"))
    world.sleep(30)
    assert (world.queue("q").depth, world.queue("q").unacked) == (2, 0)
    assert fetched("q", 1, 1)
    totals = dict(zip(STATISTICS, world.vhost.totals().whole().statistics, strict=True))
    assert (totals["get"], totals["deliver"], totals["ack"]) == (2, 2, 0)
    world.fates()


def test_a_message_that_a_move_sets_aside_is_no_delivery() -> None:
    """Check the statistics while a message is set aside, after it was put back, and after a
    deletion.

    None of these states counts as a delivery, even if the queue is deleted while the message is set
    aside.
    """
    world = World()
    client = world.amqp()
    client.queue("q")
    client.queue("r")
    client.queue("deleted")
    client.publish("", "q", b"stays")
    for queue in ("r", "deleted"):
        client.publish("", queue, b"stays")
        set_head_aside(world.queue(queue))
        counts = dict(zip(STATISTICS, world.queue(queue).statistics(), strict=True))
        assert (world.queue(queue).unacked, counts["publish"], counts["deliver"]) == (1, 1, 0)
    returned = set_head_aside(world.queue("q"))
    put_aside_back(world.queue("q"), returned)
    client.send(spec.Queue.Delete(queue="deleted"))
    totals = dict(zip(STATISTICS, world.vhost.totals().whole().statistics, strict=True))
    assert (totals["publish"], totals["deliver"]) == (3, 0)


def test_an_exchange_counts_its_messages_and_their_copies() -> None:
    world = World()
    client = world.amqp()
    client.queue("a", "amq.fanout")
    client.queue("b", "amq.fanout")
    client.publish("amq.fanout", "", b"fast")
    client.publish("amq.fanout", "", b"slow", expiration="1000")
    client.publish("amq.fanout", "", b"stored", delivery_mode=2)
    client.publish("amq.direct", "nowhere", b"lost")
    world.vhost.contexts.ingress_counters()
    exchanges = world.vhost.exchanges
    assert (int(exchanges["amq.fanout"].published), int(exchanges["amq.fanout"].copies)) == (3, 6)
    assert (int(exchanges["amq.direct"].published), int(exchanges["amq.direct"].copies)) == (1, 0)


def test_a_stream_counts_its_rows_and_their_deliveries() -> None:
    world = World()
    client = world.amqp()
    client.queue("s", durable=True, x_queue_type="stream")
    for _ in range(3):
        client.publish("", "s", b"m")
    client.send(B.Qos(prefetch_count=2))
    client.send(B.Consume(queue="s", consumer_tag="t", arguments={"x-stream-offset": "first"}))
    counts = dict(zip(STATISTICS, world.queue("s").statistics(), strict=True))
    assert (counts["publish"], counts["deliver"], counts["ack"]) == (3, 2, 0)
    client.send(B.Nack(1, requeue=True))
    counts = dict(zip(STATISTICS, world.queue("s").statistics(), strict=True))
    assert (counts["publish"], counts["deliver"]) == (3, 3)


def test_restored_messages_do_not_count_as_published(tmp_path: Path) -> None:
    world = Lasting(tmp_path)
    client = world.amqp()
    client.queue("q", durable=True)
    client.queue("s", durable=True, x_queue_type="stream")
    for name in ("q", "s"):
        for _ in range(3):
            client.publish("", name, b"m", delivery_mode=2)
    client.send(B.Get(queue="q"))
    world.stop()
    again = Lasting(tmp_path)
    client = again.amqp()
    client.publish("", "q", b"m", delivery_mode=2)
    client.send(B.Consume(queue="q", consumer_tag="t"))
    client.send(B.Ack(0, True))
    counts = dict(zip(STATISTICS, again.queue("q").statistics(), strict=True))
    assert (counts["publish"], counts["deliver"], counts["ack"]) == (1, 4, 4)
    counts = dict(zip(STATISTICS, again.queue("s").statistics(), strict=True))
    assert (counts["publish"], counts["deliver"]) == (0, 0)
    again.stop()
