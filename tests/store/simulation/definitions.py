"""A model of the definitions that clients requested and the broker confirmed.

After a crash, the broker must have all confirmed changes and all changes before them.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

import pamqp.commands as spec

from broker.routing.topology_stream import TOPOLOGY
from tests.clients import World
from tests.store.homes import bindings
from tests.store.simulation.ledger import DEFINITIONS, Complain

if TYPE_CHECKING:
    from tests.store.simulation.amqp import Operator

#: Durable queues that operators declare and delete, with their arguments.
QUEUES: dict[str, dict[str, Any]] = {"op-1": {}, "op-2": {"x-max-length": 3}}
#: Durable exchanges that operators declare and delete, with their types.
EXCHANGES = {"x-1": "fanout", "x-2": "topic"}


class Declared:
    """The durable definitions, by name."""

    def __init__(self) -> None:
        #: Queue -> number of the newest message when the queue was declared.
        self.queues: dict[str, int] = {}
        self.exchanges: set[str] = set()
        self.bindings: set[tuple[str, str, str]] = set()
        self.sessions: dict[str, dict[str, int]] = {}

    def copy(self) -> Declared:
        other = Declared()
        other.queues, other.exchanges, other.bindings = (
            dict(self.queues),
            set(self.exchanges),
            set(self.bindings),
        )
        other.sessions = {
            name: dict(subscriptions) for name, subscriptions in self.sessions.items()
        }
        return other

    def seen(self) -> tuple[object, ...]:
        """Return the definitions as a tuple of sorted lists, which can be compared."""
        return (
            sorted(self.queues),
            sorted(self.exchanges),
            sorted(self.bindings),
            sorted(
                (name, sorted(subscriptions.items()))
                for name, subscriptions in self.sessions.items()
            ),
        )


def definitions_of(world: World) -> tuple[object, ...]:
    """Return the durable definitions of a broker as a tuple of sorted lists."""
    vhost, sessions = (
        world.vhost,
        [session for session in world.mqtt_front.sessions.all() if session.persistent],
    )
    return (
        sorted(
            queue.name
            for queue in vhost.queues.values()
            if queue.durable and queue.name != TOPOLOGY
        ),
        sorted(exchange.name for exchange in vhost.exchanges.values() if exchange.number > 0),
        sorted(
            (str(one[0]), str(one[2]), str(one[4]))
            for one in bindings(world)
            if one[1] != "session"
        ),
        sorted(
            (
                session.name,
                sorted((name, int(binding.qos)) for name, binding in session.subscriptions.items()),
            )
            for session in sessions
        ),
    )


class Definitions:
    """The history of the definitions: their state after each change that the broker made."""

    def __init__(self, random: Random, complain: Complain, newest: Callable[[], int]) -> None:
        self.random = random
        #: Queues that operators declare and delete.
        self.queues = dict(QUEUES)
        self.now = Declared()
        self._complain = complain
        self._newest = newest
        #: Number of the latest step.
        self._step = 0
        #: Object -> the last step that changed it.
        self._last: dict[str, int] = {}
        #: The last confirmed step, and all later steps.
        self._steps: list[tuple[int, Declared]] = [(0, self.now.copy())]

    def change(self, thing: str, how: Callable[[], None]) -> Callable[[], None]:
        """Add a change of the object `thing`; return the function to call when it is confirmed.

        `how` makes the change in the model.

        From the confirm on, this change and all changes before it must survive a crash. A confirm
        of a request that changes nothing proves that the object's last change is durable.
        """
        before = self.now.seen()
        how()
        if self.now.seen() == before:
            step = self._last.get(thing, 0)
        else:
            self._step += 1
            self._steps.append((self._step, self.now.copy()))
            step = self._last[thing] = self._step
        return lambda: self._answered(step)

    def _answered(self, step: int) -> None:
        while self._steps[0][0] < step:
            del self._steps[0]

    def recovered(self, world: World) -> None:
        """Check the definitions that the broker has after a start.

        They must be the definitions after the last confirmed change, or after a later change.
        """
        there = definitions_of(world)
        steps = [step for _, step in self._steps if step.seen() == there]
        if steps:
            self.now = steps[-1].copy()
            # If a queue was deleted and declared again, the queue found may be the earlier or the
            # later one of that name.
            self.now.queues = {
                name: min(step.queues[name] for step in steps) for name in self.now.queues
            }
        else:
            self._complain(
                DEFINITIONS,
                f"{there}, and it should be one of {[step.seen() for _, step in self._steps]}",
            )
        self._step += 1
        self._steps = [(self._step, self.now.copy())]
        self._last.clear()

    # -- sessions

    def session(self, name: str) -> None:
        self.now.sessions.setdefault(name, {})

    def subscribe(self, name: str, topic_filter: str, quality: int) -> None:
        self.now.sessions[name][topic_filter] = quality

    def unsubscribe(self, name: str, topic_filter: str) -> None:
        self.now.sessions[name].pop(topic_filter, None)

    # -- changes by operators

    def something(self, operator: Operator) -> None:
        """Let an operator send a random request, or none.

        The request may have no effect, for example if it deletes a queue that does not exist.
        """
        random, now = self.random, self.now
        queue, exchange, choice = (
            random.choice(list(self.queues)),
            random.choice(list(EXCHANGES)),
            random.random(),
        )
        source = random.choice(["fan", "amq.topic", *sorted(now.exchanges - {"fan"})])
        binding = (source, queue, "t.#")
        if choice < 0.3:
            self.declare(operator, queue, self.queues[queue])
        elif choice < 0.45:
            operator.ask(queue, spec.Queue.Delete(queue=queue), lambda: self._forget_queue(queue))
        elif choice < 0.6:
            operator.ask(
                exchange,
                spec.Exchange.Declare(
                    exchange=exchange, exchange_type=EXCHANGES[exchange], durable=True
                ),
                lambda: now.exchanges.add(exchange),
            )
        elif choice < 0.7:
            operator.ask(
                exchange,
                spec.Exchange.Delete(exchange=exchange),
                lambda: self._forget_exchange(exchange),
            )
        elif queue in now.queues and choice < 0.9:
            self.bind(operator, *binding)
        elif queue in now.queues:
            operator.ask(
                f"{source} {queue}",
                spec.Queue.Unbind(queue=queue, exchange=source, routing_key="t.#"),
                lambda: now.bindings.discard(binding),
            )

    def declare(self, operator: Operator, queue: str, arguments: dict[str, Any]) -> None:
        newest = self._newest()
        operator.ask(
            queue,
            spec.Queue.Declare(queue=queue, durable=True, arguments=arguments),
            lambda: self._add_queue(queue, newest),
        )

    def bind(self, operator: Operator, source: str, queue: str, key: str) -> None:
        operator.ask(
            f"{source} {queue}",
            spec.Queue.Bind(queue=queue, exchange=source, routing_key=key),
            lambda: self.now.bindings.add((source, queue, key)),
        )

    def _add_queue(self, queue: str, newest: int) -> None:
        self.now.queues.setdefault(queue, newest)

    def _forget_queue(self, queue: str) -> None:
        self.now.queues.pop(queue, None)
        self.now.bindings = {one for one in self.now.bindings if one[1] != queue}

    def _forget_exchange(self, exchange: str) -> None:
        self.now.exchanges.discard(exchange)
        self.now.bindings = {one for one in self.now.bindings if one[0] != exchange}
