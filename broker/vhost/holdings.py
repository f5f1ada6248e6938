"""What a virtual host has: exchanges, queues and bindings, and how they come and go."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mypy_extensions import i64

from broker.agenda import Agenda
from broker.errors import AccessRefused, NotAllowed, NotFound, PreconditionFailed, ResourceLocked
from broker.limits import BrokerLimits
from broker.messages.fates import COPY_FATES
from broker.queues.arguments import NO_ARGUMENTS, QueueArguments, check_durable_type
from broker.queues.delay import DelayQueue
from broker.queues.destination import Destination
from broker.queues.limited import LimitedQueue
from broker.queues.policies import Policies
from broker.queues.priority import PriorityQueue
from broker.queues.queue import Queue
from broker.routing.binding import Binding
from broker.routing.deduplication import Producers
from broker.routing.equivalence import check_exchange, check_queue
from broker.routing.exchanges import TYPES, DelayedExchange, Exchange, TopicExchange
from broker.routing.exchanges.base import OCTETS, ExchangeOptions
from broker.routing.exchanges.topic import topic_exchange
from broker.routing.planner import NAME_BYTES, Planner
from broker.routing.publish_context import PublishContext, PublishContexts, sum_into
from broker.routing.route import Subscriber
from broker.routing.topology_stream import OCTETS as TOPOLOGY_OCTETS
from broker.routing.topology_stream import TOPOLOGY, TopologyStream
from broker.store.contract import Defined, Store, Ticket, Undefined
from broker.stream.queue import StreamQueue
from broker.stream.streams import Streams
from broker.vhost.background import BackgroundHost, BindingRemoval, TopologySnapshot, kind_of
from broker.vhost.retained import RetainedMessages
from broker.vhost.totals import VirtualHostTotals

#: Their numbers are -1, -2, ... in this order, on disks too: add at the end only.
_PREDECLARED: Final = (
    ("", "direct"),
    ("amq.direct", "direct"),
    ("amq.fanout", "fanout"),
    ("amq.topic", "topic"),
    ("amq.headers", "headers"),
    ("amq.match", "headers"),
)


class Holdings(BackgroundHost):
    """Names, declarations, bindings. Raises kinds of BrokerError."""

    def __init__(
        self,
        name: str,
        agenda: Agenda,
        store: Store,
        limits: BrokerLimits,
        streams: Streams | None = None,
    ) -> None:
        self.name = name
        self.agenda = agenda
        self.store = store
        self.limits = limits
        self.streams = streams or Streams(store)
        self.exchanges: dict[str, Exchange] = {}
        self.queues: dict[str, Queue] = {}
        #: Where replies go directly to those who asked: consumers without a queue of their own.
        self.replies: dict[str, Queue] = {}
        self.policies = Policies()
        #: What waits in exchanges that delay, by their names.
        self.delays: dict[str, DelayQueue] = {}
        #: Queues that belong to sessions, by the names under which operators see them.
        self.inboxes: dict[str, Queue] = {}
        self.subscribers: dict[Subscriber, None] = {}
        #: Who publishes just now, where that may matter to somebody who does not want to hear
        #: itself.
        self.publishing_session: Subscriber | None = None
        self.retained = RetainedMessages(
            name, agenda, store, limits.retained, limits.retained_bytes
        )
        self._planner = Planner(name, agenda, self.exchanges, self.queues, self.replies, limits)
        self.contexts = PublishContexts(self._planner, limits)
        #: Whether it is being deleted: nobody comes in any more.
        self.closing = False
        #: The name of a stream that gets all that is published here, though its arguments do not
        #: say so.
        self.journal = ""
        self.producers = Producers(name, store)
        self.topology: TopologyStream | None = None
        #: Whether an alarm is on: who publishes must wait.
        self.alarmed = False
        #: Why messages became dead letters, and how many.
        self.dead_letters: dict[str, int] = {}
        self.queues_declared = 0
        self.queues_created = 0
        self.queues_deleted = 0
        #: What deleted queues and sessions have counted.
        self._copy_fates = [0] * len(COPY_FATES)
        self._relayed = 0
        for number, (exchange, kind) in enumerate(_PREDECLARED, start=1):
            self.add_exchange(exchange, kind, ExchangeOptions(durable=True), -number)

    # -- counts

    @property
    def internal(self) -> PublishContext:
        """The way in of what comes from the core itself."""
        return self.contexts.internal

    @property
    def plans(self) -> int:
        """Sets of destinations that are known."""
        return len(self._planner)

    def totals(self) -> VirtualHostTotals:
        """A count of what is held here, and of how copies ended."""
        return VirtualHostTotals(
            list(self.queues.values()),
            [*self.replies.values(), *self.delays.values()],
            list(self.subscribers),
            self._copy_fates,
            self._relayed,
            sum(ingress.unrepresentable for ingress in self.contexts.ingress_counters().values()),
        )

    def absorb(self, other: Holdings) -> None:
        """The other one is gone: what it counted counts here."""
        self.contexts.absorb(other.contexts)
        sum_into(self._copy_fates, other._copy_fates)
        self._relayed += other._relayed
        for reason, count in other.dead_letters.items():
            self.dead_letters[reason] = self.dead_letters.get(reason, 0) + count
        self.queues_declared += other.queues_declared
        self.queues_created += other.queues_created
        self.queues_deleted += other.queues_deleted

    # -- what others asked for, and is not durable yet

    def reply_when_durable(self, known: Destination, ticket: Ticket | None) -> None:
        """Somebody is told that this is there: it must be, after a crash too."""
        if ticket is not None:
            self.store.wait_for(known.number, ticket)

    def reply_when_all_durable(self, ticket: Ticket | None) -> None:
        """Somebody is told that a change is made which another one made."""
        if ticket is not None:
            self.store.wait_for_all(ticket)

    # -- names

    def exchange(self, name: str) -> Exchange:
        exchange = self.exchanges.get(name)
        if exchange is None:
            raise NotFound(f"no exchange '{name}' in vhost '{self.name}'")
        return exchange

    def queue(self, name: str, owner: object = None) -> Queue:
        """The queue of that name, if this connection may touch it."""
        queue = self.queues.get(name)
        if queue is None:
            if name in self.inboxes:
                raise ResourceLocked(f"queue '{name}' in vhost '{self.name}' belongs to a session")
            raise NotFound(f"no queue '{name}' in vhost '{self.name}'")
        if queue.exclusive_to is not None and queue.exclusive_to is not owner:
            raise ResourceLocked(
                f"cannot obtain exclusive access to locked queue '{name}' in vhost '{self.name}'. It could be originally "
                "declared on another connection or the exclusive property value does not match that of the original declaration."
            )
        return queue

    # -- exchanges

    def declare_exchange(
        self, name: str, kind: str, options: ExchangeOptions, ticket: Ticket | None = None
    ) -> Exchange:
        """Find or make an exchange. Raises PreconditionFailed when it differs."""
        known = self.exchanges.get(name)
        if known is not None:
            check_exchange(known, self.name, kind, options)
            self.reply_when_durable(known, ticket)
            return known
        if 0 < self.limits.exchanges <= len(self.exchanges):
            raise NotAllowed(
                f"cannot declare exchange '{name}': vhost '{self.name}' has its limit of {self.limits.exchanges} exchanges"
            )
        exchange = self.add_exchange(name, kind, options, 0)
        if options.durable:
            self.number(
                exchange,
                self.store.append(
                    Defined(
                        self.name,
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
        self.changed()
        return exchange

    def add_exchange(self, name: str, kind: str, options: ExchangeOptions, number: i64) -> Exchange:
        """An exchange that is declared now, or was before. Raises PreconditionFailed."""
        exchange = self.exchanges[name] = self._new_exchange(name, kind, options)
        self.number(exchange, number)
        if exchange.alternate is None:
            exchange.alternate = self.policies.alternate(name)
        return exchange

    def number(self, exchange: Exchange, number: i64) -> None:
        """The exchange has this number, and so has what it keeps."""
        exchange.number = number
        if isinstance(exchange, DelayedExchange):
            exchange.waiting.number = number
            self.delays[exchange.name] = exchange.waiting

    def _new_exchange(self, name: str, kind: str, options: ExchangeOptions) -> Exchange:
        if "alternate-exchange" in options.arguments and options.alternate is None:
            raise PreconditionFailed(
                f"invalid arg 'alternate-exchange' for exchange '{name}' in vhost '{self.name}': not a text"
            )
        if kind == TopicExchange.kind:
            return topic_exchange(name, options, self.limits.matcher, self.limits.matchers)
        if kind == DelayedExchange.kind:
            inner = options.arguments.get("x-delayed-type")
            if not isinstance(inner, str) or inner not in TYPES:
                raise PreconditionFailed(
                    f"invalid arg 'x-delayed-type' for exchange '{name}' in vhost '{self.name}': {inner!r} is none of "
                    + ", ".join(sorted(TYPES))
                )
            waiting = DelayQueue(
                self.name, name, self.agenda, self.store, options.durable, NO_ARGUMENTS, self
            )
            return DelayedExchange(name, options, self._new_exchange(name, inner, options), waiting)
        made = TYPES.get(kind)
        if made is None:
            raise PreconditionFailed(
                f"invalid exchange type '{kind}'; known are {', '.join(sorted([*TYPES, DelayedExchange.kind]))}"
            )
        return made(name, options)

    def delete_exchange(
        self, name: str, if_unused: bool = False, ticket: Ticket | None = None
    ) -> None:
        """Delete an exchange; one that is not there is deleted already."""
        exchange = self.exchanges.get(name)
        if exchange is None:
            self.reply_when_all_durable(ticket)
            return
        if if_unused and exchange.bindings:
            raise PreconditionFailed(f"exchange '{name}' in vhost '{self.name}' in use")
        del self.exchanges[name]
        exchange.dead = True
        if isinstance(exchange, DelayedExchange):
            del self.delays[name]
            exchange.waiting.on_deleted()
            sum_into(self._copy_fates, exchange.waiting.fates())
        if exchange.options.durable:
            self.store.append(Undefined(self.name, "exchange", name, exchange.number), ticket)
        if self.topology is not None:
            self.topology.deleted("exchange", name)
        self._forget(exchange)
        BindingRemoval(self, exchange, list(exchange.bindings)).run()

    # -- queues

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
        """Find or make a queue.

        Raises PreconditionFailed when it differs, ResourceLocked when it is another's.
        """
        self.queues_declared += 1
        known = self.queue(name, owner) if name in self.queues or name in self.inboxes else None
        given = arguments or {}
        terms = QueueArguments(name, self.name, given, self.policies.arguments(name, given))
        if known is not None:
            check_queue(known, self.name, durable, exclusive, auto_delete, terms)
            known.touch()
            self.reply_when_durable(known, ticket)
            return known
        if terms.quorum or terms.stream:
            check_durable_type(
                name,
                self.name,
                durable,
                exclusive,
                auto_delete,
                "stream" if terms.stream else "quorum",
            )
        if 0 < self.limits.queues <= len(self.queues):
            raise NotAllowed(
                f"cannot declare queue '{name}': vhost '{self.name}' has its limit of {self.limits.queues} queues"
            )
        queue = self.add_queue(name, durable and not exclusive, auto_delete, terms, 0)
        queue.declared_durable = durable
        queue.exclusive_to = owner if exclusive else None
        self.queues_created += 1
        if queue.durable:
            queue.number = self.store.append(
                Defined(
                    self.name,
                    "queue",
                    name,
                    {"auto_delete": auto_delete, "arguments": dict(terms.arguments)},
                ),
                ticket,
            )
        if self.topology is not None:
            self.topology.declared(kind_of(queue), name)
        if isinstance(queue, StreamQueue):
            self.streams.assign_number(queue, int(queue.number), False)
            self.find_journals()
            self.watch_topology()
        self.changed()
        return queue

    def add_queue(
        self, name: str, durable: bool, auto_delete: bool, terms: QueueArguments, number: i64
    ) -> Queue:
        """A queue that is declared now, or was before."""
        queue: Queue
        if terms.stream:
            queue = stream = self.streams.make(self.name, name, self.agenda, terms)
            if number > 0:
                self.streams.assign_number(stream, int(number), True)
        elif terms.ranked:
            queue = PriorityQueue(self.name, name, self.agenda, self.store, durable, terms, self)
        elif not terms.needs_only_plain_queue:
            queue = LimitedQueue(self.name, name, self.agenda, self.store, durable, terms, self)
        else:
            queue = Queue(self.name, name, self.agenda, self.store, durable)
            queue.arguments = terms
        queue.touch()
        queue.auto_delete = auto_delete
        queue.number = number
        self.queues[name] = queue
        if number > 0 and terms.stream:
            self.find_journals()
        return queue

    def delete_queue(
        self,
        queue: Queue,
        if_unused: bool = False,
        if_empty: bool = False,
        ticket: Ticket | None = None,
    ) -> int:
        """Delete a queue; returns how many messages went with it."""
        if if_unused and queue.consumer_count:
            raise PreconditionFailed(f"queue '{queue.name}' in vhost '{self.name}' in use")
        if if_empty and queue.depth > 0:
            raise PreconditionFailed(f"queue '{queue.name}' in vhost '{self.name}' not empty")
        if (
            self.topology is not None
            and queue is self.topology.queue
            and self._planner.journals
            and not self.closing
        ):
            raise PreconditionFailed(
                f"queue '{queue.name}' in vhost '{self.name}' goes with journal '{self._planner.journals[0].name}': delete that first"
            )
        del self.queues[queue.name]
        self.queues_deleted += 1
        purged = queue.on_deleted()
        sum_into(self._copy_fates, queue.fates())
        if queue.durable:
            self.store.append(Undefined(self.name, "queue", queue.name, queue.number), ticket)
        if self.topology is not None and self.topology.queue is not queue:
            self.topology.deleted(kind_of(queue), queue.name)
        self._forget_route(queue)
        self._forget(queue)
        if isinstance(queue, StreamQueue):
            self.streams.served += queue.served
            self.find_journals()
        return purged

    def _forget_route(self, queue: Queue) -> None:
        """The default exchange leads there no more."""
        octets = queue.name.encode()
        self.contexts.evict(bytes([0, len(octets)]) + octets if len(octets) <= NAME_BYTES else b"")

    # -- journals

    def record_in(self, name: str) -> None:
        """The stream of that name gets all that is published here from now on; it is made if it is
        not there. Raises PreconditionFailed when the name is another queue's."""
        self.journal = name
        known = self.queues.get(name)
        if known is None:
            self.declare_queue(name, True, {"x-queue-type": "stream"})
        elif not isinstance(known, StreamQueue):
            raise PreconditionFailed(
                f"the journal of vhost '{self.name}' cannot be '{name}': that is a queue of another type"
            )
        self.find_journals()
        self.watch_topology()

    def find_journals(self) -> None:
        """A stream came or went."""
        journals = [
            queue
            for queue in self.queues.values()
            if isinstance(queue, StreamQueue)
            and (queue.arguments.journal or queue.name == self.journal)
        ]
        if journals != self._planner.journals:
            self._planner.journals = journals
            self.store.journaling = self.store.journaling or bool(journals)
            self.changed()
        known = self.queues.get(TOPOLOGY)
        if not isinstance(known, StreamQueue):
            self.topology = None
        elif self.topology is None or self.topology.queue is not known:
            self.topology = TopologyStream(known, self.internal.count_copies, self.record_topology)
        self.contexts.topology = self.topology

    def watch_topology(self) -> None:
        """With a journal comes the stream that says what led where: it begins with what does so
        now.
        """
        if self._planner.journals and TOPOLOGY not in self.queues:
            self.declare_queue(
                TOPOLOGY, True, {"x-queue-type": "stream", "x-max-length-bytes": TOPOLOGY_OCTETS}
            )
            self.record_topology(True)

    def record_topology(self, restarted: bool = False) -> None:
        """Begin a snapshot of what leads where, if that is recorded; `restarted`: what was recorded
        before is void.
        """
        if self.topology is not None:
            TopologySnapshot(
                self.agenda, self.topology, self.exchanges, self.queues, restarted
            ).run()

    def _note_binding(self, exchange: Exchange, binding: Binding, there: bool) -> None:
        if self.topology is not None:
            session = isinstance(binding.destination, Subscriber)
            if there:
                self.topology.bound(exchange.name, binding, session)
            else:
                self.topology.unbound(exchange.name, binding, session)

    # -- bindings

    def bind(self, source: str, binding: Binding, ticket: Ticket | None = None) -> None:
        """Add a binding, or replace an equal one. Raises NotFound."""
        exchange = self.exchange(source)
        if self.topology is not None and binding.destination is self.topology.queue:
            raise AccessRefused(
                f"cannot bind queue '{TOPOLOGY}' in vhost '{self.name}': only the broker writes there"
            )
        known = self.add_binding(exchange, binding)
        if known is not None and known.qos == binding.qos and known.arguments == binding.arguments:
            self.reply_when_all_durable(ticket if _lasting(exchange, binding) else None)
        elif _lasting(exchange, binding):
            target = binding.destination
            self.store.append(
                Defined(
                    self.name,
                    _binding_kind(target),
                    _binding_name(exchange, binding),
                    {
                        "source": int(exchange.number),
                        "destination": int(target.number),
                        "key": binding.key,
                        "assurance": int(binding.qos),
                        "grammar": binding.grammar.name,
                        "arguments": dict(binding.arguments),
                    },
                ),
                ticket,
            )
        self._note_binding(exchange, binding, True)
        self.changed()

    def add_binding(self, exchange: Exchange, binding: Binding) -> Binding | None:
        """A binding that is made now, or was before; returns the equal one whose place it takes.

        Raises PreconditionFailed.
        """
        exchange.check(binding)
        return exchange.bind(binding)

    def unbind(self, source: str, binding: Binding, ticket: Ticket | None = None) -> None:
        """Remove the binding equal to this one; what is not there is removed already."""
        exchange = self.exchanges.get(source)
        known = None if exchange is None else exchange.unbind(binding.destination, binding.identity)
        if exchange is not None and known is not None:
            self._undefine_binding(exchange, known, ticket)
            self._note_binding(exchange, known, False)
            self.changed()
            self._unbound(exchange)
        else:
            self.reply_when_all_durable(ticket)

    def _undefine_binding(
        self, exchange: Exchange, binding: Binding, ticket: Ticket | None
    ) -> None:
        if _lasting(exchange, binding):
            self.store.append(
                Undefined(
                    self.name, _binding_kind(binding.destination), _binding_name(exchange, binding)
                ),
                ticket,
            )

    def _unbound(self, exchange: Exchange) -> None:
        """An auto-delete exchange goes with its last binding."""
        if exchange.options.auto_delete and not exchange.bindings and not exchange.dead:
            self.delete_exchange(exchange.name)

    def _forget(self, destination: Destination) -> None:
        """A destination is gone: no plan may lead there, and its bindings follow."""
        self.changed()
        for exchange in [
            exchange for exchange in self.exchanges.values() if destination in exchange.bindings
        ]:
            BindingRemoval(self, exchange, [destination]).run()

    def unbind_slice(self, exchange: Exchange, destination: Destination, most: int) -> int:
        # The store forgot them with the exchange or the destination.
        removed = exchange.unbind_some(destination, most)
        for binding in removed:
            self._note_binding(exchange, binding, False)
        self._unbound(exchange)
        return max(len(removed), sum(len(binding.key) for binding in removed) // OCTETS)

    def changed(self) -> None:
        """Every plan may be wrong now."""
        self._planner.retire()


def _lasting(exchange: Exchange, binding: Binding) -> bool:
    """Whether a binding survives a restart: both of its ends do."""
    target = binding.destination
    durable = (
        target.durable
        if isinstance(target, Queue)
        else (
            target.inbox.durable
            if isinstance(target, Subscriber)
            else isinstance(target, Exchange) and target.options.durable
        )
    )
    return exchange.options.durable and durable


def _binding_kind(destination: Destination) -> str:
    return "subscription" if isinstance(destination, Subscriber) else "binding"


def _binding_name(exchange: Exchange, binding: Binding) -> str:
    """By the numbers of its ends: bindings of what is gone leave in slices, and must not take with
    them those of what came under the same name meanwhile."""
    return f"{exchange.number}:{binding.destination.number}:{binding.identity}"
