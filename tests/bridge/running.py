"""Broker processes with bridges, and MQTT clients that record what they receive."""

from __future__ import annotations

import base64
import json
import queue
import subprocess
import sys
import time
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from paho.mqtt.client import Client, MQTTMessage, MQTTv5, MQTTv311
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from tests.broker import BrokerProcess, environment

#: Seconds after which a test gives up waiting.
PATIENCE: Final = 60.0
#: Seconds between two examinations of a condition, so that the brokers get the processor.
PAUSE: Final = 0.01
#: Session expiry in seconds of clients that keep their session.
EXPIRY: Final = 600


def workers(broker: int) -> list[int]:
    """Return the process ids of the processes that run the bridges of a broker process."""
    tasks = Path(f"/proc/{broker}/task").glob("*/children")
    return [
        int(pid)
        for pid in " ".join(task.read_text() for task in tasks).split()
        if b"trellis.bridge" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]


def wait_for(condition: Callable[[], bool]) -> None:
    """Return as soon as the condition is true; fail if it is still false after PATIENCE seconds."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "the condition did not come true"
        time.sleep(PAUSE)


class BridgingBroker(BrokerProcess):
    """A broker whose settings file has `text`, such as [[bridge]] tables."""

    def __init__(
        self,
        folder: Path,
        text: str = "",
        *flags: str,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        file = folder / "broker.toml"
        folder.mkdir(exist_ok=True)
        file.write_text(text)
        super().__init__("--config", str(file), *flags, variables=variables)

    @property
    def url(self) -> str:
        host, port = self.addresses["http"]
        return f"http://{host}:{port}"

    def request(
        self, method: str, path: str, body: object = None, login: str = "guest:guest"
    ) -> Any:
        """Send a request to the HTTP API; return the answer's JSON, or None if it has no body."""
        request = urllib.request.Request(f"{self.url}/api/{path}", method=method)
        request.add_header("Authorization", "Basic " + base64.b64encode(login.encode()).decode())
        if body is not None:
            request.add_header("Content-Type", "application/json")
            request.data = json.dumps(body).encode()
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def links(self) -> dict[str, dict[str, Any]]:
        """Return the rows of `trellis list bridges` by name."""
        return {row["name"]: row for row in self.request("GET", "trellis/bridges")}

    def wait(self, name: str, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Return the row of a link as soon as the row fulfils the condition.

        Fail if the row does not fulfil the condition within PATIENCE seconds.
        """
        end = time.monotonic() + PATIENCE
        row: dict[str, Any] = {}
        while time.monotonic() < end:
            row = self.links().get(name, {})
            if row and condition(row):
                return row
            time.sleep(PAUSE)
        raise AssertionError(f"{row}\n{self.log}")

    def wait_up(self, *names: str) -> None:
        for name in names:
            self.wait(name, lambda row: row["state"] == "up")

    def worker(self) -> int:
        """Return the process id of the process that runs the bridges."""
        [pid] = workers(self.process.pid)
        return pid

    def trellis(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command of trellis against this broker."""
        return subprocess.run(
            [sys.executable, "-m", "trellis", *words, "--url", self.url],
            env=environment(),
            capture_output=True,
            text=True,
        )


class Received(NamedTuple):
    """A message that a client has received."""

    topic: str
    payload: bytes
    qos: int
    retain: bool


class Recorder:
    """A client of paho that records the messages of its subscriptions.

    The client has a persistent session, and connects again after each lost connection. It speaks
    MQTT 5, or MQTT 3.1.1 if `old` is True. A call that waits raises queue.Empty after `patience`
    seconds. At most `window` messages that the client has published are unacknowledged.
    """

    def __init__(
        self,
        port: int,
        name: str,
        *filters: str,
        old: bool = False,
        patience: float = PATIENCE,
        window: int = 20,
    ) -> None:
        self._filters = filters
        self._ready: queue.Queue[object] = queue.Queue()
        self._published: queue.Queue[int] = queue.Queue()
        self.messages: queue.Queue[MQTTMessage] = queue.Queue()
        self._old = old
        self._patience = patience
        self.client = client = Client(
            CallbackAPIVersion.VERSION2,
            name,
            clean_session=False if old else None,
            protocol=MQTTv311 if old else MQTTv5,
        )
        client.reconnect_delay_set(1, 1)
        client.max_inflight_messages_set(window)
        client.on_message = lambda _client, _data, message: self.messages.put(message)
        client.on_connect = self._on_connect
        client.on_subscribe = lambda *_: self._ready.put(None)
        client.on_publish = lambda _client, _data, identifier, *_: self._published.put(identifier)
        more: dict[str, Any] = {}
        if not old:
            properties: Any = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
            properties.SessionExpiryInterval = EXPIRY
            more = {"clean_start": False, "properties": properties}
        client.connect_async("127.0.0.1", port, **more)
        client.loop_start()
        self._ready.get(timeout=patience)

    def _on_connect(self, client: Client, *_: object) -> None:
        if self._filters and self._old:
            client.subscribe([(topic_filter, 1) for topic_filter in self._filters])
        elif self._filters:
            options = SubscribeOptions(qos=2, retainAsPublished=True)
            client.subscribe([(topic_filter, options) for topic_filter in self._filters])
        else:
            self._ready.put(None)

    def publish(
        self, topic: str, payload: bytes, qos: int = 1, retain: bool = False, **named: Any
    ) -> None:
        """Publish a message and wait until it is acknowledged or, with QoS 0, sent.

        `named` are properties of the message.
        """
        properties: Any = None
        if not self._old:
            properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
            for name, value in named.items():
                setattr(properties, name, value)
        sent = self.client.publish(topic, payload, qos, retain, properties)
        while self._published.get(timeout=self._patience) != sent.mid:
            pass

    def next(self) -> MQTTMessage:
        return self.messages.get(timeout=self._patience)

    def take(self, count: int) -> list[Received]:
        """Wait for the next `count` messages; return them sorted by topic and payload."""
        every = [self.next() for _ in range(count)]
        return sorted(Received(one.topic, bytes(one.payload), one.qos, one.retain) for one in every)

    def take_until(self, last: bytes) -> list[bytes]:
        """Return the payloads of the next messages up to the payload `last`."""
        every = [b""]
        while every[-1] != last:
            every.append(bytes(self.next().payload))
        return every[1:]

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


class RecordedPair:
    """A broker with a bridge to a remote broker, and a client at each broker."""

    local: BridgingBroker
    remote: BridgingBroker
    near: Recorder
    far: Recorder

    def close(self) -> None:
        """Close the clients, and stop the brokers."""
        self.near.close()
        self.far.close()
        self.local.stop()
        self.remote.stop()


class RemoteBroker(Protocol):
    """A broker of another kind that a test can kill and start again."""

    def kill(self) -> None: ...

    def start(self) -> None: ...

    def stop(self) -> None: ...


class KillablePair(ABC):
    """A Trellis with a bridge to a broker of another kind.

    Both brokers keep their data when they are killed.
    """

    def __init__(self, folder: Path, remote: RemoteBroker, link: str, text: str) -> None:
        """Start Trellis. `link` is the name of the bridge, and `text` its settings."""
        self._folder, self._remote, self._link, self._text = folder, remote, link, text
        self.local = self._start("0")

    def _start(self, port: str) -> BridgingBroker:
        flags = ("--data-dir", str(self._folder / "data"), "--mqtt-port", port)
        return BridgingBroker(self._folder / "local", self._text, *flags)

    @abstractmethod
    def wait_up(self) -> dict[str, Any]:
        """Return the bridge's row as soon as its state is `up`."""

    def kill(self, victim: str) -> None:
        """Kill the broker `victim`, start it again, and wait until the bridge works again."""
        if victim == "remote":
            self._remote.kill()
            self.local.wait(self._link, lambda row: row["state"] != "up")
            self._remote.start()
        else:
            port = str(self.local.mqtt.port)
            self.local.kill()
            self.local = self._start(port)
        self.wait_up()

    def stop(self) -> None:
        """Stop both brokers."""
        self.local.stop()
        self._remote.stop()


def bridge(name: str, port: int, topics: Iterable[str], **more: Any) -> str:
    """Return the settings of a bridge, a [[bridge]] table, to the MQTT `port` of 127.0.0.1.

    `topics` are rules such as "out/# out 1"; `more` has further keys of the table.
    """
    lines = [
        "[[bridge]]",
        f'name = "{name}"',
        f'remote = "mqtt://127.0.0.1:{port}"',
        f"topics = {json.dumps(list(topics))}",
        *(f"{key} = {json.dumps(value)}" for key, value in more.items()),
    ]
    return "\n".join(lines) + "\n"
