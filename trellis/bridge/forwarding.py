"""One direction of an MQTT bridge: publishes the messages of one broker at the other broker."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from typing import Any, Final, NamedTuple

from paho.mqtt.client import MQTTMessage
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from trellis.bridge.echoes import Echoes
from trellis.bridge.mqtt_end import IDENTIFIERS, RETRY_MIN, MqttEnd, Publication
from trellis.bridge.topic_map import TopicMap
from trellis.settings.bridge import MQTT311

#: The user property that each bridge adds to a message, with its client identifier as the value.
HOP: Final = "trellis-bridge"
#: Largest number of messages of QoS 0 that wait for the socket of the destination.
TRANSIENT_MAX: Final = 1_000
#: A message of QoS 0 is dropped if this number of packet identifiers was used since the oldest
#: publication under way. Otherwise the message could get the identifier of that publication, and
#: the answer to the message would settle the publication.
IDENTIFIERS_APART: Final = 60_000
#: The properties of a message that a bridge copies unchanged.
COPIED: Final = (
    "PayloadFormatIndicator",
    "MessageExpiryInterval",
    "ContentType",
    "ResponseTopic",
    "CorrelationData",
)
#: Number of characters of a topic in the text of a problem.
SHOWN_MAX: Final = 100
#: Reason codes of PUBACK with which a destination refuses a message for now, and the number of such
#: refusals after which the bridge gives the message up; 0 for never (MQTT 5, section 3.4.2.1).
#: "Quota exceeded" (0x97) and "Packet identifier in use" (0x91) say that a later attempt can
#: succeed. "Unspecified error" (0x80) and "Implementation specific error" (0x83) do not say it:
#: RabbitMQ sends 0x83 for a full queue, other brokers for a message that they never accept.
TEMPORARY: Final = {0x80: 10, 0x83: 10, 0x91: 0, 0x97: 0}


class UnderWay(NamedTuple):
    """A message that the bridge has not acknowledged at the source.

    `session` is the number of the source's session, and `identifier` the packet identifier of the
    message at the source; 0 if the message came with QoS 0. `arrival` is a number that ascends in
    the order in which the messages came from the source. `refusals` is the number of
    attempts in which the destination has refused the message for now.
    """

    session: int
    identifier: int
    publication: Publication
    arrival: int
    refusals: int = 0


class Forwarding:
    """One direction of a bridge: from the connection `source` to the connection `destination`.

    A message of QoS 1 is acknowledged at the source when the destination has accepted or refused
    the message. So after a crash of a broker or of the worker, the source sends the message again,
    and the destination may get the message twice. The source sends at most `window` messages that
    are not acknowledged, so `_held`, `_published` and `_deferred` are bounded. (A source with MQTT
    3.1.1 may send more, until MqttEnd.limit stops the reading of its messages.) `mark` is the value
    of the user property HOP. `echoes` has the publications that a remote broker with MQTT 3.1.1
    will send back.

    A message that the destination refuses for now (TEMPORARY) is published again after RETRY_MIN
    seconds, then after twice the time, up to `retry_max` seconds. Meanwhile later messages of
    QoS 1 with the same topic wait behind the message. Only messages that were already sent to the
    destination when it refused the message may overtake the message.
    """

    def __init__(
        self,
        source: MqttEnd,
        destination: MqttEnd,
        topics: TopicMap,
        mark: str,
        max_hops: int,
        echoes: Echoes,
        retry_max: float,
    ) -> None:
        self._source = source
        self._destination = destination
        self._topics = topics
        self._mark = mark
        self._max_hops = max_hops
        self._echoes = echoes
        self._retry_max = retry_max
        #: Packet identifiers that the source has given to messages not acknowledged yet (_waiting),
        #: and number of the source's session to which these identifiers belong (_session).
        self._waiting: set[int] = set()
        self._session = 0
        #: Messages of QoS 1 that wait until the destination can accept them.
        self._held: deque[UnderWay] = deque()
        #: Messages that the destination has not settled, by packet identifier at the destination.
        self._published: dict[int, UnderWay] = {}
        #: Messages that the destination has refused for now, and later messages with their topics
        #: (_deferred_topics), which wait for `_retry`.
        self._deferred: deque[UnderWay] = deque()
        self._deferred_topics: set[str] = set()
        self._retry: asyncio.TimerHandle | None = None
        #: The first refusal of the messages that the destination refuses for now.
        self._problem = ""
        self._arrivals = 0
        self._last_identifier = 0
        self._transient = 0
        self.copied = 0
        self.refused = 0
        self.dropped = 0
        self.looped = 0
        #: The reason why the last refused message was refused.
        self.refusal = ""

    @property
    def in_flight(self) -> int:
        """Number of messages that were received from the source and not acknowledged there."""
        return len(self._held) + len(self._published) + len(self._deferred)

    @property
    def problem(self) -> str:
        """The reason why the destination refuses messages for now; "" if no such message waits."""
        entries = itertools.chain(self._deferred, self._held, self._published.values())
        return self._problem if any(entry.refusals for entry in entries) else ""

    def stop(self) -> None:
        """Cancel the next attempt to publish refused messages, because the bridge stops."""
        if self._retry is not None:
            self._retry.cancel()

    # -- events of the source

    def source_up(self, present: bool) -> None:
        """Handle a new connection to the source; `present` is False if the session is new.

        In a new session, the source uses the packet identifiers of earlier messages again.
        """
        if not present:
            self._session += 1
            self._waiting.clear()

    def forward(self, message: MQTTMessage) -> None:
        """Publish a message of the source at the destination.

        A copy of QoS 1 waits until the destination accepts further messages. A copy of QoS 0 that
        cannot be published now is dropped.
        """
        if message.qos and message.mid in self._waiting:
            return  # Sent again by the source after a reconnect, while the first copy waits.
        identifier = message.mid if message.qos else 0
        try:
            publication = self._publication(message)
        except ValueError as error:  # The topic is invalid UTF-8.
            self._refuse(self._session, identifier, str(error))
            return
        if publication is None:
            self._acknowledge(self._session, identifier)
            return
        self._arrivals += 1
        entry = UnderWay(self._session, identifier, publication, self._arrivals)
        if identifier:
            self._waiting.add(identifier)
            self._source.limit(len(self._waiting))
        if publication.qos:
            self._held.append(entry)
            self._publish_held()
        elif self._must_drop():
            self._drop(entry)
        else:
            self._publish(entry)

    def _publication(self, message: MQTTMessage) -> Publication | None:
        """Return the copy of a message for the destination; None if the bridge makes no copy."""
        target = self._topics.destination(message.topic)
        if target is None:
            return None  # The session still has a filter of an earlier configuration.
        topic, qos = target
        if self._source.version == MQTT311 and self._echoes.is_echo(
            message.topic, bytes(message.payload), message.retain, time.monotonic()
        ):
            self.looped += 1
            return None
        given = message.properties
        user = list(getattr(given, "UserProperty", ()))
        hops = [value for name, value in user if name == HOP]
        if self._mark in hops or len(hops) >= self._max_hops:
            self.looped += 1
            return None
        properties: Any = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        for name in COPIED:
            if hasattr(given, name):
                setattr(properties, name, getattr(given, name))
        properties.UserProperty = [*user, (HOP, self._mark)]
        qos = min(qos, self._destination.qos_max) if message.qos else 0
        return Publication(topic, bytes(message.payload), qos, message.retain, properties)

    def _must_drop(self) -> bool:
        """True if a message of QoS 0 cannot be published now."""
        if not self._destination.up or self._transient >= TRANSIENT_MAX:
            return True
        oldest = next(iter(self._published), self._last_identifier)
        return (self._last_identifier - oldest) % IDENTIFIERS > IDENTIFIERS_APART

    # -- events of the destination

    def destination_up(self, present: bool) -> None:
        """Publish the messages that wait for the destination.

        `present` is False if the destination had no session of this bridge; without the session, a
        broker of MQTT 3.1.1 sends no echo of an earlier publication. paho has already sent all
        unacknowledged publications of the lost connection again. If they are more than the broker
        accepts at a time, the bridge withdraws them, and they wait like new messages.
        """
        if not present and self._destination.version == MQTT311:
            self._echoes.on_session_lost()
            for entry in self._published.values():
                self._expect_echo(entry.publication)
        if len(self._published) > self._destination.capacity:
            self._destination.take_back()
            self._hold_published()
        self._publish_deferred()

    def destination_replaced(self) -> None:
        """Publish all unsettled messages again on the next connection, which has a new client."""
        self._hold_published()

    def _hold_published(self) -> None:
        self._held.extendleft(reversed(self._published.values()))
        self._published.clear()

    def destination_down(self) -> None:
        """Drop the messages of QoS 0 that waited for the lost connection."""
        lost = {one: entry for one, entry in self._published.items() if not entry.publication.qos}
        for identifier, entry in lost.items():
            del self._published[identifier]
            self._drop(entry)
        self._transient = 0

    def settled(self, identifier: int, refusal: str, code: int) -> None:
        """Acknowledge the message whose publication the destination has accepted or refused.

        A message that the destination refuses for now is published again later. `identifier` is the
        packet identifier at the destination; `refusal` is the reason of a refusal, "" if the
        publication was accepted, and `code` the reason code.
        """
        entry = self._published.pop(identifier, None)
        if entry is None:
            return
        if not entry.publication.qos:
            self._transient -= 1
        refusals_max = TEMPORARY.get(code, 1)
        if refusal and (not refusals_max or entry.refusals + 1 < refusals_max):
            self._defer(entry._replace(refusals=entry.refusals + 1), refusal)
        elif refusal:
            self._refuse(entry.session, entry.identifier, refusal)
        else:
            self.copied += 1
            self._acknowledge(entry.session, entry.identifier)
        self._publish_held()

    def _defer(self, entry: UnderWay, refusal: str) -> None:
        """Schedule another publication of a message that the destination has refused for now."""
        topic = entry.publication.topic
        if not self.problem:
            self._problem = (
                f"the broker refuses messages with the topic '{topic[:SHOWN_MAX]}' for now "
                f"({refusal}); the bridge tries again"
            )
        self._deferred.append(entry)
        self._deferred_topics.add(topic)
        if self._retry is None:
            delay = min(RETRY_MIN * 2.0 ** min(entry.refusals - 1, 30), self._retry_max)
            self._retry = asyncio.get_running_loop().call_later(delay, self._publish_deferred)

    def _publish_deferred(self) -> None:
        """Publish all messages that wait, in the order in which they came from the source."""
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        waiting = [*self._deferred, *self._held]
        self._held = deque(sorted(waiting, key=lambda entry: entry.arrival))
        self._deferred.clear()
        self._deferred_topics.clear()
        self._publish_held()

    def _publish_held(self) -> None:
        """Publish messages of `_held`, as many as the destination accepts at present."""
        destination = self._destination
        while (
            self._held
            and destination.up
            and len(self._published) - self._transient < destination.capacity
        ):
            entry = self._held.popleft()
            if entry.publication.topic in self._deferred_topics:
                self._deferred.append(entry)
            else:
                self._publish(entry)

    def _publish(self, entry: UnderWay) -> None:
        try:
            identifier = self._destination.publish(entry.publication)
        except ValueError as error:
            # The message is too large, or its topic with the prefix is longer than 65,535 bytes.
            self._refuse(entry.session, entry.identifier, str(error))
            return
        self._expect_echo(entry.publication)
        self._last_identifier = identifier
        self._published[identifier] = entry
        if not entry.publication.qos:
            self._transient += 1

    def _expect_echo(self, publication: Publication) -> None:
        if self._destination.version == MQTT311:
            self._echoes.expect(
                publication.topic, publication.payload, publication.retain, time.monotonic()
            )

    # -- the end of a message

    def _refuse(self, session: int, identifier: int, reason: str) -> None:
        self.refused += 1
        self.refusal = reason
        self._acknowledge(session, identifier)

    def _drop(self, entry: UnderWay) -> None:
        self.dropped += 1
        self._acknowledge(entry.session, entry.identifier)

    def _acknowledge(self, session: int, identifier: int) -> None:
        """Acknowledge a message at the source, unless the source has lost the message's session."""
        if identifier and session == self._session:
            self._waiting.discard(identifier)
            self._source.acknowledge(identifier)
            self._source.limit(len(self._waiting))
