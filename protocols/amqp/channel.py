"""A channel: publishing with care, delivery tags, consumers, and what is left when it ends."""

from __future__ import annotations

from typing import Final

import pamqp.base
import pamqp.commands as spec
from mypy_extensions import i64

from broker.carbon import BCC, blind_keys, further_keys
from broker.consumer import Delivery, Pool
from broker.errors import AccessRefused, BrokerError
from broker.gate import Gate
from broker.message import AT_LEAST_ONCE, AT_MOST_ONCE, EXPIRATION, HEADERS, REPLY_TO, USER_ID, Message, amend
from broker.outlet import LARGE
from broker.planner import TOPICS
from broker.producers import Publication, numbered
from broker.queue import Queue
from broker.route import REFUSED, REPEATED, TOO_LARGE, UNROUTABLE, Carbons, Route
from broker.store.contract import Ticket
from broker.vhost import VirtualHost
from protocols.amqp.assembly import Assembly
from protocols.amqp.client import Client
from protocols.amqp.confirms import Confirms
from protocols.amqp.consumer import AmqpConsumer, Owner, put_back, refuse, settle
from protocols.amqp.contents import (
    DIRECT,
    NUMBERED,
    asks_directly,
    content_for,
    frames_of,
    names_keys,
    persistent,
    property_flags,
    short_property,
)
from protocols.amqp.errors import AmqpError, from_broker
from protocols.amqp.frames import encode, got, returned
from protocols.amqp.transaction import ACKED, GIVEN_UP, PUT_BACK, Transaction
from protocols.connection import BUDGET
from protocols.crossing import MARK, wanted_qos, wants_retain
from protocols.tally import Tally
from protocols.window import Window

MANDATORY: Final[i64] = 1
IMMEDIATE: Final[i64] = 2
#: Milliseconds of the longest expiration.
EXPIRATION_MAX: Final = 1 << 50


class Channel(Owner):
    """One channel of one connection."""

    def __init__(self, vhost: VirtualHost, gate: Gate, connection: Client, number: i64, frame_max: i64, cancel_notify: bool) -> None:
        self.vhost = vhost
        self.gate = gate
        self.connection = connection
        self.tally: Tally = connection.front.tally
        self.number: i64 = number
        self.frames = frames_of(number, frame_max)
        self.unacked = Window()
        self.consumers: dict[str, AmqpConsumer] = {}
        self.prefetch: i64 = 0
        self.pool: Pool | None = None
        #: The limit that all its consumers share; 0 for none.
        self.shared_prefetch: i64 = 0
        self.last_queue = ""
        self.assembly: Assembly | None = None
        self.confirms: Confirms | None = None
        #: Where direct replies come in, while a consumer waits for them.
        self.replies: Queue | None = None
        self.transaction: Transaction | None = None
        self._cancel_notify = cancel_notify
        #: What this method appends to the store, and its answer waits for.
        self.ticket: Ticket = connection.ticket()
        self.tally.channels_opened += 1

    def send(self, method: pamqp.base.Frame) -> None:
        self.connection.out.write(encode(self.number, method))
        self.connection.touch()

    def reply(self, method: pamqp.base.Frame) -> None:
        """The answer to a method, once the store has what the method changed."""
        self.connection.answer_when_settled(self.ticket, encode(self.number, method))

    # -- publishing

    def publish(self, address: bytes, flags: i64, content: bytes) -> i64:
        """Publish what the hot loop left to us: any flag, any property, any route. Returns its weight. Raises AmqpError."""
        if flags & IMMEDIATE:
            raise AmqpError(540, "immediate=true")
        route = self.route(address)
        message = Message(route, content, self.frames, AT_MOST_ONCE)
        if persistent(content, 0):
            message.assurance = AT_LEAST_ONCE
            self.connection.persists = True
        carried = property_flags(content, 0)
        if carried & HEADERS and MARK in content:
            quality = wanted_qos(message.properties)
            if quality >= 0:
                message.assurance = quality
        if route.plan.stale:
            self.gate.renew(route)
        if route.plan.refusal is None:  # Who may not publish there is told that first.
            if carried & (EXPIRATION | USER_ID):
                self._read_properties(message, carried)
            if carried & HEADERS and names_keys(content, 0):
                route = self._route_copies(route, message)
            if carried & REPLY_TO and asks_directly(content, 0):
                self._ask_directly(message)
        publication = self._numbered(message, carried)
        if self.transaction is not None and route.plan.refusal is None:
            keys = [route.key] if not isinstance(route, Carbons) else route.keys
            self.transaction.publish(route, self.vhost.aim(self.gate, route.exchange, keys, message.properties), message, flags)
            return self._cost(route)
        confirms = self.confirms
        plan = route.plan
        if plan.streams:
            self.connection.persists = True
        waits = message.assurance or plan.streams or plan.by_headers or publication is not None
        ticket = Ticket(confirms) if confirms is not None and waits else None
        try:
            fate = self._deliver(route, message, flags, ticket)
        except BrokerError as error:
            raise from_broker(error) from error
        if confirms is not None:
            self.tally.received_confirm += 1
            confirms.add(ticket, fate == REFUSED)
        return self._cost(route)

    def _numbered(self, message: Message, carried: i64) -> Publication | None:
        """Whether the producer numbers its messages. Raises AmqpError."""
        if not carried & HEADERS or NUMBERED not in message.content:
            return None
        headers = message.properties.get("headers")
        try:
            return numbered(headers) if isinstance(headers, dict) else None
        except BrokerError as error:
            self._count(REFUSED)
            raise from_broker(error) from error

    def _cost(self, route: Route) -> i64:
        """The weight of a publication. After one that comes while an alarm is on, nothing more is taken."""
        if self.vhost.alarmed:
            self.connection.block()
            return BUDGET
        return route.plan.weight

    def _deliver(self, route: Route, message: Message, flags: i64, ticket: Ticket | None) -> i64:
        """Publish, and return to its publisher what nobody wants. Returns the fate. Raises BrokerError."""
        publication = self._numbered(message, property_flags(message.content, 0))
        self.gate.received += 1
        if publication is None:
            fate = self.vhost.publish(self.gate, route, message, ticket)
        else:
            fate = self.vhost.publish_once(self.gate, route, message, ticket, publication)
            if fate == REPEATED:
                return fate
        if route.exchange == TOPICS and property_flags(message.content, 0) & HEADERS and MARK in message.content \
                and wants_retain(message.properties):
            self.vhost.retain(message, ticket)
        if fate == UNROUTABLE and flags & MANDATORY:
            self.tally.returned += 1
            self.connection.out.write(returned(self.number, route.octets))
            self.write_content(message.content)
        return fate

    def route(self, address: bytes) -> Route:
        """The route for an exchange and a key as they stand in basic.publish. Raises AmqpError."""
        route = self.gate.routes.get(address)
        if route is not None:
            return route
        size = address[0]
        if len(address) < size + 2 or len(address) != size + 2 + address[1 + size]:
            raise AmqpError(501, "exchange or routing key of Basic.Publish is cut off")
        try:
            exchange = address[1:1 + size].decode()
        except UnicodeDecodeError as error:
            raise AmqpError(502, "exchange of Basic.Publish is not UTF-8") from error
        return self.gate.resolve(address, exchange, address[2 + size:].decode("utf-8", "surrogateescape"))

    def too_large(self, size: i64) -> AmqpError:
        """The refusal of a body above the limit. The publication counts."""
        self._count(TOO_LARGE)
        return AmqpError(406, f"message size {size} is larger than configured max size {self.vhost.bounds.message}")

    def _read_properties(self, message: Message, carried: i64) -> None:
        """Check user_id and expiration. Raises AmqpError."""
        name = self.gate.identity.name
        if carried & USER_ID:
            user = short_property(message.content, USER_ID)
            if user != name.encode():
                self._count(REFUSED)
                raise AmqpError(406, f"user_id property set to '{user.decode(errors='replace')}' but authenticated user was '{name}'")
        if carried & EXPIRATION:
            expiration = short_property(message.content, EXPIRATION)
            if not expiration.isdigit() or int(expiration) > EXPIRATION_MAX:
                self._count(REFUSED)
                raise AmqpError(406, f"invalid expiration '{expiration.decode(errors='replace')}': not a number of milliseconds")
            message.expires = self.vhost.agenda.now + int(expiration)

    def _route_copies(self, route: Route, message: Message) -> Route:
        """The publisher may name further routing keys. Raises AmqpError."""
        properties = message.properties
        headers = properties.get("headers")
        if not isinstance(headers, dict):
            return route
        try:
            keys = further_keys(headers)
        except BrokerError as error:
            self._count(REFUSED)
            raise from_broker(error) from error
        if keys:
            route = self.vhost.route_copies(self.gate, route.exchange, [route.key, *keys], blind_keys(headers), properties)
            message.address = route
        if BCC in headers:
            message.encoding = amend(message.encoding, {BCC: None}, {})
        return route

    def _ask_directly(self, message: Message) -> None:
        """The reply comes to this channel: the message says under which name. Raises AmqpError."""
        if self.replies is None:
            self._count(REFUSED)
            raise AmqpError(406, "fast reply consumer does not exist")
        message.encoding = amend(message.encoding, {}, {"reply_to": self.replies.name})

    def _count(self, fate: i64) -> None:
        self.gate.received += 1
        self.gate.count_fate(fate)

    def confirm(self) -> None:
        """Tell the publisher what may be told: at the end of a chunk, and before any other answer."""
        if self.confirms is not None:
            self.confirms.flush()

    # -- consuming

    def consume(self, queue: Queue, tag: str, no_ack: bool, exclusive: bool, priority: i64) -> AmqpConsumer:
        consumer = self._consumer(queue, tag, no_ack, self.prefetch)
        consumer.priority = priority
        consumer.exclusive = exclusive
        self.consumers[tag] = consumer
        if consumer.pool is not None:
            consumer.pool.consumers.append(consumer)
        queue.subscribe(consumer)
        return consumer

    def consume_replies(self, tag: str) -> None:
        """Consume from a name that only those know to whom this channel has sent it."""
        queue = self.replies = self.vhost.open_reply(f"{DIRECT.decode()}.{self.connection.front.broker.new_id()}")
        self.consume(queue, tag, True, False, 0)

    def _consumer(self, queue: Queue, tag: str, no_ack: bool, prefetch: i64) -> AmqpConsumer:
        return AmqpConsumer(queue, self.connection, self, self.unacked, self.frames, self.tally, tag, no_ack, prefetch, self.pool)

    def cancel(self, tag: str) -> None:
        """End a consumer; what it holds stays unsettled. An auto-delete queue goes with its last one."""
        consumer = self.consumers.pop(tag, None)
        if consumer is None:
            return
        self._leave_pool(consumer)
        queue = consumer.queue
        queue.unsubscribe(consumer)
        if self.replies is not None and queue is self.replies:
            self.vhost.close_reply(self.replies)
            self.replies = None
        known = self.vhost.queues.get(queue.name)
        if known is not None and known is queue and known.auto_delete and not known.consumer_count:
            self.vhost.delete_queue(known)
            self.connection.disown(known)

    def review(self, gate: Gate) -> bool:
        """Its user has other rights now: consumers of queues that may not be read any more are cancelled. False when that
        cannot be said to the client, and the channel must end."""
        self.gate = gate
        for consumer in list(self.consumers.values()):
            if consumer.queue is self.replies:
                continue
            try:
                gate.identity.may("read", "queue", consumer.queue.name, self.vhost.name)
            except AccessRefused:
                if not self._cancel_notify:
                    return False
                self.cancel(consumer.tag)
                self.send(spec.Basic.Cancel(consumer.tag, True))
                self.connection.touch()
        return True

    def lost(self, consumer: AmqpConsumer) -> None:
        if self.consumers.pop(consumer.tag, None) is not None:
            self._leave_pool(consumer)
            if self._cancel_notify:
                self.send(spec.Basic.Cancel(consumer.tag, True))

    def _leave_pool(self, consumer: AmqpConsumer) -> None:
        if consumer.pool is not None and consumer in consumer.pool.consumers:
            consumer.pool.consumers.remove(consumer)

    def share_prefetch(self, prefetch: i64) -> None:
        """basic.qos global=true: one limit for all consumers of the channel, those at work too, and for what they hold."""
        self.shared_prefetch = prefetch
        pool = self.pool = Pool(prefetch) if prefetch else None
        for _, delivery in self.unacked.outstanding():
            holder = delivery.consumer
            if isinstance(holder, AmqpConsumer) and holder.tag:  # basic.get has none.
                holder.pool = pool
                if pool is not None:
                    pool.credit -= 1
        for consumer in self.consumers.values():
            if not consumer.no_ack:
                consumer.pool = pool
                if pool is not None:
                    pool.consumers.append(consumer)
                consumer.queue.stir()

    def get(self, queue: Queue, no_ack: bool) -> None:
        """basic.get: get-ok with a content, or get-empty."""
        delivery = queue.take(self._consumer(queue, "", no_ack, 0))
        if delivery is None:
            self.tally.get_empty += 1
            self.send(spec.Basic.GetEmpty())
            return
        message = delivery.message
        content = message.content if message.encoding is self.frames else content_for(message, self.frames)
        if not content:  # This client's frames are too small for its properties.
            queue.unacked += 1
            queue.unsayable(message)
            self.get(queue, no_ack)
            return
        number: i64
        if no_ack:
            self.tally.get_auto += 1
            number = self.unacked.skip()
            queue.consumed(message)
        else:
            self.tally.get_manual += 1
            queue.unacked += 1
            delivery.consumer.pool = None
            number = self.unacked.add(delivery)
        if delivery.attempts > 0:
            self.tally.redelivered += 1
        self.connection.out.write(got(self.number, number, delivery.attempts > 0, message.address.octets, queue.depth))
        self.write_content(content)
        self.connection.touch()

    def write_content(self, content: bytes) -> None:
        if len(content) < LARGE:
            self.connection.out.write(content)
        else:
            self.connection.attach(content)

    # -- settling

    def ack(self, number: i64, multiple: bool) -> None:
        """basic.ack. Raises AmqpError. Hot path."""
        if self.transaction is not None:
            self._settle_later(self.transaction, number, multiple, ACKED)
            return
        if multiple:
            for delivery in self._take_many(number):
                self.tally.acknowledged += 1
                settle(delivery)
            return
        one = self.unacked.take(number)
        if one is None:
            raise _unknown(number)
        self.tally.acknowledged += 1
        settle(one)

    def _take_many(self, number: i64) -> list[Delivery]:
        if number == 0:
            return self.unacked.take_all()
        taken = self.unacked.take_up_to(number) if number < self.unacked.next else []
        if not taken:
            raise _unknown(number)
        return taken

    def nack(self, number: i64, multiple: bool, requeue: bool) -> None:
        """basic.nack and basic.reject. Raises AmqpError."""
        if self.transaction is not None:
            self._settle_later(self.transaction, number, multiple, PUT_BACK if requeue else GIVEN_UP)
            return
        if multiple:
            taken = self._take_many(number)
        else:
            one = self.unacked.take(number)
            if one is None:
                raise _unknown(number)
            taken = [one]
        if requeue:
            for delivery in reversed(taken):  # The newest first: each goes before those put back already, in one step.
                put_back(delivery)
            return
        for delivery in taken:
            refuse(delivery)

    def recover(self) -> None:
        """Give everything unsettled back to its queues, in order."""
        transaction = self.transaction
        if transaction is not None and transaction.settlements:
            self._put_back([number for number, _ in self.unacked.outstanding() if number not in transaction.settlements])
            return
        for delivery in reversed(self.unacked.take_all()):
            put_back(delivery)

    def _put_back(self, numbers: list[i64]) -> None:
        """Give some of them back, the newest first."""
        for number in reversed(numbers):
            delivery = self.unacked.take(number)
            if delivery is not None:
                put_back(delivery)

    # -- transactions

    def _settle_later(self, transaction: Transaction, number: i64, multiple: bool, how: int) -> None:
        """Settle at the commit. Raises AmqpError for what is not outstanding, or settled in this transaction already."""
        settlements = transaction.settlements
        if not multiple:
            if number in settlements or self.unacked.get(number) is None:
                raise _unknown(number)
            settlements[number] = how
            return
        numbers = [one for one, _ in self.unacked.outstanding() if (number == 0 or one <= number) and one not in settlements]
        if number and (not numbers or number >= self.unacked.next):
            raise _unknown(number)
        for one in numbers:
            settlements[one] = how

    def select(self) -> None:
        """tx.select. Raises AmqpError."""
        if self.confirms is not None:
            raise AmqpError(406, "cannot switch from confirm to tx mode")
        if self.transaction is None:
            self.transaction = Transaction(self.vhost.bounds.transaction)
            self.connection.take_care()

    def commit(self) -> None:
        """tx.commit: all at once, or after a crash nothing. Raises AmqpError."""
        transaction, store = self._selected(), self.vhost.store
        publications, settlements = transaction.publications, transaction.settlements
        transaction.clear()
        before: i64 = store.position
        store.begin()
        try:
            for publication in publications:
                route = publication.route
                route = Carbons(route.exchange, [route.key], route.blind if isinstance(route, Carbons) else [], publication.aim.plan())
                try:
                    self._deliver(route, publication.message, publication.flags, None)
                except BrokerError:
                    pass  # Its exchange has gone meanwhile: it has its fate, and the others have theirs.
            back: list[i64] = []
            for number, how in settlements.items():
                if how == PUT_BACK:
                    back.append(number)
                    continue
                delivery = self.unacked.take(number)
                assert delivery is not None
                if how == ACKED:
                    self.tally.acknowledged += 1
                    settle(delivery)
                else:
                    refuse(delivery)
            self._put_back(sorted(back))
        finally:
            store.commit()
        if store.position > before or store.streams:
            store.join(self.ticket)

    def rollback(self) -> None:
        """tx.rollback: what was settled is outstanding again, under its old tag. Raises AmqpError."""
        self._selected().clear()

    def _selected(self) -> Transaction:
        if self.transaction is None:
            raise AmqpError(406, "channel is not transactional")
        return self.transaction

    def close(self) -> None:
        """The channel is gone: consumers end, and what they held goes back."""
        self.transaction = None
        consumers = list(self.consumers)
        for consumer in self.consumers.values():
            consumer.queue.unsubscribe(consumer)
        self.recover()
        for tag in consumers:
            self.cancel(tag)
        if self.confirms is not None:
            self.confirms.close()
        self.tally.channels_closed += 1

    def unchoke(self) -> None:
        """Stir every queue that delivers here."""
        for consumer in self.consumers.values():
            consumer.queue.stir()


def _unknown(number: i64) -> AmqpError:
    return AmqpError(406, f"unknown delivery tag {int(number) & 0xFFFF_FFFF_FFFF_FFFF}")
