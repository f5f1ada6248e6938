"""Decides from recorded QoS 2 packets whether the publisher or the broker repeated a message.

    publisher -- PUBLISH --> PUBREC <-- PUBREL --> PUBCOMP <-- broker     [MQTT-4.3.3], both sides
    broker    -- PUBLISH --> PUBREC <-- PUBREL --> PUBCOMP <-- subscriber

An exchange is the handshake of one QoS 2 message between two sides, from PUBLISH to PUBCOMP. A
publisher that sends a PUBLISH after its PUBREL starts a second exchange. If the broker has released
the packet identifier by then, the broker accepts the message a second time, and delivers it again.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from tests.crash.relay import PUBCOMP, PUBLISH, PUBREC, PUBREL, Recorded


class Exchange:
    """The handshake of one QoS 2 message between two sides, from its PUBLISH to its PUBCOMP."""

    def __init__(self, body: bytes, connection: int) -> None:
        self.body = body
        #: The number of the connection that carried the last PUBLISH.
        self.connection = connection
        self.received = False
        self.released = False

    def take_answer(self, packet: Recorded) -> str:
        """Handle a PUBREC, PUBREL or PUBCOMP of this QoS 2 handshake.

        Return a description of the packet's fault, or "" if it has none.
        """
        if packet.kind == PUBREC:
            self.received = True
        elif packet.kind == PUBREL:
            if not self.received:
                return "PUBREL without PUBREC"
            self.released = True
        return ""


class Exchanges:
    """The QoS 2 handshakes of a publisher and of a subscriber with the broker, and their faults.

    A fault is a packet that the MQTT specification forbids, or a message that was sent again.
    """

    def __init__(self, publisher: str, subscriber: str) -> None:
        self.publisher_faults: list[str] = []
        self.broker_faults: list[str] = []
        #: For each message: the number of exchanges that the publisher started.
        self.published: Counter[bytes] = Counter()
        #: For each message: the number of exchanges that the broker started.
        self.delivered: Counter[bytes] = Counter()
        self._publisher = publisher
        self._subscriber = subscriber
        #: Incomplete exchanges of each side, by packet identifier.
        self._from_publisher: dict[int, Exchange] = {}
        self._to_subscriber: dict[int, Exchange] = {}
        #: All packets of each message, on both sides, for the report of a fault.
        self._history: dict[bytes, list[Recorded]] = defaultdict(list)

    @property
    def complete(self) -> bool:
        return not self._from_publisher and not self._to_subscriber

    def take(self, packet: Recorded) -> None:
        """Check the next recorded packet, and keep a text about its fault, if it has one."""
        if packet.client == self._publisher:
            exchanges, fault = self._from_publisher, self._take_published(packet)
        elif packet.client == self._subscriber:
            exchanges, fault = self._to_subscriber, self._take_delivered(packet)
        else:
            return
        exchange = exchanges.get(packet.packet_id)
        body = packet.body or (exchange.body if exchange is not None else b"")
        if body:
            self._history[body].append(packet)
        if fault:
            by_publisher = packet.client == self._publisher and packet.from_client
            (self.publisher_faults if by_publisher else self.broker_faults).append(
                "\n    ".join([f"{fault}: {packet}", *map(str, self._history[body])])
            )
        if packet.kind == PUBCOMP and exchange is not None and exchange.released:
            del exchanges[packet.packet_id]

    def _take_published(self, packet: Recorded) -> str:
        """Check a packet between publisher and broker; return the text of its fault, or ""."""
        exchange = self._from_publisher.get(packet.packet_id)
        if packet.kind == PUBLISH:
            if exchange is None:
                self._from_publisher[packet.packet_id] = Exchange(packet.body, packet.connection)
                self.published[packet.body] += 1
                return "published again" if self.published[packet.body] > 1 else ""
            if exchange.body != packet.body:
                return "packet identifier in use"
            if exchange.released:
                exchange.released = exchange.received = False
                self.published[packet.body] += 1
                return "PUBLISH after PUBREL"
            return "" if packet.duplicate else "PUBLISH again without DUP"
        if exchange is None:
            # The packet repeats an exchange whose last packet was lost when the broker was killed.
            return ""
        if packet.kind == PUBCOMP and not exchange.released:
            return "PUBCOMP without PUBREL"
        return exchange.take_answer(packet)

    def _take_delivered(self, packet: Recorded) -> str:
        """Check a packet between broker and subscriber; return the text of its fault, or ""."""
        exchange = self._to_subscriber.get(packet.packet_id)
        if packet.kind == PUBLISH:
            if exchange is None:
                self._to_subscriber[packet.packet_id] = Exchange(packet.body, packet.connection)
                self.delivered[packet.body] += 1
                return (
                    "delivered again"
                    if self.delivered[packet.body] > self.published[packet.body]
                    else ""
                )
            if exchange.body != packet.body:
                return "packet identifier in use"
            if exchange.released:
                return "PUBLISH after PUBREL"
            if exchange.connection == packet.connection:
                return "PUBLISH again on the same connection"
            exchange.connection = packet.connection
            return "" if packet.duplicate else "PUBLISH again without DUP"
        return "" if exchange is None else exchange.take_answer(packet)
