"""The rarer ways to publish, and their routes: deduplication, wills, CC headers, transactions.

publish_once    publishes a message of a producer that numbers its messages
publish_will    publishes the will message of a session at the end of the turn
prepare         encodes the store's entry of a message that a transaction publishes later
route_copies    returns the route of a message with headers CC or BCC
resolve_now     returns the present destinations of a message that a transaction publishes later
check_again     checks again that the identity may publish a message of a transaction
"""

from __future__ import annotations

from mypy_extensions import i64

from broker.access.identity import Identity
from broker.errors import NotFound
from broker.messages.fates import REFUSED, REPEATED
from broker.messages.message import AT_MOST_ONCE, Message, Properties
from broker.routing.deduplication import NumberedPublication
from broker.routing.plan import Plan
from broker.routing.plan_search import SearchSlot
from broker.routing.planner import NO_PLAN
from broker.routing.publish_context import PublishContext
from broker.routing.resolved_targets import ResolvedTargets
from broker.routing.route import MessageRoute, Route
from broker.routing.subscriber import Subscriber
from broker.store.contract import Ticket
from broker.store.entries import MessageStored
from broker.vhost.vhost import VirtualHost
from broker.vhost.will_publication import PublishWill


def publish_once(
    vhost: VirtualHost,
    context: PublishContext,
    route: Route,
    plan: Plan,
    message: Message,
    ticket: Ticket | None,
    publication: NumberedPublication,
) -> i64:
    """Publish a message of a producer that numbers its messages, and return the fate.

    A repeated message is not published again. Its ticket waits until all changes so far are
    durable, which include the first publication.

    After a refusal, the producer's later messages are refused too, until the producer has published
    the refused message again (deduplication.py). A publisher without a ticket gets no confirms, so
    it does not learn of a refusal: its later messages are not refused.

    Raises BrokerError for a message that the user may not publish, also if its number is repeated.
    """
    if plan.refusal is not None:
        return vhost.publish(context, route, plan, message, ticket)
    if vhost.producers.is_repeat(context.producer_owner, publication):
        if vhost.traces.active:
            vhost.traces.follow_repeated(context, route, message)
        context.count_fate(REPEATED)
        vhost.reply_when_all_durable(ticket)
        return REPEATED
    if ticket is not None and vhost.producers.is_held_back(context.producer_owner, publication):
        context.count_fate(REFUSED)
        return REFUSED
    vhost.store.begin()
    try:
        fate = vhost.publish(context, route, plan, message, ticket)
        if fate != REFUSED:
            vhost.producers.record(context.producer_owner, publication, ticket)
        elif ticket is not None:
            vhost.producers.refuse(context.producer_owner, publication)
    finally:
        vhost.store.commit()
    return fate


def prepare(vhost: VirtualHost, route: MessageRoute, message: Message) -> None:
    """Encode the store's entry of a persistent message before the message is published.

    Do nothing if a queue of the plan stores an annotation with the message: `Queue.annotate` can
    make the annotation only when the message is published.
    """
    plan = route.plan
    if message.qos > AT_MOST_ONCE and plan.durable and not plan.annotated:
        entry = route.entry = MessageStored(vhost.name, message, plan.numbers)
        vhost.store.prepare(entry)


def publish_will(
    vhost: VirtualHost,
    context: PublishContext,
    will: Message,
    lifetime: int = -1,
    session: Subscriber | None = None,
) -> None:
    """Publish the will message of a session at the end of this turn.

    The message expires after `lifetime` milliseconds; never if `lifetime` is below 0. `session`
    gets no copy through its own subscriptions with No Local.
    """
    vhost.contexts.hold(context)
    vhost.agenda.add(PublishWill(vhost, context, will, lifetime, session))


# -- routes for one message


def route_copies(
    vhost: VirtualHost,
    context: PublishContext,
    exchange: str,
    keys: list[str],
    blind: list[str],
    properties: Properties,
    slot: SearchSlot,
) -> Route | None:
    """Return a new route for one message with headers CC or BCC; `blind` are the BCC keys.

    Return None if the search for its destinations continues in the next turn of the event loop:
    call again with the same `slot` then.
    """
    planner = vhost.declarations.planner
    plan = planner.plan_keys(context.identity, exchange, keys, properties, None, slot)
    if plan is None:
        return None
    route = MessageRoute(exchange, keys, blind, plan)
    route.origin = context.origin
    return route


def resolve_now(
    vhost: VirtualHost,
    context: PublishContext,
    exchange: str,
    keys: list[str],
    properties: Properties,
    slot: SearchSlot,
) -> ResolvedTargets | None:
    """Return the present destinations of a message that a transaction publishes later.

    Return None if the search for these destinations continues in the next turn of the event loop:
    call again with the same `slot` then. Raises NotFound if the exchange does not exist,
    AccessRefused if the identity may not publish to it.
    """
    planner = vhost.declarations.planner
    return planner.resolve_now(context.identity, exchange, keys, properties, slot)


def check_again(vhost: VirtualHost, identity: Identity, exchange: str, keys: list[str]) -> None:
    """Raise AccessRefused if the identity may no longer publish a message of a transaction.

    Called if permissions have changed since the message's destinations were found. If the exchange
    was deleted, the destinations stay valid, and only the permission to write to the exchange's
    name is checked.
    """
    try:
        vhost.declarations.planner.admit(
            identity, exchange, [Route(exchange, key, NO_PLAN) for key in keys]
        )
    except NotFound:
        identity.may("write", "exchange", exchange or "amq.default", vhost.name)
