"""Publishes the will message of a session whose connection broke."""

from __future__ import annotations

from broker.agenda import Task
from broker.errors import BrokerError
from broker.messages.message import Message
from broker.routing.plan import Plan
from broker.routing.plan_search import SearchSlot
from broker.routing.publish_context import PublishContext
from broker.routing.subscriber import Subscriber
from broker.vhost.dead_letters import MessagePublisher


class PublishWill(Task):
    """A task that publishes the will message of a session, because its connection broke."""

    def __init__(
        self,
        publisher: MessagePublisher,
        context: PublishContext,
        message: Message,
        lifetime: int,
        session: Subscriber | None,
    ) -> None:
        self._publisher = publisher
        self._context = context
        self._message = message
        self._lifetime = lifetime
        self._session = session
        self._slot: SearchSlot | None = None

    def run(self) -> None:
        publisher, context, will = self._publisher, self._context, self._message
        slot = self._slot or SearchSlot()
        pauses = False
        before, publisher.publishing_session = publisher.publishing_session, self._session
        try:
            route = publisher.route(context, will.address.exchange, will.address.key, slot)
            plan: Plan | None = None
            if route is not None:
                message = Message(route, will.content, will.encoding, will.qos)
                plan = publisher.plan_of(context, route, message, slot)
            if route is None or plan is None:
                pauses = True
                self._slot = slot
                publisher.agenda.later(self)
                return
            context.received += 1
            if self._lifetime >= 0:
                message.expires = publisher.agenda.now + self._lifetime
            if will.retained and plan.refusal is None:
                publisher.retain(message, None)
            publisher.publish(context, route, plan, message, None)
        except BrokerError:
            pass  # The client may not publish there. The will is counted with the fate "denied".
        finally:
            publisher.publishing_session = before
            if not pauses:
                publisher.release(context)
