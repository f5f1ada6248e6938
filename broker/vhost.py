"""The virtual host: names, declarations, bindings, and publishing with care."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mypy_extensions import i64

from broker.agenda import Agenda
from broker.binding import Binding
from broker.bounds import Bounds
from broker.carbon import BCC
from broker.census import Census
from broker.deaths import Death
from broker.destination import Destination
from broker.errors import NotAllowed, NotFound, PreconditionFailed, ResourceLocked, Typed, inequivalent
from broker.exchange import TYPES, DelayedExchange, Exchange, TopicExchange
from broker.exchange.base import OCTETS, Options
from broker.exchange.delayed import delay_of
from broker.exchange.topic import topic_exchange
from broker.gate import Gate, Gates, sum_into
from broker.letters import DeadLetter, Release, Will
from broker.limits import LimitedQueue
from broker.message import AT_LEAST_ONCE, AT_MOST_ONCE, EXACTLY_ONCE, Message, Properties, amend
from broker.planner import NAME_OCTETS, Aim, Planner
from broker.policies import Policies, Policy
from broker.producers import Producers, Publication
from broker.queue import COPY_FATES, Queue
from broker.ranked import RankedQueue
from broker.retained import Retained
from broker.route import REFUSED, REPEATED, Carbons, Listener, Plan, Route
from broker.slices import Following, Recording, Sliced, Unbinding, kind_of
from broker.store.contract import Defined, Kept, Store, Ticket, Undefined
from broker.stream.queue import StreamQueue
from broker.stream.streams import Streams
from broker.stream.topology import OCTETS as TOPOLOGY_OCTETS
from broker.stream.topology import TOPOLOGY, Topology
from broker.terms import NO_TERMS, Terms, check_lasting

#: Arguments of an exchange that count when it is declared again.
COMPARED: Final = ("alternate-exchange", "x-matcher", "x-delayed-type", "hash-header", "hash-property")

#: Replies that wait for one who asks and does not read.
REPLIES: Final = 100_000

#: Their numbers are -1, -2, ... in this order, on disks too: add at the end only.
_PREDECLARED: Final = (("", "direct"), ("amq.direct", "direct"), ("amq.fanout", "fanout"), ("amq.topic", "topic"),
                       ("amq.headers", "headers"), ("amq.match", "headers"))


class VirtualHost(Sliced):
    """The core's front door. Raises kinds of BrokerError."""

    def __init__(self, name: str, agenda: Agenda, store: Store, bounds: Bounds, streams: Streams | None = None) -> None:
        self.name = name
        self.agenda = agenda
        self.store = store
        self.bounds = bounds
        self.streams = streams or Streams(store)
        self.exchanges: dict[str, Exchange] = {}
        self.queues: dict[str, Queue] = {}
        #: Where replies go directly to those who asked: consumers without a queue of their own.
        self.replies: dict[str, Queue] = {}
        self.policies = Policies()
        #: What waits in exchanges that delay, by their names.
        self.delays: dict[str, RankedQueue] = {}
        #: Queues that belong to sessions, by the names under which operators see them.
        self.inboxes: dict[str, Queue] = {}
        self.listeners: dict[Listener, None] = {}
        #: Who publishes just now, where that may matter to somebody who does not want to hear itself.
        self.speaker: Listener | None = None
        self.retained = Retained(name, agenda, store, bounds.retained, bounds.retained_octets)
        self._planner = Planner(name, agenda, self.exchanges, self.queues, self.replies, bounds)
        self.gates = Gates(self._planner, bounds)
        #: Whether it is being deleted: nobody comes in any more.
        self.closing = False
        #: The name of a stream that gets all that is published here, though its arguments do not say so.
        self.journal = ""
        self.producers = Producers(name, store)
        self.topology: Topology | None = None
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
            self.add_exchange(exchange, kind, Options(durable=True), -number)

    # -- counts

    @property
    def internal(self) -> Gate:
        """The way in of what comes from the core itself."""
        return self.gates.internal

    @property
    def plans(self) -> int:
        """Sets of destinations that are known."""
        return len(self._planner)

    def census(self) -> Census:
        """A count of what is held here, and of how copies ended."""
        return Census(list(self.queues.values()), [*self.replies.values(), *self.delays.values()], list(self.listeners),
                      self._copy_fates, self._relayed, sum(ingress.unrepresentable for ingress in self.gates.ingress().values()))

    def absorb(self, other: VirtualHost) -> None:
        """The other one is gone: what it counted counts here."""
        self.gates.absorb(other.gates)
        sum_into(self._copy_fates, other._copy_fates)
        self._relayed += other._relayed
        for reason, count in other.dead_letters.items():
            self.dead_letters[reason] = self.dead_letters.get(reason, 0) + count
        self.queues_declared += other.queues_declared
        self.queues_created += other.queues_created
        self.queues_deleted += other.queues_deleted

    # -- what others asked for, and is not durable yet

    def await_durable(self, known: Destination, ticket: Ticket | None) -> None:
        """Somebody is told that this is there: it must be, after a crash too."""
        if ticket is not None:
            self.store.wait(known.number, ticket)

    def await_all(self, ticket: Ticket | None) -> None:
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
                "declared on another connection or the exclusive property value does not match that of the original declaration.")
        return queue

    # -- exchanges

    def declare_exchange(self, name: str, kind: str, options: Options, ticket: Ticket | None = None) -> Exchange:
        """Find or make an exchange. Raises PreconditionFailed when it differs."""
        known = self.exchanges.get(name)
        if known is not None:
            thing = f"exchange '{name}'"
            current = known.options
            if known.kind != kind:
                raise inequivalent("type", thing, self.name, kind, known.kind)
            for field, received, is_ in (("durable", options.durable, current.durable),
                                         ("auto_delete", options.auto_delete, current.auto_delete),
                                         ("internal", options.internal, current.internal)):
                if received != is_:
                    raise inequivalent(field, thing, self.name, received, is_)
            for argument in COMPARED:
                if options.arguments.get(argument) != current.arguments.get(argument):
                    raise inequivalent(argument, thing, self.name, Typed(options.arguments.get(argument)),
                                       Typed(current.arguments.get(argument)))
            self.await_durable(known, ticket)
            return known
        if len(self.exchanges) >= self.bounds.exchanges:
            raise NotAllowed(f"cannot declare exchange '{name}': vhost '{self.name}' has its limit of {self.bounds.exchanges} exchanges")
        exchange = self.add_exchange(name, kind, options, 0)
        if options.durable:
            self.number(exchange, self.store.append(Defined(self.name, "exchange", name, {
                "type": kind, "auto_delete": options.auto_delete, "internal": options.internal,
                "arguments": dict(options.arguments)}), ticket))
        if self.topology is not None:
            self.topology.declared_exchange(name, kind, exchange.alternate)
        self.changed()
        return exchange

    def add_exchange(self, name: str, kind: str, options: Options, number: i64) -> Exchange:
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

    def _new_exchange(self, name: str, kind: str, options: Options) -> Exchange:
        if "alternate-exchange" in options.arguments and options.alternate is None:
            raise PreconditionFailed(f"invalid arg 'alternate-exchange' for exchange '{name}' in vhost '{self.name}': not a text")
        if kind == TopicExchange.kind:
            return topic_exchange(name, options, self.bounds.matcher, self.bounds.matchers)
        if kind == DelayedExchange.kind:
            inner = options.arguments.get("x-delayed-type")
            if not isinstance(inner, str) or inner not in TYPES:
                raise PreconditionFailed(f"invalid arg 'x-delayed-type' for exchange '{name}' in vhost '{self.name}': {inner!r} is none of "
                                         + ", ".join(sorted(TYPES)))
            waiting = RankedQueue(self.name, name, self.agenda, self.store, options.durable, NO_TERMS, self)
            return DelayedExchange(name, options, self._new_exchange(name, inner, options), waiting)
        made = TYPES.get(kind)
        if made is None:
            raise PreconditionFailed(f"invalid exchange type '{kind}'; known are {', '.join(sorted([*TYPES, DelayedExchange.kind]))}")
        return made(name, options)

    def delete_exchange(self, name: str, if_unused: bool = False, ticket: Ticket | None = None) -> None:
        """Delete an exchange; one that is not there is deleted already."""
        exchange = self.exchanges.get(name)
        if exchange is None:
            self.await_all(ticket)
            return
        if if_unused and exchange.bindings:
            raise PreconditionFailed(f"exchange '{name}' in vhost '{self.name}' in use")
        del self.exchanges[name]
        exchange.dead = True
        if isinstance(exchange, DelayedExchange):
            del self.delays[name]
            exchange.waiting.die()
            sum_into(self._copy_fates, exchange.waiting.fates())
        if exchange.options.durable:
            self.store.append(Undefined(self.name, "exchange", name, exchange.number), ticket)
        if self.topology is not None:
            self.topology.deleted("exchange", name)
        self._forget(exchange)
        Unbinding(self, exchange, list(exchange.bindings)).run()

    # -- queues

    def declare_queue(self, name: str, durable: bool = False, arguments: Mapping[str, object] | None = None, owner: object = None,
                      exclusive: bool = False, auto_delete: bool = False, ticket: Ticket | None = None) -> Queue:
        """Find or make a queue. Raises PreconditionFailed when it differs, ResourceLocked when it is another's."""
        self.queues_declared += 1
        known = self.queue(name, owner) if name in self.queues or name in self.inboxes else None
        given = arguments or {}
        terms = Terms(name, self.name, given, self.policies.terms(name, given))
        if known is not None:
            self._check_queue(known, durable, exclusive, auto_delete, terms)
            known.use()
            self.await_durable(known, ticket)
            return known
        if terms.quorum or terms.stream:
            check_lasting(name, self.name, durable, exclusive, auto_delete, "stream" if terms.stream else "quorum")
        if len(self.queues) >= self.bounds.queues:
            raise NotAllowed(f"cannot declare queue '{name}': vhost '{self.name}' has its limit of {self.bounds.queues} queues")
        queue = self.add_queue(name, durable and not exclusive, auto_delete, terms, 0)
        queue.declared_durable = durable
        queue.exclusive_to = owner if exclusive else None
        self.queues_created += 1
        if queue.durable:
            queue.number = self.store.append(
                Defined(self.name, "queue", name, {"auto_delete": auto_delete, "arguments": dict(terms.arguments)}), ticket)
        if self.topology is not None:
            self.topology.declared(kind_of(queue), name)
        if isinstance(queue, StreamQueue):
            self.streams.number(queue, int(queue.number), False)
            self.find_journals()
            self.watch_topology()
        self.changed()
        return queue

    def add_queue(self, name: str, durable: bool, auto_delete: bool, terms: Terms, number: i64) -> Queue:
        """A queue that is declared now, or was before."""
        queue: Queue
        if terms.stream:
            queue = stream = self.streams.make(self.name, name, self.agenda, terms)
            if number > 0:
                self.streams.number(stream, int(number), True)
        elif terms.ranked:
            queue = RankedQueue(self.name, name, self.agenda, self.store, durable, terms, self)
        elif not terms.idle:
            queue = LimitedQueue(self.name, name, self.agenda, self.store, durable, terms, self)
        else:
            queue = Queue(self.name, name, self.agenda, self.store, durable)
            queue.terms = terms
        queue.use()
        queue.auto_delete = auto_delete
        queue.number = number
        self.queues[name] = queue
        if number > 0 and terms.stream:
            self.find_journals()
        return queue

    # -- journals

    def record_in(self, name: str) -> None:
        """The stream of that name gets all that is published here from now on; it is made if it is not there. Raises
        PreconditionFailed when the name is another queue's."""
        self.journal = name
        known = self.queues.get(name)
        if known is None:
            self.declare_queue(name, True, {"x-queue-type": "stream"})
        elif not isinstance(known, StreamQueue):
            raise PreconditionFailed(f"the journal of vhost '{self.name}' cannot be '{name}': that is a queue of another type")
        self.find_journals()
        self.watch_topology()

    def find_journals(self) -> None:
        """A stream came or went."""
        journals = [queue for queue in self.queues.values()
                    if isinstance(queue, StreamQueue) and (queue.terms.journal or queue.name == self.journal)]
        if journals != self._planner.journals:
            self._planner.journals = journals
            self.store.recording = self.store.recording or bool(journals)
            self.changed()
        known = self.queues.get(TOPOLOGY)
        if not isinstance(known, StreamQueue):
            self.topology = None
        elif self.topology is None or self.topology.queue is not known:
            self.topology = Topology(known, self.internal.count_copies, self.record_topology)
        self.gates.topology = self.topology

    def watch_topology(self) -> None:
        """With a journal comes the stream that says what led where: it begins with what does so now."""
        if self._planner.journals and TOPOLOGY not in self.queues:
            self.declare_queue(TOPOLOGY, True, {"x-queue-type": "stream", "x-max-length-bytes": TOPOLOGY_OCTETS})
            self.record_topology(True)

    def record_topology(self, restarted: bool = False) -> None:
        """Begin a snapshot of what leads where, if that is recorded; `restarted`: what was recorded before is void."""
        if self.topology is not None:
            Recording(self.agenda, self.topology, self.exchanges, self.queues, restarted).run()

    def _note_binding(self, exchange: Exchange, binding: Binding, there: bool) -> None:
        if self.topology is not None:
            session = isinstance(binding.destination, Listener)
            if there:
                self.topology.bound(exchange.name, binding, session)
            else:
                self.topology.unbound(exchange.name, binding, session)

    def _check_queue(self, known: Queue, durable: bool, exclusive: bool, auto_delete: bool, terms: Terms) -> None:
        thing = f"queue '{known.name}'"
        if exclusive != (known.exclusive_to is not None):
            raise ResourceLocked(
                f"cannot obtain exclusive access to locked queue '{known.name}' in vhost '{self.name}'. It could be originally "
                "declared on another connection or the exclusive property value does not match that of the original declaration.")
        if known.declared_durable != durable:
            raise inequivalent("durable", thing, self.name, durable, known.declared_durable)
        if known.auto_delete != auto_delete:
            raise inequivalent("auto_delete", thing, self.name, auto_delete, known.auto_delete)
        given, current = terms.given, known.terms.given
        for argument in sorted(given.keys() | current.keys()):
            if given.get(argument) != current.get(argument):
                raise inequivalent(argument, thing, self.name, Typed(given.get(argument)), Typed(current.get(argument)))

    def delete_queue(self, queue: Queue, if_unused: bool = False, if_empty: bool = False, ticket: Ticket | None = None) -> int:
        """Delete a queue; returns how many messages went with it."""
        if if_unused and queue.consumer_count:
            raise PreconditionFailed(f"queue '{queue.name}' in vhost '{self.name}' in use")
        if if_empty and queue.depth > 0:
            raise PreconditionFailed(f"queue '{queue.name}' in vhost '{self.name}' not empty")
        del self.queues[queue.name]
        self.queues_deleted += 1
        purged = queue.die()
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
        self.gates.forget(bytes([0, len(octets)]) + octets if len(octets) <= NAME_OCTETS else b"")

    def open_reply(self, name: str) -> Queue:
        """A queue of one consumer's, to which the default exchange leads by this name; no exchange can be bound to it."""
        queue = self.replies[name] = Queue(self.name, name, self.agenda, self.store, False)
        queue.max_length = REPLIES
        return queue

    def close_reply(self, queue: Queue) -> None:
        """... and it is gone."""
        del self.replies[queue.name]
        queue.die()
        sum_into(self._copy_fates, queue.fates())
        self._forget_route(queue)

    def new_inbox(self, name: str, durable: bool, max_length: int) -> Queue:
        """A queue that belongs to a session. It keeps its newest messages when it is full."""
        inbox = self.inboxes[name] = Queue(self.name, name, self.agenda, self.store, durable)
        inbox.private = True
        inbox.max_length = max_length
        return inbox

    def welcome(self, listener: Listener) -> None:
        """Count with this listener from now on."""
        self.listeners[listener] = None

    def delete_listener(self, listener: Listener) -> None:
        """The session is over, and what waits for it."""
        inbox = listener.inbox
        inbox.die()
        self.inboxes.pop(inbox.name, None)
        self.listeners.pop(listener, None)
        sum_into(self._copy_fates, listener.fates())
        self._relayed += int(listener.relayed)
        listener.dead = True
        self._forget(listener)

    # -- policies

    def set_policy(self, policy: Policy, ticket: Ticket | None = None) -> None:
        """Add a policy, or put it in the place of the one of its name; what it is about follows it, some objects a turn."""
        known = self.policies.by_name.get(policy.name)
        if known is not None and known.row == policy.row:
            return
        self.store.append(Defined(self.name, "policy", policy.name, policy.row), ticket)
        self.add_policy(policy)

    def clear_policy(self, name: str, ticket: Ticket | None = None) -> None:
        """Remove a policy; one that is not there is removed already."""
        if self.policies.by_name.pop(name, None) is not None:
            self.store.append(Undefined(self.name, "policy", name), ticket)
            Following(self, list(self.queues.values()), list(self.exchanges.values())).run()

    def add_policy(self, policy: Policy) -> None:
        """A policy that is made now, or was before."""
        self.policies.by_name[policy.name] = policy
        Following(self, list(self.queues.values()), list(self.exchanges.values())).run()

    def follow_alternates(self, exchanges: list[Exchange]) -> None:
        for exchange in exchanges:
            before = exchange.alternate
            if exchange.options.alternate is None:
                exchange.alternate = self.policies.alternate(exchange.name)
            if self.topology is not None and exchange.alternate != before:
                self.topology.declared_exchange(exchange.name, exchange.kind, exchange.alternate)

    def follow_policies(self, queue: Queue) -> None:
        """What holds for the queue now. A plain one that must do more becomes another one in its place."""
        if self.queues.get(queue.name) is not queue:
            return
        arguments = queue.terms.arguments
        terms = Terms(queue.name, self.name, arguments, self.policies.terms(queue.name, arguments))
        if isinstance(queue, (StreamQueue, LimitedQueue)):
            queue.follow(terms)
        elif terms.idle:
            queue.terms = terms
        else:
            heir = LimitedQueue(self.name, queue.name, self.agenda, self.store, queue.durable, terms, self)
            heir.inherit(queue)
            self.queues[queue.name] = heir
            for exchange in self.exchanges.values():
                exchange.redirect(queue, heir)
            heir.follow(terms)

    # -- bindings

    def bind(self, source: str, binding: Binding, ticket: Ticket | None = None) -> None:
        """Add a binding, or replace an equal one. Raises NotFound."""
        exchange = self.exchange(source)
        known = self.add_binding(exchange, binding)
        if known is not None and known.assurance == binding.assurance and known.arguments == binding.arguments:
            self.await_all(ticket if _lasting(exchange, binding) else None)
        elif _lasting(exchange, binding):
            target = binding.destination
            self.store.append(Defined(self.name, _binding_kind(target), _binding_name(exchange, binding), {
                "source": int(exchange.number), "destination": int(target.number), "key": binding.key,
                "assurance": int(binding.assurance), "grammar": binding.grammar.name, "arguments": dict(binding.arguments)}), ticket)
        self._note_binding(exchange, binding, True)
        self.changed()

    def add_binding(self, exchange: Exchange, binding: Binding) -> Binding | None:
        """A binding that is made now, or was before; returns the equal one whose place it takes. Raises PreconditionFailed."""
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
            self.await_all(ticket)

    def _undefine_binding(self, exchange: Exchange, binding: Binding, ticket: Ticket | None) -> None:
        if _lasting(exchange, binding):
            self.store.append(Undefined(self.name, _binding_kind(binding.destination), _binding_name(exchange, binding)), ticket)

    def _unbound(self, exchange: Exchange) -> None:
        """An auto-delete exchange goes with its last binding."""
        if exchange.options.auto_delete and not exchange.bindings and not exchange.dead:
            self.delete_exchange(exchange.name)

    def _forget(self, destination: Destination) -> None:
        """A destination is gone: no plan may lead there, and its bindings follow."""
        self.changed()
        for exchange in [exchange for exchange in self.exchanges.values() if destination in exchange.bindings]:
            Unbinding(self, exchange, [destination]).run()

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

    def alarm(self, on: bool) -> None:
        """Memory or disk is short: every publication asks for care, so that its publisher can be stopped."""
        self.alarmed = on
        self._planner.careful = on
        self.changed()

    # -- publishing with care

    def route(self, gate: Gate, exchange: str, key: str) -> Route:
        """A route for once, fresh, not kept: for what comes from the core itself."""
        route = Route(exchange, key, self._planner.plan(gate.identity, exchange, key))
        route.origin = gate.origin
        return route

    def route_by(self, gate: Gate, exchange: str, keys: list[str], properties: Properties, deaths: list[Death] | None = None) -> Route:
        """A route for one message that has several routing keys, or these deaths."""
        route = Route(exchange, keys[0], self._planner.blend(gate.identity, exchange, keys, properties, deaths))
        route.origin = gate.origin
        return route

    def route_copies(self, gate: Gate, exchange: str, keys: list[str], blind: list[str], properties: Properties) -> Route:
        """A route for one message that has several routing keys, some of them blind."""
        route = Carbons(exchange, keys, blind, self._planner.blend(gate.identity, exchange, keys, properties))
        route.origin = gate.origin
        return route

    def aim(self, gate: Gate, exchange: str, keys: list[str], properties: Properties) -> Aim:
        """Where a message goes that is published later, as things are now. Raises NotFound, AccessRefused."""
        return self._planner.aim(gate.identity, exchange, keys, properties)

    def publish(self, gate: Gate, route: Route, message: Message, ticket: Ticket | None) -> i64:
        """Publish what the hot loops do not: returns the fate; raises the plan's refusal.

        The ticket waits for what must be durable before the publisher hears a confirm. A message that
        travels with assurance and has a durable destination has a `position` afterwards.
        """
        if route.plan.stale:
            gate.renew(route)
        plan = route.plan
        if plan.refusal is not None:
            gate.count(plan, 1)
            raise type(plan.refusal)(str(plan.refusal))  # A new one: a kept exception collects tracebacks.
        if plan.by_headers or plan.by_speaker:
            plan = self._planner.walk(self.exchange(route.exchange), route, message.properties, self.speaker, gate.identity.name)
            if plan.recorded:
                message.address = _as_walked(route, plan)
        refusing = [queue for queue in plan.limited if not queue.accepts(message)]
        for full in refusing:
            full.refuse(message)
        if message.assurance > AT_MOST_ONCE and plan.durable:
            self._keep(message, plan, refusing, ticket)
        for queue in plan.queues if message.assurance == AT_MOST_ONCE else plan.kept:
            if queue in refusing:
                continue
            if message.assurance == EXACTLY_ONCE and queue in plan.lowered:
                queue.put(message.copy(AT_LEAST_ONCE, False))
            else:
                queue.put(message)
        if plan.streams and ticket is not None:
            self.store.join(ticket)
        for waiting in plan.delays:
            self._delay(waiting, message, route.blind if isinstance(route, Carbons) else [], ticket)
        (plan.relay if message.assurance == AT_MOST_ONCE else plan.kept_relay).offer(message)
        if refusing:
            gate.count_fate(REFUSED)
            gate.count_copies(plan.copies, plan.unrepresentable)
            return REFUSED
        gate.count(plan, 1)
        return plan.fate

    def publish_once(self, gate: Gate, route: Route, message: Message, ticket: Ticket | None, publication: Publication) -> i64:
        """The same, of what a producer numbered: a second time, it goes nowhere, and is confirmed when the first one may be."""
        if self.producers.repeats(publication):
            gate.count_fate(REPEATED)
            self.await_all(ticket)
            return REPEATED
        self.store.begin()
        try:
            fate = self.publish(gate, route, message, ticket)
            if fate != REFUSED:
                self.producers.note(publication, ticket)
        finally:
            self.store.commit()
        return fate

    def _delay(self, waiting: RankedQueue, message: Message, blind: list[str], ticket: Ticket | None) -> None:
        """A copy waits for its time, and knows its `blind` routing keys until then."""
        copy = message.copy(message.assurance, False)
        if blind:
            copy.encoding = amend(copy.encoding, {BCC: blind}, {})
        copy.position = 0
        copy.expires = self.agenda.now + delay_of(message.properties)
        if copy.assurance > AT_MOST_ONCE and waiting.durable:
            copy.position = self.store.append(Kept(self.name, copy, [int(waiting.number)]), ticket)
        waiting.put(copy)

    def _keep(self, message: Message, plan: Plan, refusing: list[LimitedQueue], ticket: Ticket | None) -> None:
        """Give the message to the store, for the durable queues among its destinations."""
        numbers = plan.numbers
        if refusing:
            numbers = [int(queue.number) for queue in plan.durable if queue not in refusing]
        if numbers:
            serials: list[int] | None = None
            if plan.noted:
                lowered = plan.lowered if message.assurance == EXACTLY_ONCE else []
                serials = [queue.note(queue in lowered) for queue in plan.durable if queue not in refusing]
            message.position = self.store.append(Kept(self.name, message, numbers, serials), ticket)

    def retain(self, message: Message, ticket: Ticket | None) -> None:
        """Remember the message for those who subscribe later."""
        self.retained.keep(message, ticket)

    def publish_will(self, gate: Gate, will: Message, lifetime: int = -1, speaker: Listener | None = None) -> None:
        """Publish the speaker's last message, at the end of this turn. It expires after so many ms; never if that is below 0."""
        self.gates.join(gate)
        self.agenda.add(Will(self, gate, will, lifetime, speaker))

    def leave(self, gate: Gate) -> None:
        """Somebody uses the gate no more."""
        self.gates.leave(gate)

    def let_lapse(self, queue: LimitedQueue) -> None:
        if self.queues.get(queue.name) is queue:
            self.delete_queue(queue)

    def release(self, queue: LimitedQueue, message: Message) -> None:
        self.agenda.add(Release(self, queue, message))

    def bury(self, queue: LimitedQueue, message: Message, reason: str) -> None:
        self.dead_letters[reason] = self.dead_letters.get(reason, 0) + 1
        self.agenda.add(DeadLetter(self, queue, message, reason))


def _as_walked(route: Route, plan: Plan) -> Route:
    """The route of one message whose destinations its headers decided."""
    walked = Route(route.exchange, route.key, plan)
    walked.origin = route.origin
    return walked


def _lasting(exchange: Exchange, binding: Binding) -> bool:
    """Whether a binding survives a restart: both of its ends do."""
    target = binding.destination
    durable = target.durable if isinstance(target, Queue) else (
        target.inbox.durable if isinstance(target, Listener) else isinstance(target, Exchange) and target.options.durable)
    return exchange.options.durable and durable


def _binding_kind(destination: Destination) -> str:
    return "subscription" if isinstance(destination, Listener) else "binding"


def _binding_name(exchange: Exchange, binding: Binding) -> str:
    """By the numbers of its ends: bindings of what is gone leave in slices, and must not take with them those of what came
    under the same name meanwhile."""
    return f"{exchange.number}:{binding.destination.number}:{binding.identity}"
