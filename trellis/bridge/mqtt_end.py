"""One of the two MQTT connections of a bridge."""

from __future__ import annotations

import asyncio
from typing import Any, Final, NamedTuple

from paho.mqtt.client import Client, ConnectFlags, MQTTMessage
from paho.mqtt.enums import MQTTErrorCode
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from trellis.bridge.contract import MqttBridge, MqttLogin
from trellis.bridge.mqtt_client import AsyncioClient
from trellis.bridge.mqtt_level import UNSUPPORTED, ProtocolChoice
from trellis.bridge.topic_map import QOS_MAX
from trellis.settings.bridge import MQTT5, MQTT311

#: Seconds before the first attempt to connect again.
RETRY_MIN: Final = 1.0
#: Bytes of a PUBLISH packet beside topic, properties and payload.
PUBLISH_OVERHEAD: Final = 16
#: Largest size of an MQTT packet in bytes (PACKET_MAX), and number of packet identifiers.
PACKET_MAX: Final = 268_435_460
IDENTIFIERS: Final = 65_535
#: Retain Handling 1: retained messages are sent when the subscription is new, and not again after
#: each reconnect (MQTT 5, section 3.8.3.1).
RETAINED_ONCE: Final = SubscribeOptions.RETAIN_SEND_IF_NEW_SUB


class Publication(NamedTuple):
    """A message that a bridge publishes; `properties` is an object of paho's class Properties.

    The properties are not sent to a broker of MQTT 3.1.1.
    """

    topic: str
    payload: bytes
    qos: int
    retain: bool
    properties: Any


class Handler:
    """The callbacks of a connection; each does nothing by default."""

    def on_up(self, present: bool) -> None:
        """Handle a new connection; `present` is False if the broker had no session."""

    def on_down(self) -> None:
        """Handle the loss of the connection."""

    def on_replaced(self) -> None:
        """Handle the loss of all publications under way, because a new client of paho connects."""

    def on_message(self, message: MQTTMessage) -> None:
        """Handle a message that has arrived; if its QoS is 1, call `acknowledge` later."""

    def on_settled(self, identifier: int, refusal: str, code: int) -> None:
        """Handle the answer to the publication with the packet identifier `identifier`.

        `refusal` is the text and `code` the reason code of a refusal; "" and 0 if the broker
        accepted the publication. A publication of QoS 0 counts as accepted when it is written to
        the socket.
        """


class MqttEnd:
    """A connection of a bridge to one broker; after each loss, the connection is opened again."""

    def __init__(self, bridge: MqttBridge, login: MqttLogin, filters: dict[str, int]) -> None:
        """Prepare the connection. `filters` are the topic filters to subscribe to, with QoS."""
        self._bridge = bridge
        self._login = login
        self._filters = filters
        self.handler = Handler()
        self.up = False
        #: The last problem of this connection; "" while the connection works.
        self.error = "not connected yet"
        #: Number of connections that were lost.
        self.lost = 0
        #: The largest number of unacknowledged publications, and the largest QoS, that the broker
        #: accepts.
        self.capacity = 0
        self.qos_max = QOS_MAX
        self._retain_available = True
        self._packet_max = PACKET_MAX
        self._choice = ProtocolChoice(login.protocol)
        #: True if the broker has answered CONNECT on the present connection.
        self._answered = False
        #: True if the present client has subscribed, and the filters that the broker refused then.
        self._subscribed = False
        self._refused = ""
        #: True if retained messages on the present connection repeat messages of an earlier
        #: connection.
        self._ignores_retained = False
        self._client = self._new_client()

    def _new_client(self) -> AsyncioClient:
        client = AsyncioClient(self._login, self._bridge.keep_alive, self._choice.version)
        paho = client.paho
        paho.on_connect = self._on_connect
        paho.on_disconnect = self._on_disconnect
        paho.on_subscribe = self._on_subscribe
        paho.on_message = lambda _client, _data, message: self._on_message(message)
        paho.on_publish = lambda _client, _data, identifier, reason, _: self._on_publish(
            identifier, reason
        )
        return client

    @property
    def version(self) -> str:
        """The version of MQTT of the last attempt to connect, MQTT5 or MQTT311."""
        return self._client.version

    async def run(self) -> None:
        """Connect, and connect again after each loss, until the task is cancelled."""
        bridge, delay = self._bridge, RETRY_MIN
        while True:
            lost = self.lost
            self._answered = False
            if self.version != self._choice.version:
                self._client, self._subscribed = self._new_client(), False
                self.handler.on_replaced()
            try:
                await self._client.connect(bridge.session_expiry, bridge.window)
            except (OSError, ValueError) as error:
                place = f"{self._login.host}:{self._login.port}"
                self.error = f"cannot connect to {place}: {getattr(error, 'strerror', '') or error}"
            else:
                await self._client.closed(lambda: self._answered)
                if not self._answered:
                    self._on_unanswered()
            if self.lost > lost:
                self._choice.on_lost()
                delay = RETRY_MIN
            await asyncio.sleep(delay)
            delay = min(2 * delay, bridge.reconnect_max)

    def stop(self) -> None:
        """Send DISCONNECT; the broker keeps the session."""
        self._client.paho.disconnect()

    def publish(self, message: Publication) -> int:
        """Publish a message on the connection, which must be up; return its packet identifier.

        Raises ValueError if the broker cannot accept the message.
        """
        size = len(message.topic.encode()) + len(message.payload) + PUBLISH_OVERHEAD
        properties = message.properties if self.version == MQTT5 else None
        size += 0 if properties is None else len(properties.pack())
        if size > self._packet_max:
            accepted = f"the broker accepts {self._packet_max} bytes at most"
            raise ValueError(f"the message has {size} bytes, but {accepted}")
        while True:
            info = self._client.paho.publish(
                message.topic,
                message.payload,
                message.qos,
                message.retain and self._retain_available,
                properties,
            )
            if info.rc != MQTTErrorCode.MQTT_ERR_QUEUE_SIZE:
                return info.mid
            # The packet identifier is in use; paho takes the next one.

    def take_back(self) -> None:
        """Withdraw all unacknowledged publications, so that they are not sent again."""
        self._client.paho.drop_out_messages()

    def acknowledge(self, identifier: int) -> None:
        """Send PUBACK for the received message with a packet identifier, if the connection is up.

        The message has QoS 1.
        """
        if self.up:
            self._client.paho.ack(identifier, 1)

    def limit(self, unacknowledged: int) -> None:
        """Pause reading over MQTT 3.1.1 while `unacknowledged`, a number of messages, is at the
        limit.

        The limit is the bridge's window. With MQTT 5 no pause is needed: the broker knows the limit
        as Receive Maximum.
        """
        if self.version == MQTT311:
            self._client.pause(unacknowledged >= self._bridge.window)

    def _on_connect(
        self,
        client: Client,
        _data: object,
        flags: ConnectFlags,
        reason: ReasonCode,
        properties: Any,
    ) -> None:
        self._answered = True
        if reason.value == UNSUPPORTED:
            self.error = f"the broker refused MQTT {self.version}; {self._choice.on_refused()}"
            return
        if reason.is_failure:
            self.error = f"the broker refused the login: {reason}"
            return
        self._choice.on_accepted()
        self.capacity = min(self._bridge.window, getattr(properties, "ReceiveMaximum", IDENTIFIERS))
        self.qos_max = getattr(properties, "MaximumQoS", QOS_MAX)
        self._retain_available = bool(getattr(properties, "RetainAvailable", 1))
        self._packet_max = min(
            self._login.packet_max or PACKET_MAX,
            getattr(properties, "MaximumPacketSize", PACKET_MAX),
        )
        present = bool(flags.session_present)
        self.up, self.error = True, self._refused
        if self._filters:
            self._subscribe(client, present)
        self.handler.on_up(present)

    def _subscribe(self, client: Client, present: bool) -> None:
        """Subscribe to the filters; `present` is True if the session has subscriptions.

        MQTT 3.1.1 has no RETAINED_ONCE: each SUBSCRIBE brings the retained messages again, which
        may be older than the retained messages at the other broker. So a client subscribes only in
        a new session; the first client of this process also subscribes in an existing session,
        because the filters may have changed.
        """
        self._ignores_retained = self.version == MQTT311 and present
        if self.version == MQTT5:
            client.subscribe(
                [
                    (
                        topic_filter,
                        SubscribeOptions(
                            qos=qos,
                            noLocal=True,
                            retainAsPublished=True,
                            retainHandling=RETAINED_ONCE,
                        ),
                    )
                    for topic_filter, qos in self._filters.items()
                ]
            )
        elif not present or not self._subscribed:
            self._subscribed = True
            client.subscribe(list(self._filters.items()))

    def _on_unanswered(self) -> None:
        """Handle a connection that was closed before the broker answered CONNECT."""
        self.error = f"the broker has not accepted a CONNECT packet of MQTT {self.version}"
        if self._login is self._bridge.remote and self._login.protocol == MQTT5:
            self.error += f'; if it speaks only MQTT 3.1.1, set remote_protocol to "{MQTT311}"'
        self._choice.on_unanswered()

    def _on_publish(self, identifier: int, reason: ReasonCode | None) -> None:
        if reason is not None and reason.is_failure:
            self.handler.on_settled(identifier, str(reason), reason.value)
        else:
            self.handler.on_settled(identifier, "", 0)

    def _on_message(self, message: MQTTMessage) -> None:
        # Ignore retained messages that repeat messages of an earlier connection. A message with the
        # flag DUP is not ignored, because this bridge did not acknowledge it before.
        if message.retain and self._ignores_retained and not message.dup:
            if message.qos:
                self.acknowledge(message.mid)
        else:
            self.handler.on_message(message)

    def _on_disconnect(
        self, _client: Client, _data: object, _flags: object, reason: ReasonCode, _properties: Any
    ) -> None:
        if self.up:
            self.up = False
            self.lost += 1
            self.error = f"the connection was lost: {reason}"
            self.handler.on_down()

    def _on_subscribe(
        self,
        _client: Client,
        _data: object,
        _identifier: int,
        reasons: list[ReasonCode],
        _properties: Any,
    ) -> None:
        refused = [
            f"'{topic_filter}' ({reason})"
            for topic_filter, reason in zip(self._filters, reasons, strict=False)
            if reason.is_failure
        ]
        self._refused = (
            f"the broker refused the subscription to {', '.join(refused)}" if refused else ""
        )
        self.error = self._refused
