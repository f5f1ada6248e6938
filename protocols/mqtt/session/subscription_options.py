"""How one session looks at publications: which identifiers its subscriptions give them, and whether
RETAIN is told.

Asked by topic when a publication is written, so that nothing of it need be kept with messages that
wait. Sessions whose subscriptions say nothing special have no Views.
"""

from __future__ import annotations

from typing import Final

from broker.eviction import evict_oldest
from broker.messages.message import Encoding, Message
from broker.routing.binding import Binding
from matching.grammar import MQTT
from protocols.mqtt.codec.packets import remaining_length
from protocols.mqtt.codec.properties import SUBSCRIPTION_IDENTIFIER

#: Topics whose view is remembered, and which part of them makes room.
KNOWN: Final = 1_000
PORTION: Final = 16
#: Arguments of a subscription's binding. (The planner knows NO_LOCAL too.)
IDENTIFIER: Final = "identifier"
AS_PUBLISHED: Final = "retain-as-published"


class SubscriptionOptions:
    """Of the publications of one topic: identifiers as the properties that they are in a PUBLISH."""

    __slots__ = ("as_published", "identifiers")

    def __init__(self, identifiers: bytes, as_published: bool) -> None:
        self.identifiers = identifiers
        self.as_published = as_published


class SessionOptions:
    """Of one session."""

    def __init__(self) -> None:
        self._exact: dict[str, Binding] = {}
        self._patterns: dict[str, Binding] = {}
        self._identified = 0
        #: Shared subscriptions that have identifiers: what they give is Addressed, so there is
        #: nothing to find.
        self.shared = 0
        self._known: dict[bytes, SubscriptionOptions] = {}

    @property
    def empty(self) -> bool:
        """Whether nobody wants anything special."""
        return not self._exact and not self._patterns and self.shared == 0

    @property
    def identified(self) -> bool:
        """Whether some publication has an identifier that is no shared subscription's."""
        return self._identified > 0

    def add(self, binding: Binding) -> None:
        """A special subscription."""
        self._identified += IDENTIFIER in binding.arguments
        (self._patterns if MQTT.is_pattern(binding.key) else self._exact)[binding.key] = binding
        self._known.clear()

    def remove(self, binding: Binding) -> None:
        """It ended."""
        self._identified -= IDENTIFIER in binding.arguments
        (self._patterns if MQTT.is_pattern(binding.key) else self._exact).pop(binding.key, None)
        self._known.clear()

    def of(self, topic: bytes) -> SubscriptionOptions:
        view = self._known.get(topic)
        return view or self._find(topic)

    def _find(self, topic: bytes) -> SubscriptionOptions:
        name = topic.decode("utf-8", "replace")
        matched = [
            binding for binding in self._patterns.values() if MQTT.matches(binding.key, name)
        ]
        if name in self._exact:
            matched.append(self._exact[name])
        if len(self._known) >= KNOWN:
            evict_oldest(self._known, KNOWN // PORTION)
        view = self._known[topic] = SubscriptionOptions(
            b"".join(identifier_of(binding) for binding in matched),
            any(AS_PUBLISHED in binding.arguments for binding in matched),
        )
        return view


def is_special(binding: Binding) -> bool:
    """Whether a subscription wants to see more than others."""
    return IDENTIFIER in binding.arguments or AS_PUBLISHED in binding.arguments


def identifier_of(binding: Binding) -> bytes:
    """The property that tells its identifier, or nothing."""
    return identifier_property(binding.arguments.get(IDENTIFIER))


def identifier_property(number: object) -> bytes:
    return (
        bytes([SUBSCRIPTION_IDENTIFIER]) + remaining_length(number)
        if isinstance(number, int)
        else b""
    )


class Addressed(Message):
    """A copy for one session because of one subscription, whatever else it has subscribed: a
    retained message for a new subscription, or one of a shared subscription."""

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
        #: What it is a copy of, where that may be wanted again.
        self.origin: Message | None = None
