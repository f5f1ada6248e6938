"""The broker against a model that a reader can check at a glance: two connections, three queues, one topic exchange.

The model keeps, for every queue, what waits in order of arrival. After every step the messages delivered must be the
oldest that wait, as many as consumers have credit for, no more and no fewer; whoever held something that comes back
finds it at its old place, marked as redelivered.
"""

from __future__ import annotations

from typing import Any

import pamqp.commands as spec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from matching.grammar import DEFAULT
from tests.clients import Amqp, World, publication
from tests.wire.amqp.speech import Delivered, deliveries, names

Q, B = spec.Queue, spec.Basic
QUEUES = ["a", "b", "c"]
PATTERNS = ["k.1", "k.*", "#", "*.2", "k.#"]
KEYS = ["k.1", "k.2", "x.2", "k", ""]
CONNECTIONS = st.integers(0, 1)
NAMES = st.sampled_from(QUEUES)


class Copy:
    """A message in a queue."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.redelivered = False


class ModelQueue:
    """`arrived` holds what waits and what is held, in order of arrival."""

    def __init__(self) -> None:
        self.arrived: list[Copy] = []
        self.held: set[Copy] = set()
        self.bindings: set[str] = set()

    @property
    def waiting(self) -> list[Copy]:
        return [copy for copy in self.arrived if copy not in self.held]


class ModelConsumer:
    def __init__(self, tag: str, queue: str, prefetch: int, no_ack: bool) -> None:
        self.tag, self.queue, self.prefetch, self.no_ack = tag, queue, prefetch, no_ack
        self.holds = 0

    @property
    def credit(self) -> int:
        return 1_000 if self.no_ack or not self.prefetch else self.prefetch - self.holds


class Held:
    """A delivery that somebody must settle. Its queue object may be gone from the model by then."""

    def __init__(self, queue: ModelQueue, copy: Copy, consumer: ModelConsumer | None) -> None:
        self.queue, self.copy, self.consumer = queue, copy, consumer


class Side:
    """One connection with channel 1."""

    def __init__(self, client: Amqp) -> None:
        self.client = client
        self.begin()

    def begin(self) -> None:
        self.number = 0
        self.unsettled: dict[int, Held] = {}
        self.consumers: dict[str, ModelConsumer] = {}


class Broker(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.world = World()
        self.sides = [Side(self.world.amqp()), Side(self.world.amqp())]
        self.queues: dict[str, ModelQueue] = {}
        self.published = self.tags = 0

    # -- what the model knows of a step

    def said(self, who: int, *methods: Any) -> list[str]:
        """Say it, take what both sides hear, and compare the deliveries; returns the other answers."""
        frames = [side.client.send(*(methods if at == who else ())) for at, side in enumerate(self.sides)]
        self.check([[*mine, *side.client.read()] for mine, side in zip(frames, self.sides, strict=True)])
        return [name for name in names(frames[who]) if name not in ("Basic.Deliver", "ContentHeader", "ContentBody", "Basic.Cancel")]

    def check(self, frames: list[list[Any]]) -> None:
        expected = {name: queue.waiting[:max(0, sum(one.credit for side in self.sides for one in side.consumers.values()
                                                    if one.queue == name))]
                    for name, queue in self.queues.items()}
        came: dict[str, list[Copy]] = {name: [] for name in self.queues}
        for side, heard in zip(self.sides, frames, strict=True):
            for one in deliveries(heard):
                consumer = side.consumers[one.tag]
                came[consumer.queue].append(self.take(side, one, consumer.queue, consumer))
            for queue in self.queues:
                mine = [int(one.body) for one in deliveries(heard) if side.consumers[one.tag].queue == queue]
                assert mine == sorted(mine)
        assert {name: set(copies) for name, copies in came.items()} == {name: set(copies) for name, copies in expected.items()}

    def take(self, side: Side, one: Delivered, name: str, consumer: ModelConsumer | None, no_ack: bool = False) -> Copy:
        """A delivery happened: the numbers run on, the body and the flag are those of a message that waits."""
        queue = self.queues[name]
        side.number += 1
        assert one.number == side.number
        [copy] = [copy for copy in queue.waiting if copy.body == one.body]
        assert one.redelivered == copy.redelivered
        if no_ack or consumer is not None and consumer.no_ack:
            queue.arrived.remove(copy)
        else:
            queue.held.add(copy)
            side.unsettled[one.number] = Held(queue, copy, consumer)
            if consumer is not None:
                consumer.holds += 1
        return copy

    def give_back(self, held: Held, gone: bool) -> None:
        if held.consumer is not None:
            held.consumer.holds -= 1
        held.queue.held.discard(held.copy)
        if gone:
            held.queue.arrived.remove(held.copy)
        else:
            held.copy.redelivered = True

    def leave(self, side: Side) -> None:
        side.consumers.clear()
        for held in side.unsettled.values():
            self.give_back(held, False)
        side.begin()

    # -- rules

    @rule(who=CONNECTIONS, name=NAMES)
    def declare(self, who: int, name: str) -> None:
        self.queues.setdefault(name, ModelQueue())
        assert self.said(who, Q.Declare(queue=name)) == ["Queue.DeclareOk"]

    @rule(who=CONNECTIONS, name=NAMES)
    def delete(self, who: int, name: str) -> None:
        self.queues.pop(name, None)
        for side in self.sides:
            side.consumers = {tag: one for tag, one in side.consumers.items() if one.queue != name}
        assert self.said(who, Q.Delete(queue=name)) == ["Queue.DeleteOk"]

    @rule(who=CONNECTIONS, name=NAMES)
    def purge(self, who: int, name: str) -> None:
        if name in self.queues:
            queue = self.queues[name]
            queue.arrived = [copy for copy in queue.arrived if copy in queue.held]
            assert self.said(who, Q.Purge(queue=name)) == ["Queue.PurgeOk"]

    @rule(who=CONNECTIONS, name=NAMES, pattern=st.sampled_from(PATTERNS), there=st.booleans())
    def bind_or_unbind(self, who: int, name: str, pattern: str, there: bool) -> None:
        if name in self.queues:
            (self.queues[name].bindings.add if there else self.queues[name].bindings.discard)(pattern)
            bind = Q.Bind(queue=name, exchange="amq.topic", routing_key=pattern) if there else Q.Unbind(queue=name, exchange="amq.topic",
                                                                                                        routing_key=pattern)
            assert self.said(who, bind) == ["Queue.BindOk" if there else "Queue.UnbindOk"]

    @rule(who=CONNECTIONS, key=st.sampled_from(KEYS), count=st.integers(1, 4), direct=st.none() | NAMES, cut=st.integers(0, 60))
    def publish(self, who: int, key: str, count: int, direct: str | None, cut: int) -> None:
        octets = b""
        for _ in range(count):
            self.published += 1
            body = b"%d" % self.published
            octets += publication("", direct, body, mandatory=True) if direct else publication("amq.topic", key, body)
            for name, queue in self.queues.items():
                if name == direct if direct else any(DEFAULT.matches(pattern, key) for pattern in queue.bindings):
                    queue.arrived.append(Copy(body))
        side = self.sides[who]
        side.client.connection.receive_data(octets[:cut])
        side.client.connection.receive_data(octets[cut:])
        returned = [] if not direct or direct in self.queues else ["Basic.Return"] * count
        assert self.said(who) == returned

    @rule(who=CONNECTIONS, name=NAMES, prefetch=st.integers(0, 3), no_ack=st.booleans())
    def consume(self, who: int, name: str, prefetch: int, no_ack: bool) -> None:
        if name in self.queues and len(self.sides[who].consumers) < 3:
            self.tags += 1
            tag = f"t{self.tags}"
            self.sides[who].consumers[tag] = ModelConsumer(tag, name, prefetch, no_ack)
            assert self.said(who, B.Qos(prefetch_count=prefetch), B.Consume(queue=name, consumer_tag=tag,
                                                                            no_ack=no_ack)) == ["Basic.QosOk", "Basic.ConsumeOk"]

    @rule(who=CONNECTIONS, which=st.integers(0, 5))
    def cancel(self, who: int, which: int) -> None:
        consumers = self.sides[who].consumers
        if consumers:
            tag = sorted(consumers)[which % len(consumers)]
            del consumers[tag]
            assert self.said(who, B.Cancel(tag)) == ["Basic.CancelOk"]

    @rule(who=CONNECTIONS, name=NAMES, no_ack=st.booleans())
    def get(self, who: int, name: str, no_ack: bool) -> None:
        if name in self.queues:
            side = self.sides[who]
            waiting = self.queues[name].waiting
            frames = side.client.send(B.Get(queue=name, no_ack=no_ack))
            assert frames[0].name == ("Basic.GetOk" if waiting else "Basic.GetEmpty")
            for one in deliveries(frames[:3]):
                assert one.body == waiting[0].body
                self.take(side, one, name, None, no_ack)
            self.check([frames[3:] if at == who else other.client.read() for at, other in enumerate(self.sides)])

    @precondition(lambda self: any(side.unsettled for side in self.sides))
    @rule(who=CONNECTIONS, which=st.integers(0, 30), multiple=st.booleans(),
          how=st.sampled_from(["ack", "ack", "drop", "requeue", "requeue"]))
    def settle(self, who: int, which: int, multiple: bool, how: str) -> None:
        side = self.sides[who]
        if not side.unsettled:
            return
        number = sorted(side.unsettled)[which % len(side.unsettled)]
        for one in sorted(side.unsettled):
            if one == number or multiple and one < number:
                self.give_back(side.unsettled.pop(one), how != "requeue")
        method = B.Ack(number, multiple) if how == "ack" else B.Nack(number, multiple, how == "requeue")
        assert self.said(who, method) == []

    @rule(who=CONNECTIONS)
    def recover(self, who: int) -> None:
        side = self.sides[who]
        for held in side.unsettled.values():
            self.give_back(held, False)
        side.unsettled.clear()
        assert self.said(who, B.Recover(requeue=True)) == ["Basic.RecoverOk"]

    @rule(who=CONNECTIONS)
    def close_channel(self, who: int) -> None:
        self.leave(self.sides[who])
        assert self.said(who, spec.Channel.Close(0, "", 0, 0), spec.Channel.Open()) == ["Channel.CloseOk", "Channel.OpenOk"]

    @rule(who=CONNECTIONS)
    def break_channel(self, who: int) -> None:
        self.leave(self.sides[who])
        assert self.said(who, B.Ack(1_000_000)) == ["Channel.Close"]
        assert self.said(who, spec.Channel.CloseOk(), spec.Channel.Open()) == ["Channel.OpenOk"]

    @rule(who=CONNECTIONS)
    def lose_connection(self, who: int) -> None:
        side = self.sides[who]
        self.leave(side)
        side.client.connection.connection_lost()
        side.client = self.world.amqp()
        self.said(who)

    # -- always

    @invariant()
    def queues_hold_what_the_model_says(self) -> None:
        if hasattr(self, "world"):
            assert {name: (queue.depth, queue.unacked) for name, queue in self.world.vhost.queues.items()} == {
                name: (len(queue.waiting), len(queue.held)) for name, queue in self.queues.items()}
            self.world.fates()


Broker.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestBroker = Broker.TestCase
