"""Brokers whose definitions are on disk, and which can be started again from there."""

from __future__ import annotations

from pathlib import Path

from mypy_extensions import i64

from broker.bounds import Bounds
from broker.exchange import Exchange, TopicExchange
from broker.queue import Queue
from broker.restore import Report, restore
from broker.route import Listener
from broker.store.catalog import Catalog
from broker.store.contract import Batch, Defined, Entry, Ticket, Undefined
from broker.store.memory import MemoryStore
from protocols.mqtt.session import Session
from protocols.mqtt.sessions import MqttOptions
from tests.clients import World


class CatalogBatch(Batch):
    """Definitions of a batch."""

    def __init__(self, tickets: list[Ticket], catalog: Catalog, changes: list[tuple[int, Entry]], position: int) -> None:
        super().__init__(tickets, position)
        self._catalog = catalog
        self._changes = changes
        self._position = position

    def write(self) -> None:
        if self._changes:
            self._catalog.write(self._changes, self._position)


class CatalogStore(MemoryStore):
    """Definitions go to the catalog; of messages nothing is kept."""

    def __init__(self, catalog: Catalog) -> None:
        super().__init__()
        self.catalog = catalog
        self.position = catalog.last
        self._changes: list[tuple[int, Entry]] = []

    def apply(self, position: i64, entry: Entry) -> None:
        super().apply(position, entry)
        if isinstance(entry, (Defined, Undefined)):
            self._changes.append((int(position), entry))

    def batch(self, tickets: list[Ticket]) -> Batch:
        changes, self._changes = self._changes, []
        return CatalogBatch(tickets, self.catalog, changes, int(self.position))


class Home(World):
    """A World on a directory; whoever comes later to the same directory finds what was durable."""

    def __init__(self, directory: Path, bounds: Bounds | None = None, mqtt: MqttOptions | None = None, now: int = 1_000,
                 wall: float = 1_700_000_000.0) -> None:
        directory.mkdir(exist_ok=True)
        self.catalog = Catalog(str(directory / "catalog"))
        super().__init__(bounds, mqtt=mqtt, store=CatalogStore(self.catalog))
        self.broker.agenda.advance(now, wall)
        self.report: Report = restore(self.broker, self.catalog.load(), self.mqtt_front.sessions)

    def crash(self) -> None:
        """What was not written is lost."""
        self.catalog.close()


def options(seconds: int) -> MqttOptions:
    """Sessions end after so many seconds."""
    made = MqttOptions()
    made.session_expiry_s = seconds
    return made


# -- what there is, by names only


def listing(world: World) -> dict[str, object]:
    """All that lasts."""
    vhost, sessions = world.vhost, world.mqtt_front.sessions.all()
    return {
        "exchanges": {
            exchange.name: (exchange.kind, exchange.options.auto_delete, exchange.options.internal, dict(exchange.options.arguments),
                            exchange.options.alternate, exchange.algorithm if isinstance(exchange, TopicExchange) else "")
            for exchange in vhost.exchanges.values() if exchange.options.durable},
        "queues": {
            queue.name: (type(queue).__name__, queue.auto_delete, queue.declared_durable, queue.exclusive_to, queue.terms.given)
            for queue in vhost.queues.values() if queue.durable},
        "bindings": bindings(world),
        "sessions": {
            session.name: (session.inbox.name, session.inbox.durable, session.inbox.private, int(session.inbox.max_length),
                           {name: int(binding.assurance) for name, binding in session.subscriptions.items()})
            for session in sessions if session.persistent},
        "inboxes": {name for name, inbox in vhost.inboxes.items() if inbox.durable},
    }


def bindings(world: World) -> set[tuple[object, ...]]:
    """Those that last: from, to, how."""
    found: set[tuple[object, ...]] = set()
    for exchange in world.vhost.exchanges.values():
        for binding in exchange:
            target = binding.destination
            if exchange.options.durable and not target.dead and lasting(target):
                kind = "queue" if isinstance(target, Queue) else "session" if isinstance(target, Session) else "exchange"
                found.add((exchange.name, kind, target.name, binding.identity, binding.key, int(binding.assurance), binding.grammar.name))
    return found


def lasting(target: object) -> bool:
    if isinstance(target, Exchange):
        return target.options.durable
    if isinstance(target, Listener):
        return target.inbox.durable
    assert isinstance(target, Queue)
    return target.durable


def numbers(world: World) -> dict[str, int]:
    """Of all that lasts."""
    vhost = world.vhost
    things = [*vhost.exchanges.values(), *vhost.queues.values(), *vhost.listeners]
    return {f"{type(thing).__name__} {thing.name}": int(thing.number) for thing in things if lasting(thing)}
