"""The demonstration: kills the active node of two while a publisher and a consumer use the broker.

The replicated log of the two nodes is a new topic on Kafka. When the demonstration ends, both nodes
have ended, and the topic is deleted.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from broker.replication.contract import LogUnreachable
from trellis.bench.target import BrokerTarget
from trellis.cluster.kafka_log import group_name
from trellis.cluster.topic import REPLICAS, KafkaTopic
from trellis.demo.broker_node import DemoNode
from trellis.demo.errors import DemoError
from trellis.demo.traffic import DemoConsumer, DemoPublisher
from trellis.settings.cluster import ClusterSettings

#: Silence, lease and beat interval of the nodes in seconds, for a short failover on one machine.
SILENCE: Final = 1.0
LEASE: Final = 0.7
BEAT: Final = 0.15
#: Seconds within which a message must be confirmed or delivered.
_PATIENCE: Final = 60.0
#: Seconds without a delivery after which missing messages count as lost.
_QUIET: Final = 10.0
#: Seconds between two checks of the publisher and the consumer.
_LOOK: Final = 0.02

#: A function that prints a line of text.
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class DemoPlan:
    """The time at which publishing ends: after `messages` confirmed messages.

    If `messages` is 0, publishing ends after `seconds`.
    """

    seconds: float
    messages: int = 0

    def share_done(self, confirmed: int, elapsed: float) -> float:
        """Return the share of the plan that is done: 0 at the beginning, 1 or more at the end.

        `confirmed` is the number of confirmed messages, and `elapsed` the seconds since the
        beginning.
        """
        return confirmed / self.messages if self.messages else elapsed / self.seconds


@dataclass(frozen=True, slots=True)
class DemoResult:
    """The figures of a demonstration: seconds since the kill, and numbers of messages."""

    active: float
    first_confirm: float
    first_delivery: float
    confirmed: int
    delivered: int
    lost: int
    duplicates: int


def run_failover(servers: str, directory: Path, plan: DemoPlan, say: Say) -> DemoResult:
    """Run two nodes over a Kafka cluster, kill the active node, and return the figures.

    `directory` gets the data directories and the logs of the nodes. Raises DemoError.
    """
    name = f"demo-{os.urandom(4).hex()}"
    cluster = ClusterSettings(name=name, servers=servers, silence=SILENCE, lease=LEASE, beat=BEAT)
    with _topic(cluster) as cluster, ExitStack() as stack:
        nodes = []
        for name, states in (("node-1", ("following", "ready")), ("node-2", ("following",))):
            node = DemoNode(name, directory, cluster)
            nodes.append(node)
            stack.callback(node.kill)
            for state in states:
                node.wait_for(state)
            role = "active" if "ready" in states else "a standby"
            say(f"{name} is {role}, AMQP at {node.addresses['amqp']}")
        say("a publisher publishes persistent messages, and a consumer receives them")
        return _Failover(nodes[0], nodes[1], plan, say).run()


class _Failover:
    """A run of the demonstration: messages flow through two nodes, of which one is killed."""

    def __init__(self, active: DemoNode, standby: DemoNode, plan: DemoPlan, say: Say) -> None:
        self._active = active
        self._standby = standby
        self._plan = plan
        self._say = say
        targets = [_target(node.addresses["amqp"]) for node in (active, standby)]
        self._publisher = DemoPublisher(targets)
        self._consumer = DemoConsumer(targets)
        self._began = time.monotonic()

    def run(self) -> DemoResult:
        """Publish and consume, kill the active node, and return the figures. Raises DemoError."""
        clients = self._publisher, self._consumer
        try:
            for client in clients:
                client.start()
            self._wait(0.5)
            killed = time.monotonic()
            self._active.kill()
            confirmed = len(self._publisher.confirmed)
            self._say(
                f"killed {self._active.name} (SIGKILL) after {confirmed:,} confirmed messages"
            )
            active = self._standby.wait_for("ready")
            self._wait(1.0, killed)
            self._publisher.stop()
            self._publisher.join(_PATIENCE)
            self._wait_for_deliveries()
        finally:
            for client in clients:
                client.stop()
        return self._result(killed, active)

    def _wait(self, share: float, since: float = 0.0) -> None:
        """Wait until a share of the plan is done, and both clients have resumed after `since`.

        A client has resumed when a new connection has had its first confirm or delivery. `since` is
        a time of time.monotonic, in seconds. Raises DemoError if no message is confirmed for
        _PATIENCE seconds.
        """
        before, end = -1, 0.0
        while True:
            now, confirmed = time.monotonic(), len(self._publisher.confirmed)
            passing = all(
                client.resumed_after(since) is not None
                for client in (self._publisher, self._consumer)
            )
            if passing and self._plan.share_done(confirmed, now - self._began) >= share:
                return
            if confirmed != before:
                before, end = confirmed, now + _PATIENCE
            if now > end:
                raise DemoError(
                    f"no message was confirmed or delivered for {_PATIENCE:g} s: repeat with "
                    "--keep-files, and read the logs of the nodes"
                )
            time.sleep(_LOOK)

    def _wait_for_deliveries(self) -> None:
        """Wait until all confirmed messages are delivered, or no message is delivered any more."""
        before, end = -1, 0.0
        while self._publisher.confirmed - self._consumer.delivered.copy():
            if self._consumer.deliveries != before:
                before, end = self._consumer.deliveries, time.monotonic() + _QUIET
            if time.monotonic() > end:
                return
            time.sleep(_LOOK)

    def _result(self, killed: float, active: float) -> DemoResult:
        delivered, confirmed = self._consumer.delivered.copy(), self._publisher.confirmed
        return DemoResult(
            active=active - killed,
            first_confirm=(self._publisher.resumed_after(killed) or killed) - killed,
            first_delivery=(self._consumer.resumed_after(killed) or killed) - killed,
            confirmed=len(confirmed),
            delivered=len(delivered),
            lost=len(confirmed - delivered),
            duplicates=self._consumer.deliveries - len(delivered),
        )


@contextmanager
def _topic(cluster: ClusterSettings) -> Iterator[ClusterSettings]:
    """Create the topic of the log, with up to three replicas; delete it when the context ends.

    Yield the settings of the nodes, which accept a topic with fewer replicas.
    """
    try:
        topic = KafkaTopic(cluster)
        replicas = min(REPLICAS, len(topic.nodes()))
        topic.create(replicas)
    except LogUnreachable as error:
        raise DemoError(str(error)) from None
    try:
        yield replace(cluster, unsafe=replicas < REPLICAS)
    finally:
        with suppress(LogUnreachable):
            for group in topic.groups(group_name(cluster, "")):
                topic.delete_group(group)
            topic.delete()


def _target(address: str) -> BrokerTarget:
    """Return the AMQP address of a node, HOST:PORT, with the login of the user guest."""
    host, _, port = address.rpartition(":")
    return BrokerTarget("amqp", host, int(port), "guest", "guest")
