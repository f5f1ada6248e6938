"""The MQTT clients of memory.py, and the address of a listener with TLS."""

from __future__ import annotations

import socket
import ssl

from trellis.bench import mqtt
from trellis.bench.client import MqttClient
from trellis.bench.target import BrokerTarget


class RoundTripClient(MqttClient):
    """An MQTT client that can wait until the broker has processed its packets."""

    def round_trip(self) -> None:
        """Return when the broker has processed all packets sent so far."""
        self.send(b"\xc0\x00")
        self.read(2, "PINGRESP")


class DetachedClient(RoundTripClient):
    """A client that opens a persistent session, subscribes to one topic filter and disconnects."""

    def __init__(self, target: BrokerTarget, name: str) -> None:
        self.sock = target.connect()
        self.target, self.where, self._unread = target, name, b""
        self.send(mqtt.packet(0x10, mqtt.string("MQTT") + b"\x04\x00\x00\x00" + mqtt.string(name)))
        self.read(4, "CONNACK")
        self.subscribe(f"site/{name}/+", 1)
        self.disconnect()


class TlsTarget(BrokerTarget):
    """The address of an MQTT listener with TLS, whose certificate is not verified."""

    def connect(self) -> socket.socket:
        """Return a connected socket whose TLS handshake is complete. Raises Unreachable."""
        return ssl._create_unverified_context().wrap_socket(super().connect())
