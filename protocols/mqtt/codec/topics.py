"""Rules for topic names and filters, and the route of a topic name.

The routing key of a topic name is the name with `/` and `.` exchanged: the topic `a/b.c` has the
routing key `a.b/c`. A topic filter is not converted, because the matcher knows its grammar.
"""

from __future__ import annotations

from typing import Final

from broker.errors import AccessRefused
from broker.routing.plan import refused
from broker.routing.plan_search import SearchSlot
from broker.routing.publish_context import PublishContext
from broker.routing.route import Route
from matching.grammar import MQTT, InvalidPattern, swap
from protocols.mqtt.codec.connect import topic_name
from protocols.mqtt.codec.packets import MalformedPacket, decoded
from protocols.mqtt.codec.reasons import PROTOCOL_ERROR

#: The exchange that all topics belong to.
EXCHANGE: Final = "amq.topic"
#: First levels of topics that clients cannot publish to. A publication to such a topic is
#: acknowledged and dropped.
RESERVED: Final = ("$SYS", "$share")
#: Prefix of the name of a shared subscription.
SHARE: Final = "$share/"
_RESERVED_BYTES: Final = tuple(name.encode() for name in RESERVED)
#: Size of the longest topic name (section 4.7.3), in bytes.
LENGTH_MAX: Final = 65_535


class MqttTopics:
    """The broker's limits for topics: the largest number of levels, and the filters that no client
    may use.
    """

    def __init__(self, max_levels: int, no_subscribe: list[str]) -> None:
        self.max_levels = max_levels
        self.no_subscribe = no_subscribe
        #: Number of new routes that were refused because the topic has more than `max_levels`
        #: levels.
        self.too_deep = 0

    def resolve(self, context: PublishContext, topic: bytes, slot: SearchSlot) -> Route | None:
        """Return a new route for a topic name for which the publish context has no route yet.

        `slot` keeps the unfinished searches of one publication. Return None if the search for the
        route's plan pauses; the caller then calls this method again in a later turn, with the same
        slot. Raises MalformedPacket for an invalid topic name.
        """
        name = topic_name(decoded(topic))
        route = context.resolve(topic, EXCHANGE, swap(name), slot)
        if route is not None and not self.serves(name):
            reason = f"topics below {' and '.join(RESERVED)} are reserved"
            if name.count("/") >= self.max_levels:
                self.too_deep += 1
                reason = f"the topic has more than mqtt.max_levels = {self.max_levels} levels"
            # This plan is not interned: a change of bindings does not affect the plan, so the plan
            # never becomes stale.
            route.plan = refused(
                AccessRefused(f"clients cannot publish to topic '{name[:200]}': {reason}")
            )
        return route

    def serves(self, name: str) -> bool:
        """True if a topic name is not reserved and has at most `max_levels` levels."""
        return name.split("/", 1)[0] not in RESERVED and name.count("/") < self.max_levels

    def allows(self, topic_filter: str) -> bool:
        """True if clients may use a topic filter, shared or not (setting `no_subscribe`)."""
        if topic_filter.startswith(SHARE):
            topic_filter = topic_filter[len(SHARE) :].partition("/")[2]
        return topic_filter not in self.no_subscribe

    def check_filter(self, topic_filter: str) -> bool:
        """True if a topic filter, shared or not, has at most `max_levels` levels.

        Raises MalformedPacket if the filter is not well-formed.
        """
        if topic_filter.startswith(SHARE):
            label, _, topic_filter = topic_filter[len(SHARE) :].partition("/")
            if not label or "+" in label or "#" in label or not topic_filter:
                raise MalformedPacket(
                    "a shared subscription must have the form $share/GROUP/FILTER",
                    code=PROTOCOL_ERROR,
                )  # [MQTT-4.8.2-1], [MQTT-4.8.2-2]
        try:
            MQTT.check(topic_filter)
        except InvalidPattern as error:
            raise MalformedPacket(
                str(error)
            ) from error  # [MQTT-4.7.1-1], [MQTT-4.7.1-2], [MQTT-4.7.3-1]
        return topic_filter.count("/") < self.max_levels


def valid_topic_name(topic: bytes) -> bool:
    """True if a message from AMQP can be sent to MQTT clients under this topic name."""
    if not topic or len(topic) > LENGTH_MAX or b"+" in topic or b"#" in topic or b"\0" in topic:
        return False
    if topic.split(b"/", 1)[0] in _RESERVED_BYTES:
        return False
    try:
        topic.decode()
    except UnicodeDecodeError:
        return False
    return True
