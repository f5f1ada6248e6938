"""Topic names and filters as the core knows them.

A topic name is a routing key with `/` and `.` exchanged: `a/b.c` here is `a.b/c` there, and back. A
filter stays as it is, in its own grammar.
"""

from __future__ import annotations

from typing import Final

from broker.errors import AccessRefused
from broker.routing.publish_context import PublishContext
from broker.routing.route import Route, refused
from matching.grammar import MQTT, InvalidPattern, swap
from protocols.mqtt.codec.connect import topic_name
from protocols.mqtt.codec.packets import MalformedPacket, decoded
from protocols.mqtt.codec.reasons import PROTOCOL_ERROR

#: Where MQTT topics live.
EXCHANGE: Final = "amq.topic"
#: Trees that clients cannot publish to: publications are acknowledged and dropped.
RESERVED: Final = ("$SYS", "$share")
#: What the name of a shared subscription begins with.
SHARE: Final = "$share/"
_RESERVED_OCTETS: Final = tuple(name.encode() for name in RESERVED)
#: Octets of the longest topic (section 4.7.3).
LENGTH_MAX: Final = 65_535


class MqttTopics:
    """How many levels a topic name or filter may have, and which filters nobody may subscribe to."""

    def __init__(self, max_levels: int, no_subscribe: list[str]) -> None:
        self.max_levels = max_levels
        self.no_subscribe = no_subscribe

    def resolve(self, context: PublishContext, topic: bytes) -> Route:
        """The route of a topic name that the gate does not know yet. Raises MalformedPacket."""
        name = topic_name(decoded(topic))
        route = context.resolve(topic, EXCHANGE, swap(name))
        if not self.serves(name):
            # Not interned: nothing retires it, and nothing needs to.
            route.plan = refused(AccessRefused(f"topic '{name[:200]}' cannot be published to"))
        return route

    def serves(self, name: str) -> bool:
        """Whether clients may publish under a topic name at all."""
        return name.split("/", 1)[0] not in RESERVED and name.count("/") < self.max_levels

    def allows(self, topic_filter: str) -> bool:
        """Whether anybody may subscribe to it, shared or not."""
        if topic_filter.startswith(SHARE):
            topic_filter = topic_filter[len(SHARE) :].partition("/")[2]
        return topic_filter not in self.no_subscribe

    def check_filter(self, topic_filter: str) -> bool:
        """Whether a well-formed filter, or shared subscription, is one we serve. Raises
        MalformedPacket for one that is not well-formed."""
        if topic_filter.startswith(SHARE):
            label, _, topic_filter = topic_filter[len(SHARE) :].partition("/")
            if not label or "+" in label or "#" in label or not topic_filter:
                raise MalformedPacket(
                    "shared subscription", code=PROTOCOL_ERROR
                )  # [MQTT-4.8.2-1], [MQTT-4.8.2-2]
        try:
            MQTT.check(topic_filter)
        except InvalidPattern as error:
            raise MalformedPacket(
                str(error)
            ) from error  # [MQTT-4.7.1-1], [MQTT-4.7.1-2], [MQTT-4.7.3-1]
        return topic_filter.count("/") < self.max_levels


def valid_topic_name(topic: bytes) -> bool:
    """Whether a publication from elsewhere can be told under this topic name."""
    if not topic or len(topic) > LENGTH_MAX or b"+" in topic or b"#" in topic or b"\0" in topic:
        return False
    if topic.split(b"/", 1)[0] in _RESERVED_OCTETS:
        return False
    try:
        topic.decode()
    except UnicodeDecodeError:
        return False
    return True
