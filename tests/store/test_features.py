"""Queues with arguments, delayed exchanges and virtual hosts after a restart of the broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pamqp.commands as spec
import pytest

from broker.definitions.restore import RestoreReport, restore_broker
from broker.queues.policies import Policy
from broker.queues.slices import MESSAGES_PER_SLICE
from broker.store.disk import RealDisk
from broker.store.opening import open_store
from tests.clients import Amqp, World, marshal, publication
from tests.wire.amqp.speech import deliveries, names, properties, read
from trellis.server.recovery import codecs

Q, B, X = spec.Queue, spec.Basic, spec.Exchange


class Lasting(World):
    """A broker with a data directory, and its connections."""

    def __init__(self, directory: Path, now: int = 1_000, wall: float = 1_700_000_000.0) -> None:
        opened = open_store(
            RealDisk(),
            str(directory),
            codecs(),
            7,
            lambda line: pytest.fail(line),
            lambda recovery: None,
        )
        self.disk: Any = opened.store
        super().__init__(store=self.disk)
        self.broker.agenda.advance(now, wall)
        self.disk.set_clocks(now, wall)
        self.report: RestoreReport = restore_broker(self.broker, opened, self.mqtt_front.sessions)

    def stop(self) -> None:
        self.settle()
        self.disk.sync()
        self.disk.close()


def later(directory: Path, seconds: float = 1.0) -> Lasting:
    """Return the broker, started again with the wall clock `seconds` ahead of its first start.

    The monotonic clock begins anew.
    """
    return Lasting(directory, 5_000, 1_700_000_000.0 + seconds)


def persistent(client: Amqp, exchange: str, key: str, body: bytes, **given: Any) -> None:
    client.publish(exchange, key, body, delivery_mode=2, **given)


def test_delays_go_on(tmp_path: Path) -> None:
    world = Lasting(tmp_path)
    client = world.amqp()
    client.send(
        X.Declare(
            exchange="later",
            exchange_type="x-delayed-message",
            durable=True,
            arguments={"x-delayed-type": "topic"},
        )
    )
    client.queue("q", "later", "a.#", durable=True)
    for body, delay in ((b"third", 9_000), (b"first", 500), (b"second", 4_000), (b"at once", 0)):
        persistent(client, "later", "a.b", body, headers={"x-delay": delay, "a": 1})
    client.publish("later", "a.b", b"transient", headers={"x-delay": 100})
    world.stop()

    world = later(tmp_path, 2.0)
    client = world.amqp()
    world.settle()
    assert world.report.copies == 4 and not world.report.refused
    world.sleep(0)
    world.settle()
    assert read(client, "q") == [b"at once", b"first"]
    world.sleep(2_000)
    world.settle()
    frames = client.send(B.Get(queue="q", no_ack=True))
    assert client.bodies(frames) == [b"second"] and properties(frames).headers == {
        "x-delay": -4_000,
        "a": 1,
    }
    world.sleep(5_000)
    world.settle()
    assert read(client, "q") == [b"third"]
    world.stop()
    world = later(tmp_path, 60)
    world.sleep(60_000)
    assert read(world.amqp(), "q") == [] and world.report.copies == 0


def test_a_delayed_exchange_that_was_deleted_leaves_nothing(tmp_path: Path) -> None:
    world = Lasting(tmp_path)
    client = world.amqp()
    client.send(
        X.Declare(
            exchange="later",
            exchange_type="x-delayed-message",
            durable=True,
            arguments={"x-delayed-type": "fanout"},
        )
    )
    persistent(client, "later", "k", b"x", headers={"x-delay": 1_000})
    client.send(X.Delete(exchange="later"))
    world.stop()
    assert later(tmp_path).report.copies == 0


@pytest.mark.parametrize(
    ("arguments", "bodies"),
    [
        ({"x_max_priority": 9}, [b"b", b"c", b"a"]),
        ({"x_max_length_bytes": 100}, [b"a", b"b", b"c"]),
        ({"x_queue_type": "quorum"}, [b"a", b"b", b"c"]),
        ({"x_single_active_consumer": True}, [b"a", b"b", b"c"]),
    ],
)
def test_queue_survives_a_restart_with_its_messages(
    tmp_path: Path, arguments: Any, bodies: list[bytes]
) -> None:
    world = Lasting(tmp_path)
    client = world.amqp()
    client.queue("q", durable=True, **arguments)
    for body, priority in ((b"a", 1), (b"b", 5), (b"c", 5)):
        persistent(client, "", "q", body, priority=priority)
    world.stop()
    world = later(tmp_path)
    client = world.amqp()
    same: Any = {name.replace("_", "-"): value for name, value in arguments.items()}
    assert names(client.send(Q.Declare(queue="q", durable=True, arguments=same))) == [
        "Queue.DeclareOk"
    ]
    queue: Any = world.queue("q")
    assert getattr(queue, "waiting_bytes", 3) in (0, 3)
    assert read(client, "q") == bodies
    assert getattr(queue, "waiting_bytes", 0) == 0
    world.fates()


def test_a_queue_that_expires_has_a_whole_lease_again(tmp_path: Path) -> None:
    world = Lasting(tmp_path)
    world.amqp().queue("q", durable=True, x_expires=1_000)
    world.sleep(900)
    world.stop()
    world = later(tmp_path)
    world.sleep(999)
    assert "q" in world.vhost.queues
    world.sleep(1)
    assert "q" not in world.vhost.queues
    world.stop()
    assert "q" not in later(tmp_path).vhost.queues


def test_other_virtual_hosts_are_restored_with_their_objects(tmp_path: Path) -> None:
    world = Lasting(tmp_path)
    world.broker.create_vhost("other")
    client = world.amqp(vhost="other")
    client.send(Q.Declare(queue="q", durable=True))
    persistent(client, "", "q", b"x")
    world.stop()
    world = later(tmp_path)
    assert sorted(world.broker.vhosts) == ["/", "other"]
    assert read(world.amqp(vhost="other"), "q") == [b"x"]


def test_direct_replies_and_blind_copies_are_stored_as_they_are_delivered(tmp_path: Path) -> None:
    world = Lasting(tmp_path)
    client = world.amqp()
    client.queue("q", durable=True)
    client.send(B.Consume(queue="amq.rabbitmq.reply-to", no_ack=True))
    persistent(
        client,
        "",
        "q",
        b"question",
        reply_to="amq.rabbitmq.reply-to",
        headers={"BCC": ["q"], "CC": ["q"], "a": 1},
    )
    world.stop()
    frames = later(tmp_path).amqp().send(B.Get(queue="q"))
    assert [one.body for one in deliveries(frames)] == [b"question"]
    assert properties(frames).reply_to.startswith("amq.rabbitmq.reply-to.") and properties(
        frames
    ).headers == {"CC": ["q"], "a": 1}


@pytest.mark.parametrize("arguments", [{}, {"x-max-priority": 3}, {"x-max-length-bytes": 1_000}])
@pytest.mark.parametrize("backlog", [1, 3])
def test_messages_live_no_longer_for_a_restart(
    tmp_path: Path, arguments: dict[str, Any], backlog: int
) -> None:
    world = Lasting(tmp_path)
    client = world.amqp()
    client.send(
        Q.Declare(queue="q", durable=True, arguments={"x-message-ttl": 10_000, **arguments})
    )
    client.queue("plain", durable=True)
    client.send(
        Q.Bind(queue="q", exchange="amq.fanout"), Q.Bind(queue="plain", exchange="amq.fanout")
    )
    for _ in range(backlog):
        persistent(client, "amq.fanout", "", b"old")
    world.sleep(4_000)
    persistent(client, "amq.fanout", "", b"new")
    world.stop()

    # The old messages have two seconds left, the new one has six, rounded to seconds.
    world = later(tmp_path, 8.0)
    world.sleep(1_900)
    assert world.queue("q").depth == backlog + 1
    world.sleep(1_100)
    assert world.queue("q").depth == 1
    world.stop()

    world = later(tmp_path, 15.0)
    world.sleep(0)
    world.settle()
    assert world.queue("q").depth == 0 and world.queue("plain").depth == backlog + 1
    world.stop()


def test_a_queue_that_gets_a_time_to_live_by_a_policy_keeps_it_through_restarts(
    tmp_path: Path,
) -> None:
    world = Lasting(tmp_path)
    client = world.amqp()
    client.queue("q", durable=True)
    persistent(client, "", "q", b"before")
    world.vhost.applied_policies.set_policy(
        Policy("/", "short", "q", "all", 0, {"message-ttl": 10_000})
    )
    world.settle(client.connection)
    persistent(client, "", "q", b"after")
    world.stop()
    world = later(tmp_path, 8.0)
    world.sleep(2_500)
    # The first message is older than the policy, so its time to live begins anew at the restart.
    # The second message has expired, but leaves the queue only after the first.
    assert world.queue("q").depth == 2
    world.sleep(8_000)
    assert world.queue("q").depth == 0
    world.stop()


@pytest.mark.parametrize("deleted", [False, True])
def test_purged_messages_stay_away_though_a_policy_replaces_their_queue(
    tmp_path: Path, deleted: bool
) -> None:
    world = Lasting(tmp_path)
    client = world.amqp()
    client.queue("q", durable=True)
    for _ in range(6):
        client.connection.receive_data(
            b"".join(
                publication("", "q", b"purged", delivery_mode=2) for _ in range(MESSAGES_PER_SLICE)
            )
        )
        world.settle(client.connection)
    assert world.queue("q").depth == 6 * MESSAGES_PER_SLICE
    # The queue is replaced before the purged messages are released in the store.
    client.connection.receive_data(marshal(1, Q.Purge(queue="q")))
    world.vhost.applied_policies.set_policy(
        Policy("/", "short", "q", "all", 0, {"max-length": 50_000})
    )
    if deleted:
        client.connection.receive_data(marshal(1, Q.Delete(queue="q")))
        client.connection.receive_data(marshal(1, Q.Declare(queue="q", durable=True)))
    persistent(client, "", "q", b"after")
    world.settle(client.connection)
    world.stop()
    world = later(tmp_path, 8.0)
    assert read(world.amqp(), "q") == [b"after"]
    world.stop()
