"""A small model of the broker, and random steps of clients that the model and the broker both take.

There are any number of connections, six queues and two exchanges. The model keeps the waiting
messages of each queue in their order. After each step, the broker must have delivered exactly as
many messages as the consumers have credit for, the first ones of each queue. Consumers with a
higher priority come first. A delivery that is requeued must return to its old position, marked as
redelivered. Each dead letter must list in `x-death` why it left its earlier queues.

    a, b, c   plain
    p         x-max-priority 3
    t, u      x-message-ttl 50 and 30; their dead letters go to each other
    later     x-delayed-message, topic
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pamqp.commands as spec
import pamqp.header

from matching.grammar import DEFAULT
from tests.clients import Amqp, World, publication
from tests.wire.amqp.speech import Delivered, deliveries, names

Q, B, X, T = spec.Queue, spec.Basic, spec.Exchange, spec.Tx
PRIORITIES: Final = 3
TTL: Final = {"t": 50, "u": 30}
LETTERS: Final = {"t": "u", "u": "t"}
#: Targets of delayed messages. They get no dead letters: the order of a delayed message and a dead
#: letter that are due at one time is not defined.
DELAYED_TO: Final = ["a", "b", "c", "p"]
QUEUES: Final = ["a", "b", "c", "p", "t", "u"]
PATTERNS: Final = ["k.1", "k.*", "#", "*.2", "k.#"]
KEYS: Final = ["k.1", "k.2", "x.2", "k", ""]
ARGUMENTS: Final[dict[str, dict[str, Any]]] = {
    "p": {"x-max-priority": PRIORITIES},
    **{
        name: {
            "x-message-ttl": TTL[name],
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": LETTERS[name],
        }
        for name in TTL
    },
}
DELIVERY: Final = ("Basic.Deliver", "ContentHeader", "ContentBody", "Basic.Cancel")


class Copy:
    """A message in a queue of the model.

    `deaths` is its expected `x-death` history: (queue, reason, count), the latest first.
    """

    def __init__(
        self,
        body: bytes,
        priority: int,
        place: int,
        expires: int | None,
        deaths: list[tuple[str, str, int]],
    ) -> None:
        self.body, self.priority, self.place, self.expires, self.deaths = (
            body,
            priority,
            place,
            expires,
            deaths,
        )
        self.redelivered = False


class ModelQueue:
    """A queue of the model.

    `arrived` has all messages of the queue, `held` the messages that were delivered to a client and
    are not settled yet.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.arrived: list[Copy] = []
        self.held: set[Copy] = set()
        #: The bindings of each exchange: exchange name -> bindings.
        self.bindings: dict[str, set[str]] = {"amq.topic": set(), "later": set()}

    @property
    def waiting(self) -> list[Copy]:
        """Return the waiting messages in the order in which they are delivered."""
        most = PRIORITIES if self.name == "p" else 0
        return sorted(
            (copy for copy in self.arrived if copy not in self.held),
            key=lambda copy: (-min(copy.priority, most), copy.place),
        )


class ModelConsumer:
    def __init__(self, tag: str, queue: str, prefetch: int, no_ack: bool, priority: int) -> None:
        self.tag, self.queue, self.prefetch, self.no_ack, self.priority = (
            tag,
            queue,
            prefetch,
            no_ack,
            priority,
        )
        self.holds = 0

    @property
    def credit(self) -> int:
        return 1_000 if self.no_ack or not self.prefetch else max(0, self.prefetch - self.holds)


class Held:
    """A delivery that a client has not settled yet; the queue may have been deleted meanwhile."""

    def __init__(self, queue: ModelQueue, copy: Copy, consumer: ModelConsumer | None) -> None:
        self.queue, self.copy, self.consumer = queue, copy, consumer


class Transaction:
    """The publications and settlements of one connection since its last commit."""

    def __init__(self) -> None:
        self.published: list[Callable[[], int]] = []
        self.settled: dict[int, str] = {}


class Side:
    """One client connection with channel 1.

    It also holds the model of the channel: its consumers and its unsettled deliveries.
    """

    def __init__(self, client: Amqp) -> None:
        self.client = client
        self.begin()

    def begin(self) -> None:
        self.number = 0
        self.unsettled: dict[int, Held] = {}
        self.consumers: dict[str, ModelConsumer] = {}
        self.transaction: Transaction | None = None


class Play:
    """The broker, the model, and the steps that a test can take.

    Each step makes one client act, and checks that the broker delivers what the model expects.
    """

    def begin(self, sides: int, consumers: int) -> None:
        self.world = World()
        self.sides = [Side(self.world.amqp()) for _ in range(sides)]
        self.most_consumers = consumers
        self.queues: dict[str, ModelQueue] = {}
        self.published = self.tags = self.places = self.now = 0
        #: Due time, number and action of each delayed message.
        self.delayed: list[tuple[int, int, Callable[[], object]]] = []
        self.sides[0].client.send(
            X.Declare(
                exchange="later",
                exchange_type="x-delayed-message",
                arguments={"x-delayed-type": "topic"},
            )
        )

    # -- the model's knowledge of a step

    def send_and_check(self, who: int, *methods: Any, first: bool = True) -> list[str]:
        """Send methods from client number `who`; check the deliveries to all clients.

        Return the names of the replies that are not deliveries. With `first`, also check that
        consumers of a higher priority receive messages first. A commit may give such consumers
        new credit while it runs, so `first` is False for a commit.
        """
        frames = [
            side.client.send(*(methods if at == who else ())) for at, side in enumerate(self.sides)
        ]
        # A message that is requeued after its expiry time expires when the clock advances next.
        self.world.sleep(0)
        self.check(
            [[*mine, *side.client.read()] for mine, side in zip(frames, self.sides, strict=True)],
            first,
        )
        return [name for name in names(frames[who]) if name not in DELIVERY]

    def check(self, frames: list[list[Any]], first: bool = True) -> None:
        consumers = [consumer for side in self.sides for consumer in side.consumers.values()]
        credit_of = {
            name: {
                priority: sum(
                    one.credit
                    for one in consumers
                    if one.queue == name and one.priority == priority
                )
                for priority in {one.priority for one in consumers}
            }
            for name in self.queues
        }
        expected = {
            name: queue.waiting[: sum(credit_of[name].values())]
            for name, queue in self.queues.items()
        }
        came: dict[str, list[Copy]] = {name: [] for name in self.queues}
        by_priority: dict[str, dict[int, int]] = {name: {} for name in self.queues}
        for side, heard in zip(self.sides, frames, strict=True):
            places: dict[str, list[tuple[int, int]]] = {}
            for one, headers in zip(deliveries(heard), headers_of(heard), strict=True):
                consumer = side.consumers[one.tag]
                copy = self.take(side, one, headers, consumer.queue, consumer)
                came[consumer.queue].append(copy)
                counts = by_priority[consumer.queue]
                counts[consumer.priority] = counts.get(consumer.priority, 0) + 1
                most = PRIORITIES if consumer.queue == "p" else 0
                places.setdefault(consumer.queue, []).append(
                    (-min(copy.priority, most), copy.place)
                )
            assert all(mine == sorted(mine) for mine in places.values())
        assert {name: set(copies) for name, copies in came.items()} == {
            name: set(copies) for name, copies in expected.items()
        }
        for name, copies in expected.items() if first else ():
            left = len(copies)
            for priority in sorted(credit_of[name], reverse=True):
                mine = min(left, credit_of[name][priority])
                assert by_priority[name].get(priority, 0) == mine
                left -= mine

    def take(
        self,
        side: Side,
        one: Delivered,
        headers: dict[str, Any],
        name: str,
        consumer: ModelConsumer | None,
        no_ack: bool = False,
    ) -> Copy:
        """Check a delivery, and mark its message in the model as delivered.

        The delivery tag must be the next one. The body, the redelivered flag and the `x-death`
        history must be the values of a waiting message.
        """
        queue = self.queues[name]
        side.number += 1
        assert one.number == side.number
        [copy] = [
            copy
            for copy in queue.waiting
            if copy.body == one.body and copy.deaths == deaths_in(headers)
        ]
        assert one.redelivered == copy.redelivered and "BCC" not in headers
        if no_ack or consumer is not None and consumer.no_ack:
            queue.arrived.remove(copy)
        else:
            queue.held.add(copy)
            side.unsettled[one.number] = Held(queue, copy, consumer)
            if consumer is not None:
                consumer.holds += 1
        return copy

    def arrive(
        self, queue: ModelQueue, body: bytes, priority: int, deaths: list[tuple[str, str, int]]
    ) -> None:
        self.places += 1
        ttl = TTL.get(queue.name)
        queue.arrived.append(
            Copy(body, priority, self.places, None if ttl is None else self.now + ttl, deaths)
        )

    def give_back(self, held: Held, how: str) -> None:
        if held.consumer is not None:
            held.consumer.holds -= 1
        held.queue.held.discard(held.copy)
        if how == "requeue":
            held.copy.redelivered = True
            return
        held.queue.arrived.remove(held.copy)
        if how == "drop" and self.queues.get(held.queue.name) is held.queue:
            self.dead_letter(held.queue, held.copy, "rejected")

    def dead_letter(self, queue: ModelQueue, copy: Copy, reason: str) -> None:
        """Move a message to the dead letter queue of `queue`, if the model has such a queue.

        The message is dropped instead if it has expired and the move would be a dead letter cycle.
        """
        target = self.queues.get(LETTERS.get(queue.name, ""))
        count = sum(
            times for name, why, times in copy.deaths if (name, why) == (queue.name, reason)
        )
        deaths = [
            (queue.name, reason, count + 1),
            *(one for one in copy.deaths if one[:2] != (queue.name, reason)),
        ]
        if target is not None and not (reason == "expired" and round_again(deaths, target.name)):
            self.arrive(target, copy.body, copy.priority, deaths)

    def expire(self) -> None:
        """Dead-letter the expired messages at the head of their queues."""
        for name in TTL:
            queue = self.queues.get(name)
            while (
                queue is not None and queue.waiting and (queue.waiting[0].expires or 0) <= self.now
            ):
                copy = queue.waiting[0]
                queue.arrived.remove(copy)
                self.dead_letter(queue, copy, "expired")

    def leave(self, side: Side) -> None:
        side.consumers.clear()
        for held in side.unsettled.values():
            self.give_back(held, "requeue")
        side.begin()
        self.expire()

    def routed_queues(self, exchange: str, keys: list[str]) -> list[ModelQueue]:
        """Return the queues to which the exchange routes a message with these routing keys."""
        if not exchange:
            return [queue for name, queue in self.queues.items() if name in keys]
        return [
            queue
            for queue in self.queues.values()
            if any(
                DEFAULT.matches(pattern, key)
                for pattern in queue.bindings[exchange]
                for key in keys
            )
        ]

    def arrivals(self, queues: list[ModelQueue], body: bytes, priority: int) -> int:
        """Add a message to each queue that still exists; return the number of these queues."""
        there = [queue for queue in queues if self.queues.get(queue.name) is queue]
        for queue in there:
            self.arrive(queue, body, priority, [])
        return len(there)

    # -- steps

    def declare(self, who: int, name: str) -> None:
        self.queues.setdefault(name, ModelQueue(name))
        assert self.send_and_check(who, Q.Declare(queue=name, arguments=ARGUMENTS.get(name))) == [
            "Queue.DeclareOk"
        ]

    def delete(self, who: int, name: str) -> None:
        self.queues.pop(name, None)
        for side in self.sides:
            side.consumers = {tag: one for tag, one in side.consumers.items() if one.queue != name}
        assert self.send_and_check(who, Q.Delete(queue=name)) == ["Queue.DeleteOk"]

    def purge(self, who: int, name: str) -> None:
        if name in self.queues:
            queue = self.queues[name]
            queue.arrived = [copy for copy in queue.arrived if copy in queue.held]
            assert self.send_and_check(who, Q.Purge(queue=name)) == ["Queue.PurgeOk"]

    def bind_or_unbind(self, who: int, name: str, pattern: str, there: bool, later: bool) -> None:
        if name in self.queues and not (later and name not in DELAYED_TO):
            exchange = "later" if later else "amq.topic"
            bindings = self.queues[name].bindings[exchange]
            (bindings.add if there else bindings.discard)(pattern)
            kind = Q.Bind if there else Q.Unbind
            answer = "Queue.BindOk" if there else "Queue.UnbindOk"
            assert self.send_and_check(
                who, kind(queue=name, exchange=exchange, routing_key=pattern)
            ) == [answer]

    def publish(
        self,
        who: int,
        key: str,
        count: int,
        direct: str | None,
        cut: int,
        copies: list[str] | None = None,
        blind: list[str] | None = None,
        priority: int = 0,
        delay: int = 0,
    ) -> None:
        """Publish `count` messages from client number `who`, and check the deliveries.

        With `direct`, the messages go to the queue of this name; they are mandatory, so they are
        returned if the queue does not exist. Without `direct`, they go to a topic exchange with the
        key `key`, and arrive after `delay` ms if it is not 0. `copies` and `blind` are the headers
        CC and BCC. `cut` is the position at which the data is cut into two chunks.
        """
        data = b""
        side, returned = self.sides[who], 0
        if side.transaction is not None and "requeue" in side.transaction.settled.values():
            return  # The model does not know which requeued message is delivered first.
        if side.transaction is not None or delay:
            # Messages that are delivered at once come in the order of publishing, not of priority.
            priority = 0
        exchange, key = ("", direct) if direct else ("later" if delay else "amq.topic", key)
        keys = [key, *(copies or []), *(blind or [])]
        headers = {
            name: value
            for name, value in (("CC", copies), ("BCC", blind), ("x-delay", delay))
            if value
        }
        for _ in range(count):
            self.published += 1
            body = b"%d" % self.published
            given: dict[str, Any] = {"priority": priority} if priority else {}
            data += publication(
                exchange, key, body, mandatory=bool(direct), headers=headers, **given
            )
            if delay:
                arrives = self.later(delay, body, keys, priority)
            else:
                arrives = self.arrival(self.routed_queues(exchange, keys), body, priority)
            if side.transaction is not None:
                side.transaction.published.append(arrives)
            else:
                returned += not arrives()
        side.client.connection.receive_data(data[:cut])
        side.client.connection.receive_data(data[cut:])
        assert self.send_and_check(who) == (["Basic.Return"] * returned if direct else [])

    def arrival(self, queues: list[ModelQueue], body: bytes, priority: int) -> Callable[[], int]:
        return lambda: self.arrivals(queues, body, priority)

    def later(self, delay: int, body: bytes, keys: list[str], priority: int) -> Callable[[], int]:
        def wait() -> int:
            self.places += 1
            self.delayed.append(
                (
                    self.now + delay,
                    self.places,
                    lambda: self.arrivals(self.routed_queues("later", keys), body, priority),
                )
            )
            return 1

        return wait

    def consume(self, who: int, name: str, prefetch: int, no_ack: bool, priority: int) -> None:
        if name in self.queues and len(self.sides[who].consumers) < self.most_consumers:
            self.tags += 1
            tag = f"t{self.tags}"
            self.sides[who].consumers[tag] = ModelConsumer(tag, name, prefetch, no_ack, priority)
            consume = B.Consume(
                queue=name,
                consumer_tag=tag,
                no_ack=no_ack,
                arguments={"x-priority": priority} if priority else None,
            )
            assert self.send_and_check(who, B.Qos(prefetch_count=prefetch), consume) == [
                "Basic.QosOk",
                "Basic.ConsumeOk",
            ]

    def cancel(self, who: int, which: int) -> None:
        consumers = self.sides[who].consumers
        if consumers:
            tag = sorted(consumers)[which % len(consumers)]
            del consumers[tag]
            assert self.send_and_check(who, B.Cancel(tag)) == ["Basic.CancelOk"]

    def get(self, who: int, name: str, no_ack: bool) -> None:
        if name in self.queues:
            side = self.sides[who]
            waiting = self.queues[name].waiting
            frames = side.client.send(B.Get(queue=name, no_ack=no_ack))
            assert frames[0].name == ("Basic.GetOk" if waiting else "Basic.GetEmpty")
            size = 3 if waiting else 1
            for one, headers in zip(
                deliveries(frames[:size]), headers_of(frames[:size]), strict=True
            ):
                assert one.body == waiting[0].body
                self.take(side, one, headers, name, None, no_ack)
            self.world.sleep(0)
            self.check(
                [
                    [*(frames[size:] if at == who else []), *other.client.read()]
                    for at, other in enumerate(self.sides)
                ]
            )

    def settle(self, who: int, which: int, multiple: bool, how: str) -> None:
        """Acknowledge, reject or requeue a delivery; in a transaction, the commit settles it.

        `how` is ack, drop or requeue. `which` is the index of the delivery among the unsettled
        ones of client number `who`. With `multiple`, also settle all earlier deliveries.
        """
        side = self.sides[who]
        settled = side.transaction.settled if side.transaction is not None else {}
        if side.transaction is not None and side.transaction.published and how == "requeue":
            how = "drop"
        open_tags = [tag for tag in sorted(side.unsettled) if tag not in settled]
        if not open_tags:
            return
        number = open_tags[which % len(open_tags)]
        for one in open_tags:
            if one == number or multiple and one < number:
                if side.transaction is not None:
                    settled[one] = how
                else:
                    self.give_back(side.unsettled.pop(one), how)
        self.expire()
        method = (
            B.Ack(number, multiple) if how == "ack" else B.Nack(number, multiple, how == "requeue")
        )
        assert self.send_and_check(who, method) == []

    def recover(self, who: int) -> None:
        side = self.sides[who]
        settled = side.transaction.settled if side.transaction is not None else {}
        for tag in [tag for tag in side.unsettled if tag not in settled]:
            self.give_back(side.unsettled.pop(tag), "requeue")
        self.expire()
        assert self.send_and_check(who, B.Recover(requeue=True)) == ["Basic.RecoverOk"]

    def select(self, who: int) -> None:
        side = self.sides[who]
        side.transaction = side.transaction or Transaction()
        assert self.send_and_check(who, T.Select()) == ["Tx.SelectOk"]

    def commit(self, who: int) -> None:
        side = self.sides[who]
        if side.transaction is not None:
            transaction, side.transaction = side.transaction, Transaction()
            for arrives in transaction.published:
                arrives()
            for tag, how in transaction.settled.items():
                self.give_back(side.unsettled.pop(tag), how)
            self.expire()
            assert [
                name
                for name in self.send_and_check(who, T.Commit(), first=False)
                if name != "Basic.Return"
            ] == ["Tx.CommitOk"]

    def rollback(self, who: int) -> None:
        side = self.sides[who]
        if side.transaction is not None:
            side.transaction = Transaction()
            assert self.send_and_check(who, T.Rollback()) == ["Tx.RollbackOk"]

    def close_channel(self, who: int) -> None:
        self.leave(self.sides[who])
        assert self.send_and_check(who, spec.Channel.Close(0, "", 0, 0), spec.Channel.Open()) == [
            "Channel.CloseOk",
            "Channel.OpenOk",
        ]

    def break_channel(self, who: int) -> None:
        self.leave(self.sides[who])
        assert self.send_and_check(who, B.Ack(1_000_000)) == ["Channel.Close"]
        assert self.send_and_check(who, spec.Channel.CloseOk(), spec.Channel.Open()) == [
            "Channel.OpenOk"
        ]

    def lose_connection(self, who: int) -> None:
        side = self.sides[who]
        self.leave(side)
        side.client.connection.on_closed()
        side.client = self.world.amqp()
        self.send_and_check(who)

    def pass_time(self, milliseconds: int) -> None:
        """Advance the clock in steps, so that messages expire in the order of their times."""
        for _ in range(milliseconds):
            self.now += 1
            for due, _, happens in sorted(self.delayed, key=lambda one: one[:2]):
                if due <= self.now:
                    happens()
            self.delayed = [one for one in self.delayed if one[0] > self.now]
            self.expire()
            self.world.sleep(1)
            self.send_and_check(0)

    # -- invariants

    def compare(self) -> None:
        """Compare all queues with the model, and check that each message and copy has one fate."""
        assert {
            name: (queue.depth, queue.unacked) for name, queue in self.world.vhost.queues.items()
        } == {name: (len(queue.waiting), len(queue.held)) for name, queue in self.queues.items()}
        self.world.fates()


def round_again(deaths: list[tuple[str, str, int]], target: str) -> bool:
    """True if it would be a dead letter cycle to put a dead letter into the target queue.

    It is a cycle if the target queue has dead-lettered the message before, and no client has
    rejected the message since.
    """
    at = [name for name, _, _ in deaths]
    return target in at and all(
        reason != "rejected" for _, reason, _ in deaths[: at.index(target) + 1]
    )


def deaths_in(headers: dict[str, Any]) -> list[tuple[str, str, int]]:
    return [
        (death["queue"], death["reason"], death["count"]) for death in headers.get("x-death", [])
    ]


def headers_of(frames: list[Any]) -> list[dict[str, Any]]:
    """Return the headers of each delivered message, in order."""
    headers: list[dict[str, Any]] = []
    returned = False
    for one in frames:
        if one.name in ("Basic.Return", "Basic.Deliver", "Basic.GetOk"):
            returned = one.name == "Basic.Return"
        elif isinstance(one, pamqp.header.ContentHeader) and not returned:
            headers.append(one.properties.headers or {})
    return headers
