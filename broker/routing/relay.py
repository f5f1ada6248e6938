"""Relays: one encoded packet is sent to many subscribers, without decoding it."""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from broker.messages.message import Message
from broker.routing.subscriber import Subscriber
from broker.stream.queue import StreamQueue
from broker.stream.row_codecs import PublishRun


class Relay:
    """A set of subscribers that get the same bytes.

    Each Plan has two relays: `relay` for messages with QoS 0, `reliable_relay` for messages with
    QoS 1 and 2. A front end that reads several packets at once finds the packets whose routes have
    the same Relay object, and sends these packets with one call.
    """

    def __init__(self, targets: list[Subscriber]) -> None:
        self.targets = targets

    def send(self, packets: bytes, count: i64) -> None:
        """Write `count` encoded packets to all subscribers. Hot path.

        A subscriber loses the packets if it has no connection (`missed`), or if its client does not
        read fast enough (`dropped`).
        """
        for target in self.targets:
            outlet = target.outlet
            if outlet is None:
                target.missed += count
                continue
            if outlet.paused:
                target.dropped += count
                continue
            target.relayed += count
            outlet.out.write(packets)
            if not outlet.dirty:
                outlet.touch()

    def send_with_properties(self, packets: bytes, count: i64) -> None:
        """Write `count` encoded packets with a properties field (MQTT 5) to all subscribers."""
        self.send(packets, count)

    def send_level_3(self, packets: bytes, count: i64) -> None:
        """Write `count` encoded packets of MQTT 3.1, as `send` does.

        Only journals distinguish packets of MQTT 3.1 from packets of MQTT 3.1.1.
        """
        self.send(packets, count)

    def offer(self, message: Message) -> None:
        """Offer one decoded message to each subscriber (`Subscriber.offer`)."""
        for target in self.targets:
            target.offer(message)


class RecordingRelay(Relay):
    """A relay that records its packets in the journals of the virtual host.

    The packets are appended to the journals without decoding; the journals' writer decodes them.
    """

    def __init__(
        self, targets: list[Subscriber], journals: list[StreamQueue], publisher: bytes, routed: i64
    ) -> None:
        super().__init__(targets)
        self._journals = journals
        self._publisher = publisher
        self._routed: i64 = routed

    def send(self, packets: bytes, count: i64) -> None:
        self._record(packets, count, 4)
        super().send(packets, count)

    def send_with_properties(self, packets: bytes, count: i64) -> None:
        self._record(packets, count, 5)
        super().send(packets, count)

    def send_level_3(self, packets: bytes, count: i64) -> None:
        self._record(packets, count, 3)
        super().send(packets, count)

    def _record(self, packets: bytes, count: i64, level: i64) -> None:
        for journal in self._journals:
            journal.put_run(PublishRun(packets, count, self._publisher, self._routed, level))


#: The relay of a plan without subscribers.
EMPTY_RELAY: Final = Relay([])
