"""How one session looks at publications: which identifiers its subscriptions give them, and whether RETAIN is told.

Asked by topic when a publication is written, so that nothing of it need be kept with messages that wait. Sessions whose
subscriptions say nothing special have no Views.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Final

from broker.binding import Binding
from broker.message import Encoding, Message
from matching.grammar import MQTT
from protocols.mqtt.packets import remaining_length
from protocols.mqtt.properties import SUBSCRIPTION_IDENTIFIER

#: Topics whose view is remembered, and which part of them makes room.
KNOWN: Final = 1_000
PORTION: Final = 16
#: Arguments of a subscription's binding. (The planner knows NO_LOCAL too.)
IDENTIFIER: Final = "identifier"
AS_PUBLISHED: Final = "retain-as-published"


class View:
    """Of the publications of one topic: identifiers as the properties that they are in a PUBLISH."""

    __slots__ = ("as_published", "identifiers")

    def __init__(self, identifiers: bytes, as_published: bool) -> None:
        self.identifiers = identifiers
        self.as_published = as_published


class Views:
    """Of one session."""

    def __init__(self, subscriptions: Mapping[str, Binding]) -> None:
        self.identified = False
        self._exact: dict[str, Binding] = {}
        self._patterns: list[Binding] = []
        self._known: dict[bytes, View] = {}
        for topic_filter, binding in subscriptions.items():
            if is_special(binding):
                self.identified = self.identified or IDENTIFIER in binding.arguments
                if MQTT.is_pattern(topic_filter):
                    self._patterns.append(binding)
                else:
                    self._exact[topic_filter] = binding

    def of(self, topic: bytes) -> View:
        view = self._known.get(topic)
        return view or self._find(topic)

    def _find(self, topic: bytes) -> View:
        name = topic.decode("utf-8", "replace")
        matched = [binding for binding in self._patterns if MQTT.matches(binding.key, name)]
        if name in self._exact:
            matched.append(self._exact[name])
        if len(self._known) >= KNOWN:
            for known in list(islice(self._known, KNOWN // PORTION)):
                del self._known[known]
        view = self._known[topic] = View(b"".join(identifier_of(binding) for binding in matched),
                                         any(AS_PUBLISHED in binding.arguments for binding in matched))
        return view


def is_special(binding: Binding) -> bool:
    """Whether a subscription wants to see more than others."""
    return IDENTIFIER in binding.arguments or AS_PUBLISHED in binding.arguments


def identifier_of(binding: Binding) -> bytes:
    """The property that tells its identifier, or nothing."""
    return identifier_property(binding.arguments.get(IDENTIFIER))


def identifier_property(number: object) -> bytes:
    return bytes([SUBSCRIPTION_IDENTIFIER]) + remaining_length(number) if isinstance(number, int) else b""


class Addressed(Message):
    """A copy for one session because of one subscription, whatever else it has subscribed: a retained message for a new
    subscription, or one of a shared subscription."""

    __slots__ = ("identifier", "origin")

    def __init__(self, message: Message, assurance: int, retained: bool, identifier: bytes, encoding: Encoding) -> None:
        super().__init__(message.address, message.content, encoding, assurance)
        self.expires = message.expires
        self.position = 0 if retained else message.position
        self.retained = retained
        self.identifier = identifier
        #: What it is a copy of, where that may be wanted again.
        self.origin: Message | None = None
