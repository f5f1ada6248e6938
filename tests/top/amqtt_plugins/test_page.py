"""The settings of docs/amqtt-plugins.md: brokers run with them, and clients log in."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pika
import pytest
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion
from pika.exceptions import ProbableAuthenticationError

from tests.broker import BrokerProcess
from tests.password_hashes import CHEAP

PAGE: Final = (Path(__file__).parents[3] / "docs" / "amqtt-plugins.md").read_text()
#: The page's first settings; test_ldap.py tests the page's settings for LDAP.
PLUGINS: Final = re.findall(r"^```toml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)[0]
#: The path of the password file in the page's settings.
PASSWORDS: Final = "/etc/trellis/passwords"
#: Longest wait in seconds.
PATIENCE: Final = 10


class MqttClient:
    """A client that connects as a user with a password, and can wait for the broker's answers."""

    def __init__(self, broker: BrokerProcess, user: str, password: str) -> None:
        self.received: list[tuple[str, bytes]] = []
        self._results: dict[str, Any] = {}
        self._changed = threading.Condition()
        client = self.client = Client(CallbackAPIVersion.VERSION2)
        client.username_pw_set(user, password)
        client.on_connect = lambda *arguments: self._keep("connect", arguments[3])
        client.on_subscribe = lambda *arguments: self._keep("subscribe", arguments[3][0])
        client.on_message = lambda _client, _data, message: self._receive(message)
        client.connect(*broker.mqtt)
        client.loop_start()
        self.refused: bool = self._wait("connect").is_failure

    def _keep(self, name: str, result: Any) -> None:
        with self._changed:
            self._results[name] = result
            self._changed.notify_all()

    def _receive(self, message: Any) -> None:
        with self._changed:
            self.received.append((message.topic, message.payload))
            self._changed.notify_all()

    def _wait(self, name: str) -> Any:
        with self._changed:
            assert self._changed.wait_for(lambda: name in self._results, PATIENCE), name
            return self._results.pop(name)

    def may_subscribe(self, topic_filter: str) -> bool:
        """Subscribe with QoS 1; return True if the broker permits it."""
        self.client.subscribe(topic_filter, 1)
        return not self._wait("subscribe").is_failure

    def publish(self, topic: str, body: bytes) -> None:
        """Publish with QoS 1, and wait for the acknowledgement."""
        self.client.publish(topic, body, 1).wait_for_publish(PATIENCE)

    def wait_for_message(self) -> None:
        """Wait until a message has been received."""
        with self._changed:
            assert self._changed.wait_for(lambda: bool(self.received), PATIENCE)

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


@contextmanager
def mqtt(broker: BrokerProcess, user: str) -> Iterator[MqttClient]:
    """Yield a client that logs in as the user; the password is equal to the user name."""
    client = MqttClient(broker, user, user)
    yield client
    client.close()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """Start a broker with the page's settings, and a password file of three users."""
    hashes = tmp_path / "passwords"
    users = ("sensor", "dashboard", "other")
    hashes.write_text("".join(f"{user}:{CHEAP.hash(user)}\n" for user in users))
    assert PASSWORDS in PLUGINS
    settings = tmp_path / "broker.toml"
    settings.write_text(PLUGINS.replace(PASSWORDS, str(hashes)))
    running = BrokerProcess("--config", str(settings))
    yield running
    running.kill()


def test_a_broker_with_the_settings_of_the_page(broker: BrokerProcess) -> None:
    with mqtt(broker, "dashboard") as dashboard, mqtt(broker, "sensor") as sensor:
        assert dashboard.may_subscribe("sensors/#")
        assert not dashboard.may_subscribe("plant/#")
        assert not sensor.may_subscribe("sensors/#")
        sensor.publish("sensors/7/humidity", b"40")
        sensor.publish("sensors/7/temperature", b"21.5")
        dashboard.wait_for_message()
        assert dashboard.received == [("sensors/7/temperature", b"21.5")]
    refused = MqttClient(broker, "sensor", "wrong")
    refused.close()
    assert refused.refused
    assert amqp_login(broker, "sensor", "sensor")
    # The plugin denies each name that its file lacks, so the accounts are not asked.
    assert not amqp_login(broker, "guest", "guest")


def amqp_login(broker: BrokerProcess, user: str, password: str) -> bool:
    """Log in over AMQP; return False if the broker refuses the login."""
    try:
        pika.BlockingConnection(pika.URLParameters(broker.amqp_url_of(user, password))).close()
    except ProbableAuthenticationError:
        return False
    return True
