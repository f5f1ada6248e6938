"""Topic names and filters as the core knows them.

A topic name is a routing key with `/` and `.` exchanged: `a/b.c` here is `a.b/c` there, and back. A filter
stays as it is, in its own grammar.
"""

from __future__ import annotations

from typing import Final

from broker.errors import AccessRefused
from broker.gate import Gate
from broker.route import Route, refused
from matching.grammar import MQTT, InvalidPattern, swap
from protocols.mqtt.packets import MalformedPacket, decoded

#: Where MQTT topics live.
EXCHANGE: Final = "amq.topic"
#: Trees that clients cannot publish to: publications are acknowledged and dropped.
RESERVED: Final = ("$SYS", "$share")
_RESERVED_OCTETS: Final = tuple(name.encode() for name in RESERVED)
#: Octets of the longest topic (section 4.7.3).
LENGTH_MAX: Final = 65_535


class TopicRules:
    """How many levels a topic name or filter may have."""

    def __init__(self, max_levels: int) -> None:
        self.max_levels = max_levels

    def resolve(self, gate: Gate, topic: bytes) -> Route:
        """The route of a topic name that the gate does not know yet. Raises MalformedPacket."""
        name = checked(decoded(topic))
        route = gate.resolve(topic, EXCHANGE, swap(name))
        if not self.serves(name):
            # Not interned: nothing retires it, and nothing needs to.
            route.plan = refused(AccessRefused(f"topic '{name[:200]}' cannot be published to"))
        return route

    def serves(self, name: str) -> bool:
        """Whether clients may publish under a topic name at all."""
        return name.split("/", 1)[0] not in RESERVED and name.count("/") < self.max_levels

    def check_filter(self, topic_filter: str) -> bool:
        """Whether a well-formed filter is one we serve. Raises MalformedPacket for one that is not well-formed."""
        try:
            MQTT.check(topic_filter)
        except InvalidPattern as error:
            raise MalformedPacket(str(error)) from error  # [MQTT-4.7.1-2], [MQTT-4.7.1-3], [MQTT-4.7.3-1]
        return topic_filter.count("/") < self.max_levels and not topic_filter.startswith("$share/")


def checked(name: str) -> str:
    """A topic name. Raises MalformedPacket [MQTT-3.3.2-2], [MQTT-4.7.3-1]."""
    if not name or "+" in name or "#" in name:
        raise MalformedPacket("topic name")
    return name


def speakable(topic: bytes) -> bool:
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
