"""Tests of shovels, which move messages from a queue or an exchange to another broker."""

from __future__ import annotations

import select
import socket
import time
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

from tests.bridge.amqp import TrellisPair, channel, take, trellis_pair
from tests.bridge.running import PATIENCE, BridgingBroker, Recorder


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrellisPair]:
    pair = trellis_pair(tmp_path_factory.mktemp("pair"))
    yield pair
    pair.close()


def test_from_a_queue_to_a_queue(pair: TrellisPair) -> None:
    pair.near.queue_declare("a", durable=True)
    sent = pika.BasicProperties(
        content_type="text/plain", delivery_mode=2, priority=3, headers={"n": 1, "list": [True]}
    )
    for number in range(200):
        pair.near.basic_publish("", "a", b"%d" % number, sent)
    pair.near.basic_publish("", "a", b"x" * 300_000)
    pair.shovel("qq", src_queue="a", dest_queue="qq.to", **pair.outward)
    got = take(pair.far, "qq.to", 201)
    assert [body for _, body, _ in got[:200]] == [b"%d" % number for number in range(200)]
    assert got[200][1] == b"x" * 300_000
    properties = got[0][2]
    assert properties.headers == {"n": 1, "list": [True]}
    assert (properties.content_type, properties.priority) == ("text/plain", 3)
    assert properties.message_id is None
    pair.local.wait("qq", lambda row: row["sent"] == 201 and row["in_flight"] == 0)
    assert pair.near.queue_declare("a", passive=True).method.message_count == 0


def test_from_an_exchange_to_a_queue(pair: TrellisPair) -> None:
    pair.near.queue_declare("eq.to", durable=True)
    pair.shovel(
        "eq", src_exchange="amq.topic", src_exchange_key="x.#", dest_queue="eq.to", **pair.inward
    )
    pair.far.basic_publish("amq.topic", "y.1", b"other")
    pair.far.basic_publish("amq.topic", "x.1", b"copied")
    assert [body for _, body, _ in take(pair.near, "eq.to", 1)] == [b"copied"]


def test_from_a_queue_to_an_exchange_until_the_queue_is_empty(pair: TrellisPair) -> None:
    pair.near.queue_declare("b")
    pair.far.queue_declare("qe.to")
    pair.far.queue_bind("qe.to", "amq.topic", "moved.#")
    for number in range(3):
        pair.near.basic_publish("", "b", b"%d" % number)
    pair.put(
        "qe",
        src_uri="amqp://",
        src_queue="b",
        src_delete_after="queue-length",
        dest_uri=[pair.remote_uri],
        dest_exchange="amq.topic",
        dest_exchange_key="moved.here",
        dest_add_forward_headers=True,
        dest_publish_properties={"delivery_mode": 2, "app_id": "shovel"},
    )
    got = take(pair.far, "qe.to", 3)
    assert [(key, body) for key, body, _ in got] == [("moved.here", b"%d" % n) for n in range(3)]
    properties = got[0][2]
    assert (properties.delivery_mode, properties.app_id) == (2, "shovel")
    headers: Any = properties.headers
    assert [entry["shovel-name"] for entry in headers["x-shovelled"]] == ["qe"]
    assert "guest" not in str(headers)
    end = time.monotonic() + PATIENCE
    while "'qe'" in str(pair.local.request("GET", "parameters/shovel/%2F")):
        assert time.monotonic() < end, "the parameter was not deleted"
    pair.wait_gone("qe")
    assert "shovel_ended vhost=/ name=qe moved=3" in pair.local.log


def test_a_shovel_without_a_destination_keeps_exchange_and_key(pair: TrellisPair) -> None:
    pair.near.queue_declare("c")
    pair.near.queue_bind("c", "amq.fanout")
    pair.far.queue_declare("same.to")
    pair.far.queue_bind("same.to", "amq.fanout")
    pair.near.basic_publish("amq.fanout", "the.key", b"1")
    pair.shovel("same", src_queue="c", **pair.outward)
    assert [got[:2] for got in take(pair.far, "same.to", 1)] == [("the.key", b"1")]


def test_a_deleted_shovel_stops_and_a_changed_one_starts_again(pair: TrellisPair) -> None:
    pair.near.queue_declare("d", durable=True)
    common = {"src_queue": "d", **pair.outward}
    pair.shovel("change", dest_queue="change.1", **common)
    pair.near.basic_publish("", "d", b"1")
    assert take(pair.far, "change.1", 1)[0][1] == b"1"
    pair.local.wait("change", lambda row: row["sent"] == 1)
    pair.put("change", dest_queue="change.2", **common)
    pair.far.queue_declare("change.2", durable=True)
    pair.near.basic_publish("", "d", b"2")
    # The old shovel may have taken the message before it was stopped.
    while True:
        bodies = [pair.far.basic_get(f"change.{number}", auto_ack=True)[2] for number in (1, 2)]
        if bodies[1] is not None:
            break
        if bodies[0] is not None:
            pair.near.basic_publish("", "d", b"2")
    # The counts include the messages that the old definition has moved.
    pair.local.wait("change", lambda row: row["sent"] >= 2)
    pair.local.request("DELETE", "shovels/vhost/%2F/change")
    pair.wait_gone("change")


def test_a_destination_that_refuses_messages_gets_them_later(pair: TrellisPair) -> None:
    """Check that messages stay in the source queue while the destination queue is full.

    The destination's broker answers basic.nack as long as the queue is full.
    """
    full = {"x-max-length": 1, "x-overflow": "reject-publish"}
    pair.far.queue_declare("full.to", durable=True, arguments=full)
    pair.near.queue_declare("f")
    for number in range(3):
        pair.near.basic_publish("", "f", b"%d" % number)
    pair.put("full", src_queue="f", dest_queue="full.to", reconnect_delay=0.2, **pair.outward)
    row = pair.local.wait("full", lambda row: "basic.nack" in row["error"])
    assert row["refused"] == 0
    assert sorted(got[1] for got in take(pair.far, "full.to", 3)) == [b"0", b"1", b"2"]


def test_messages_for_a_deleted_queue_stay_at_the_source_until_it_is_declared(
    pair: TrellisPair,
) -> None:
    pair.near.queue_declare("g", durable=True)
    options = {"dest_queue": "deleted.to", "reconnect_delay": 0.2, **pair.outward}
    pair.put("deleted", src_queue="g", **options)
    pair.local.wait("deleted", lambda row: row["state"] == "up")
    pair.far.queue_delete("deleted.to")
    bodies = [b"%d" % number for number in range(50)]
    for body in bodies:
        pair.near.basic_publish("", "g", body)
    pair.local.wait("deleted", lambda row: row["sent"] == len(bodies) and row["reconnects"] == 1)
    assert [body for _, body, _ in take(pair.far, "deleted.to", len(bodies))] == bodies


def test_a_rate_limits_the_messages_of_a_second(pair: TrellisPair) -> None:
    pair.near.queue_declare("r")
    for _ in range(100):
        pair.near.basic_publish("", "r", b"r")
    pair.shovel("rate", src_queue="r", dest_queue="rate.to", rate=20, **pair.outward)
    row = pair.local.wait("rate", lambda row: row["sent"] > 0)
    assert row["in_flight"] > 0, "most messages wait in the source queue"
    pair.local.request("DELETE", "parameters/shovel/%2F/rate")
    pair.wait_gone("rate")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"src_queue": "a"}, "'src-uri' must be an AMQP URI"),
        ({"src_uri": "amqp://"}, "exactly one of 'src-queue' and 'src-exchange'"),
        ({"src_uri": "http://u:secret@x", "src_queue": "a"}, "'src-uri': must be"),
        (
            {"src_uri": "amqp://", "src_queue": "a", "src-queu": 1},
            "'src-queu'; the nearest is src-queue",
        ),
        ({"src_uri": "amqp://", "src_queue": "a", "src_protocol": "amqp10"}, "amqp091"),
        ({"src_uri": "amqp://", "src_queue": "a", "rate": -1}, "1e12 messages per second"),
        (
            {"src_uri": "amqp://", "src_exchange": "a", "src_delete_after": "queue-length"},
            "'src-delete-after' can be queue-length only with 'src-queue'",
        ),
        *(
            ({"src_uri": "amqp://", "src_queue": "a", "dest_publish_properties": given}, reason)
            for given, reason in (
                ({"colour": "red"}, "the property 'colour' is unknown"),
                ({"priority": "high"}, "the property 'priority' must be a whole number"),
                ({"priority": True}, "must be a whole number from 0 to 255"),
                ({"delivery_mode": 3}, "must be a whole number from 0 to 2"),
                ({"app_id": 7}, "the property 'app_id' must be a text"),
                ({"app_id": "é" * 128}, "must be a text of at most 255 bytes"),
                ({"headers": []}, "the property 'headers' must be a JSON object"),
                ({"headers": {"n": 1 << 64}}, "the property 'headers' cannot be encoded"),
                ({"headers": {"n" * 256: 1}}, "has more than 255 bytes"),
                ({"headers": {"n": "x" * 40_000}}, "must have at most 32768 bytes, not 40"),
            )
        ),
    ],
)
def test_an_invalid_shovel_is_refused(pair: TrellisPair, value: Any, reason: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        pair.put("bad", **{"dest_uri": "amqp://", "dest_queue": "x", **value})
    text = refused.value.read().decode()
    assert refused.value.code == 400
    assert reason in text
    assert "secret" not in text


def test_only_administrators_set_shovels_that_act_as_the_user_of_the_settings(
    pair: TrellisPair,
) -> None:
    """Check which shovels a user with the tag policymaker may set.

    The shovel's URI of the local broker must contain a user and a password. Without them, only an
    administrator may set the shovel, which would act as the user that the settings name.
    """
    every = dict.fromkeys(("configure", "write", "read"), ".*")
    pair.local.request("PUT", "users/maker", {"password": "pw", "tags": "policymaker"})
    pair.local.request("PUT", "permissions/%2F/maker", every)

    def put(component: str, value: dict[str, str]) -> None:
        path = f"parameters/{component}/%2F/rights"
        pair.local.request("PUT", path, {"value": value}, "maker:pw")

    ends = {"src-queue": "rights", "dest-queue": "rights.to"}
    for source, target in (("amqp://", pair.remote_uri), (pair.remote_uri, "amqp:///%2F")):
        with pytest.raises(urllib.error.HTTPError) as refused:
            put("shovel", {**ends, "src-uri": source, "dest-uri": target})
        assert refused.value.code == 403
        reason = refused.value.read().decode()
        assert "lacks the tag 'administrator'" in reason and "USER:PASSWORD@/VHOST" in reason
    with pytest.raises(urllib.error.HTTPError) as refused:
        put("federation-upstream", {"uri": pair.remote_uri})
    assert refused.value.code == 403
    for uri in (pair.remote_uri, pair.local.amqp_url_of("guest", "guest")):
        with pytest.raises(urllib.error.HTTPError) as refused:
            put("shovel", {**ends, "src-uri": "amqp://maker:pw@", "dest-uri": uri})
        assert refused.value.code == 403
        answer = refused.value.read().decode()
        assert "who may log in only from the machine of this broker" in answer
    add_users(pair.remote)
    remote_uri = pair.remote_uri.replace("guest:guest", "ann:ann")
    put("shovel", {**ends, "src-uri": "amqp://maker:pw@", "dest-uri": remote_uri})
    pair.local.wait_up("rights")
    pair.local.request("DELETE", "parameters/shovel/%2F/rights", login="maker:pw")
    pair.wait_gone("rights")


@pytest.mark.parametrize("sets_key", [False, True])
def test_headers_that_instruct_the_broker_are_not_carried_out_again(
    pair: TrellisPair, sets_key: bool
) -> None:
    """Publish to a fanout exchange, which ignores CC, and shovel within one virtual host.

    The shovel removes the sequence number, with which the broker would drop the copy as a repeat.
    A shovel that sets the routing key also removes CC, which would bring the copy to a queue that
    the shovel does not name. A shovel that keeps the message's routing key keeps CC.
    """
    name = f"instructed.{sets_key}"
    victim, entry, exit_ = f"{name}.victim", f"{name}.in", f"{name}.out"
    for queue in (name, f"{name}.to", victim):
        pair.near.queue_declare(queue, durable=True)
    pair.near.exchange_declare(entry, "fanout", durable=True)
    pair.near.exchange_declare(exit_, "direct", durable=True)
    pair.near.queue_bind(name, entry)
    pair.near.queue_bind(f"{name}.to", exit_, f"{name}.to")
    pair.near.queue_bind(victim, exit_, victim)
    headers = {"CC": [victim], "x-trellis-producer": name, "x-trellis-sequence": 1, "own": 7}
    pair.near.basic_publish(entry, f"{name}.to", b"1", pika.BasicProperties(headers=headers))
    target = {"dest_queue": f"{name}.to"} if sets_key else {"dest_exchange": exit_}
    pair.put(name, src_uri="amqp://", src_queue=name, dest_uri="amqp://", **target)
    [(_, body, got)] = take(pair.near, f"{name}.to", 1)
    left = {"own": 7} if sets_key else {"own": 7, "CC": [victim]}
    assert (body, got.headers) == (b"1", left)
    declared = pair.near.queue_declare(victim, passive=True)
    assert declared.method.message_count == (0 if sets_key else 1)
    pair.local.request("DELETE", f"parameters/shovel/%2F/{name}")
    pair.wait_gone(name)


def test_a_user_property_of_mqtt_that_is_named_cc_blocks_no_shovel(pair: TrellisPair) -> None:
    """Check that a shovel removes the user properties CC and BCC of an MQTT message.

    In AMQP, they are headers that are no lists. With them, the destination's broker would refuse
    the message with 406, and the message would return to its queue.
    """
    pair.near.queue_declare("texts", durable=True)
    pair.near.queue_bind("texts", "amq.topic", "texts.#")
    pair.near.exchange_declare("texts.out", "topic", durable=True)
    pair.near.queue_declare("texts.to", durable=True)
    pair.near.queue_bind("texts.to", "texts.out", "#")
    publisher = Recorder(pair.local.addresses["mqtt"][1], "texts")
    for number in (1, 2):
        named = [("CC", "x"), ("BCC", "y"), ("own", "z")]
        publisher.publish(f"texts/{number}", b"%d" % number, UserProperty=named)
    publisher.close()
    pair.shovel(
        "texts", src_uri="amqp://", src_queue="texts", dest_uri="amqp://", dest_exchange="texts.out"
    )
    got = take(pair.near, "texts.to", 2)
    assert [(key, body) for key, body, _ in got] == [("texts.1", b"1"), ("texts.2", b"2")]
    assert not got[0][2].headers.keys() & {"CC", "BCC"} and got[0][2].headers["own"] == "z"
    pair.local.request("DELETE", "parameters/shovel/%2F/texts")
    pair.wait_gone("texts")


def test_a_message_with_too_large_headers_is_refused_and_the_next_one_is_moved(
    tmp_path: Path, pair: TrellisPair
) -> None:
    """Check that a message whose headers are too large for a frame of the destination is refused.

    The destination accepts frames of at most 4096 bytes. The shovel must stay connected, and move
    the next message.
    """
    small = BridgingBroker(tmp_path / "small", "[amqp]\nframe_max = 4096\n")
    pair.near.queue_declare("n")
    large = pika.BasicProperties(headers={"large": "x" * 5_000})
    pair.near.basic_publish("", "n", b"1", large)
    pair.near.basic_publish("", "n", b"2" * 10_000)
    pair.shovel(
        "small", src_uri="amqp://", src_queue="n", dest_uri=small.amqp_url, dest_queue="small.to"
    )
    client = channel(small)
    assert [body for _, body, _ in take(client, "small.to", 1)] == [b"2" * 10_000]
    row = pair.local.wait("small", lambda row: row["sent"] == 1)
    assert (row["refused"], row["reconnects"], row["in_flight"]) == (1, 0, 0)
    assert "accepts frames of 4096 bytes at most" in row["refusal"]
    pair.local.request("DELETE", "parameters/shovel/%2F/small")
    pair.wait_gone("small")
    client.connection.close()
    small.stop()


def test_a_shovel_that_is_deleted_while_it_connects_disconnects(
    pair: TrellisPair,
) -> None:
    """Delete a shovel before its destination answers; the connection must then be closed."""
    with socket.create_server(("127.0.0.1", 0)) as slow:
        slow.settimeout(PATIENCE)
        uri = f"amqp://127.0.0.1:{slow.getsockname()[1]}"
        pair.put("slow", src_uri="amqp://", src_queue="a", dest_uri=uri, dest_queue="x")
        shovel, _ = slow.accept()
        with shovel, socket.create_connection(pair.remote.amqp) as broker:
            pair.local.request("DELETE", "parameters/shovel/%2F/slow")
            # When the next shovel runs, the worker has stopped the deleted one.
            pair.shovel(
                "next", src_uri="amqp://", src_queue="a", dest_uri="amqp://", dest_queue="b"
            )
            assert b"shovel slow" in relayed(shovel, broker)
    pair.local.request("DELETE", "parameters/shovel/%2F/next")
    pair.wait_gone("next")


def relayed(one: socket.socket, other: socket.socket) -> bytes:
    """Pass the bytes of two sockets to each other until `one` is closed; return the bytes that came
    from `one`.
    """
    sent = b""
    while True:
        ready, _, _ = select.select((one, other), (), (), PATIENCE)
        assert ready, "the connection stays open, and nothing is sent"
        for place, target in ((one, other), (other, one)):
            if place in ready:
                data = place.recv(1 << 16)
                if place is one:
                    sent += data
                    if not data:
                        return sent
                target.sendall(data)


def test_a_login_that_is_refused_is_shown(pair: TrellisPair) -> None:
    wrong = pair.remote_uri.replace("guest:guest", "guest:wrong")
    pair.put("login", src_uri=wrong, src_queue="a", dest_uri="amqp://", dest_queue="login.to")
    row = pair.local.wait("login", lambda row: row["error"] not in ("", "not connected yet"))
    assert row["state"] == "connecting"
    assert "wrong" not in str(row)
    [shown] = [row for row in pair.local.request("GET", "shovels/%2F") if row["name"] == "login"]
    assert shown["state"] == "starting"
    assert shown["src_queue"] == "a"
    assert "guest" not in str(shown["src_uri"])
    pair.local.request("DELETE", "parameters/shovel/%2F/login")
    pair.wait_gone("login")


def add_users(broker: BridgingBroker) -> None:
    """Add the users ann and eve, with all permissions in the virtual host /.

    eve has the tag impersonator.
    """
    for name, tags in (("ann", ""), ("eve", "impersonator")):
        broker.request("PUT", f"users/{name}", {"password": name, "tags": tags})
        rights = dict.fromkeys(("configure", "write", "read"), ".*")
        broker.request("PUT", f"permissions/%2F/{name}", rights)


def test_a_user_id_that_the_destination_refuses_is_removed(pair: TrellisPair) -> None:
    add_users(pair.local)
    add_users(pair.remote)
    ann = channel(pair.local, "ann", "ann")
    properties = pika.BasicProperties(user_id="ann", app_id="pump", headers={"n": 1})
    for name in ("refused", "accepted", "fixed"):
        ann.queue_declare(f"{name}.from", durable=True)
        pair.far.queue_declare(f"{name}.to", durable=True)
        ann.basic_publish("", f"{name}.from", b"1", properties)
    uris = dict.fromkeys(("refused", "fixed"), pair.remote_uri)
    uris["accepted"] = pair.remote_uri.replace("guest:guest", "eve:eve")
    for name, uri in uris.items():
        more: Any = {"dest_publish_properties": {"user_id": "bob"}} if name == "fixed" else {}
        pair.put(
            name,
            src_uri="amqp://",
            src_queue=f"{name}.from",
            dest_uri=uri,
            dest_queue=f"{name}.to",
            reconnect_delay=0.1,
            **more,
        )
    # The destination of `fixed` refuses the `user_id` that its definition sets.
    row = pair.local.wait("fixed", lambda row: "user_id property set to 'bob'" in row["error"])
    assert row["refusal"] == ""
    pair.local.request("DELETE", "parameters/shovel/%2F/fixed")
    for name, user in (("refused", None), ("accepted", "ann")):
        [(_, body, got)] = take(pair.far, f"{name}.to", 1)
        assert (body, got.user_id, got.app_id, got.headers) == (b"1", user, "pump", {"n": 1})
    row = pair.local.wait("refused", lambda row: row["state"] == "up" and row["sent"] == 1)
    assert row["refusal"].startswith("406 PRECONDITION_FAILED - user_id property set to 'ann' but ")
    assert "; the shovel removes user_id from its messages, because" in row["refusal"]
    # The next message of this shovel is copied on the same connection.
    ann.basic_publish("", "refused.from", b"2", properties)
    [(_, body, got)] = take(pair.far, "refused.to", 1)
    assert (body, got.user_id) == (b"2", None)
    row = pair.local.wait("refused", lambda row: row["sent"] == 2)
    assert row["reconnects"] == 1
    for name in ("refused", "accepted"):
        pair.local.request("DELETE", f"parameters/shovel/%2F/{name}")
        pair.wait_gone(name)
    ann.connection.close()


def test_an_imported_shovel_that_is_invalid_is_listed_with_the_reason(pair: TrellisPair) -> None:
    row = {"component": "shovel", "vhost": "/", "name": "odd", "value": {"src-uri": 7}}
    pair.local.request("POST", "definitions", {"parameters": [row]})
    state = pair.local.wait("odd", lambda row: row["state"] == "invalid")
    assert "src-queue" in state["error"]
    assert "bridge_down kind=shovel vhost=/ name=odd" in pair.local.log
    pair.local.request("DELETE", "parameters/shovel/%2F/odd")
    pair.wait_gone("odd")
