"""A client of the library paho-mqtt whose socket is read and written in asyncio's event loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any, Final

from paho.mqtt.client import Client, MQTTv5, MQTTv311
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from trellis.bridge.contract import MqttLogin
from trellis.bridge.tls_files import load_files
from trellis.settings.bridge import MQTT5

#: Seconds between two checks of the keep-alive.
CHECK_SECONDS: Final = 1.0
#: Seconds after which a connection is closed if the broker has not answered CONNECT.
ANSWER_SECONDS: Final = 15.0


class AsyncioClient:
    """A client of paho-mqtt that may connect many times.

    paho connects with a blocking call, which runs in a thread. All callbacks of the bridge run in
    the event loop.
    """

    def __init__(self, login: MqttLogin, keep_alive: int, version: str) -> None:
        """Prepare the client; `keep_alive` is in seconds, `version` is MQTT5 or MQTT311."""
        self._login = login
        self.version = version
        self._keep_alive = keep_alive
        self._loop = asyncio.get_running_loop()
        self._closed = asyncio.Event()
        #: True while the client does not read its socket.
        self._paused = False
        # paho would answer a refusal of MQTT 3.1.1 with a blocking attempt to speak MQTT 3.1.
        self.paho = client = Client(
            CallbackAPIVersion.VERSION2,
            login.client_id,
            clean_session=None if version == MQTT5 else False,
            protocol=MQTTv5 if version == MQTT5 else MQTTv311,
            manual_ack=True,
            reconnect_on_failure=False,
        )
        if login.user:
            client.username_pw_set(login.user, login.password)
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if login.tls else None
        if self._tls is not None:
            client.tls_set_context(self._tls)
        client.max_inflight_messages_set(0)
        client.on_socket_open = self._in_loop(self._on_open)
        client.on_socket_close = self._on_close
        client.on_socket_register_write = self._in_loop(self._on_register_write)
        client.on_socket_unregister_write = self._in_loop(self._on_unregister_write)

    def _in_loop(self, function: Callable[[socket.socket], None]) -> Callable[..., None]:
        """Return a callback for paho, which calls `function` with the socket in the event loop."""

        def callback(_client: Client, _data: object, sock: Any) -> None:
            self._loop.call_soon_threadsafe(function, sock)

        return callback

    def _on_open(self, sock: socket.socket) -> None:
        self._paused = False
        if sock.fileno() >= 0:
            self._loop.add_reader(sock, self._read, sock)

    def _read(self, sock: Any) -> None:
        if self._paused or sock.fileno() < 0:
            return
        self.paho.loop_read()
        # A TLS socket may hold decoded bytes although its file descriptor is not readable.
        if isinstance(sock, ssl.SSLSocket) and sock.fileno() >= 0 and sock.pending():
            self._loop.call_soon(self._read, sock)

    def pause(self, paused: bool) -> None:
        """Stop reading the socket if `paused` is True, so that the broker must wait; resume reading
        if `paused` is False.

        A new connection begins unpaused. If the pause is longer than the keep-alive, paho misses
        the answer to its ping, and ends the connection.
        """
        sock = self.paho.socket()
        if paused == self._paused or sock is None or sock.fileno() < 0:
            return
        self._paused = paused
        if paused:
            self._loop.remove_reader(sock)
        else:
            self._loop.add_reader(sock, self._read, sock)
            self._loop.call_soon(self._read, sock)

    def _on_register_write(self, sock: socket.socket) -> None:
        if sock.fileno() >= 0:
            self._loop.add_writer(sock, self.paho.loop_write)

    def _on_unregister_write(self, sock: socket.socket) -> None:
        if sock.fileno() >= 0 and not self.paho.want_write():
            self._loop.remove_writer(sock)

    def _on_close(self, _client: Client, _data: object, sock: Any) -> None:
        if sock.fileno() >= 0:
            self._loop.remove_reader(sock)
            self._loop.remove_writer(sock)
        self._closed.set()

    async def connect(self, session_expiry: int, receive_maximum: int) -> None:
        """Open a connection and send CONNECT. Raises OSError or ValueError.

        `session_expiry` is in seconds; `receive_maximum` is a number of messages. With MQTT 3.1.1,
        neither is sent, because its CONNECT has no fields for them.
        """
        more: dict[str, Any] = {}
        if self.version == MQTT5:
            properties: Any = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
            properties.SessionExpiryInterval = session_expiry
            properties.ReceiveMaximum = receive_maximum
            more = {"clean_start": False, "properties": properties}
        self._closed.clear()
        await self._loop.run_in_executor(None, self._connect, more)

    def _connect(self, more: dict[str, Any]) -> None:
        login = self._login
        if self._tls is not None:
            load_files(self._tls, login.ca, login.certificate, login.key)
        self.paho.connect(login.host, login.port, self._keep_alive, **more)

    async def closed(self, answered: Callable[[], bool]) -> None:
        """Wait until the connection is closed; meanwhile, send pings.

        `answered` returns True if the broker has answered CONNECT. Close the connection if the
        broker has not answered within ANSWER_SECONDS.
        """
        end = time.monotonic() + ANSWER_SECONDS
        while not self._closed.is_set():
            self.paho.loop_misc()
            if not answered() and time.monotonic() > end:
                self._shut_down()
            try:
                async with asyncio.timeout(CHECK_SECONDS):
                    await self._closed.wait()
            except TimeoutError:
                continue

    def _shut_down(self) -> None:
        """Close the socket as if the broker had closed it."""
        sock: Any = self.paho.socket()
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
