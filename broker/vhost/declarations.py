"""The declarations of a virtual host: its exchanges and queues.

    declare, delete --> dict of exchanges or queues --> store (if durable) --> topology stream
                        --> plans become stale, because routes may lead elsewhere now

The methods `add_...` store nothing. These methods are also called when the broker starts, for
stored definitions. The object then gets the number that it has in the store.

exchange_maker.py makes the exchanges. applied_policies.py gives queues and exchanges the arguments
of their policies. journals.py declares the streams that record messages and declarations.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mypy_extensions import i64

from broker.agenda import Agenda
from broker.errors import NotAllowed, PreconditionFailed, ResourceLocked, no_queue
from broker.limits import BrokerLimits
from broker.names import checked_name
from broker.queues.arguments import QueueArguments, check_durable_type
from broker.queues.deduplicated import DeduplicatedQueue
from broker.queues.delay import DelayQueue
from broker.queues.duplicate_filter import DuplicateFilter
from broker.queues.limited import DeadLetterHost, LimitedQueue
from broker.queues.policies import Policies
from broker.queues.priority import PriorityQueue
from broker.queues.private import Inbox
from broker.queues.queue import Queue
from broker.queues.recent import RecentQueue
from broker.routing.equivalence import check_exchange, check_queue
from broker.routing.exchanges import (
    DeduplicationExchange,
    DelayedExchange,
    Exchange,
    RecentHistoryExchange,
)
from broker.routing.exchanges.base import ExchangeOptions
from broker.routing.plan_index import first_word
from broker.routing.plan_search import NAME_BYTES
from broker.routing.planner import Planner
from broker.routing.publish_context import PublishContexts
from broker.store.contract import Store, Ticket
from broker.store.entries import Defined, Undefined
from broker.stream.queue import StreamQueue
from broker.stream.streams import Streams
from broker.vhost.applied_policies import AppliedPolicies
from broker.vhost.background import kind_of
from broker.vhost.bindings import Bindings
from broker.vhost.exchange_maker import ExchangeMaker
from broker.vhost.journals import Journals
from broker.vhost.options import VirtualHostOptions, check_queue_count
from broker.vhost.parameters import Parameters
from broker.vhost.queue_names import QueueNames
from broker.vhost.totals import DeletedCounts

#: The exchanges that each virtual host has from the beginning. Their numbers in the store are -1,
#: -2, ... in this order, so a new exchange may be added only at the end.
_PREDECLARED: Final = (
    ("", "direct"),
    ("amq.direct", "direct"),
    ("amq.fanout", "fanout"),
    ("amq.topic", "topic"),
    ("amq.headers", "headers"),
    ("amq.match", "headers"),
)


class Declarations:
    """The exchanges, queues and policies of one virtual host."""

    def __init__(
        self,
        vhost: str,
        agenda: Agenda,
        store: Store,
        limits: BrokerLimits,
        streams: Streams,
        host: DeadLetterHost,
    ) -> None:
        self.exchanges: dict[str, Exchange] = {}
        self.queues: dict[str, Queue] = {}
        #: Queues for direct replies (`amq.rabbitmq.reply-to`), by name. Each has one consumer.
        self.replies: dict[str, Queue] = {}
        #: Inboxes of sessions, by the queue names under which operators see them.
        self.inboxes: dict[str, Inbox] = {}
        self.queue_names = QueueNames()
        self.inbox_names = QueueNames()
        #: The delayed messages of each delayed exchange, by the name of the exchange.
        self.delays: dict[str, DelayQueue] = {}
        #: The recent messages of each recent-history exchange, by the name of the exchange.
        self.histories: dict[str, RecentQueue] = {}
        #: The filter of each deduplication exchange, by the name of the exchange.
        self.filters: dict[str, DuplicateFilter] = {}
        #: The queues that deduplicate their messages, by name.
        self.deduplicated: dict[str, DeduplicatedQueue] = {}
        self.policies = Policies()
        self.parameters = Parameters(vhost, store)
        self.options = VirtualHostOptions()
        #: Numbers of queues and exchanges of the real virtual host that a trial import has not
        #: copied, but that count for the limits. 0 except in trial imports.
        self.uncopied_queues = 0
        self.uncopied_exchanges = 0
        #: Counts of the queues and subscribers that were deleted.
        self.deleted = DeletedCounts()
        self.queues_declared = 0
        self.queues_created = 0
        self.queues_deleted = 0
        self.planner = Planner(vhost, agenda, self.exchanges, self.queues, self.replies, limits)
        self.contexts = PublishContexts(self.planner, agenda, limits)
        self.bindings = Bindings(
            vhost, agenda, store, self.planner, self.exchanges, self.delete_exchange, limits
        )
        self._vhost = vhost
        self._agenda = agenda
        self._store = store
        self._limits = limits
        self._streams = streams
        self._host = host
        self._maker = ExchangeMaker(vhost, agenda, store, limits, host)
        self.journals = Journals(
            vhost,
            agenda,
            store,
            self.exchanges,
            self.queues,
            self.planner,
            self.contexts,
            self.bindings,
            self,
        )
        self.applied_policies = AppliedPolicies(
            vhost,
            agenda,
            store,
            host,
            self.exchanges,
            self.queues,
            self.policies,
            self.parameters,
            self.planner,
            self.journals,
        )
        for number, (exchange, kind) in enumerate(_PREDECLARED, start=1):
            self.add_exchange(exchange, kind, ExchangeOptions(durable=True), -number)

    def absorb(self, other: Declarations) -> None:
        """Add the counts of `other`, which belong to a deleted virtual host, to these counts."""
        self.deleted.merge(other.deleted)
        self.queues_declared += other.queues_declared
        self.queues_created += other.queues_created
        self.queues_deleted += other.queues_deleted
        self.planner.scope.paused += other.planner.scope.paused
        self.planner.traces.lost += other.planner.traces.lost
        self.bindings.refused += other.bindings.refused

    # -- exchanges

    def declare_exchange(
        self, name: str, kind: str, options: ExchangeOptions, ticket: Ticket | None = None
    ) -> Exchange:
        """Return the exchange of this name; create it if it does not exist.

        Raises PreconditionFailed if the exchange exists with other options, or if an option is
        invalid, and NotAllowed if the limit of exchanges is reached.
        """
        known = self.exchanges.get(name)
        if known is not None:
            check_exchange(known, self._vhost, kind, options)
            if ticket is not None:
                # The declare-ok waits until the existing definition would survive a crash.
                self._store.wait_for(known.number, ticket)
            return known
        checked_name("exchange", name)
        if 0 < self._limits.exchanges <= len(self.exchanges) + self.uncopied_exchanges:
            raise NotAllowed(
                f"cannot declare exchange '{name}': vhost '{self._vhost}' has reached the limit "
                f"of {self._limits.exchanges} exchanges: raise the setting limits.exchanges"
            )
        exchange = self.add_exchange(name, kind, options, 0)
        if options.durable:
            self._assign_number(
                exchange,
                self._store.define(
                    Defined(
                        self._vhost,
                        "exchange",
                        name,
                        {
                            "type": kind,
                            "auto_delete": options.auto_delete,
                            "internal": options.internal,
                            "arguments": dict(options.arguments),
                        },
                    ),
                    ticket,
                ),
            )
        if self.journals.topology is not None:
            self.journals.topology.declared_exchange(name, kind, exchange.alternate)
        self.planner.retire(name)
        return exchange

    def add_exchange(self, name: str, kind: str, options: ExchangeOptions, number: i64) -> Exchange:
        """Create an exchange without storing it, and return it.

        `number` is its number in the store, 0 if it is not stored (yet). Raises PreconditionFailed
        if an option is invalid.
        """
        exchange = self.exchanges[name] = self._maker.make(name, kind, options)
        self._assign_number(exchange, number)
        if exchange.alternate is None:
            exchange.alternate = self.policies.alternate(name)
        return exchange

    def _assign_number(self, exchange: Exchange, number: i64) -> None:
        """Set the number that an exchange has in the store.

        If the exchange has a queue of its own (for delayed or recent messages), the queue gets the
        same number.
        """
        exchange.number = number
        if isinstance(exchange, DelayedExchange):
            exchange.waiting.number = number
            self.delays[exchange.name] = exchange.waiting
        elif isinstance(exchange, RecentHistoryExchange):
            exchange.recent.number = number
            self.histories[exchange.name] = exchange.recent
        elif isinstance(exchange, DeduplicationExchange):
            self.filters[exchange.name] = exchange.filter

    def delete_exchange(
        self, name: str, if_unused: bool = False, ticket: Ticket | None = None
    ) -> None:
        """Delete an exchange, if it exists.

        Raises PreconditionFailed if the exchange has bindings and `if_unused` is True.
        """
        exchange = self.exchanges.get(name)
        if exchange is None:
            if ticket is not None:
                self._store.wait_for_all(ticket)
            return
        if if_unused and exchange.bindings:
            raise PreconditionFailed(f"exchange '{name}' in vhost '{self._vhost}' in use")
        del self.exchanges[name]
        exchange.dead = True
        if exchange.options.durable:
            # Append this entry before `on_deleted` releases the exchange's messages: their release
            # takes effect once this entry is durable.
            self._store.define(Undefined(self._vhost, "exchange", name, exchange.number), ticket)
        if isinstance(exchange, DelayedExchange):
            del self.delays[name]
            exchange.waiting.on_deleted()
            self.deleted.add_queue(exchange.waiting)
        elif isinstance(exchange, RecentHistoryExchange):
            del self.histories[name]
            exchange.recent.on_deleted()
            self.deleted.add_queue(exchange.recent)
        elif isinstance(exchange, DeduplicationExchange):
            del self.filters[name]
        if self.journals.topology is not None:
            self.journals.topology.deleted("exchange", name)
        self.planner.retire(name)
        self.bindings.remove_to(exchange)
        self.bindings.remove_from(exchange)

    # -- queues

    def queue(self, name: str, owner: object = None) -> Queue:
        """Return the queue of this name, for use by the connection `owner`.

        Raises NotFound if there is no such queue, ResourceLocked if the queue is exclusive to
        another connection or belongs to a session.
        """
        queue = self.queues.get(name)
        if queue is None:
            if name in self.inboxes:
                raise ResourceLocked(
                    f"queue '{name}' in vhost '{self._vhost}' belongs to an MQTT session, "
                    "and other clients cannot use it"
                )
            raise no_queue(name, self._vhost)
        if queue.exclusive_to is not None and queue.exclusive_to is not owner:
            raise ResourceLocked(
                f"cannot obtain exclusive access to locked queue '{name}' "
                f"in vhost '{self._vhost}'. It could be originally declared on another connection "
                "or the exclusive property value does not match that of the original declaration."
            )
        return queue

    def declare_queue(
        self,
        name: str,
        durable: bool = False,
        arguments: Mapping[str, object] | None = None,
        owner: object = None,
        exclusive: bool = False,
        auto_delete: bool = False,
        ticket: Ticket | None = None,
    ) -> Queue:
        """Return the queue of this name; create it if it does not exist.

        `owner` is the connection that declares the queue; only `owner` may use it if `exclusive` is
        True. Raises PreconditionFailed if an option is invalid or differs from the existing
        queue's, or if the virtual host's limit of queues is reached; ResourceLocked if the queue
        belongs to another connection or a session; NotAllowed if `limits.queues` is reached.
        """
        self.queues_declared += 1
        known = self.queue(name, owner) if name in self.queues or name in self.inboxes else None
        given = arguments or {}
        exists = known is not None and known.arguments.arguments == given
        policy = self.policies.arguments(name, given)
        effective = QueueArguments(name, self._vhost, given, policy, exists)
        if known is not None:
            check_queue(known, self._vhost, durable, exclusive, auto_delete, effective)
            known.touch()
            if ticket is not None:
                # The declare-ok waits until the existing definition would survive a crash.
                self._store.wait_for(known.number, ticket)
            return known
        checked_name("queue", name)
        if effective.quorum or effective.stream:
            check_durable_type(
                name,
                self._vhost,
                durable,
                exclusive,
                auto_delete,
                "stream" if effective.stream else "quorum",
            )
        count = len(self.queues) + self.uncopied_queues
        check_queue_count(name, self._vhost, count, int(self._limits.queues), self.options.limits)
        queue = self.add_queue(name, durable and not exclusive, auto_delete, effective, 0)
        queue.declared_durable = durable
        queue.exclusive_to = owner if exclusive else None
        self.queues_created += 1
        if queue.durable:
            queue.number = self._store.define(
                Defined(
                    self._vhost,
                    "queue",
                    name,
                    {"auto_delete": auto_delete, "arguments": dict(effective.arguments)},
                ),
                ticket,
            )
        if self.journals.topology is not None:
            self.journals.topology.declared(kind_of(queue), name)
        if isinstance(queue, StreamQueue):
            self._streams.assign_number(queue, int(queue.number), False)
            self.journals.find()
            self.journals.declare_topology()
        self.planner.retire("", first_word(name))
        return queue

    def add_queue(
        self, name: str, durable: bool, auto_delete: bool, arguments: QueueArguments, number: i64
    ) -> Queue:
        """Create a queue without storing it, and return it.

        `number` is its number in the store, 0 if it is not stored (yet).
        """
        vhost, agenda, store, host = self._vhost, self._agenda, self._store, self._host
        queue: Queue
        if arguments.stream:
            queue = stream = self._streams.make(vhost, name, agenda, arguments)
            if number > 0:
                self._streams.assign_number(stream, int(number), True)
        elif arguments.ranked:
            queue = PriorityQueue(vhost, name, agenda, store, durable, arguments, host)
        elif arguments.deduplicates:
            queue = known = DeduplicatedQueue(vhost, name, agenda, store, durable, arguments, host)
            self.deduplicated[name] = known
        elif not arguments.needs_only_plain_queue:
            queue = LimitedQueue(vhost, name, agenda, store, durable, arguments, host)
        else:
            queue = Queue(vhost, name, agenda, store, durable)
            queue.arguments = arguments
        queue.touch()
        queue.auto_delete = auto_delete
        queue.number = number
        self.queues[name] = queue
        self.queue_names.add(name)
        if number > 0 and arguments.stream:
            self.journals.find()
        return queue

    def delete_queue(
        self,
        queue: Queue,
        if_unused: bool = False,
        if_empty: bool = False,
        ticket: Ticket | None = None,
        vhost_closing: bool = False,
    ) -> int:
        """Delete a queue, and return how many messages were waiting in it.

        Raises PreconditionFailed in three cases: the queue has consumers and `if_unused` is True;
        messages wait in the queue and `if_empty` is True; or the queue is the topology stream, a
        journal exists, and the virtual host is not deleted as a whole (`vhost_closing`).
        """
        where = f"queue '{queue.name}' in vhost '{self._vhost}'"
        if if_unused and queue.consumer_count:
            raise PreconditionFailed(f"{where} in use")
        if if_empty and queue.depth > 0:
            raise PreconditionFailed(f"{where} not empty")
        topology, journals = self.journals.topology, self.planner.journals
        if topology is not None and queue is topology.queue and journals and not vhost_closing:
            raise PreconditionFailed(
                f"{where} belongs to journal '{journals[0].name}': delete the journal first"
            )
        del self.queues[queue.name]
        self.queue_names.remove(queue.name)
        self.deduplicated.pop(queue.name, None)
        self.queues_deleted += 1
        if queue.durable:
            # Append this entry before `on_deleted` releases the messages: their release takes
            # effect once this entry is durable.
            self._store.define(Undefined(self._vhost, "queue", queue.name, queue.number), ticket)
        purged = queue.on_deleted()
        self.deleted.add_queue(queue)
        if topology is not None and topology.queue is not queue:
            topology.deleted(kind_of(queue), queue.name)
        self.evict_default_route(queue)
        self.bindings.remove_to(queue)
        if isinstance(queue, StreamQueue):
            self._streams.served += queue.served
            self.journals.find()
        return purged

    @property
    def deduplication_entries(self) -> int:
        """The number of header values that exchanges and queues remember for deduplication."""
        exchanges = sum(known.entries for known in self.filters.values())
        return exchanges + sum(queue.entries for queue in self.deduplicated.values())

    def evict_default_route(self, queue: Queue) -> None:
        """Remove from all route caches the route by which the default exchange led to a deleted
        queue.
        """
        self.planner.retire("", first_word(queue.name))
        name = queue.name.encode()
        self.contexts.evict(bytes([0, len(name)]) + name if len(name) <= NAME_BYTES else b"")
