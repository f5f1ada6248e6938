"""Brokers with a data directory, which can be stopped and started again."""

from __future__ import annotations

from pathlib import Path

from broker.definitions.restore import RestoreReport, restore_broker
from broker.limits import BrokerLimits
from broker.queues.queue import Queue
from broker.routing.exchanges import Exchange, TopicExchange
from broker.routing.subscriber import Subscriber
from broker.store.catalog import Catalog
from broker.store.disk import Disk, RealDisk
from broker.store.durable_batch import BatchShipping
from broker.store.inspect import dump
from broker.store.opening import LOG, OpenedStore, open_store
from broker.store.segments import SEGMENT_SIZE
from protocols.mqtt.options import MqttOptions
from protocols.mqtt.session.session import Session
from tests.clients import World
from trellis.server.recovery import codecs


def restore(files: dict[Path, bytes]) -> None:
    """Restore the files of a catalog to their content from before the last batch.

    The catalog is written after the log is synced. So after a crash with a half-written batch in
    the log, the catalog has nothing of this batch.
    """
    for path, data in files.items():
        path.write_bytes(data)


class Home(World):
    """A broker on a data directory, with its connections.

    A second Home on the same directory starts with the durable state.
    """

    def __init__(
        self,
        directory: Path,
        limits: BrokerLimits | None = None,
        mqtt: MqttOptions | None = None,
        now: int = 1_000,
        wall: float = 1_700_000_000.0,
        disk: Disk | None = None,
        segment_size: int = SEGMENT_SIZE,
        shipping: BatchShipping | None = None,
        opened: OpenedStore | None = None,
    ) -> None:
        """Start a broker on a directory.

        `now` is the monotonic clock in milliseconds, `wall` the wall clock in seconds since 1970.
        `shipping` is the replicated log if the broker is a node of a cluster.
        `opened` is the store of a standby that takes over; None for a start.
        """
        directory.mkdir(exist_ok=True)
        #: Reports of the store about messages that it cannot read.
        self.complaints: list[str] = []
        self.opened = opened or open_store(
            disk or RealDisk(),
            str(directory),
            codecs(),
            7,
            self.complaints.append,
            lambda recovery: None,
            segment_size,
        )
        self.opened.store.shipping = shipping
        super().__init__(limits, mqtt=mqtt, store=self.opened.store)
        self.broker.agenda.advance(now, wall)
        self.opened.store.set_clocks(now, wall)
        self.report: RestoreReport = restore_broker(
            self.broker, self.opened, self.mqtt_front.sessions
        )
        self.directory = directory

    @property
    def catalog(self) -> Catalog:
        return self.opened.store.catalog

    def crash(self) -> None:
        """Crash the broker: close its catalog, and write nothing more."""
        self.catalog.close()

    def records(self) -> list[str]:
        """Return the records of the log, one per line: position, kind and fields."""
        return [line for line in dump(RealDisk(), str(self.directory / LOG)) if line[0].isdigit()]


def options(seconds: int) -> MqttOptions:
    """Return options with which sessions expire after this many seconds."""
    mqtt_options = MqttOptions()
    mqtt_options.session_expiry_s = seconds
    return mqtt_options


# -- the durable definitions, by name


def listing(world: World) -> dict[str, object]:
    """Return all durable definitions of a broker, by name, in a form that can be compared."""
    vhost, sessions = world.vhost, world.mqtt_front.sessions.all()
    return {
        "exchanges": {
            exchange.name: (
                exchange.kind,
                exchange.options.auto_delete,
                exchange.options.internal,
                dict(exchange.options.arguments),
                exchange.options.alternate,
                exchange.algorithm if isinstance(exchange, TopicExchange) else "",
            )
            for exchange in vhost.exchanges.values()
            if exchange.options.durable
        },
        "queues": {
            queue.name: (
                type(queue).__name__,
                queue.auto_delete,
                queue.declared_durable,
                queue.exclusive_to,
                queue.arguments.given,
            )
            for queue in vhost.queues.values()
            if queue.durable
        },
        "bindings": bindings(world),
        "sessions": {
            session.name: (
                session.inbox.name,
                session.inbox.durable,
                session.inbox.private,
                int(session.inbox.max_length),
                {name: int(binding.qos) for name, binding in session.subscriptions.items()},
            )
            for session in sessions
            if session.persistent
        },
        "inboxes": {name for name, inbox in vhost.inboxes.items() if inbox.durable},
    }


def bindings(world: World) -> set[tuple[object, ...]]:
    """Return the durable bindings: source, destination, arguments."""
    durable: set[tuple[object, ...]] = set()
    for exchange in world.vhost.exchanges.values():
        for binding in exchange:
            target = binding.destination
            if exchange.options.durable and not target.dead and lasting(target):
                kind = (
                    "queue"
                    if isinstance(target, Queue)
                    else "session"
                    if isinstance(target, Session)
                    else "exchange"
                )
                durable.add(
                    (
                        exchange.name,
                        kind,
                        target.name,
                        binding.identity,
                        binding.key,
                        int(binding.qos),
                        binding.grammar.name,
                    )
                )
    return durable


def lasting(target: object) -> bool:
    if isinstance(target, Exchange):
        return target.options.durable
    if isinstance(target, Subscriber):
        return target.inbox.durable
    assert isinstance(target, Queue)
    return target.durable


def numbers(world: World) -> dict[str, int]:
    """Return the number that identifies each durable exchange, queue and session in the store.

    The keys are the name of the object's class and the object's name, such as "Queue q".
    """
    vhost = world.vhost
    things = [*vhost.exchanges.values(), *vhost.queues.values(), *vhost.subscribers]
    return {
        f"{type(thing).__name__} {thing.name}": int(thing.number)
        for thing in things
        if lasting(thing)
    }
