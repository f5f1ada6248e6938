"""Consumers of AMQP queues: with acknowledgements, with transactions, and with rejections."""

from __future__ import annotations

import asyncio

import pamqp.commands as spec

from tests.clients import marshal
from tests.crash.client import Client, Ports
from tests.crash.ledger import Feed, body_of, read_body
from tests.crash.wire import Amqp, Answered, Confirmed, Delivered, acknowledgement, persistent

Message = tuple[str, int]


class Acking(Client):
    """A consumer that acknowledges messages, and learns when its acknowledgements are durable.

    For this purpose it publishes messages (receipts) on the same channel. The confirm of a receipt
    proves that all acknowledgements before it are durable.
    """

    def __init__(self, name: str, seed: int, queue: str, receipts: str) -> None:
        super().__init__(name, seed)
        self.queue = queue
        self.receipts = Feed(name)
        #: All delivered messages, in order.
        self.seen: list[Message] = []
        #: Messages whose acknowledgement is durable, so that they must not be delivered again.
        self.settled: set[Message] = set()
        self._receipts_to = receipts

    async def live(self, ports: Ports) -> None:
        while True:
            client = await Amqp.connect(ports.amqp)
            await client.call(spec.Confirm.Select(), (85, 11))
            await client.consume(self.queue, prefetch=40)
            await self._work(client, self.random.randrange(200, 3_000))
            await client.leave()

    async def _work(self, client: Amqp, count: int) -> None:
        random, feed = self.random, self.receipts
        feed.begin()
        first = len(feed.queues)
        order: dict[str, int] = {}
        unacked: list[tuple[int, Message]] = []
        acked: list[Message] = []
        #: For each receipt of this connection, the messages acknowledged before it.
        before: dict[int, list[Message]] = {}
        done = 0
        while count > 0 or unacked:
            event = await client.event()
            if isinstance(event, Confirmed):
                while done < event.number:
                    feed.confirmed.add(first + done)
                    done += 1
                    self.settled.update(before.pop(done))
                continue
            assert isinstance(event, Delivered), event
            count -= 1
            message = read_body(event.body)
            self.take(message)
            assert order.get(message[0], -1) < message[1], (
                f"{message} came behind {order[message[0]]}"
            )
            order[message[0]] = message[1]
            unacked.append((event.tag, message))
            if len(unacked) < 20 and random.random() < 0.7 and count > 0:
                continue
            data = b""
            if random.random() < 0.5:
                data += acknowledgement(unacked[-1][0], True)
            else:
                random.shuffle(unacked)
                data += b"".join(acknowledgement(tag) for tag, _ in unacked)
            acked += [message for _, message in unacked]
            unacked = []
            if random.random() < 0.4:
                data += persistent("", self._receipts_to, feed.next(30, self._receipts_to))
                before[len(feed.queues) - first], acked = acked, []
            await client.send(data)

    def take(self, message: Message) -> None:
        assert message not in self.settled, f"{message} was settled for good, and came again"
        self.seen.append(message)


class Deal:
    """One transaction: the messages that it acknowledges, and the messages that it publishes to
    queues.
    """

    def __init__(self, number: int, inputs: list[Message]) -> None:
        self.number = number
        self.inputs = inputs
        self.outputs: dict[str, list[bytes]] = {}
        self.committed = False
        self.rolled_back = False


class Transacting(Client):
    """A client that moves messages from one queue to others, in transactions."""

    def __init__(self, name: str, seed: int, source: str, targets: tuple[str, ...]) -> None:
        super().__init__(name, seed)
        self.source = source
        self.targets = targets
        self.deals: list[Deal] = []
        self.written = 0

    async def live(self, ports: Ports) -> None:
        random = self.random
        client = await Amqp.connect(ports.amqp)
        await client.call(spec.Tx.Select(), (90, 11))
        await client.consume(self.source, prefetch=12)
        held: list[tuple[int, Message]] = []
        settled = {message for deal in self.deals if deal.committed for message in deal.inputs}
        while True:
            wanted = random.randrange(1, 9)
            while len(held) < wanted:
                event = await client.event()
                assert isinstance(event, Delivered), event
                message = read_body(event.body)
                assert message not in settled, (
                    f"{message} was taken in a transaction that was committed, and came again"
                )
                held.append((event.tag, message))
            taken, deal = (
                held[:wanted],
                Deal(len(self.deals), [message for _, message in held[:wanted]]),
            )
            self.deals.append(deal)
            parts = []
            for target in self.targets:
                for _ in range(random.randrange(1, 4)):
                    body = body_of(
                        f"{self.name}-{deal.number}", self.written, random.choice((40, 300))
                    )
                    self.written += 1
                    deal.outputs.setdefault(target, []).append(body)
                    parts.append(persistent("", target, body))
            for tag, _ in taken:
                parts.insert(random.randrange(len(parts) + 1), acknowledgement(tag))
            rolled_back = random.random() < 0.15
            ending: tuple[object, tuple[int, int]] = (
                (spec.Tx.Rollback(), (90, 31)) if rolled_back else (spec.Tx.Commit(), (90, 21))
            )
            if rolled_back:
                deal.rolled_back = True
            else:
                held = held[wanted:]
            await client.send(b"".join(parts) + marshal(1, ending[0]))
            while True:
                event = await client.event()
                if isinstance(event, Delivered):
                    held.append((event.tag, read_body(event.body)))
                    assert held[-1][1] not in settled
                    continue
                assert isinstance(event, Answered) and event.method == ending[1], event
                break
            if not rolled_back:
                deal.committed = True
                settled.update(deal.inputs)

    def judge(self, left: list[Message], moved: dict[str, list[bytes]], feed: Feed) -> None:
        """Check that each transaction had all of its effects or none.

        Each message of the source queue must have been moved by one transaction, or still wait
        there. `left` has the waiting messages, `moved` the messages of the target queues.
        """
        there = {
            queue: {body: at for at, body in enumerate(bodies)} for queue, bodies in moved.items()
        }
        for queue, bodies in moved.items():
            assert len(bodies) == len(there[queue]), f"{queue}: a message is in the queue twice"
        taken: dict[Message, int] = {}
        for deal in self.deals:
            outputs = [(queue, body) for queue, bodies in deal.outputs.items() for body in bodies]
            came = [body in there[queue] for queue, body in outputs]
            assert all(came) or not any(came), f"transaction {deal.number} is torn: {came}"
            assert all(came) or not deal.committed, (
                f"transaction {deal.number} was committed, and its messages are missing"
            )
            assert not (any(came) and deal.rolled_back), (
                f"transaction {deal.number} was rolled back, and its messages are in the queue"
            )
            if all(came):
                for message in deal.inputs:
                    assert message not in taken, (
                        f"{message} was taken by transactions {taken[message]} and {deal.number}"
                    )
                    taken[message] = deal.number
                for queue, bodies in deal.outputs.items():
                    at = [there[queue][body] for body in bodies]
                    assert at == list(range(at[0], at[0] + len(at))), (
                        f"transaction {deal.number} is not contiguous in {queue}: {at}"
                    )
        both = set(left) & set(taken)
        assert not both, (
            f"moved by a transaction, and still in the source queue: {sorted(both)[:10]}"
        )
        feed.judge_kept(
            {self.source: sorted([number for _, number in left] + [number for _, number in taken])}
        )


class Rejecting(Client):
    """A consumer that rejects every message, so that the message is dead-lettered."""

    def __init__(self, name: str, seed: int, queue: str) -> None:
        super().__init__(name, seed)
        self.queue = queue

    async def live(self, ports: Ports) -> None:
        client = await Amqp.connect(ports.amqp)
        await client.consume(self.queue, prefetch=10)
        while True:
            event = await client.event()
            assert isinstance(event, Delivered), event
            await asyncio.sleep(self.random.choice((0, 0, 0.002)))
            await client.send(marshal(1, spec.Basic.Reject(event.tag, False)))
