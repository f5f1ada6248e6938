"""The publisher side of a channel, which handles every publication that does not take the fast
path.

AmqpConnection._publish delivers a publication itself if nothing about its route, flags and
properties is special (the fast path). All others come to ChannelPublisher.publish:

    route         the plan of exchange and routing key; further routing keys from CC and BCC headers
    check         permission, size, user_id, expiration, reply_to, publisher sequence number
    deliver       to the targets at once, or at the commit in transaction mode
    return        basic.return for a mandatory message that no queue took
    confirm       basic.ack or basic.nack in the order of publishing, in confirm mode (confirms.py)
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from broker.errors import BrokerError
from broker.messages.cc_headers import BCC, bcc_keys, parse_additional_keys
from broker.messages.fates import REFUSED, REPEATED, ROUTED, TOO_LARGE, UNROUTABLE
from broker.messages.message import (
    AT_LEAST_ONCE,
    AT_MOST_ONCE,
    EXPIRATION,
    REPLY_TO,
    USER_ID,
    Message,
    amend,
)
from broker.routing.deduplication import NumberedPublication, numbered
from broker.routing.plan import Plan
from broker.routing.plan_search import SearchSlot
from broker.routing.planner import TOPICS
from broker.routing.publish_context import PublishContext
from broker.routing.resolved_targets import TargetPlans
from broker.routing.route import MessageRoute, Route
from broker.store.contract import Ticket
from broker.vhost.publishing import check_again, publish_once, resolve_now, route_copies
from broker.vhost.vhost import VirtualHost
from protocols.amqp.channel.confirms import Confirms
from protocols.amqp.channel.connection_interface import ConnectionInterface
from protocols.amqp.channel.receiver import ChannelReceiver
from protocols.amqp.channel.transaction import TransactedPublication, Transaction
from protocols.amqp.codec.assembly import Assembly
from protocols.amqp.codec.contents import (
    Frames,
    asks_directly,
    persistent,
    property_flags,
    short_property,
    special_names,
)
from protocols.amqp.codec.frames import returned
from protocols.amqp.codec.special_headers import COPIES, MQTT_HEADER, NUMBERED
from protocols.amqp.errors import AmqpError, from_broker
from protocols.budget import BUDGET, SEARCHING
from protocols.crossing import wanted_qos, wants_retain
from protocols.tally import FrontCounters

#: Flags of basic.publish.
MANDATORY: Final[i64] = 1
IMMEDIATE: Final[i64] = 2
#: Longest expiration of a message, in milliseconds.
EXPIRATION_MAX: Final = 1 << 50


class ChannelPublisher:
    """The publisher side of one channel: publishes messages, returns and confirms them."""

    def __init__(
        self,
        vhost: VirtualHost,
        context: PublishContext,
        connection: ConnectionInterface,
        number: i64,
        frames: Frames,
        receiver: ChannelReceiver,
    ) -> None:
        self.context = context
        self.number: i64 = number
        #: Number of published messages, and number of messages that were returned to the client.
        self.published: i64 = 0
        self.returned: i64 = 0
        #: Number of queues and subscribers that the last publication on the slow path reached; -1
        #: if there was none.
        self.reached: i64 = -1
        self.frames = frames
        self.tally: FrontCounters = connection.front.tally
        #: The content that is being received frame by frame; None if no content is incomplete.
        self.assembly: Assembly | None = None
        #: The confirms of a channel in confirm mode, otherwise None.
        self.confirms: Confirms | None = None
        #: The transaction of a channel in transaction mode, otherwise None.
        self.transaction: Transaction | None = None
        self._vhost = vhost
        self._connection = connection
        #: The receiver side of the channel: it has the queue of direct replies (`replies`).
        self._receiver = receiver

    def publish(self, address: bytes, flags: i64, content: bytes) -> i64:
        """Publish a message with any flags, properties and route: the slow path.

        `address` is the exchange and the routing key as encoded in basic.publish, `flags` has the
        bits MANDATORY and IMMEDIATE. Return the cost of the publication in units of the
        connection's BUDGET. Return SEARCHING if the search for the destinations pauses; the caller
        then calls this method again in the next turn of the event loop. Raises AmqpError if the
        broker refuses the message.
        """
        searched: i64 = 0
        cost: i64 = 0
        try:
            cost = self._publish(address, flags, content, self._connection.search_slot())
        finally:
            if cost != SEARCHING:
                searched = self._connection.end_search()
        return cost + searched

    def _publish(self, address: bytes, flags: i64, content: bytes, slot: SearchSlot) -> i64:
        """Publish a message on the slow path, once all searches for its destinations are complete.

        `slot` keeps the unfinished searches. Return SEARCHING if a search pauses; the broker's
        state is then unchanged. Otherwise return the cost of the publication in units of BUDGET,
        without the cost of the searches. Raises AmqpError if the broker refuses the message.
        """
        if flags & IMMEDIATE:
            raise AmqpError(540, "immediate=true")
        route = self._route(address, slot)
        if route is None:
            return SEARCHING
        message = Message(route, content, self.frames, AT_MOST_ONCE)
        if persistent(content, 0):
            message.qos = AT_LEAST_ONCE
            self._connection.persists = True
        present = property_flags(content, 0)
        special = special_names(content, 0)
        if special & MQTT_HEADER:
            qos = wanted_qos(message.properties)
            if qos >= 0:
                message.qos = qos
        if route.plan.stale and not self.context.renew(route, slot):
            return SEARCHING
        # A missing permission is reported before any error in the properties.
        if route.plan.refusal is None:
            if present & (EXPIRATION | USER_ID):
                self._check_properties(message, present)
            if special & COPIES:
                copies = self._route_copies(route, message, slot)
                if copies is None:
                    return SEARCHING
                route = copies
            if present & REPLY_TO and asks_directly(content, 0):
                self._set_reply_queue(message)
        publication = self._numbered(message) if special & NUMBERED else None
        if self.transaction is not None and route.plan.refusal is None:
            keys = [route.key] if not isinstance(route, MessageRoute) else route.keys
            targets = resolve_now(
                self._vhost, self.context, route.exchange, keys, message.properties, slot
            )
            if targets is None:
                return SEARCHING
            lifetime: i64 = -1
            if message.expires > 0:
                lifetime = message.expires - self._vhost.agenda.now
            self.transaction.publish(
                TransactedPublication(
                    self.context.identity,
                    route,
                    keys,
                    targets,
                    message,
                    flags,
                    publication,
                    lifetime,
                )
            )
            return self._cost(route.plan)
        plan = self._vhost.plan_of(self.context, route, message, slot)
        if plan is None:
            return SEARCHING
        confirms = self.confirms
        if plan.streams:
            self._connection.persists = True
        waits = message.qos or plan.streams or plan.by_headers or publication is not None
        ticket = Ticket(confirms) if confirms is not None and waits else None
        try:
            fate = self._deliver(route, plan, message, flags, ticket, publication)
        except BrokerError as error:
            raise from_broker(error) from error
        self.reached = plan.reached if fate == ROUTED else 0
        if confirms is not None:
            self.tally.received_confirm += 1
            confirms.add(ticket, fate == REFUSED)
        return self._cost(plan)

    def publish_persistent(self, route: Route, content: bytes) -> i64:
        """Publish a message that is on the slow path only because it must be stored. Hot path.

        Return the cost of the publication in units of the connection's BUDGET.
        """
        message = Message(route, content, self.frames, AT_LEAST_ONCE)
        ticket: Ticket | None = None
        if self.confirms is not None:
            ticket = self.confirms.add_stored(self._vhost.store.batch_number)
            self.tally.received_confirm += 1
        self._connection.persists = True
        self.published += 1
        self.context.received += 1
        self._vhost.publish_persistent(route, message, ticket)
        return route.plan.weight

    def prepare(self, publication: TransactedPublication, plans: TargetPlans) -> i64:
        """Prepare a publication of a transaction that is being committed: find its destinations
        that still exist.

        If the permissions of the user have changed since the last check of the publication, check
        it again. The queues and the store are not changed yet. Return the cost, in copies. Raises
        AmqpError if the user may not publish the message any more.
        """
        cost: i64 = 1 + publication.targets.copies
        identity = self.context.identity
        if publication.identity is not identity:
            try:
                check_again(self._vhost, identity, publication.route.exchange, publication.keys)
            except BrokerError as error:
                raise from_broker(error) from error
            publication.identity = identity
            cost += identity.weight * len(publication.keys)
        publication.prepare(plans, self._vhost)
        return cost

    def publish_committed(self, publication: TransactedPublication) -> None:
        """Deliver a prepared publication of a transaction that is being committed."""
        route = publication.route
        self._deliver(
            route,
            route.plan,
            publication.message,
            publication.flags,
            None,
            publication.number,
        )

    def confirm(self) -> None:
        """Send the confirms that are ready. Called at the end of a chunk of input, and before any
        other reply.
        """
        if self.confirms is not None:
            self.confirms.flush()

    def too_large(self, size: i64) -> AmqpError:
        """Count a publication whose body of `size` bytes is above the limit; return the error."""
        self._count(TOO_LARGE)
        return AmqpError(
            406,
            f"message size {size} is larger than configured max size {self._vhost.limits.message}",
        )

    def on_closed(self) -> None:
        """Drop the transaction and the confirms that are not sent yet, because the channel has
        ended.
        """
        self.transaction = None
        if self.confirms is not None:
            self.confirms.close()

    # -- routing

    def _route(self, address: bytes, slot: SearchSlot) -> Route | None:
        """Return the route for `address`, the exchange and routing key as encoded in basic.publish.

        Return None if the search for the route pauses. Raises AmqpError for an invalid `address`.
        """
        route = self.context.routes.get(address)
        if route is not None:
            return route
        size = address[0]
        if len(address) < size + 2 or len(address) != size + 2 + address[1 + size]:
            raise AmqpError(501, "exchange or routing key of Basic.Publish is cut off")
        try:
            exchange = address[1 : 1 + size].decode()
        except UnicodeDecodeError as error:
            raise AmqpError(502, "exchange of Basic.Publish is not UTF-8") from error
        return self.context.resolve(
            address, exchange, address[2 + size :].decode("utf-8", "surrogateescape"), slot
        )

    def _route_copies(self, route: Route, message: Message, slot: SearchSlot) -> Route | None:
        """Return the message's route, extended by the routing keys in its headers CC and BCC.

        Return None if the search for the route pauses. Raises AmqpError for an invalid header.
        """
        properties = message.properties
        headers = properties.get("headers")
        if not isinstance(headers, dict):
            return route
        try:
            keys = parse_additional_keys(headers)
        except BrokerError as error:
            self._count(REFUSED)
            raise from_broker(error) from error
        if keys:
            copies = route_copies(
                self._vhost,
                self.context,
                route.exchange,
                [route.key, *keys],
                bcc_keys(headers),
                properties,
                slot,
            )
            if copies is None:
                return None
            message.address = route = copies
        if BCC in headers:
            message.encoding = amend(message.encoding, {BCC: None}, {})
        return route

    # -- checking properties

    def _check_properties(self, message: Message, present: i64) -> None:
        """Check the properties user_id and expiration, and set the time at which the message
        expires.

        `present` are the message's property flags. Raises AmqpError if a property is invalid.
        """
        name = self.context.identity.name
        if present & USER_ID:
            user = short_property(message.content, USER_ID)
            if user != name.encode() and not self._connection.impersonator:
                self._count(REFUSED)
                raise AmqpError(
                    406,
                    f"user_id property set to '{user.decode(errors='replace')}' "
                    f"but authenticated user was '{name}'",
                )
        if present & EXPIRATION:
            expiration = short_property(message.content, EXPIRATION)
            if not expiration.isdigit() or int(expiration) > EXPIRATION_MAX:
                self._count(REFUSED)
                raise AmqpError(
                    406,
                    f"invalid expiration '{expiration.decode(errors='replace')}': "
                    f"must be a number of milliseconds from 0 to {EXPIRATION_MAX}",
                )
            message.expires = self._vhost.agenda.now + int(expiration)

    def _set_reply_queue(self, message: Message) -> None:
        """Replace the reply_to of a direct-reply request by the name of the channel's reply queue.

        Raises AmqpError if the channel has no consumer for direct replies.
        """
        replies = self._receiver.replies
        if replies is None:
            self._count(REFUSED)
            raise AmqpError(406, "fast reply consumer does not exist")
        message.encoding = amend(message.encoding, {}, {"reply_to": replies.name})

    def _numbered(self, message: Message) -> NumberedPublication | None:
        """Return the publisher and the sequence number in the message's headers, for deduplication.

        Return None if the headers have no sequence number. Raises AmqpError if a header is invalid.
        """
        headers = message.properties.get("headers")
        try:
            return numbered(headers) if isinstance(headers, dict) else None
        except BrokerError as error:
            self._count(REFUSED)
            raise from_broker(error) from error

    # -- delivering

    def _deliver(
        self,
        route: Route,
        plan: Plan,
        message: Message,
        flags: i64,
        ticket: Ticket | None,
        publication: NumberedPublication | None,
    ) -> i64:
        """Publish a message, and return it to its publisher if it is mandatory and unroutable.

        Return the fate of the message. Raises BrokerError if the broker refuses the message.
        """
        self.published += 1
        self.context.received += 1
        if self._vhost.traces.active:
            self._vhost.traces.publisher = self._connection
        if publication is None:
            fate = self._vhost.publish(self.context, route, plan, message, ticket)
        else:
            fate = publish_once(
                self._vhost, self.context, route, plan, message, ticket, publication
            )
            if fate == REPEATED:
                return fate
        if (
            route.exchange == TOPICS
            and special_names(message.content, 0) & MQTT_HEADER
            and wants_retain(message.properties)
        ):
            self._vhost.retain(message, ticket)
        if fate == UNROUTABLE and flags & MANDATORY:
            self.tally.returned += 1
            self.returned += 1
            self._connection.out.write(returned(self.number, route.short_strings))
            self._connection.write_content(message.content)
        return fate

    def _cost(self, plan: Plan) -> i64:
        """Return the cost of a publication in units of BUDGET.

        While an alarm is on, or a queue is behind with its dead letters, also stop reading from the
        connection. The cost is then the whole BUDGET, so that this publication is the last that the
        connection handles in this turn of the event loop.
        """
        if self._vhost.alarmed:
            self._connection.block()
            return BUDGET
        if plan.behind:
            self._connection.wait_for_dead_letters(self._vhost)
            return BUDGET
        return plan.weight

    def _count(self, fate: i64) -> None:
        """Count a publication that ends with this fate before it reaches the virtual host."""
        self.context.received += 1
        self.context.count_fate(fate)
