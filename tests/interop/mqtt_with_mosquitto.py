"""A driver for Mosquitto's command line tools.

mosquitto_sub is the client and receives. Each publication is a run of mosquitto_pub.
"""

from __future__ import annotations

import os
import pty
import queue
import subprocess
import threading
import time
from typing import Final

from tests.broker import Address
from tests.foreign import require
from tests.interop.client import PATIENCE, LoginRefused
from tests.interop.mqtt_client import EXPIRY, Login, MqttClient, Received

_MARK: Final = "message "


class MosquittoClient(MqttClient):
    """A client of one subscription: `subscribe` starts mosquitto_sub, which connects.

    mosquitto_sub reconnects after a lost connection.
    """

    def __init__(self, broker: Address, login: Login) -> None:
        require("mosquitto")
        self._login = login
        self._broker = [
            "-h",
            broker.host,
            "-p",
            str(broker.port),
            "-V",
            "mqttv5" if login.version == 5 else "mqttv311",
        ]
        if login.user is not None:
            self._broker += ["-u", login.user, "-P", login.password or ""]
        self._lines: queue.Queue[str] = queue.Queue()
        self._received: queue.Queue[Received] = queue.Queue()
        self._process: subprocess.Popen[bytes] | None = None

    def subscribe(self, topic_filter: str, qos: int = 0) -> int:
        """Start mosquitto_sub and wait for its SUBACK; return the granted QoS.

        mosquitto_sub reports its packets only to a terminal, so its output is a pseudo-terminal. It
        prints each message in hexadecimal.
        """
        assert self._process is None
        login = self._login
        command = [
            "mosquitto_sub",
            *self._broker,
            "-i",
            login.client_id,
            "-k",
            str(max(login.keep_alive, 5)),
        ]
        command += ["-t", topic_filter, "-q", str(qos), "-d", "-F", f"{_MARK}%q %r %x %t"]
        if not login.clean:
            command += ["-c", *(["-x", str(EXPIRY)] if login.version == 5 else [])]
        if login.will is not None:
            command += [
                "--will-topic",
                login.will.topic,
                "--will-payload",
                login.will.payload.decode(),
            ]
            command += [
                "--will-qos",
                str(login.will.qos),
                *(["--will-retain"] if login.will.retain else []),
            ]
        terminal, tool_side = pty.openpty()
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=tool_side, stderr=subprocess.STDOUT
        )
        os.close(tool_side)
        self._reader = threading.Thread(target=self._read, args=(terminal,), daemon=True)
        self._reader.start()
        return int(self._line_with("Subscribed (mid").rpartition(": ")[2])

    def _read(self, terminal: int) -> None:
        with open(terminal, encoding="utf-8") as lines:
            try:
                for line in lines:
                    if line.startswith(_MARK):
                        qos, retain, digits, topic = (
                            line.removeprefix(_MARK).rstrip("\n").split(" ", 3)
                        )
                        self._received.put(
                            Received(topic, bytes.fromhex(digits), int(qos), retain == "1")
                        )
                    else:
                        self._lines.put(line)
            except OSError:
                return  # Linux raises EIO at the end of a terminal.

    def _line_with(self, wanted: str) -> str:
        while wanted not in (line := self._lines.get(timeout=PATIENCE)):
            pass
        return line.strip()

    def unsubscribe(self, topic_filter: str) -> None:
        raise NotImplementedError("mosquitto_sub cannot unsubscribe while it runs")

    def publish(self, topic: str, payload: bytes, qos: int = 0, *, retain: bool = False) -> None:
        command = [
            "mosquitto_pub",
            *self._broker,
            "-t",
            topic,
            "-q",
            str(qos),
            "-s" if payload else "-n",
        ]
        if retain:
            command.append("-r")
        done = subprocess.run(command, input=payload, capture_output=True, timeout=PATIENCE)
        if done.returncode:
            raise LoginRefused(done.stderr.decode())

    def receive(self) -> Received:
        return self._received.get(timeout=PATIENCE)

    def disconnect(self) -> None:
        """Send SIGTERM to mosquitto_sub, which then sends DISCONNECT."""
        if self._process is not None:
            self._process.terminate()
            self._end()

    def abort(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._end()

    def _end(self) -> None:
        assert self._process is not None
        try:
            self._process.wait(3.0)
        except subprocess.TimeoutExpired:
            # mosquitto_sub ignores SIGTERM while it waits to reconnect.
            self._process.kill()
            self._process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        self._process = None

    def wait_until_closed(self) -> None:
        """Wait until mosquitto_sub has noticed that the broker closed the connection.

        With MQTT 5 the broker sends a reason and mosquitto_sub ends. With MQTT 3.1.1 the only sign
        is the next CONNECT, a second later.
        """
        if self._login.version == 5:
            assert self._process is not None
            self._process.wait(PATIENCE)
            return
        self._line_with("sending CONNECT")

    def close(self) -> None:
        self.disconnect()

    def idle(self, seconds: float) -> None:
        time.sleep(seconds)  # mosquitto_sub keeps working in its own process.
