"""The Route: an exchange and a routing key, with all that is known before a message is published.

bytes from the wire --dict--> Route --+-- address     the names, which messages keep
                                      +-- count       publications, added to the fates when the
                                      |               plan changes
                                      +-- plan --+-- slow_path_mask   features of a message that
      (shared by all routes                      |                    send it to the slow path
       to the same set)                          +-- queues           get each message
                                                 +-- relay            subscribers, for QoS 0
                                                 +-- reliable_queues  queues and inboxes, for QoS 1
                                                 |                    and 2
                                                 +-- reliable_relay   subscribers that asked for
                                                 |                    QoS 0, for QoS 1 and 2
                                                 +-- refusal, fate, durable, limited, qos1_inboxes,
                                                     delays, by_headers: for the slow path

A PublishContext (publish_context.py) keeps the routes of one identity; the Planner (planner.py)
computes plans.
"""

from __future__ import annotations

from mypy_extensions import i64

from broker.messages.message import Address, Message, Origin
from broker.queues.queue import Queue
from broker.routing.plan import Plan
from broker.store.entries import MessageStored


class Route(Address):
    """An exchange and a routing key, resolved for one identity.

    `count` is the number of publications that followed the route since its plan last changed.
    `recent` is the number of further publications, already taken out of `count`, that the topic
    history (topic_history.py) does not have yet. `cached` is True if a PublishContext keeps the
    route.
    """

    def __init__(self, exchange: str, key: str, plan: Plan) -> None:
        super().__init__(exchange, key)
        self.plan = plan
        self.routed = plan.routed
        self.count: i64 = 0
        self.recent: i64 = 0
        self.cached = False

    def deliver(self, message: Message, queues: list[Queue]) -> None:
        """Put a message into `queues`, which are queues of the plan, and count it. Hot path."""
        for queue in queues:
            queue.put(message)
        self.count += 1


class MessageRoute(Route):
    """The route of one message, which no other message follows.

    A message has such a route if it has several routing keys (headers CC and BCC), or if a
    transaction publishes it. Consumers see the first key as the routing key. `blind` are the keys
    of BCC, which no consumer sees.
    """

    def __init__(self, exchange: str, keys: list[str], blind: list[str], plan: Plan) -> None:
        super().__init__(exchange, keys[0], plan)
        self.keys = keys
        self.blind = blind
        #: The entry that stores the message, if it was prepared for a transaction's commit.
        self.entry: MessageStored | None = None


def new_route(exchange: str, key: str, plan: Plan | None, origin: Origin) -> Route | None:
    """Return a new route with this plan and this publisher (`origin`); None if `plan` is None."""
    if plan is None:
        return None
    route = Route(exchange, key, plan)
    route.origin = origin
    return route


def with_plan(route: Route, plan: Plan) -> Route:
    """Return a copy of the route with `plan`, which was made for one message."""
    copy = Route(route.exchange, route.key, plan)
    copy.origin = route.origin
    return copy
