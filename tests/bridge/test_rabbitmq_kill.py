"""Links between Trellis and RabbitMQ deliver at least once when either broker is killed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from tests.bridge.amqp import channel_at
from tests.bridge.amqp_kill import Publishing, check_complete
from tests.bridge.running import BridgingBroker, wait_for
from tests.rabbitmq import RabbitMq

pytestmark = pytest.mark.long
SEED: Final = int(os.environ.get("TRELLIS_CRASH_SEED", "1"))
PLUGINS: Final = ("rabbitmq_management", "rabbitmq_shovel", "rabbitmq_shovel_management")
ROUNDS: Final = 2
PREFETCH: Final = 20
#: A broker writes the acknowledgements of a few milliseconds to its disk together. If the broker is
#: killed before this write, it delivers the acknowledged messages again: on a slow machine, at most
#: this number of messages.
UNWRITTEN: Final = 100


class KilledBrokers:
    """A RabbitMQ and a Trellis, which have the same data and ports again after a kill."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.rabbitmq = RabbitMq(folder, PLUGINS)
        self.trellis = self._trellis("0")

    def _trellis(self, port: str) -> BridgingBroker:
        data = str(self._folder / "data")
        return BridgingBroker(self._folder / "trellis", "", "--data-dir", data, "--amqp-port", port)

    def kill(self, victim: str) -> None:
        """Kill one of the brokers, and start it again."""
        if victim == "rabbitmq":
            self.rabbitmq.kill()
            self.rabbitmq.start()
        else:
            port = str(self.trellis.amqp.port)
            self.trellis.kill()
            self.trellis = self._trellis(port)

    def url(self, name: str) -> str:
        return self.rabbitmq.amqp_url if name == "rabbitmq" else self.trellis.amqp_url

    def stop(self) -> None:
        self.trellis.stop()
        self.rabbitmq.stop()


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[KilledBrokers]:
    brokers = KilledBrokers(tmp_path)
    yield brokers
    brokers.stop()


def run_and_kill(brokers: KilledBrokers, source: str, victim: str, **to: str) -> int:
    """Publish at `source`, and kill `victim` ROUNDS times while messages are moved.

    Return the number of duplicates in the queue `to` of the other broker.
    """
    target = "trellis" if source == "rabbitmq" else "rabbitmq"
    random = Random(SEED)
    publishing = Publishing(brokers.url(source), 0, **to)
    publishing.start()
    for _ in range(ROUNDS):
        publishing.wait_for(random.randrange(1, 200))
        wait_arrived(brokers.url(target), publishing.confirmed // 2)
        brokers.kill(victim)
        if victim == source:
            publishing.join()
            publishing = Publishing(brokers.url(source), publishing.confirmed, **to)
            publishing.start()
    # The link has recovered if it moves messages that were published after the last kill.
    publishing.wait_for(100)
    publishing.stop.set()
    publishing.join()
    return check_complete(brokers.url(target), "to", publishing.confirmed)


def wait_arrived(url: str, least: int) -> None:
    """Wait until the queue `to` of a broker has at least `least` messages."""
    client = channel_at(url)
    wait_for(lambda: client.queue_declare("to", durable=True).method.message_count >= least)
    client.connection.close()


def shovel_between(uris: dict[str, str], source: str, reconnect_delay: float) -> dict[str, Any]:
    """Return the value of a shovel from the queue `from` of one broker to `to` of the other one.

    `uris` has the URIs of both brokers by name; `source` is the name of the broker with `from`.
    """
    [target] = uris.keys() - {source}
    return {
        "src-uri": uris[source],
        "src-queue": "from",
        "src-prefetch-count": PREFETCH,
        "dest-uri": uris[target],
        "dest-queue": "to",
        "ack-mode": "on-confirm",
        "reconnect-delay": reconnect_delay,
    }


@pytest.mark.parametrize("victim", ["rabbitmq", "trellis"])
@pytest.mark.parametrize("source", ["trellis", "rabbitmq"])
def test_a_shovel_loses_no_confirmed_message(
    brokers: KilledBrokers, source: str, victim: str
) -> None:
    uris = {"trellis": "amqp://", "rabbitmq": brokers.rabbitmq.amqp_url}
    value = shovel_between(uris, source, reconnect_delay=0.2)
    brokers.trellis.request("PUT", "parameters/shovel/%2F/s", {"value": value})
    duplicates = run_and_kill(brokers, source, victim)
    assert duplicates <= ROUNDS * (PREFETCH + (UNWRITTEN if source == victim else 0))
    brokers.trellis.wait("s", lambda row: row["state"] == "up" and row["in_flight"] == 0)


@pytest.mark.parametrize("victim", ["rabbitmq", "trellis"])
def test_a_federation_link_loses_no_confirmed_message(brokers: KilledBrokers, victim: str) -> None:
    for name in ("rabbitmq", "trellis"):
        client = channel_at(brokers.url(name))
        client.exchange_declare("orders", "topic", durable=True)
        if name == "trellis":
            client.queue_declare("to", durable=True)
            client.queue_bind("to", "orders", "#")
        client.connection.close()
    upstream = {
        "uri": brokers.rabbitmq.amqp_url,
        "prefetch-count": PREFETCH,
        "reconnect-delay": 0.2,
    }
    policy = {
        "pattern": "^orders$",
        "definition": {"federation-upstream": "up"},
        "apply-to": "exchanges",
    }
    trellis = brokers.trellis
    trellis.request("PUT", "parameters/federation-upstream/%2F/up", {"value": upstream})
    trellis.request("PUT", "policies/%2F/up", policy)
    trellis.wait_up("up -> orders")
    duplicates = run_and_kill(brokers, "rabbitmq", victim, exchange="orders")
    assert duplicates <= ROUNDS * (PREFETCH + (UNWRITTEN if victim == "rabbitmq" else 0))
    brokers.trellis.wait_up("up -> orders")


@pytest.mark.parametrize("source", ["trellis", "rabbitmq"])
def test_rabbitmqs_own_shovel_loses_no_message_when_trellis_is_killed(
    brokers: KilledBrokers, source: str
) -> None:
    uris = {name: brokers.url(name) for name in ("trellis", "rabbitmq")}
    value = shovel_between(uris, source, reconnect_delay=1)
    brokers.rabbitmq.request("PUT", "parameters/shovel/%2F/s", {"value": value})
    duplicates = run_and_kill(brokers, source, "trellis")
    assert duplicates <= ROUNDS * (PREFETCH + (UNWRITTEN if source == "trellis" else 0))
