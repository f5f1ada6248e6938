"""Random histories of queues whose policies, moves and pauses change while clients work.

After each step, all copies have exactly one fate or are still in a queue. The messages that a queue
counts as unacknowledged are held by the clients, or by the queue itself. The statistics of a queue
equal the counts of the clients.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any, Final

import pamqp.commands as spec
import pytest

from broker.access.identity import INTERNAL
from broker.queues.pausing import pause, resume
from broker.queues.policies import Policy
from broker.queues.statistics import HELD_BACK, STATISTICS
from broker.vhost.message_move import MessageMove
from broker.vhost.move_destination import MoveDestination, ToOrigin, ToQueue
from tests.clients import Amqp, World

Q, B = spec.Queue, spec.Basic
#: Seeds of random histories; most of them run with the slow tests.
SEEDS: list[Any] = [
    *range(8),
    *(pytest.param(seed, marks=pytest.mark.long) for seed in range(8, 150)),
]
LETTERS: Final = {"x-dead-letter-exchange": "amq.fanout"}
ARGUMENTS: Final[list[dict[str, Any]]] = [
    {},
    LETTERS,
    {"x-max-length": 5} | LETTERS,
    {"x-max-length": 4, "x-overflow": "reject-publish-dlx"} | LETTERS,
    {"x-max-priority": 3},
    {"x-message-ttl": 30} | LETTERS,
    {"x-delivery-limit": 1} | LETTERS,
    {"x-single-active-consumer": True},
    {"x-message-deduplication": True},
    {"x-delayed-retry-type": "all", "x-delayed-retry-min": 10},
]
POLICIES: Final[list[dict[str, Any]]] = [
    {"max-length": 3},
    {"max-length": 2, "overflow": "reject-publish"},
    {"max-length-bytes": 6, "dead-letter-exchange": "amq.fanout"},
    {"message-ttl": 20},
    {"delivery-limit": 1},
    {"delayed-retry-type": "failed", "delayed-retry-min": 5},
]
STEPS: Final = (
    *["publish"] * 6,
    *["get"] * 3,
    *["settle"] * 6,
    *("consume", "cancel", "qos", "sleep", "sleep", "policy", "pause", "move", "purge", "delete"),
)


class Worker:
    """A client with one channel.

    `held` maps the tags of its unsettled deliveries to queues, `tags` its consumer tags to queues.
    """

    def __init__(self, world: World) -> None:
        self.client: Amqp = world.amqp()
        self.held: dict[int, str] = {}
        self.tags: dict[str, str] = {}


class History:
    """Three queues of random arguments, and two clients that take random steps."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.world = World()
        self.workers = [Worker(self.world) for _ in range(2)]
        self.seen: dict[str, Counter[str]] = {}
        self.arguments = {name: self.random.choice(ARGUMENTS) for name in ("a", "b", "c")}
        self.published = self.consumers = 0
        for name in self.arguments:
            self.declare(name)

    def declare(self, name: str) -> None:
        self.seen[name] = Counter()
        self.workers[0].client.send(Q.Declare(queue=name, arguments=self.arguments[name]))
        self.workers[0].client.send(Q.Bind(queue=name, exchange="amq.fanout"))

    def take(self, worker: Worker, frames: list[Any], fetched_from: str = "") -> None:
        for frame in frames:
            if isinstance(frame, B.Deliver | B.GetOk):
                event, queue = "get", fetched_from
                if isinstance(frame, B.Deliver):
                    event, queue = "deliver", worker.tags[str(frame.consumer_tag)]
                worker.held[int(frame.delivery_tag or 0)] = queue
                self.seen[queue][event] += 1
                self.seen[queue]["redeliver"] += frame.redelivered

    def step(self) -> None:
        random, world = self.random, self.world
        worker, name = random.choice(self.workers), random.choice("abc")
        step, client = random.choice(STEPS), worker.client
        if step == "publish":
            for _ in range(random.randint(1, 4)):
                self.published += 1
                exchange, key = random.choice([("", name), ("amq.fanout", "")])
                given: dict[str, Any] = {"priority": random.randint(0, 4)}
                if random.random() < 0.3:
                    given["headers"] = {"x-deduplication-header": random.randint(0, 3)}
                body = b"%d" % self.published
                self.take(worker, client.publish(exchange, key, body, **given))
        elif step == "get":
            self.take(worker, client.send(B.Get(queue=name)), name)
        elif step == "settle" and worker.held:
            self.settle(worker, random.choice(list(worker.held)))
        elif step == "consume" and len(worker.tags) < 6:
            self.consumers += 1
            tag = f"t{self.consumers}"
            worker.tags[tag] = name
            priority: Any = {"x-priority": random.randint(0, 1)}
            consume = B.Consume(queue=name, consumer_tag=tag, arguments=priority)
            self.take(worker, client.send(consume))
        elif step == "cancel" and worker.tags:
            self.take(worker, client.send(B.Cancel(random.choice(list(worker.tags)))))
        elif step == "qos":
            qos = B.Qos(prefetch_count=random.choice([1, 2, 5]), global_=random.random() < 0.5)
            self.take(worker, client.send(qos))
        elif step == "sleep":
            world.sleep(random.choice([1, 10, 40]))
        elif step == "policy":
            definition = random.choice(POLICIES)
            policy = Policy("/", "p", random.choice(["", f"^{name}$"]), "queues", 0, definition)
            world.vhost.applied_policies.set_policy(policy)
        elif step == "pause":
            (resume if world.queue(name).paused else pause)(world.queue(name))
        elif step == "move":
            target: MoveDestination = random.choice([ToOrigin(), ToQueue(random.choice("abc"))])
            MessageMove(world.vhost, world.queue(name), target, lambda: INTERNAL, 9).schedule()
        elif step == "purge":
            self.take(worker, client.send(Q.Purge(queue=name)))
        elif step == "delete":
            self.delete(worker, name)

    def settle(self, worker: Worker, tag: int) -> None:
        how = self.random.choice(["ack", "requeue", "reject", "all"])
        first = min(worker.held) if how == "all" else tag
        for one in [one for one in worker.held if first <= one <= tag]:
            self.seen[worker.held.pop(one)]["ack"] += how == "ack"
        method: Any = B.Nack(tag, multiple=True, requeue=True)
        if how == "ack":
            method = B.Ack(tag)
        elif how != "all":
            method = B.Reject(tag, requeue=how == "requeue")
        self.take(worker, worker.client.send(method))

    def delete(self, worker: Worker, name: str) -> None:
        """Delete a queue and declare it again. Clients keep deliveries of the deleted queue."""
        frames = worker.client.send(Q.Delete(queue=name))
        self.take(worker, frames)
        self.read()
        self.seen["deleted"] = Counter()
        for one in self.workers:
            one.held = {tag: "deleted" if q == name else q for tag, q in one.held.items()}
            one.tags = {tag: "deleted" if q == name else q for tag, q in one.tags.items()}
        self.declare(name)

    def read(self) -> None:
        self.world.settle(*(worker.client.connection for worker in self.workers))
        for worker in self.workers:
            self.take(worker, worker.client.read())

    def check(self) -> None:
        self.world.fates()
        held = Counter(name for worker in self.workers for name in worker.held.values())
        for name in self.arguments:
            queue = self.world.queue(name)
            assert queue.unacked == held[name] + queue.events()[HELD_BACK]
            counts = dict(zip(STATISTICS, queue.statistics(), strict=True))
            for event in ("deliver", "get", "redeliver", "ack"):
                assert counts[event] == self.seen[name][event], (name, event)
            if not queue.arguments.reject_publish:
                assert queue.depth <= queue.arguments.max_length


@pytest.mark.parametrize("seed", SEEDS)
def test_each_copy_has_one_fate_and_each_delivery_is_counted_once(seed: int) -> None:
    history = History(seed)
    for _ in range(100):
        history.step()
        history.read()
        history.check()
