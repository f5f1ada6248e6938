"""Federated exchanges: messages of an upstream's exchange reach the exchange of the same name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

from tests.bridge.amqp import AmqpPair, TrellisPair, channel, take, trellis_pair
from tests.bridge.running import BridgingBroker, wait_for


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrellisPair]:
    pair = trellis_pair(tmp_path_factory.mktemp("pair"))
    yield pair
    pair.close()


def test_messages_of_the_upstream_reach_the_local_bindings(pair: TrellisPair) -> None:
    pair.federate("orders", "topic", "west")
    pair.near.queue_declare("eu")
    pair.near.queue_bind("eu", "orders", "eu.#")
    pair.far.basic_publish("orders", "us.1", b"no")
    pair.far.basic_publish("orders", "eu.1", b"yes")
    [(key, body, properties)] = take(pair.near, "eu", 1)
    assert (key, body) == ("eu.1", b"yes")
    headers: Any = properties.headers
    [hop] = headers["x-received-from"]
    assert hop["exchange"] == "orders"
    assert "guest" not in hop["uri"]
    [link] = [
        row for row in pair.local.request("GET", "federation-links") if row["upstream"] == "west"
    ]
    assert (link["status"], link["exchange"]) == ("running", "orders")


def test_the_user_of_the_upstream_is_not_copied(pair: TrellisPair) -> None:
    """Check that the property `user_id` is not copied.

    The local broker has no user of this name, so it would refuse the message again and again.
    """
    pair.federate("signed", "fanout", "users")
    pair.near.queue_declare("signed.to")
    pair.near.queue_bind("signed.to", "signed")
    pair.remote.request("PUT", "users/eve", {"password": "pw", "tags": ""})
    every = dict.fromkeys(("configure", "write", "read"), ".*")
    pair.remote.request("PUT", "permissions/%2F/eve", every)
    eve = channel(pair.remote, "eve", "pw")
    eve.basic_publish("signed", "", b"x", pika.BasicProperties(user_id="eve", app_id="kept"))
    [(_, body, properties)] = take(pair.near, "signed.to", 1)
    assert (body, properties.user_id, properties.app_id) == (b"x", None, "kept")
    eve.connection.close()


def test_only_the_listed_binding_keys_are_copied(pair: TrellisPair) -> None:
    pair.federate("direct", "direct", "keys", bindings=["a", "b"])
    pair.near.queue_declare("direct.to")
    for key in ("a", "b", "c"):
        pair.near.queue_bind("direct.to", "direct", key)
        pair.far.basic_publish("direct", key, key.encode())
    pair.far.basic_publish("direct", "a", b"last")
    assert [body for _, body, _ in take(pair.near, "direct.to", 3)] == [b"a", b"b", b"last"]


def test_removed_binding_keys_are_unbound(pair: TrellisPair) -> None:
    """Change the key `bindings` of the upstream, while the link runs and while it does not exist.

    Each time, the bindings at the upstream must become equal to the new keys.
    """
    pair.federate("narrow", "direct", "few", bindings=["a", "b"])
    queue = "federation: narrow -> trellis:/:narrow"
    pair.near.queue_declare("narrow.to")
    for key in "abcd":
        pair.near.queue_bind("narrow.to", "narrow", key)

    def change(*keys: str) -> None:
        pair.put("few", "federation-upstream", uri=pair.remote_uri, bindings=keys)

    def bound(*keys: str) -> bool:
        rows = pair.remote.request("GET", "exchanges/%2F/narrow/bindings/source")
        return sorted(row["routing_key"] for row in rows) == list(keys)

    change("b", "c")
    wait_for(lambda: bound("b", "c"))
    for key in "abcd":
        pair.far.basic_publish("narrow", key, key.encode())
    assert [body for _, body, _ in take(pair.near, "narrow.to", 2)] == [b"b", b"c"]

    policy = pair.local.request("GET", "policies/%2F/few")
    pair.local.request("DELETE", "policies/%2F/few")
    pair.wait_gone("few -> narrow")
    pair.far.basic_publish("narrow", "c", b"waits")
    change("d")
    pair.local.request("PUT", "policies/%2F/few", policy)
    wait_for(lambda: bound("d"))
    pair.far.basic_publish("narrow", "c", b"no")
    pair.far.basic_publish("narrow", "d", b"last")
    assert [body for _, body, _ in take(pair.near, "narrow.to", 2)] == [b"waits", b"last"]

    # The internal exchange is deleted with the queue.
    pair.local.request("DELETE", "policies/%2F/few")
    pair.wait_gone("few -> narrow")
    pair.far.queue_delete(queue)
    names = [row["name"] for row in pair.remote.request("GET", "exchanges/%2F")]
    assert not [name for name in names if name.startswith(queue)]


def test_a_message_passes_no_more_than_max_hops_links(pair: TrellisPair) -> None:
    """Check that no link sends a message back to the broker from which the message came.

    Two brokers have federation links to each other; by default, a message may pass one link.
    """
    pair.federate("both", "fanout", "there")
    host, port = pair.local.amqp
    value = {"uri": f"amqp://{host}:{port}", "reconnect-delay": 0.2}
    pair.remote.request("PUT", "parameters/federation-upstream/%2F/back", {"value": value})
    policy = {"pattern": "^both$", "definition": {"federation-upstream-set": "all"}}
    pair.remote.request("PUT", "policies/%2F/back", {**policy, "apply-to": "exchanges"})
    pair.remote.wait_up("back -> both")
    for client, queue in ((pair.near, "near"), (pair.far, "far")):
        client.queue_declare(queue)
        client.queue_bind(queue, "both")
    for number in range(10):
        pair.far.basic_publish("both", "", b"far %d" % number)
        pair.near.basic_publish("both", "", b"near %d" % number)
    expected = sorted(b"%s %d" % (side, n) for side in (b"near", b"far") for n in range(10))
    assert sorted(body for _, body, _ in take(pair.near, "near", 20)) == expected
    assert sorted(body for _, body, _ in take(pair.far, "far", 20)) == expected
    pair.local.wait("there -> both", lambda row: (row["looped"], row["sent"]) == (10, 10))
    pair.remote.wait("back -> both", lambda row: (row["looped"], row["sent"]) == (10, 10))
    for client, queue in ((pair.near, "near"), (pair.far, "far")):
        assert client.queue_declare(queue, passive=True).method.message_count == 0


def test_a_message_does_not_come_back_to_its_virtual_host(tmp_path: Path) -> None:
    """Check a cycle of two brokers with `max-hops` 3: a message must not return to its origin.

    RabbitMQ behaves equally.
    """
    brokers = [
        BridgingBroker(tmp_path / name, f'[node]\nname = "{name}"\n') for name in ("one", "two")
    ]
    pair = AmqpPair(*brokers)
    try:
        pair.federate("both", "fanout", "there", max_hops=3)
        host, port = pair.local.amqp
        value = {"uri": f"amqp://{host}:{port}", "reconnect-delay": 0.2, "max-hops": 3}
        pair.remote.request("PUT", "parameters/federation-upstream/%2F/back", {"value": value})
        policy = {"pattern": "^both$", "definition": {"federation-upstream": "back"}}
        pair.remote.request("PUT", "policies/%2F/back", {**policy, "apply-to": "exchanges"})
        pair.remote.wait_up("back -> both")
        pair.near.queue_declare("near")
        pair.near.queue_bind("near", "both")
        pair.near.basic_publish("both", "", b"once")
        pair.local.wait("there -> both", lambda row: (row["looped"], row["sent"]) == (1, 0))
        assert [body for _, body, _ in take(pair.near, "near", 1)] == [b"once"]
        assert pair.near.queue_declare("near", passive=True).method.message_count == 0
    finally:
        pair.close()


def test_two_brokers_with_one_name_do_not_share_the_messages(pair: TrellisPair) -> None:
    """Check that a link is refused while another broker's link consumes from the same queue.

    Brokers of one name use the same queue at the upstream, and each would get half of the messages.
    """
    pair.near.exchange_declare("shared", "fanout", durable=True)
    pair.near.queue_declare("shared.near")
    pair.near.queue_bind("shared.near", "shared")
    pair.far.exchange_declare("shared", "fanout", durable=True)
    queue = "federation: shared -> trellis:/:shared"
    pair.far.queue_declare(queue, durable=True)
    pair.far.queue_bind(queue, "shared")
    # This consumer stands for the link of another broker.
    other: list[bytes] = []
    tag = pair.far.basic_consume(queue, lambda *given: other.append(given[3]), auto_ack=True)

    def received() -> bool:
        pair.far.connection.process_data_events(0)
        return len(other) == 10

    pair.put("shared", "federation-upstream", uri=pair.remote_uri, reconnect_delay=0.2)
    policy = {"pattern": "^shared$", "definition": {"federation-upstream": "shared"}}
    pair.local.request("PUT", "policies/%2F/shared", {**policy, "apply-to": "exchanges"})
    row = pair.local.wait("shared -> shared", lambda row: "node.name" in row["error"])
    assert row["state"] == "connecting"
    for number in range(10):
        pair.far.basic_publish("shared", "", b"%d" % number)
    wait_for(received)
    pair.far.basic_cancel(tag)
    pair.local.wait_up("shared -> shared")
    pair.far.basic_publish("shared", "", b"last")
    assert [body for _, body, _ in take(pair.near, "shared.near", 1)] == [b"last"]
    pair.local.request("DELETE", "policies/%2F/shared")
    pair.wait_gone("shared -> shared")


def test_an_exchange_that_cannot_be_federated_is_listed_with_the_reason(pair: TrellisPair) -> None:
    pair.near.exchange_declare("plain", "direct", durable=True)
    pair.put("plain", "federation-upstream", uri=pair.remote_uri)
    policy = {"pattern": "^plain$", "definition": {"federation-upstream": "plain"}}
    pair.local.request("PUT", "policies/%2F/plain", {**policy, "apply-to": "exchanges"})
    row = pair.local.wait("plain -> plain", lambda row: row["state"] == "invalid")
    assert "'bindings' must list its routing keys" in row["error"]
    pair.local.request("DELETE", "policies/%2F/plain")
    pair.wait_gone("plain -> plain")
