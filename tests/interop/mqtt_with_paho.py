"""A driver for paho-mqtt, with its network thread."""

from __future__ import annotations

import queue
import socket
import threading
import time
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.broker import Address
from tests.interop.client import PATIENCE, LoginRefused
from tests.interop.mqtt_client import EXPIRY, Login, MqttClient, Received


class PahoClient(MqttClient):
    """A paho.mqtt.client.Client that does not reconnect."""

    def __init__(self, broker: Address, login: Login) -> None:
        self._connacks: queue.Queue[tuple[bool, Any]] = queue.Queue()
        self._subacks: queue.Queue[int] = queue.Queue()
        self._unsubacks: queue.Queue[int] = queue.Queue()
        self._received: queue.Queue[Received] = queue.Queue()
        self._closed = threading.Event()
        mqtt5 = login.version == 5
        client = self._client = paho.Client(
            CallbackAPIVersion.VERSION2,
            login.client_id,
            None if mqtt5 else login.clean,
            protocol=paho.MQTTv5 if mqtt5 else paho.MQTTv311,
            reconnect_on_failure=False,
        )
        if login.user is not None:
            client.username_pw_set(login.user, login.password)
        if login.will is not None:
            client.will_set(*login.will)
        client.on_connect = lambda _c, _u, flags, code, _p: self._connacks.put(
            (flags.session_present, code)
        )
        client.on_subscribe = lambda _c, _u, _m, codes, _p: self._subacks.put(codes[0].value)
        client.on_unsubscribe = lambda _c, _u, mid, _r, _p: self._unsubacks.put(mid)
        client.on_message = lambda _c, _u, got: self._received.put(
            Received(got.topic, bytes(got.payload), got.qos, got.retain)
        )
        client.on_disconnect = lambda *_: self._closed.set()
        if mqtt5:
            # paho has no type annotations for Properties.
            properties: Any = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
            properties.SessionExpiryInterval = 0 if login.clean else EXPIRY
            client.connect(
                broker.host,
                broker.port,
                login.keep_alive,
                clean_start=login.clean,
                properties=properties,
            )
        else:
            client.connect(broker.host, broker.port, login.keep_alive)
        client.loop_start()
        self.session_present, code = self._connacks.get(timeout=PATIENCE)
        if code.is_failure:
            client.loop_stop()
            raise LoginRefused(str(code))

    def subscribe(self, topic_filter: str, qos: int = 0) -> int:
        self._client.subscribe(topic_filter, qos)
        return self._subacks.get(timeout=PATIENCE)

    def unsubscribe(self, topic_filter: str) -> None:
        self._client.unsubscribe(topic_filter)
        self._unsubacks.get(timeout=PATIENCE)

    def publish(self, topic: str, payload: bytes, qos: int = 0, *, retain: bool = False) -> None:
        information = self._client.publish(topic, payload, qos, retain)
        information.wait_for_publish(PATIENCE)
        assert information.is_published()

    def receive(self) -> Received:
        return self._received.get(timeout=PATIENCE)

    def disconnect(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def abort(self) -> None:
        connection = self._client.socket()
        assert isinstance(connection, socket.socket)
        connection.shutdown(socket.SHUT_RDWR)
        self.wait_until_closed()

    def wait_until_closed(self) -> None:
        assert self._closed.wait(PATIENCE)

    def close(self) -> None:
        self.disconnect()

    def idle(self, seconds: float) -> None:
        time.sleep(seconds)  # paho's network thread sends pings meanwhile.
