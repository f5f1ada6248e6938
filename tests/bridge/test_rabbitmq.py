"""Shovels and federation links between Trellis and a real RabbitMQ, run by either broker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import pika
import pytest

from protocols.amqp.codec.properties import amended, read_properties
from tests.bridge.amqp import AmqpPair, channel, messages, take
from tests.bridge.properties import EVERY_PROPERTY, encoded, publish, without_header
from tests.bridge.running import PATIENCE, BridgingBroker, wait_for
from tests.rabbitmq import RabbitMq
from trellis.bridge.shovel_message import PropertyBytes

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("encoded")]
__all__ = ["encoded"]

#: RabbitMQ's plugins, with their parts of the HTTP API.
PLUGINS: Final = (
    "rabbitmq_management",
    *("rabbitmq_shovel", "rabbitmq_shovel_management"),
    *("rabbitmq_federation", "rabbitmq_federation_management"),
)
RabbitPair = AmqpPair[RabbitMq]


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitPair]:
    folder = tmp_path_factory.mktemp("pair")
    remote = RabbitMq(folder, PLUGINS)
    pair = AmqpPair(BridgingBroker(folder / "local"), remote)
    yield pair
    pair.close()


@pytest.fixture
def pair(brokers: RabbitPair) -> RabbitPair:
    """Give each test new channels, because an error closes a channel."""
    brokers.near = brokers.near.connection.channel()
    brokers.far = brokers.far.connection.channel()
    return brokers


def bodies(count: int) -> list[bytes]:
    """Return numbered bodies, an empty one, and one that needs several frames."""
    return [*(b"%d" % number for number in range(count)), b"", b"x" * 300_000]


@pytest.mark.parametrize("outward", [True, False], ids=["to RabbitMQ", "from RabbitMQ"])
@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_shovel_keeps_bodies_properties_and_order(
    pair: RabbitPair, outward: bool, kind: str
) -> None:
    name = f"keep.{kind}.{outward}"
    source, target = (pair.near, pair.far) if outward else (pair.far, pair.near)
    uris = ("amqp://", pair.remote_uri) if outward else (pair.remote_uri, "amqp://")
    arguments = {"x-queue-type": kind}
    source.queue_declare(name, durable=True, arguments=arguments)
    sent = bodies(500)
    for body in sent:
        publish(source, "", name, body)
    pair.shovel(
        name,
        src_uri=uris[0],
        src_queue=name,
        dest_uri=uris[1],
        dest_queue=f"{name}.to",
        dest_queue_args=arguments,
        src_prefetch_count=50,
        ack_mode="on-confirm",
    )
    got = take(target, f"{name}.to", len(sent))
    assert [body for _, body, _ in got] == sent
    assert {properties.data for _, _, properties in got} == {EVERY_PROPERTY}
    pair.local.wait(name, lambda row: row["sent"] == len(sent) and row["in_flight"] == 0)
    assert pair.local.links()[name]["reconnects"] == 0
    wait_for(lambda: source.queue_declare(name, passive=True).method.message_count == 0)


@pytest.mark.parametrize("outward", [True, False], ids=["to RabbitMQ", "from RabbitMQ"])
def test_from_an_exchange_to_an_exchange(pair: RabbitPair, outward: bool) -> None:
    source, target = (pair.near, pair.far) if outward else (pair.far, pair.near)
    uris = ("amqp://", pair.remote_uri) if outward else (pair.remote_uri, "amqp://")
    name = f"ee.{outward}"
    target.queue_declare(name)
    target.queue_bind(name, "amq.topic", f"{name}.moved")
    pair.shovel(
        name,
        src_uri=uris[0],
        src_exchange="amq.topic",
        src_exchange_key=f"{name}.x.#",
        dest_uri=uris[1],
        dest_exchange="amq.topic",
        dest_exchange_key=f"{name}.moved",
        dest_add_forward_headers=True,
        dest_add_timestamp_header=True,
        dest_publish_properties={"app_id": "shovel"},
    )
    source.basic_publish("amq.topic", f"{name}.y", b"other")
    source.basic_publish("amq.topic", f"{name}.x.1", b"moved")
    [(key, body, properties)] = take(target, name, 1)
    kept = read_properties(properties.data)
    assert (key, body, kept["app_id"]) == (f"{name}.moved", b"moved", "shovel")
    headers: Any = kept["headers"]
    assert [entry["shovel-name"] for entry in headers["x-shovelled"]] == [name]
    assert abs(headers["x-shovelled-timestamp"] - time.time()) < PATIENCE


def test_a_user_id_that_rabbitmq_refuses_is_removed(pair: RabbitPair) -> None:
    pair.local.request("PUT", "users/ann", {"password": "ann", "tags": ""})
    rights = dict.fromkeys(("configure", "write", "read"), ".*")
    pair.local.request("PUT", "permissions/%2F/ann", rights)
    pair.near.queue_declare("signed", durable=True)
    pair.far.queue_declare("signed.to", durable=True)
    ann = channel(pair.local, "ann", "ann")
    signed = PropertyBytes(amended(b"\0\0", {"n": 1}, {"user_id": "ann"}))
    for number in range(3):
        ann.basic_publish("", "signed", b"%d" % number, signed)
    pair.put(
        "signed", src_queue="signed", dest_queue="signed.to", reconnect_delay=0.2, **pair.outward
    )
    got = take(pair.far, "signed.to", 3)
    assert [body for _, body, _ in got] == [b"0", b"1", b"2"]
    assert {properties.data for _, _, properties in got} == {amended(b"\0\0", {"n": 1}, {})}
    row = pair.local.wait("signed", lambda row: row["sent"] == 3)
    assert "user_id property set to 'ann'" in row["refusal"] and row["reconnects"] == 1
    ann.connection.close()


def test_messages_wait_while_the_queue_at_rabbitmq_is_full(pair: RabbitPair) -> None:
    """Check that messages that RabbitMQ answers with basic.nack stay at their source."""
    pair.near.queue_declare("full", durable=True)
    limit = {"x-max-length": 5, "x-overflow": "reject-publish"}
    pair.far.queue_declare("full.to", durable=True, arguments=limit)
    for number in range(20):
        pair.near.basic_publish("", "full", b"%d" % number)
    pair.shovel("full", src_queue="full", dest_queue="full.to", reconnect_delay=0.2, **pair.outward)
    row = pair.local.wait("full", lambda row: row["reconnects"] > 1)
    assert row["refused"] == 0
    wanted = {b"%d" % number for number in range(20)}
    for _, body, _ in messages(pair.far, "full.to"):
        wanted.discard(body)
        if not wanted:
            break
    pair.far.cancel()
    pair.local.wait("full", lambda row: row["state"] == "up" and row["in_flight"] == 0)


def test_a_shovel_waits_while_rabbitmq_blocks_its_publishers(pair: RabbitPair) -> None:
    """Check that a shovel waits while RabbitMQ has a memory alarm, and goes on afterwards."""
    pair.near.queue_declare("alarm", durable=True)
    pair.shovel(
        "alarm", src_queue="alarm", dest_queue="alarm.to", src_prefetch_count=20, **pair.outward
    )
    pair.remote.control("set_vm_memory_high_watermark", "absolute", "1")
    try:
        for number in range(100):
            pair.near.basic_publish("", "alarm", b"%d" % number)
        row = pair.local.wait("alarm", lambda row: row["in_flight"] == 20)
        assert row["sent"] == 0
    finally:
        pair.remote.control("set_vm_memory_high_watermark", "0.4")
    got = take(pair.far, "alarm.to", 100)
    assert [body for _, body, _ in got] == [b"%d" % number for number in range(100)]
    pair.local.wait("alarm", lambda row: row["sent"] == 100 and row["reconnects"] == 0)


def test_a_deleted_queue_of_rabbitmq_is_declared_again(pair: RabbitPair) -> None:
    common = {"reconnect_delay": 0.2, **pair.inward}
    pair.shovel("again", src_queue="gone", dest_queue="again.to", **common)
    pair.far.queue_delete("gone")
    pair.local.wait("again", lambda row: row["reconnects"] == 1 and row["state"] == "up")
    pair.far.basic_publish("", "gone", b"late")
    assert take(pair.near, "again.to", 1)[0][1] == b"late"


def test_a_shovel_ends_when_the_queue_at_rabbitmq_was_moved(pair: RabbitPair) -> None:
    pair.far.queue_declare("end", durable=True)
    pair.near.queue_declare("end.to", durable=True)
    pair.far.confirm_delivery()
    for number in range(30):
        pair.far.basic_publish("", "end", b"%d" % number)
    ends = {"src_uri": pair.remote_uri, "src_queue": "end", "dest_queue": "end.to"}
    pair.put("end", dest_uri="amqp://", src_delete_after="queue-length", **ends)
    assert len(take(pair.near, "end.to", 30)) == 30
    pair.wait_gone("end")


def test_a_refused_login_and_a_missing_virtual_host_are_shown(pair: RabbitPair) -> None:
    wrong = pair.remote_uri.replace("guest:guest", "guest:wrong")
    for name, uri, reason in (
        ("login", wrong, "ACCESS_REFUSED"),
        ("vhost", f"{pair.remote_uri}/nowhere", "vhost nowhere not found"),
    ):
        pair.put(name, src_uri=uri, src_queue="a", dest_uri="amqp://", dest_queue="b")
        pair.local.wait(name, shows(reason))
        pair.local.request("DELETE", f"parameters/shovel/%2F/{name}")


def shows(reason: str) -> Callable[[dict[str, Any]], bool]:
    """Return a condition: the error of a link contains the reason."""
    return lambda row: reason in row["error"]


@pytest.mark.parametrize("kind", ["topic", "fanout", "direct", "headers"])
def test_a_federated_exchange_gets_the_messages_of_rabbitmq(pair: RabbitPair, kind: str) -> None:
    exchange, queue = f"fed.{kind}", f"fed.{kind}.to"
    given = {"bindings": ["eu.1"]} if kind == "direct" else {}
    pair.federate(exchange, kind, f"rabbit.{kind}", **given)
    pair.near.queue_declare(queue)
    pair.near.queue_bind(queue, exchange, "eu.1")
    for number in range(100):
        publish(pair.far, exchange, "eu.1", b"%d" % number)
    got = take(pair.near, queue, 100)
    assert [(key, body) for key, body, _ in got] == [("eu.1", b"%d" % n) for n in range(100)]
    kept = got[0][2].data
    headers: Any = read_properties(kept)["headers"]
    assert [hop["exchange"] for hop in headers["x-received-from"]] == [exchange]
    added = "x-received-from"
    assert without_header(kept, added) == without_header(EVERY_PROPERTY, added)
    pair.local.wait(f"rabbit.{kind} -> {exchange}", lambda row: row["in_flight"] == 0)


def test_federation_in_both_directions_ends_after_one_hop(pair: RabbitPair) -> None:
    """Check that a message passes one of two federation links in opposite directions, not both.

    Trellis runs one link, and RabbitMQ's plugin runs the other.
    """
    pair.federate("both", "fanout", "there")
    host, port = pair.local.amqp
    upstream = {"uri": f"amqp://{host}:{port}", "reconnect-delay": 1}
    pair.remote.request(
        "PUT", "parameters/federation-upstream/%2F/back", {"value": upstream, **named("back")}
    )
    policy = {"pattern": "^both$", "definition": {"federation-upstream": "back"}}
    pair.remote.request("PUT", "policies/%2F/back", {**policy, "apply-to": "exchanges"})
    wait_for(
        lambda: (
            [row.get("status") for row in pair.remote.request("GET", "federation-links")]
            == ["running"]
        )
    )
    for client, queue in ((pair.near, "both.near"), (pair.far, "both.far")):
        client.queue_declare(queue)
        client.queue_bind(queue, "both")
    # RabbitMQ binds its queue at Trellis as soon as its exchange has a binding.
    wait_for(lambda: len(pair.local.request("GET", "exchanges/%2F/both/bindings/source")) >= 2)
    for number in range(10):
        pair.far.basic_publish("both", "", b"far %d" % number)
        pair.near.basic_publish("both", "", b"near %d" % number)
    expected = sorted(b"%s %d" % (side, n) for side in (b"near", b"far") for n in range(10))
    for client, queue in ((pair.near, "both.near"), (pair.far, "both.far")):
        assert sorted(body for _, body, _ in take(client, queue, 20)) == expected
        assert client.queue_declare(queue, passive=True).method.message_count == 0


def named(name: str) -> dict[str, str]:
    return {"vhost": "/", "name": name, "component": "federation-upstream"}


@pytest.mark.parametrize("ack_mode", ["on-confirm", "on-publish", "no-ack"])
@pytest.mark.parametrize("outward", [True, False], ids=["to Trellis", "from Trellis"])
def test_rabbitmqs_own_shovel_moves_messages(
    pair: RabbitPair, outward: bool, ack_mode: str
) -> None:
    """Check that RabbitMQ's plugin rabbitmq_shovel moves all messages, with bodies and headers.

    The destination is Trellis if `outward` is True; the source is Trellis if `outward` is False.
    """
    name = f"own.{outward}.{ack_mode}"
    host, port = pair.local.amqp
    ours = f"amqp://guest:guest@{host}:{port}/%2F"
    source, target = (pair.far, pair.near) if outward else (pair.near, pair.far)
    source.queue_declare(name, durable=True)
    sent = bodies(500)
    for body in sent:
        publish(source, "", name, body)
    value = {
        "src-protocol": "amqp091",
        "src-uri": pair.remote.amqp_url if outward else ours,
        "src-queue": name,
        "dest-protocol": "amqp091",
        "dest-uri": ours if outward else pair.remote.amqp_url,
        "dest-queue": f"{name}.to",
        "dest-add-forward-headers": True,
        "ack-mode": ack_mode,
        "src-delete-after": "queue-length",
        "reconnect-delay": 1,
    }
    pair.remote.request("PUT", f"parameters/shovel/%2F/{name}", {"value": value})
    wait_for(lambda: has_queue(target, f"{name}.to"))
    got = take(target, f"{name}.to", len(sent))
    assert [body for _, body, _ in got] == sent
    kept = got[0][2].data
    headers: Any = read_properties(kept)["headers"]
    assert [entry["shovel-name"] for entry in headers["x-shovelled"]] == [name]
    # RabbitMQ's plugin encodes the headers again, so the sizes of numbers may change.
    del headers["x-shovelled"]
    assert headers == read_properties(EVERY_PROPERTY)["headers"]
    # RabbitMQ deletes the shovel when all messages have been moved.
    path = "parameters/shovel/%2F"
    wait_for(lambda: name not in str(pair.remote.request("GET", path)))
    wait_for(lambda: source.queue_declare(name, passive=True).method.message_count == 0)


def has_queue(client: Any, name: str) -> bool:
    """True if the broker of the client has the queue."""
    channel = client.connection.channel()
    try:
        channel.queue_declare(name, passive=True)
    except pika.exceptions.ChannelClosedByBroker:
        return False
    channel.close()
    return True
