"""Bounded work: for any input, the steps of a turn stay within a budget, and all work ends.

The broker does long work in slices, over several turns of the event loop. The tests send random
commands to random topologies with dead letter cycles, times to live, policies and limits. They
lower the number of steps that a slice may take (its budget), so that a small topology has far more
work than one turn may do. A step is one call of a function of the broker. A trace function of
Python counts the steps, so no work is missed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from types import FrameType
from typing import Any, Final

import pamqp.commands as spec
import pytest

from broker.queues.policies import Policy
from protocols.mqtt.options import MqttOptions
from tests.clients import Amqp, Mqtt, World, marshal, mqtt_publish, publication

#: Budgets of slices, lowered: name of the constant -> value.
BUDGETS: Final = {
    "MESSAGES_PER_SLICE": 20,
    "DELIVERIES_PER_DRAIN": 20,
    "DISCARDS_PER_DRAIN": 10,
    "SEARCHED_PER_TURN": 40,
    "MANY_CONSUMERS": 2,
    "STEPS_PER_SLICE": 20,
    "PLANS_PER_SLICE": 20,
    "QUEUES_PER_SLICE": 2,
    "BINDINGS_PER_SLICE": 10,
    "TOPICS_PER_SLICE": 10,
    "DELETIONS_PER_SLICE": 3,
    "SETTLED_PER_SLICE": 20,
    "CLEARED": 3,
    "TURN_SLICES": 3,
}
#: Largest number of steps of a turn, or of the handling of a chunk of input, with these budgets.
STEPS_MAX: Final = 6_000
#: Publications and other commands in one chunk of input.
CHUNK: Final = 15
#: Largest number of turns until all work must be done.
TURNS_MAX: Final = 20_000
QUEUES: Final = [f"q{number}" for number in range(6)]
KEYS: Final = [f"{first}.{second}" for first in "ab" for second in range(60)]


class Steps:
    """A count of the calls of functions of the broker."""

    def __init__(self) -> None:
        self.count = 0
        #: Steps of the largest measured piece of work, and steps of all measured work.
        self.most = self.total = 0

    def _called(self, frame: FrameType, event: str, argument: object) -> None:
        name = frame.f_code.co_filename
        if "/broker/" in name or "/protocols/" in name:
            self.count += 1

    def measure(self, work: Callable[[], object]) -> None:
        """Run `work`, and count its calls of functions of the broker."""
        self.count = 0
        # Python calls `_called` at each call of a Python function. `_called` returns None, so
        # Python does not call it for the lines of the function.
        before = sys.gettrace()
        sys.settrace(self._called)
        try:
            work()
        finally:
            sys.settrace(before)
        self.most = max(self.most, self.count)
        self.total += self.count


@contextmanager
def budgets(monkeypatch: pytest.MonkeyPatch, **changes: int) -> Iterator[None]:
    """Lower the budgets (the work that one slice may do) in all modules of the broker."""
    with monkeypatch.context() as patch:
        for name, value in {**BUDGETS, **changes}.items():
            modules = [
                module
                for path, module in list(sys.modules.items())
                if path.startswith(("broker.", "protocols.")) and hasattr(module, name)
            ]
            assert modules, name
            for module in modules:
                patch.setattr(module, name, value)
        yield


class Bounded(World):
    """A broker with random clients and topology, which counts the steps of the broker's work."""

    def __init__(self, seed: int) -> None:
        options = MqttOptions()
        options.session_expiry_s = 60
        super().__init__(mqtt=options)
        self.random = Random(seed)
        self.steps = Steps()
        self.serial = 0
        self.clients = [self.amqp() for _ in range(3)]
        self.sessions: list[Mqtt] = []
        for name in QUEUES:
            self.declare(name)
        self.clients[0].send(spec.Exchange.Declare(exchange="f", exchange_type="fanout"))
        for name in QUEUES:
            self.clients[0].send(spec.Queue.Bind(queue=name, exchange="f"))
        for client in self.clients:
            client.send(spec.Basic.Qos(prefetch_count=self.random.choice((5, 300))))

    def connections(self) -> list[Any]:
        """Return the connections of all clients."""
        return [one.connection for one in self.clients] + [one.connection for one in self.sessions]

    def give(self, connection: Any, data: bytes) -> None:
        """Give a connection a chunk of input, then run at most 1, 3 or 30 turns, at random."""
        self.steps.measure(lambda: connection.receive_data(data))
        for _ in range(self.random.choice((1, 3, 30))):
            if not self.one_turn():
                break

    def one_turn(self) -> bool:
        """Run one turn of the broker and of all connections; return False if no work is left."""
        agenda = self.broker.agenda
        self.steps.measure(agenda.turn)
        self.store.sync()
        left = not agenda.idle
        for connection in self.connections():
            connection.data_to_send()
            if connection.behind and not connection.stalled and not connection.finished:
                self.steps.measure(connection.resume)
                left = True
        return left

    def finish(self) -> None:
        """Run turns until no work is left. Raises AssertionError after TURNS_MAX turns."""
        for _ in range(TURNS_MAX):
            if not self.one_turn():
                return
        raise AssertionError("the work does not end")

    def wait(self, milliseconds: int) -> None:
        """Advance the clock. The next turn runs the timers that have expired."""
        agenda = self.broker.agenda
        now, wall = int(agenda.now) + milliseconds, agenda.wall + milliseconds / 1000
        self.steps.measure(lambda: agenda.advance(now, wall))

    # -- commands

    def declare(self, name: str) -> None:
        """Declare a queue with random limits.

        The dead letters of the queue go to one queue, to all queues, or nowhere.
        """
        random = self.random
        arguments: dict[str, Any] = {}
        if random.random() < 0.5:
            arguments["x-message-ttl"] = random.choice((0, 30, 30))
        if random.random() < 0.7:
            exchange = random.choice(("", "f"))
            arguments["x-dead-letter-exchange"] = exchange
            if not exchange:
                arguments["x-dead-letter-routing-key"] = random.choice(QUEUES)
        if random.random() < 0.3:
            arguments["x-max-length"] = random.choice((1, 50, 400))
        if random.random() < 0.2:
            arguments["x-max-priority"] = 3
        declared = spec.Queue.Declare(
            queue=name, durable=random.random() < 0.6, arguments=arguments
        )
        self.clients[0].send(declared)

    def publish(self, client: Amqp) -> None:
        """Publish several hundred messages by a client, in chunks of input."""
        for _ in range(self.random.choice((1, 10, 25))):
            exchange, key = self.random.choice(
                (
                    ("", self.random.choice(QUEUES)),
                    ("f", ""),
                    ("amq.topic", self.random.choice(KEYS)),
                )
            )
            self.give(client.connection, publication(exchange, key, b"x", delivery_mode=2) * CHUNK)

    def bind(self, client: Amqp) -> None:
        """Bind a queue to an exchange with many keys."""
        queue = self.random.choice(QUEUES)
        for at in range(0, len(KEYS), CHUNK):
            self.give(
                client.connection,
                b"".join(
                    marshal(
                        1,
                        spec.Queue.Bind(
                            queue=queue, exchange="amq.topic", routing_key=key, nowait=True
                        ),
                    )
                    for key in KEYS[at : at + CHUNK]
                ),
            )

    def consume(self, client: Amqp) -> None:
        """Start a consumer of a queue, by a client."""
        self.serial += 1
        self.send(
            client,
            spec.Basic.Consume(queue=self.random.choice(QUEUES), consumer_tag=f"c{self.serial}"),
        )

    def settle_all(self, client: Amqp) -> None:
        """Settle all deliveries of a client with one method."""
        method = self.random.choice(
            (
                spec.Basic.Ack(0, True),
                spec.Basic.Nack(0, True, False),
                spec.Basic.Nack(0, True, True),
                spec.Basic.Recover(True),
            )
        )
        self.send(client, method)

    def purge(self, client: Amqp) -> None:
        """Purge a queue."""
        self.send(client, spec.Queue.Purge(queue=self.random.choice(QUEUES)))

    def delete(self, client: Amqp) -> None:
        """Delete a queue, and declare it again with other arguments."""
        name = self.random.choice(QUEUES)
        self.send(client, spec.Queue.Delete(queue=name))
        self.declare(name)

    def policy(self, client: Amqp) -> None:
        """Set or clear a policy that applies to all queues."""
        policies = self.vhost.applied_policies
        definition: dict[str, Any] = self.random.choice(
            ({"max-length": 10}, {"message-ttl": 20}, {"max-length": 3, "message-ttl": 0})
        )
        if self.random.random() < 0.7:
            new_policy = Policy("/", "p", "", "queues", 0, definition)
            self.steps.measure(lambda: policies.set_policy(new_policy, None))
        else:
            self.steps.measure(lambda: policies.clear_policy("p", None))

    def reconnect(self, client: Amqp) -> None:
        """Close a connection with unacknowledged messages and exclusive queues; open another."""
        self.send(
            client,
            *[
                spec.Queue.Declare(queue=f"own-{self.serial}-{number}", exclusive=True)
                for number in range(CHUNK)
            ],
        )
        self.serial += 1
        self.clients.remove(client)
        self.steps.measure(client.connection.on_closed)
        self.clients.append(self.amqp())

    def session(self, client: Amqp) -> None:
        """Let a session with waiting messages expire, or begin a session if there is none."""
        if self.sessions:
            gone = self.sessions.pop()
            self.steps.measure(gone.connection.on_closed)
            self.publish(client)
            self.wait(61_000)
            return
        self.serial += 1
        client_session = self.mqtt(f"s{self.serial}", clean=False)
        self.sessions.append(client_session)
        for key in KEYS:
            client_session.subscribe(key.replace(".", "/"), 1)
        for number in range(40):
            self.give(client_session.connection, mqtt_publish(f"a/{number}", b"r", 0, 0, 1))

    def expire(self, client: Amqp) -> None:
        """Advance the clock by 10 or 40 ms, so that messages expire, and run one turn."""
        self.wait(self.random.choice((10, 40)))
        self.one_turn()

    def send(self, client: Amqp, *methods: Any) -> None:
        """Send methods in one chunk of input."""
        self.give(client.connection, b"".join(marshal(1, method) for method in methods))

    def step(self) -> None:
        """Carry out one random command of a random client."""
        command = self.random.choice(
            (
                self.publish,
                self.publish,
                self.bind,
                self.consume,
                self.settle_all,
                self.purge,
                self.delete,
                self.policy,
                self.reconnect,
                self.session,
                self.expire,
            )
        )
        command(self.random.choice(self.clients))
        for client in list(self.clients):
            if client.connection.finished:
                self.clients[self.clients.index(client)] = self.amqp()

    def end(self) -> None:
        """End all work: close all connections, and delete all queues."""
        for connection in self.connections():
            self.steps.measure(connection.on_closed)
        self.clients, self.sessions = [self.amqp()], []
        self.finish()
        self.wait(61_000)
        self.finish()
        for name in QUEUES:
            self.send(self.clients[0], spec.Queue.Delete(queue=name))
        self.finish()


def lived(seed: int, commands: int = 20) -> Bounded:
    """Let clients send random commands to a new broker; return the broker without work left."""
    world = Bounded(seed)
    for _ in range(commands):
        world.step()
        assert world.steps.most <= STEPS_MAX, world.steps.most
    world.end()
    return world


@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(3, 60))]
)
def test_the_steps_of_a_turn_stay_within_the_budget_and_all_work_ends(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with budgets(monkeypatch):
        world = lived(seed)
    assert world.steps.most <= STEPS_MAX < world.steps.total / 2
    world.fates()
    totals = world.vhost.totals().whole()
    assert totals.ready == totals.unacked == totals.inbox_ready == totals.inbox_unacked == 0
    assert not world.store.state.messages


@pytest.mark.parametrize("name", ["MESSAGES_PER_SLICE", "STEPS_PER_SLICE"])
def test_work_that_is_not_sliced_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that these tests fail if the broker does long work in one turn, not in slices.

    Here one of the budgets is unlimited, so at least one turn has too many steps.
    """
    with budgets(monkeypatch, **{name: 1 << 40}), pytest.raises(AssertionError, match=r"^\d+"):
        all(lived(seed, 40) for seed in range(8))
