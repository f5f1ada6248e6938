"""A publisher and a subscriber with QoS 2, which must deliver each message exactly once.

Both have persistent MQTT sessions, and connect to the active node again after each takeover.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

from tests.careful_paho import CarefulClient

TOPIC = "exactly/once"
#: Most messages that the publisher has in flight, and seconds of one step of a client.
IN_FLIGHT, STEP_SECONDS = 5, 0.05


class ExactlyOnce:
    """The publisher and the subscriber, and the messages that they have exchanged.

    `address` returns HOST:PORT of the active node; "" while no node is active.
    """

    def __init__(self, address: Callable[[], str]) -> None:
        self._address = address
        self._stopping = threading.Event()
        #: Set when the broker has confirmed the subscription: earlier messages reach no subscriber.
        self._subscribed = threading.Event()
        #: Count of receptions of each number, and the numbers whose exchange is complete.
        self.received: Counter[int] = Counter()
        self.complete: set[int] = set()
        #: Number of MQTT connections that ended, each with its CONNACK.
        self.closed = 0
        self._sent: dict[int, int] = {}
        self._number = 0
        self._publishing = True
        self._publisher, self._subscriber = self._client("publisher"), self._client("subscriber")
        self._publisher.on_publish = self._on_publish
        self._subscriber.on_connect = self._on_connect
        self._subscriber.on_message = self._on_message
        self._subscriber.on_subscribe = self._on_subscribe
        self._threads = [
            threading.Thread(target=self._run, args=(client,), daemon=True)
            for client in (self._subscriber, self._publisher)
        ]

    def _client(self, name: str) -> paho.Client:
        return CarefulClient(CallbackAPIVersion.VERSION2, client_id=name, clean_session=False)

    def start(self) -> None:
        """Start the threads of the publisher and the subscriber."""
        for thread in self._threads:
            thread.start()

    def pause(self) -> None:
        """Stop publishing new messages. The QoS 2 handshakes of earlier messages go on."""
        self._publishing = False

    def stop(self) -> None:
        """End the publisher and the subscriber."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(10)

    @property
    def twice(self) -> int:
        """Number of messages that the subscriber has received more than once."""
        return sum(count > 1 for count in self.received.values())

    @property
    def missing(self) -> set[int]:
        """The numbers of the messages that are lost so far.

        The publisher has their PUBCOMP, but the subscriber has not received them.
        """
        return self.complete - self.received.keys()

    def _run(self, client: paho.Client) -> None:
        while not self._stopping.is_set():
            host, _, port = self._address().rpartition(":")
            try:
                if host:
                    client.connect(host, int(port), keepalive=5)
                    self._serve(client)
            except OSError:
                pass
            self._stopping.wait(STEP_SECONDS)

    def _serve(self, client: paho.Client) -> None:
        while not self._stopping.is_set():
            is_open = client.is_connected()
            if client.loop(STEP_SECONDS) != paho.MQTT_ERR_SUCCESS:
                self.closed += is_open
                return
            wanted = client is self._publisher and self._publishing and client.is_connected()
            if not self._subscribed.is_set():
                continue
            if wanted and self._number - len(self.complete) < IN_FLIGHT:
                self._number += 1
                info = client.publish(TOPIC, str(self._number), qos=2)
                self._sent[info.mid] = self._number

    def _on_publish(self, client: paho.Client, userdata: Any, mid: int, *rest: Any) -> None:
        self.complete.add(self._sent[mid])

    def _on_connect(self, client: paho.Client, *rest: Any) -> None:
        client.subscribe(TOPIC, 2)

    def _on_subscribe(self, client: paho.Client, *rest: Any) -> None:
        self._subscribed.set()

    def _on_message(self, client: paho.Client, userdata: Any, message: paho.MQTTMessage) -> None:
        self.received[int(message.payload)] += 1
