"""The options of a session's subscriptions: subscription identifiers and Retain As Published.

The options are looked up by topic name when a PUBLISH is written; a message in the inbox does not
hold them. A session has no SessionOptions if its subscriptions have neither of the two options.
"""

from __future__ import annotations

from typing import Final

from broker.eviction import evict_oldest
from broker.messages.message import Encoding, Message
from broker.routing.binding import Binding
from matching.grammar import MQTT
from protocols.mqtt.codec.packets import remaining_length
from protocols.mqtt.codec.properties import SUBSCRIPTION_IDENTIFIER

#: Largest number of topic names whose options are cached. A full cache evicts the KNOWN // PORTION
#: oldest names.
KNOWN: Final = 1_000
PORTION: Final = 16
#: Names of two arguments in the binding of a subscription. (A third argument, NO_LOCAL, is used
#: when routes are planned.)
IDENTIFIER: Final = "identifier"
AS_PUBLISHED: Final = "retain-as-published"


class SubscriptionOptions:
    """The options for the messages of one topic, from all subscriptions that match the topic.

    `identifiers` are the subscription identifiers, encoded as properties of a PUBLISH.
    """

    __slots__ = ("as_published", "identifiers")

    def __init__(self, identifiers: bytes, as_published: bool) -> None:
        self.identifiers = identifiers
        self.as_published = as_published


class SessionOptions:
    """The options of all subscriptions of one session."""

    def __init__(self) -> None:
        self._exact: dict[str, Binding] = {}
        self._patterns: dict[str, Binding] = {}
        self._identified = 0
        #: Number of shared subscriptions with an identifier. Their messages are written as
        #: `Addressed`, which holds the identifier, so no lookup is needed.
        self.shared = 0
        self._known: dict[bytes, SubscriptionOptions] = {}

    @property
    def empty(self) -> bool:
        """True if no subscription has an option."""
        return not self._exact and not self._patterns and self.shared == 0

    @property
    def identified(self) -> bool:
        """True if a subscription that is not shared has an identifier."""
        return self._identified > 0

    def add(self, binding: Binding) -> None:
        """Add a subscription that has options."""
        self._identified += IDENTIFIER in binding.arguments
        (self._patterns if MQTT.is_pattern(binding.key) else self._exact)[binding.key] = binding
        self._known.clear()

    def remove(self, binding: Binding) -> None:
        """Remove a subscription that has options."""
        self._identified -= IDENTIFIER in binding.arguments
        (self._patterns if MQTT.is_pattern(binding.key) else self._exact).pop(binding.key, None)
        self._known.clear()

    def of(self, topic: bytes) -> SubscriptionOptions:
        """Return the options for the messages of a topic."""
        known = self._known.get(topic)
        return known or self._find(topic)

    def _find(self, topic: bytes) -> SubscriptionOptions:
        name = topic.decode("utf-8", "replace")
        matched = [
            binding for binding in self._patterns.values() if MQTT.matches(binding.key, name)
        ]
        if name in self._exact:
            matched.append(self._exact[name])
        if len(self._known) >= KNOWN:
            evict_oldest(self._known, KNOWN // PORTION)
        options = self._known[topic] = SubscriptionOptions(
            b"".join(identifier_of(binding) for binding in matched),
            any(AS_PUBLISHED in binding.arguments for binding in matched),
        )
        return options


def is_special(binding: Binding) -> bool:
    """True if a subscription has an identifier or Retain As Published."""
    return IDENTIFIER in binding.arguments or AS_PUBLISHED in binding.arguments


def identifier_of(binding: Binding) -> bytes:
    """Return a subscription's identifier, encoded as a property; b"" if there is none."""
    return identifier_property(binding.arguments.get(IDENTIFIER))


def identifier_property(number: object) -> bytes:
    """Return a subscription identifier, encoded as a property; b"" if `number` is 0 or None.

    An identifier of 0 would be a protocol error (section 3.3.2.3.8).
    """
    return (
        bytes([SUBSCRIPTION_IDENTIFIER]) + remaining_length(number)
        if isinstance(number, int) and number > 0
        else b""
    )


class Addressed(Message):
    """A copy of a message that a session receives for one subscription alone.

    The message is a retained message for a new subscription, or a message of a shared subscription.
    The copy has the options of this subscription, and no options of other matching subscriptions.
    """

    __slots__ = ("identifier", "origin")

    def __init__(
        self,
        message: Message,
        qos: int,
        retained: bool,
        identifier: bytes,
        encoding: Encoding,
    ) -> None:
        super().__init__(message.address, message.content, encoding, qos)
        self.expires = message.expires
        self.position = 0 if retained else message.position
        self.retained = retained
        self.identifier = identifier
        #: For a shared subscription: the message that another session gets if this session does not
        #: acknowledge the copy.
        self.origin: Message | None = None
