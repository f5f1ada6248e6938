"""The declarations of a virtual host: exchanges, queues, policies, and the journals.

    declare, delete --> dict of exchanges or queues --> store (if durable) --> topology stream
                        --> plans retired, because routes may lead elsewhere now

The methods `add_...` store nothing. These methods are also called when the broker starts, for
stored definitions. The object then gets the number that it has in the store.

A journal is a stream that records each message published in the virtual host. With the first
journal the stream `$topology` is declared, which records the declarations and bindings, so that a
reader of the journal can tell where a message went.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mypy_extensions import i64

from broker.agenda import Agenda
from broker.errors import NotAllowed, NotFound, PreconditionFailed, ResourceLocked
from broker.limits import BrokerLimits
from broker.names import checked_name
from broker.queues.arguments import NO_ARGUMENTS, QueueArguments, check_durable_type
from broker.queues.deduplicated import DeduplicatedQueue
from broker.queues.delay import DelayQueue
from broker.queues.duplicate_filter import DuplicateFilter
from broker.queues.limited import DeadLetterHost, LimitedQueue
from broker.queues.policies import Policies, Policy, operator_policy_of
from broker.queues.priority import PriorityQueue
from broker.queues.queue import Queue
from broker.queues.recent import RecentQueue
from broker.routing.equivalence import check_exchange, check_queue
from broker.routing.exchanges import (
    TYPES,
    DeduplicationExchange,
    DelayedExchange,
    Exchange,
    RecentHistoryExchange,
    TopicExchange,
)
from broker.routing.exchanges.base import ExchangeOptions
from broker.routing.exchanges.deduplication import cache_arguments
from broker.routing.exchanges.recent_history import history_length
from broker.routing.exchanges.topic import topic_exchange
from broker.routing.plan_index import first_word
from broker.routing.plan_search import NAME_BYTES
from broker.routing.planner import Planner
from broker.routing.publish_context import PublishContexts
from broker.routing.topology_stream import TOPOLOGY, TOPOLOGY_BYTES_MAX, TopologyStream
from broker.store.contract import Defined, Store, Ticket, Undefined
from broker.stream.queue import StreamQueue
from broker.stream.streams import Streams
from broker.vhost.background import PolicyUpdate, TopologySnapshot, kind_of
from broker.vhost.bindings import Bindings
from broker.vhost.options import MAX_QUEUES, VirtualHostOptions
from broker.vhost.parameters import OPERATOR_POLICY, Parameters
from broker.vhost.totals import DeletedCounts
from matching.bucket import members

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
#: The types of exchanges whose constructors need a queue.
WITH_QUEUE: Final = (
    DelayedExchange.kind,
    RecentHistoryExchange.kind,
    DeduplicationExchange.kind,
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
        self.inboxes: dict[str, Queue] = {}
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
        self._policy_update: PolicyUpdate | None = None
        #: Counts of the queues and subscribers that were deleted.
        self.deleted = DeletedCounts()
        self.queues_declared = 0
        self.queues_created = 0
        self.queues_deleted = 0
        #: The name of the journal that the settings declare (`stream.journals`); empty if none.
        self.journal = ""
        self.topology: TopologyStream | None = None
        self.planner = Planner(vhost, agenda, self.exchanges, self.queues, self.replies, limits)
        self.contexts = PublishContexts(self.planner, limits)
        self.bindings = Bindings(
            vhost, agenda, store, self.planner, self.exchanges, self.delete_exchange, limits
        )
        self._vhost = vhost
        self._agenda = agenda
        self._store = store
        self._limits = limits
        self._streams = streams
        self._host = host
        for number, (exchange, kind) in enumerate(_PREDECLARED, start=1):
            self.add_exchange(exchange, kind, ExchangeOptions(durable=True), -number)

    # -- exchanges

    def declare_exchange(
        self, name: str, kind: str, options: ExchangeOptions, ticket: Ticket | None = None
    ) -> Exchange:
        """Return the exchange of this name; create it if it does not exist.

        Raise PreconditionFailed if it exists with other options, or if an option is invalid, and
        NotAllowed if the limit of exchanges is reached.
        """
        known = self.exchanges.get(name)
        if known is not None:
            check_exchange(known, self._vhost, kind, options)
            if ticket is not None:
                # The declare-ok waits until the existing definition would survive a crash.
                self._store.wait_for(known.number, ticket)
            return known
        checked_name("exchange", name)
        if 0 < self._limits.exchanges <= len(self.exchanges):
            raise NotAllowed(
                f"cannot declare exchange '{name}': vhost '{self._vhost}' has reached its "
                f"limit of {self._limits.exchanges} exchanges"
            )
        exchange = self.add_exchange(name, kind, options, 0)
        if options.durable:
            self._assign_number(
                exchange,
                self._store.append(
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
        if self.topology is not None:
            self.topology.declared_exchange(name, kind, exchange.alternate)
        self.planner.retire(name)
        return exchange

    def add_exchange(self, name: str, kind: str, options: ExchangeOptions, number: i64) -> Exchange:
        """Create an exchange without storing it, and return it.

        `number` is its number in the store, 0 if it is not stored (yet). Raise PreconditionFailed
        if an option is invalid.
        """
        exchange = self.exchanges[name] = self._new_exchange(name, kind, options)
        self._assign_number(exchange, number)
        if exchange.alternate is None:
            exchange.alternate = self.policies.alternate(name)
        return exchange

    def _assign_number(self, exchange: Exchange, number: i64) -> None:
        """Set the store's number of an exchange, and of its queue of messages if it has one."""
        exchange.number = number
        if isinstance(exchange, DelayedExchange):
            exchange.waiting.number = number
            self.delays[exchange.name] = exchange.waiting
        elif isinstance(exchange, RecentHistoryExchange):
            exchange.recent.number = number
            self.histories[exchange.name] = exchange.recent
        elif isinstance(exchange, DeduplicationExchange):
            self.filters[exchange.name] = exchange.filter

    def _new_exchange(self, name: str, kind: str, options: ExchangeOptions) -> Exchange:
        where = f"for exchange '{name}' in vhost '{self._vhost}'"
        if "alternate-exchange" in options.arguments and options.alternate is None:
            raise PreconditionFailed(f"invalid arg 'alternate-exchange' {where}: not a string")
        if kind == TopicExchange.kind:
            return topic_exchange(name, options, self._limits.matcher, self._limits.matchers)
        if kind == DelayedExchange.kind:
            inner = options.arguments.get("x-delayed-type")
            if not isinstance(inner, str) or inner not in TYPES:
                raise PreconditionFailed(
                    f"invalid arg 'x-delayed-type' {where}: {inner!r} is none of "
                    + ", ".join(sorted(TYPES))
                )
            waiting = DelayQueue(
                self._vhost,
                name,
                self._agenda,
                self._store,
                options.durable,
                NO_ARGUMENTS,
                self._host,
            )
            return DelayedExchange(name, options, self._new_exchange(name, inner, options), waiting)
        if kind == RecentHistoryExchange.kind:
            length = history_length(where, options)
            recent = RecentQueue(
                self._vhost, name, self._agenda, self._store, options.durable, length
            )
            return RecentHistoryExchange(name, options, recent)
        if kind == DeduplicationExchange.kind:
            size, ttl = cache_arguments(where, options)
            known = DuplicateFilter(self._vhost, name, self._agenda, self._store, size, ttl)
            return DeduplicationExchange(name, options, known)
        exchange_type = TYPES.get(kind)
        if exchange_type is None:
            kinds = ", ".join(sorted([*TYPES, *WITH_QUEUE]))
            raise PreconditionFailed(f"invalid exchange type '{kind}'; known are {kinds}")
        return exchange_type(name, options)

    def delete_exchange(
        self, name: str, if_unused: bool = False, ticket: Ticket | None = None
    ) -> None:
        """Delete an exchange, if it exists.

        Raise PreconditionFailed if the exchange has bindings and `if_unused` is True.
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
            self._store.append(Undefined(self._vhost, "exchange", name, exchange.number), ticket)
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
        if self.topology is not None:
            self.topology.deleted("exchange", name)
        self.planner.retire(name)
        self.bindings.remove_to(exchange)
        self.bindings.remove_from(exchange)

    # -- queues

    def queue(self, name: str, owner: object = None) -> Queue:
        """Return the queue of this name, which the connection `owner` wants to use.

        Raise NotFound if there is no such queue, ResourceLocked if the queue is exclusive to
        another connection or belongs to a session.
        """
        queue = self.queues.get(name)
        if queue is None:
            if name in self.inboxes:
                raise ResourceLocked(
                    f"queue '{name}' in vhost '{self._vhost}' belongs to an MQTT session, "
                    "and other clients cannot use it"
                )
            raise NotFound(f"no queue '{name}' in vhost '{self._vhost}'")
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
        True. Raise PreconditionFailed if the queue exists with other options, or if an option is
        invalid, ResourceLocked if it belongs to another connection or a session, and NotAllowed if
        the limit of queues is reached.
        """
        self.queues_declared += 1
        known = self.queue(name, owner) if name in self.queues or name in self.inboxes else None
        given = arguments or {}
        effective = QueueArguments(name, self._vhost, given, self.policies.arguments(name, given))
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
        if effective.stream and self._store.stream_refusal:
            refusal = self._store.stream_refusal
            raise PreconditionFailed(f"cannot declare stream '{name}': {refusal}")
        if 0 < self._limits.queues <= len(self.queues):
            raise NotAllowed(
                f"cannot declare queue '{name}': vhost '{self._vhost}' has reached its limit "
                f"of {self._limits.queues} queues"
            )
        limit = self.options.limits.get(MAX_QUEUES)
        if limit is not None and len(self.queues) >= limit:
            raise PreconditionFailed(
                f"cannot declare queue '{name}': queue limit in vhost '{self._vhost}' ({limit}) is "
                "reached"
            )
        queue = self.add_queue(name, durable and not exclusive, auto_delete, effective, 0)
        queue.declared_durable = durable
        queue.exclusive_to = owner if exclusive else None
        self.queues_created += 1
        if queue.durable:
            queue.number = self._store.append(
                Defined(
                    self._vhost,
                    "queue",
                    name,
                    {"auto_delete": auto_delete, "arguments": dict(effective.arguments)},
                ),
                ticket,
            )
        if self.topology is not None:
            self.topology.declared(kind_of(queue), name)
        if isinstance(queue, StreamQueue):
            self._streams.assign_number(queue, int(queue.number), False)
            self._find_journals()
            self._declare_topology()
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
        if number > 0 and arguments.stream:
            self._find_journals()
        return queue

    def delete_queue(
        self,
        queue: Queue,
        if_unused: bool = False,
        if_empty: bool = False,
        ticket: Ticket | None = None,
        vhost_closing: bool = False,
    ) -> int:
        """Delete a queue, and return how many messages it held.

        Raise PreconditionFailed in three cases: the queue has consumers and `if_unused` is True; it
        holds messages and `if_empty` is True; or it is the topology stream and a journal exists.
        The third case does not apply if the whole virtual host is deleted (`vhost_closing` is
        True).
        """
        where = f"queue '{queue.name}' in vhost '{self._vhost}'"
        if if_unused and queue.consumer_count:
            raise PreconditionFailed(f"{where} in use")
        if if_empty and queue.depth > 0:
            raise PreconditionFailed(f"{where} not empty")
        topology, journals = self.topology, self.planner.journals
        if topology is not None and queue is topology.queue and journals and not vhost_closing:
            raise PreconditionFailed(
                f"{where} belongs to journal '{journals[0].name}': delete the journal first"
            )
        del self.queues[queue.name]
        self.deduplicated.pop(queue.name, None)
        self.queues_deleted += 1
        if queue.durable:
            # Append this entry before `on_deleted` releases the messages: their release takes
            # effect once this entry is durable.
            self._store.append(Undefined(self._vhost, "queue", queue.name, queue.number), ticket)
        purged = queue.on_deleted()
        self.deleted.add_queue(queue)
        if topology is not None and topology.queue is not queue:
            topology.deleted(kind_of(queue), queue.name)
        self.evict_default_route(queue)
        self.bindings.remove_to(queue)
        if isinstance(queue, StreamQueue):
            self._streams.served += queue.served
            self._find_journals()
        return purged

    @property
    def deduplication_entries(self) -> int:
        """The number of header values that exchanges and queues remember for deduplication."""
        exchanges = sum(known.entries for known in self.filters.values())
        return exchanges + sum(queue.entries for queue in self.deduplicated.values())

    def evict_default_route(self, queue: Queue) -> None:
        """Remove the route from the default exchange to a deleted queue from all route caches."""
        self.planner.retire("", first_word(queue.name))
        name = queue.name.encode()
        self.contexts.evict(bytes([0, len(name)]) + name if len(name) <= NAME_BYTES else b"")

    def retire_plans(self) -> None:
        """Make all plans stale, so that each route gets a new plan with its next message."""
        self.planner.retire_all()

    # -- policies

    def set_policy(self, policy: Policy, ticket: Ticket | None = None) -> None:
        """Add a policy, or replace the policy of the same name, and apply it in slices."""
        known = self.policies.by_name.get(policy.name)
        if known is not None and known.row == policy.row:
            return
        checked_name("policy", policy.name)
        self._store.append(Defined(self._vhost, "policy", policy.name, policy.row), ticket)
        self.add_policy(policy)

    def clear_policy(self, name: str, ticket: Ticket | None = None) -> None:
        """Remove a policy, if it exists, and update the queues and exchanges in slices."""
        if self.policies.by_name.pop(name, None) is not None:
            self._store.append(Undefined(self._vhost, "policy", name), ticket)
            self._apply_all_policies()

    def add_policy(self, policy: Policy) -> None:
        """Add a policy without storing it, and apply all policies in slices."""
        self.policies.by_name[policy.name] = policy
        self._apply_all_policies()

    def _apply_all_policies(self) -> None:
        queues, exchanges = list(self.queues.values()), list(self.exchanges.values())
        if self._policy_update is None or not self._policy_update.again(queues, exchanges):
            self._policy_update = PolicyUpdate(self, self._agenda, queues, exchanges)
            self._policy_update.run_first_slice()

    def apply_alternate(self, exchange: Exchange) -> None:
        """Give an exchange the alternate exchange of its policy."""
        before = exchange.alternate
        if exchange.options.alternate is None:
            exchange.alternate = self.policies.alternate(exchange.name)
        if self.topology is not None and exchange.alternate != before:
            self.topology.declared_exchange(exchange.name, exchange.kind, exchange.alternate)

    def apply_policies(self, queue: Queue) -> None:
        """Give a queue the arguments of its policy, if the queue still exists.

        A plain queue that needs limits now is replaced by a LimitedQueue.
        """
        if self.queues.get(queue.name) is not queue:
            return
        given = queue.arguments.arguments
        effective = QueueArguments(
            queue.name, self._vhost, given, self.policies.arguments(queue.name, given)
        )
        if isinstance(queue, (StreamQueue, LimitedQueue)):
            queue.update_arguments(effective)
        elif effective.needs_only_plain_queue:
            queue.arguments = effective
        else:
            replacement = LimitedQueue(
                self._vhost,
                queue.name,
                self._agenda,
                self._store,
                queue.durable,
                effective,
                self._host,
            )
            replacement.take_over(queue)
            self.queues[queue.name] = replacement
            for exchange in list(members(queue.bound_to)):
                if isinstance(exchange, Exchange):
                    exchange.redirect(queue, replacement)
            replacement.update_arguments(effective)

    def set_operator_policy(self, policy: Policy, ticket: Ticket | None = None) -> None:
        """Add or replace an operator policy, which bounds the policies of the queues it matches."""
        self.parameters.set(OPERATOR_POLICY, policy.name, policy.row, ticket)
        self.policies.operator_by_name[policy.name] = policy
        self._apply_all_policies()

    def add_parameter(self, component: str, name: str, value: object) -> None:
        """Add a stored parameter at the start. Raise PreconditionFailed if it is invalid."""
        self.parameters.restore(component, name, value)
        if component == OPERATOR_POLICY and isinstance(value, dict):
            self.policies.operator_by_name[name] = operator_policy_of(self._vhost, name, value)

    def set_parameter(
        self, component: str, name: str, value: object, ticket: Ticket | None = None
    ) -> bool:
        """Set a parameter; return True if it is new. Raise PreconditionFailed if it is invalid."""
        fresh = (component, name) not in self.parameters.values
        if component == OPERATOR_POLICY:
            if not isinstance(value, dict):
                raise PreconditionFailed(f"operator policy '{name}': its value is not an object")
            self.set_operator_policy(operator_policy_of(self._vhost, name, value), ticket)
            return fresh
        return self.parameters.set(component, name, value, ticket)

    def clear_parameter(self, component: str, name: str, ticket: Ticket | None = None) -> bool:
        """Remove a parameter and its operator policy, if any; return True if it existed."""
        if not self.parameters.clear(component, name, ticket):
            return False
        if component == OPERATOR_POLICY:
            del self.policies.operator_by_name[name]
            self._apply_all_policies()
        return True

    # -- journals

    def record_in(self, name: str) -> None:
        """Record all messages in the stream of this name from now on; declare the stream if needed.

        Raise PreconditionFailed if a queue of another type has this name.
        """
        self.journal = name
        known = self.queues.get(name)
        if known is None:
            self.declare_queue(name, True, {"x-queue-type": "stream"})
        elif not isinstance(known, StreamQueue):
            raise PreconditionFailed(
                f"the journal of vhost '{self._vhost}' cannot be '{name}': "
                "a queue of another type has this name; choose another name"
            )
        self._find_journals()
        self._declare_topology()

    def _find_journals(self) -> None:
        """Update the journals and the topology stream, after a stream was added or deleted."""
        journals = [
            queue
            for queue in self.queues.values()
            if isinstance(queue, StreamQueue)
            and (queue.arguments.journal or queue.name == self.journal)
        ]
        if journals != self.planner.journals:
            self.planner.journals = journals
            self._store.journaling = self._store.journaling or bool(journals)
            self.retire_plans()
        known = self.queues.get(TOPOLOGY)
        if not isinstance(known, StreamQueue):
            self.topology = None
        elif self.topology is None or self.topology.queue is not known:
            self.topology = TopologyStream(
                known, self.contexts.internal.count_copies, self.record_topology
            )
        self.contexts.topology = self.bindings.topology = self.topology

    def _declare_topology(self) -> None:
        """Declare the topology stream if there is a journal, and begin its first snapshot."""
        if self.planner.journals and TOPOLOGY not in self.queues:
            self.declare_queue(
                TOPOLOGY,
                True,
                {"x-queue-type": "stream", "x-max-length-bytes": TOPOLOGY_BYTES_MAX},
            )
            self.record_topology(True)

    def record_topology(self, restarted: bool = False) -> None:
        """Begin a snapshot in the topology stream, if there is one.

        `restarted` is True if the rows before the snapshot are no longer valid, as after a restart.
        """
        if self.topology is not None:
            TopologySnapshot(
                self._agenda, self.topology, self.exchanges, self.queues, restarted
            ).run_first_slice()
