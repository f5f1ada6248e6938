"""A client of paho-mqtt without paho's error in the QoS 2 handshake."""

from __future__ import annotations

import paho.mqtt.client as paho
from paho.mqtt.enums import MessageState

#: The state of a message whose PUBREL is sent after the next CONNACK.
_RESEND = MessageState.MQTT_MS_RESEND_PUBREL


class CarefulClient(paho.Client):
    """A paho client that remembers its PUBRELs however often it fails to connect.

    If an attempt to connect gets no CONNACK, paho 2.2 forgets at the next attempt that it has sent
    a PUBREL, and sends the PUBLISH again. MQTT forbids this second PUBLISH: [MQTT-4.3.3-1] of
    version 3.1.1, [MQTT-4.3.3-6] of version 5.
    """

    def _messages_reconnect_reset_out(self) -> None:
        released = [
            message
            for message in self._out_messages.values()
            if message.state in (MessageState.MQTT_MS_WAIT_FOR_PUBCOMP, _RESEND)
        ]
        super()._messages_reconnect_reset_out()
        for message in released:
            message.state = _RESEND
