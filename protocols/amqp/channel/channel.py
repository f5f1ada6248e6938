"""A channel: publishing with care, delivery tags, consumers, and what is left when it ends."""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from broker.errors import BrokerError
from broker.messages.cc_headers import BCC, bcc_keys, parse_additional_keys
from broker.messages.message import (
    AT_LEAST_ONCE,
    AT_MOST_ONCE,
    EXPIRATION,
    HEADERS,
    REPLY_TO,
    USER_ID,
    Message,
    amend,
)
from broker.routing.deduplication import NumberedPublication, numbered
from broker.routing.planner import TOPICS
from broker.routing.publish_context import PublishContext
from broker.routing.route import REFUSED, REPEATED, TOO_LARGE, UNROUTABLE, CcRoute, Route
from broker.store.contract import Ticket
from broker.vhost.vhost import VirtualHost
from protocols.amqp.channel.confirms import Confirms
from protocols.amqp.channel.connection_interface import AmqpClient
from protocols.amqp.channel.consumer import refuse, settle
from protocols.amqp.channel.receiving import ChannelReceiving
from protocols.amqp.channel.transaction import ACKED, PUT_BACK, Transaction
from protocols.amqp.codec.assembly import Assembly
from protocols.amqp.codec.contents import (
    NUMBERED,
    asks_directly,
    names_keys,
    persistent,
    property_flags,
    short_property,
)
from protocols.amqp.codec.frames import returned
from protocols.amqp.errors import AmqpError, from_broker
from protocols.connection import BUDGET
from protocols.crossing import MARK, wanted_qos, wants_retain

MANDATORY: Final[i64] = 1
IMMEDIATE: Final[i64] = 2
#: Milliseconds of the longest expiration.
EXPIRATION_MAX: Final = 1 << 50


class Channel(ChannelReceiving):
    """One channel of one connection."""

    def __init__(
        self,
        vhost: VirtualHost,
        context: PublishContext,
        connection: AmqpClient,
        number: i64,
        frame_max: i64,
        cancel_notify: bool,
    ) -> None:
        super().__init__(vhost, context, connection, number, frame_max, cancel_notify)
        self.last_queue = ""
        self.assembly: Assembly | None = None
        self.confirms: Confirms | None = None
        self.tally.channels_opened += 1

    # -- publishing

    def publish(self, address: bytes, flags: i64, content: bytes) -> i64:
        """Publish what the hot loop left to us: any flag, any property, any route.

        Returns its weight. Raises AmqpError.
        """
        if flags & IMMEDIATE:
            raise AmqpError(540, "immediate=true")
        route = self.route(address)
        message = Message(route, content, self.frames, AT_MOST_ONCE)
        if persistent(content, 0):
            message.qos = AT_LEAST_ONCE
            self.connection.persists = True
        carried = property_flags(content, 0)
        if carried & HEADERS and MARK in content:
            quality = wanted_qos(message.properties)
            if quality >= 0:
                message.qos = quality
        if route.plan.stale:
            self.context.renew(route)
        if route.plan.refusal is None:  # Who may not publish there is told that first.
            if carried & (EXPIRATION | USER_ID):
                self._read_properties(message, carried)
            if carried & HEADERS and names_keys(content, 0):
                route = self._route_copies(route, message)
            if carried & REPLY_TO and asks_directly(content, 0):
                self._ask_directly(message)
        publication = self._numbered(message, carried)
        if self.transaction is not None and route.plan.refusal is None:
            keys = [route.key] if not isinstance(route, CcRoute) else route.keys
            self.transaction.publish(
                route,
                self.vhost.resolve_now(self.context, route.exchange, keys, message.properties),
                message,
                flags,
            )
            return self._cost(route)
        confirms = self.confirms
        plan = route.plan
        if plan.streams:
            self.connection.persists = True
        waits = message.qos or plan.streams or plan.by_headers or publication is not None
        ticket = Ticket(confirms) if confirms is not None and waits else None
        try:
            fate = self._deliver(route, message, flags, ticket, publication)
        except BrokerError as error:
            raise from_broker(error) from error
        if confirms is not None:
            self.tally.received_confirm += 1
            confirms.add(ticket, fate == REFUSED)
        return self._cost(route)

    def _numbered(self, message: Message, carried: i64) -> NumberedPublication | None:
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
        """The weight of a publication.

        After one that comes while an alarm is on, nothing more is taken.
        """
        if self.vhost.alarmed:
            self.connection.block()
            return BUDGET
        return route.plan.weight

    def _deliver(
        self,
        route: Route,
        message: Message,
        flags: i64,
        ticket: Ticket | None,
        publication: NumberedPublication | None,
    ) -> i64:
        """Publish, and return to its publisher what nobody wants.

        Returns the fate. Raises BrokerError.
        """
        self.context.received += 1
        if publication is None:
            fate = self.vhost.publish(self.context, route, message, ticket)
        else:
            fate = self.vhost.publish_once(self.context, route, message, ticket, publication)
            if fate == REPEATED:
                return fate
        if (
            route.exchange == TOPICS
            and property_flags(message.content, 0) & HEADERS
            and MARK in message.content
            and wants_retain(message.properties)
        ):
            self.vhost.retain(message, ticket)
        if fate == UNROUTABLE and flags & MANDATORY:
            self.tally.returned += 1
            self.connection.out.write(returned(self.number, route.short_strings))
            self.write_content(message.content)
        return fate

    def route(self, address: bytes) -> Route:
        """The route for an exchange and a key as they stand in basic.publish. Raises AmqpError."""
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
            address, exchange, address[2 + size :].decode("utf-8", "surrogateescape")
        )

    def too_large(self, size: i64) -> AmqpError:
        """The refusal of a body above the limit. The publication counts."""
        self._count(TOO_LARGE)
        return AmqpError(
            406,
            f"message size {size} is larger than configured max size {self.vhost.limits.message}",
        )

    def _read_properties(self, message: Message, carried: i64) -> None:
        """Check user_id and expiration. Raises AmqpError."""
        name = self.context.identity.name
        if carried & USER_ID:
            user = short_property(message.content, USER_ID)
            if user != name.encode():
                self._count(REFUSED)
                raise AmqpError(
                    406,
                    f"user_id property set to '{user.decode(errors='replace')}' but authenticated user was '{name}'",
                )
        if carried & EXPIRATION:
            expiration = short_property(message.content, EXPIRATION)
            if not expiration.isdigit() or int(expiration) > EXPIRATION_MAX:
                self._count(REFUSED)
                raise AmqpError(
                    406,
                    f"invalid expiration '{expiration.decode(errors='replace')}': not a number of milliseconds",
                )
            message.expires = self.vhost.agenda.now + int(expiration)

    def _route_copies(self, route: Route, message: Message) -> Route:
        """The publisher may name further routing keys. Raises AmqpError."""
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
            route = self.vhost.route_copies(
                self.context, route.exchange, [route.key, *keys], bcc_keys(headers), properties
            )
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
        self.context.received += 1
        self.context.count_fate(fate)

    def confirm(self) -> None:
        """Tell the publisher what may be told: at the end of a chunk, and before any other answer."""
        if self.confirms is not None:
            self.confirms.flush()

    # -- transactions

    def select(self) -> None:
        """tx.select. Raises AmqpError."""
        if self.confirms is not None:
            raise AmqpError(406, "cannot switch from confirm to tx mode")
        if self.transaction is None:
            self.transaction = Transaction(self.vhost.limits.transaction)
            self.connection.publish_slowly()

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
                route = CcRoute(
                    route.exchange,
                    [route.key],
                    route.blind if isinstance(route, CcRoute) else [],
                    publication.aim.plan(),
                )
                try:
                    message = publication.message
                    self._deliver(
                        route,
                        message,
                        publication.flags,
                        None,
                        self._numbered(message, property_flags(message.content, 0)),
                    )
                except BrokerError:
                    # Its exchange has gone meanwhile: it has its fate, and the others have theirs.
                    pass
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
            self.give_back(sorted(back))
        finally:
            store.commit()
        if store.position > before or store.streams:
            store.wait_for_next_batch(self.ticket)

    def rollback(self) -> None:
        """tx.rollback: what was settled is outstanding again, under its old tag.

        Raises AmqpError.
        """
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
